"""Batches of examples: all tensors stacked, and sentences cut to the longest of their batch.

``length`` () of a padded example is its number of positions without padding; ``counted`` () is the number of targets of an
example whose targets are not its labels.
"""

from typing import Any

import torch

from contextwise.data.windows import stack
from contextwise.objectives import NO_LOSS


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack examples; padding that all of them have is cut off."""
    batch = stack(items)
    if "length" in batch:
        longest = int(batch["length"].max())
        batch |= {name: batch[name][:, :longest] for name in ("input_ids", "labels")}
    return batch


def targets_in(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """How many targets count in the loss of a batch, ()."""
    return batch["counted"].sum() if "counted" in batch else batch["labels"].ne(NO_LOSS).sum()


def tokens_read(batch: dict[str, torch.Tensor], behind_encoder: bool) -> torch.Tensor:
    """Tokens that the model reads in a batch, padding left out; a decoder behind an encoder reads its targets."""
    ids, labels = batch["input_ids"], batch["labels"]
    if "length" in batch:
        return batch["length"].sum()
    read = batch["attention_mask"].sum() if "attention_mask" in batch else torch.ones_like(ids).sum()
    return read + labels.ne(NO_LOSS).sum() if behind_encoder else read
