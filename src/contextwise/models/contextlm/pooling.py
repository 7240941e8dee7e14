"""Pool the w token vectors of a chunk into its context vector (ContextLM, Table 13).

The paper names four forms and prints the loss of each (they differ by 0.005 nats at most), but not their equations; each
class implements the usual meaning of the name, as its docstring describes. Mean pooling is the default, and the only form
without parameters.

Shapes: (..., w, D) -> (..., D).
"""

import torch
from torch import nn
from torch.nn import functional


class MeanPooling(nn.Module):
    """The mean of the chunk's token vectors. No parameters (ContextLM, Section 3.1)."""

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.mean(dim=-2)


class MLPPooling(nn.Module):
    """A two-layer perceptron on the w concatenated vectors: w*D -> D -> D. It depends on the order of the tokens."""

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(chunk_size * width, width)
        self.out = nn.Linear(width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.out(functional.gelu(self.inner(h.flatten(-2)), approximate="tanh"))


class AttentionPooling(nn.Module):
    """Self-attention among the tokens of the chunk, with a residual path, then the mean."""

    def __init__(self, chunk_size: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
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

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        q = _split(self.q(self.norm(h)), self.heads)
        k, v = (_split(part, self.heads) for part in self.kv(self.latents.weight).chunk(2, dim=-1))
        h = h + self.out(
            _merge(functional.scaled_dot_product_attention(q, k.expand(*q.shape[:-3], -1, -1, -1), v))
        )
        return (h + self.outer(functional.gelu(self.inner(h), approximate="tanh"))).mean(dim=-2)


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(..., n, D) -> (..., heads, n, D / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def _merge(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-2, -3).flatten(-2)


POOLINGS: dict[str, type[nn.Module]] = {
    "mean": MeanPooling,
    "mlp": MLPPooling,
    "attention": AttentionPooling,
    "latent_attention": LatentAttentionPooling,
}
