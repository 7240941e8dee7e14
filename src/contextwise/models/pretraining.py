"""The losses of the pretraining objectives, for each kind of model; the vocabulary head only where there is a target.

A batch is a dictionary of tensors as :mod:`contextwise.objectives.objective` describes them. Losses come as sums with their
counts, so that a step of several batches, on several processes, has the mean over all of its targets.

Shapes: B rows, T positions, U target positions of a decoder behind an encoder, D channels.
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
    """The losses of a batch, part by part. The first part is that of the tokens; what is minimised is the sum of all.

    Attributes:
        names: ``("tokens",)``; with a pair head ``("tokens", "pair")``; with n heads ``("tokens", "head_2", ..., "head_n")``;
            ``("sentences",)`` where a sentence is rebuilt as a whole.
        sums: nats, (P,), differentiable.
        counts: targets of each part, (P,).
    """

    names: tuple[str, ...]
    sums: torch.Tensor
    counts: torch.Tensor

    def minimised(self, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of all parts, the tokens' (of every head) over ``targets``, that of the pairs over the pairs.

        Args:
            targets: what to divide by, for a batch that is a share of a larger step; the batch's own targets, if not given.
        """
        targets = self.counts[0] if targets is None else targets
        # Every head's sum is divided by the number of the next token's targets (objectives, Section 6.2.6).
        divisors = [self.counts[i] if name == "pair" else targets for i, name in enumerate(self.names)]
        return sum(part / divisor.clamp(min=1e-6) for part, divisor in zip(self.sums, divisors, strict=True))  # type: ignore[return-value]


def labelled_losses(
    hidden: torch.Tensor, labels: torch.Tensor, head: Any, transform: Any = None, *, dense: bool = False
) -> Losses:
    """The losses of labels (B, T) given hidden states (B, T, D); a label of -100 has none.

    Args:
        head: the vocabulary head, a matrix with or without bias.
        transform: a layer in front of the head.
        dense: score all positions. Otherwise the head, which is the larger part of a small model's work, is applied to the
            positions with a label only.
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
    """Which positions see which (objectives, Section 6.2.4): what stands before them, and within a prefix all of it.

    Args:
        prefix_BT: True at the positions of the prefix.
        position_ids: (B, T), where documents are packed and do not see each other.

    Returns:
        (B, 1, T, T) booleans, queries before keys.
    """
    length = prefix_BT.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=prefix_BT.device).tril()
    allowed = causal_TT | (prefix_BT[:, :, None] & prefix_BT[:, None, :])
    if position_ids is not None:
        allowed = allowed & same_document(position_ids)
    return allowed[:, None]


def same_document(position_ids: torch.Tensor) -> torch.Tensor:
    """(B, T, T): a document begins where positions begin again."""
    document = position_ids.eq(0).cumsum(1)
    return document[:, :, None] == document[:, None, :]


def as_attention_mask(allowed: torch.Tensor, model: Any) -> Any:
    """Booleans (B, 1, T, T), True: may see, as the model's attention takes them.

    Raises:
        ConfigError: it takes no masks of this form.
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
        f"attention {implementation!r} takes no prefixes and no packed documents; use sdpa, flex_attention or eager"
    )
