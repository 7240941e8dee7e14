"""The losses of the pretraining objectives, per kind of model; the vocabulary head runs only on positions with targets.

A batch is a dictionary of tensors, described in :mod:`contextwise.objectives.objective`. Losses are sums with counts, so
that a step of several batches, on several processes, computes the mean over all targets.

Shapes: B rows, T positions, U target positions of an encoder-decoder's decoder, D channels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask

from contextwise.base.errors import ConfigError
from contextwise.models.losses import IGNORED, linear_cross_entropy

Batch = dict[str, torch.Tensor]


@dataclass
class Losses:
    """The losses of a batch by part. The first part is the token loss; training minimizes the sum of all parts.

    Attributes:
        names: ``("tokens",)``; with a pair head ``("tokens", "pair")``; with n heads ``("tokens", "head_2", ..., "head_n")``;
            ``("sentences",)`` for a model that reconstructs whole sentences.
        sums: nats, (P,), differentiable.
        counts: number of targets of each part, (P,).
    """

    names: tuple[str, ...]
    sums: torch.Tensor
    counts: torch.Tensor

    def minimised(self, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of all parts: token losses (of every head) divided by ``targets``, the pair loss by the pairs.

        Args:
            targets: the divisor, for a batch that is a part of a larger step; by default the batch's own targets.
        """
        targets = self.counts[0] if targets is None else targets
        # Every head's sum is divided by the number of next-token targets (objectives, Section 6.2.6).
        divisors = [self.counts[i] if name == "pair" else targets for i, name in enumerate(self.names)]
        return sum(part / divisor.clamp(min=1e-6) for part, divisor in zip(self.sums, divisors, strict=True))  # type: ignore[return-value]


def labelled_losses(
    hidden: torch.Tensor, labels: torch.Tensor, head: Any, transform: Any = None, *, dense: bool = False
) -> Losses:
    """Compute the loss of labels (B, T) given hidden states (B, T, D); labels of -100 are ignored.

    Args:
        head: the vocabulary head, a linear layer with or without bias.
        transform: a layer before the head.
        dense: score all positions. Otherwise the head, the larger part of a small model's computation, is applied only to
            positions with a label.
    """
    if not dense:
        kept = labels.ne(IGNORED)
        hidden, labels = hidden[kept], labels[kept]
    if transform is not None:
        hidden = transform(hidden)
    if head.bias is None:
        total = linear_cross_entropy(hidden, head.weight, labels)
    else:
        total = nn.functional.cross_entropy(
            head(hidden).flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
    return Losses(("tokens",), total[None], labels.ne(IGNORED).sum()[None])


def prefix_attention(prefix_BT: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
    """The attention mask of a prefix LM (objectives, Section 6.2.4): causal, and bidirectional within the prefix.

    Args:
        prefix_BT: True at the positions of the prefix.
        position_ids: (B, T), for packed documents, which do not see each other.

    Returns:
        (B, 1, T, T) booleans: queries, then keys.
    """
    length = prefix_BT.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=prefix_BT.device).tril()
    allowed = causal_TT | (prefix_BT[:, :, None] & prefix_BT[:, None, :])
    if position_ids is not None:
        allowed = allowed & same_document(position_ids)
    return allowed[:, None]


def same_document(position_ids: torch.Tensor) -> torch.Tensor:
    """Mask of the pairs of positions in the same document, (B, T, T); documents begin at position 0."""
    document = position_ids.eq(0).cumsum(1)
    return document[:, :, None] == document[:, None, :]


def as_attention_mask(allowed: torch.Tensor, model: Any) -> Any:
    """Convert booleans (B, 1, T, T), True: may attend, to the mask of the model's attention implementation.

    Raises:
        ConfigError: the implementation does not support such masks.
    """
    implementation = model.config._attn_implementation
    if implementation == "sdpa":
        return allowed
    if implementation == "eager":
        return torch.zeros_like(allowed, dtype=model.dtype).masked_fill(
            ~allowed, torch.finfo(model.dtype).min
        )
    if implementation == "flex_attention":
        rows, _, queries, keys = allowed.shape
        return create_block_mask(
            lambda row, _, query, key: allowed[row, 0, query, key],
            rows,
            None,
            queries,
            keys,
            str(allowed.device),
        )
    raise ConfigError(
        f"attention {implementation!r} supports no prefixes and no packed documents; use sdpa, flex_attention or eager"
    )
