"""The parts of the context pathway with several forms: pooling, and injection into the hidden states.

Poolings map the w token vectors of a chunk to its context vector, (..., w, D) -> (..., D) (ContextLM, Table 13). The paper
names four forms and prints the loss of each (they differ by 0.005 nats at most), but not their equations; each class
implements the usual meaning of the name, as its docstring describes. The mean, the default, has no parameters.

Injections compute the term that is added to h (ContextLM, Section 2.2.3, Eq. 5) from contexts (..., D) and the index of
one of the n layers before which a context is injected. The gated forms and the projection are zero-initialized: the model
then starts identical to its backbone. Plain addition is the paper's form; small models stall with it, because a context
accumulates the gradient of w tokens, grows first, and dominates the token in the next norm.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class MeanPooling(nn.Module):
    """The mean of the chunk's token vectors. No parameters (ContextLM, Section 3.1)."""

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()

    def forward(self, h: Tensor) -> Tensor:
        return h.mean(dim=-2)


class MLPPooling(nn.Module):
    """A two-layer perceptron on the w concatenated vectors: w*D -> D -> D. It depends on the order of the tokens."""

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(chunk_size * width, width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return self.out(functional.gelu(self.inner(h.flatten(-2)), approximate="tanh"))


class AttentionPooling(nn.Module):
    """Self-attention among the tokens of the chunk, with a residual path, then the mean."""

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (_split(part, self.heads) for part in self.qkv(self.norm(h)).chunk(3, dim=-1))
        mixed = _merge(functional.scaled_dot_product_attention(q, k, v))
        return (h + self.out(mixed)).mean(dim=-2)


class LatentAttentionPooling(nn.Module):
    """Attention of the tokens to trained latent vectors, a feed-forward layer, then the mean.

    Attention with the tokens as queries and the latents as keys and values, as in NV-Embed (Lee et al. 2024, Section 3.1),
    with the residual paths of its Perceiver-like block.
    """

    LATENTS = 64

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.latents = nn.Embedding(self.LATENTS, width)
        self.norm = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        q = _split(self.q(self.norm(h)), self.heads)
        k, v = (_split(part, self.heads) for part in self.kv(self.latents.weight).chunk(2, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k.expand(*q.shape[:-3], -1, -1, -1), v)
        h = h + self.out(_merge(mixed))
        return (h + self.outer(functional.gelu(self.inner(h), approximate="tanh"))).mean(dim=-2)


def _split(x: Tensor, heads: int) -> Tensor:
    """(..., n, D) -> (..., heads, n, D / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(-2, -3).flatten(-2)


class Injection(nn.Module):
    """Base class of the injections with parameters; ``weight`` is initialized to ``initial``."""

    initial = 0.0

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, self.initial))


class Gate(Injection):
    """``g * c``: one learned factor per channel, zero-initialized. (n, D) parameters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width)

    def forward(self, context: Tensor, layer: int) -> Tensor:
        return context * self.weight[layer]


class ScalarGate(Gate):
    """``g * c`` with one factor for all channels, zero-initialized. (n, 1) parameters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, 1)


class NormGate(Gate):
    """``g * rms(c)``: a gate on the context scaled to root mean square 1."""

    def forward(self, context: Tensor, layer: int) -> Tensor:
        return functional.rms_norm(context, context.shape[-1:]) * self.weight[layer]


class NormAddition(NormGate):
    """``g * rms(c)`` with factors initialized to 0.02, the scale of a new embedding."""

    initial = 0.02


class Projection(Injection):
    """``W c`` with one matrix per injected layer, zero-initialized. (n, D, D) parameters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width, width)

    def forward(self, context: Tensor, layer: int) -> Tensor:
        return functional.linear(context, self.weight[layer])


class PlainAddition(nn.Module):
    """``c`` unchanged: the paper's element-wise addition."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()

    def forward(self, context: Tensor, layer: int) -> Tensor:
        return context


POOLINGS: dict[str, type[nn.Module]] = {
    "mean": MeanPooling,
    "mlp": MLPPooling,
    "attention": AttentionPooling,
    "latent_attention": LatentAttentionPooling,
}
INJECTIONS: dict[str, type[nn.Module]] = {
    "gate": Gate,
    "scalar_gate": ScalarGate,
    "norm_gate": NormGate,
    "projection": Projection,
    "add": PlainAddition,
    "norm_add": NormAddition,
}
