"""The parts of the context pathway with several forms: pooling, and injection into the hidden states.

Poolings map the w token vectors of a chunk to its context vector, (..., w, D) -> (..., D) (ContextLM, Table 13). The paper
names four forms and prints the loss of each (they differ by 0.005 nats at most), but not their equations; each class
implements the usual meaning of the name, as its docstring describes. The mean, the default, has no parameters.

Injections merge h with contexts (..., D) before one of n layers (ContextLM, Section 2.2.3, Eq. 5). Gates start
at zero, so that the model starts identical to its backbone, except in forms with a norm on h. The paper prints plain addition;
small models stall with it, because a context accumulates the gradient of w tokens, grows first, and dominates the token in
the next norm. Norms of both summands give them one scale.
"""

from collections.abc import Callable
from typing import NamedTuple

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


Norm = Callable[[Tensor], Tensor]


class Injection(nn.Module):
    """How a context is merged with h before one of the n layers: ``state(h) + forward(context)``.

    ``norm`` is the backbone's final norm, for the form that shares it.
    """

    def __init__(self, layers: int, width: int, new_norm: Callable[[], nn.Module]) -> None:
        super().__init__()

    def state(self, h: Tensor, layer: int, norm: Norm) -> Tensor:
        """What the term is added to: h itself, or h behind a norm."""
        return h

    def forward(self, context: Tensor, layer: int, norm: Norm) -> Tensor:
        """The term: the context itself, scaled or behind a norm."""
        return context


class PlainAddition(Injection):
    """``h + c``: the paper's element-wise addition, as printed."""


class Gate(Injection):
    """``h + g * c``: one learned factor per channel, zero-initialized. (n, D) parameters."""

    def __init__(self, layers: int, width: int, new_norm: Callable[[], nn.Module]) -> None:
        super().__init__(layers, width, new_norm)
        self.weight = nn.Parameter(torch.zeros(layers, width))

    def forward(self, context: Tensor, layer: int, norm: Norm) -> Tensor:
        return context * self.weight[layer]


class NormedGate(Gate):
    """``n(h) + g * c``: a gate, zero-initialized, behind a norm of h; one norm per injected layer."""

    def __init__(self, layers: int, width: int, new_norm: Callable[[], nn.Module]) -> None:
        super().__init__(layers, width, new_norm)
        self.state_norms = nn.ModuleList(new_norm() for _ in range(layers))

    def state(self, h: Tensor, layer: int, norm: Norm) -> Tensor:
        return self.state_norms[layer](h)


class OwnNorms(Injection):
    """``n(h) + m(c)``: a norm for each summand and each injected layer."""

    def __init__(self, layers: int, width: int, new_norm: Callable[[], nn.Module]) -> None:
        super().__init__(layers, width, new_norm)
        self.state_norms = nn.ModuleList(new_norm() for _ in range(layers))
        self.context_norms = nn.ModuleList(new_norm() for _ in range(layers))

    def state(self, h: Tensor, layer: int, norm: Norm) -> Tensor:
        return self.state_norms[layer](h)

    def forward(self, context: Tensor, layer: int, norm: Norm) -> Tensor:
        return self.context_norms[layer](context)


class SharedNorm(Injection):
    """``n(h) + n(c)`` with n the backbone's final norm, which is applied before the vocabulary head too. No parameters."""

    def state(self, h: Tensor, layer: int, norm: Norm) -> Tensor:
        return norm(h)

    def forward(self, context: Tensor, layer: int, norm: Norm) -> Tensor:
        return norm(context)


POOLINGS: dict[str, type[nn.Module]] = {
    "mean": MeanPooling,
    "mlp": MLPPooling,
    "attention": AttentionPooling,
    "latent_attention": LatentAttentionPooling,
}
INJECTIONS: dict[str, type[Injection]] = {
    "gate": Gate,
    "add": PlainAddition,
    "normed_gate": NormedGate,
    "own_norms": OwnNorms,
    "shared_norm": SharedNorm,
}


class PaperForm(NamedTuple):
    """How the code of the paper's authors merges contexts in one family of backbones."""

    injection: str
    predictor_norm: bool


PAPER_FORMS: dict[str, PaperForm] = {
    "gpt2": PaperForm("shared_norm", predictor_norm=False),
    "gpt_neox": PaperForm("add", predictor_norm=True),
    "llama": PaperForm("add", predictor_norm=False),
}
"""The form ``paper``: that of the code of ConceptLM, which the authors of ContextLM published, by the backbone's model type.

ContextLM's paper prints ``h + c`` and no norm. All three start with a context of zeros, where the paper says h_0. Further
families have that of Llama, whose blocks theirs resemble.
"""
