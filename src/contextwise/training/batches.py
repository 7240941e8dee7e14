"""Collate examples to batches; sentences are cut to the longest of their batch.

``length`` () is the number of positions of a padded example without padding; ``counted`` () is the number of targets of an
example whose targets are not its labels.
"""

from typing import Any

import torch

from contextwise.data.windows import stack
from contextwise.objectives import NO_LOSS


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack examples; columns that are padding in all of them are removed."""
    batch = stack(items)
    if "length" in batch:
        longest = int(batch["length"].max())
        batch |= {name: batch[name][:, :longest] for name in ("input_ids", "labels")}
    return batch


def targets_in(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Number of targets in the loss of a batch, ()."""
    return batch["counted"].sum() if "counted" in batch else batch["labels"].ne(NO_LOSS).sum()


def tokens_read(batch: dict[str, torch.Tensor], encoder_decoder: bool) -> torch.Tensor:
    """Number of input tokens of a batch without padding; an encoder-decoder's targets are inputs of its decoder."""
    ids, labels = batch["input_ids"], batch["labels"]
    if "length" in batch:
        return batch["length"].sum()
    read = batch["attention_mask"].sum() if "attention_mask" in batch else torch.ones_like(ids).sum()
    return read + labels.ne(NO_LOSS).sum() if encoder_decoder else read
