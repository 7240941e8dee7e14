"""Batches: which examples of a step a process reads, how they are stacked as micro-batches, and what is counted in them.

Legend: B examples, T positions.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from contextwise.objectives import NO_LOSS

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe

NOT_FOR_MODELS = ("window", "objective", "corpus", "length", "counted", "read")
"""Fields of examples that the trainer uses and does not pass to the model: ``length`` () is the number of positions of a
padded example without padding; ``counted`` () the number of targets of an example whose targets are not its labels."""


DEFAULT_MICRO_BATCH_TOKENS = {"cpu": 8192, "cuda": 32768}


def tokens_per_pass(recipe: "Recipe", device_type: str) -> int:
    """Tokens of a forward pass of one process, at most."""
    if (given := recipe.training.micro_batch_tokens) is not None:
        return given
    if recipe.objective.whole_steps or recipe.data.one_pass:
        return recipe.tokens_per_step
    return DEFAULT_MICRO_BATCH_TOKENS.get(device_type, 8192)


@dataclass(frozen=True)
class StepIndices:
    """The examples of one process in each step, as lists of indices: a batch sampler for a data loader.

    The micro-batches of all processes take turns, so that processes get examples of like lengths where a step is sorted.
    """

    steps: int
    examples: int  # in each step, over all processes
    rank: int
    processes: int
    limit: int  # maximum number of examples in a micro-batch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        micro = micro_batch_size(self.examples // self.processes, self.limit)
        for first in range(0, self.steps * self.examples, self.examples):
            starts = range(first + self.rank * micro, first + self.examples, self.processes * micro)
            yield [index for start in starts for index in range(start, start + micro)]


def micro_batch_size(examples: int, limit: int) -> int:
    """The largest divisor of ``examples`` up to ``limit``."""
    return max(size for size in range(1, min(examples, limit) + 1) if examples % size == 0)


def end_with_parent(_: int) -> None:
    """Let a process that loads examples end on SIGTERM from its parent alone: the parent saves after one to all processes."""
    if sys.platform != "linux":
        return

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack examples; of sentences, remove the columns that are padding in all of them."""
    batch = default_collate(items)
    if "length" in batch:
        longest = int(batch["length"].max())
        batch |= {name: batch[name][:, :longest] for name in ("input_ids", "labels")}
    labels = batch["labels"].flatten()
    if batch["labels"].dim() == 2 and not (is_label := labels.ne(NO_LOSS)).all():
        batch["labelled"] = is_label.nonzero()[:, 0]  # found here, since on an accelerator it would wait for the device
    return batch


def collate_step(items: list[dict[str, Any]], limit: int) -> list[dict[str, torch.Tensor]]:
    """Stack the examples of a step as micro-batches of up to ``limit`` examples."""
    size = micro_batch_size(len(items), limit)
    return [collate(items[start : start + size]) for start in range(0, len(items), size)]


def divided(batch: dict[str, torch.Tensor], context: int) -> dict[str, torch.Tensor]:
    """Windows of (B, T) tokens as (B * T / context, context); the positions of a document that is cut start again at 0."""
    parts = batch["input_ids"].shape[1] // context
    if parts <= 1:
        return batch
    result = {name: value.reshape(-1, context) if value.dim() == 2 else value for name, value in batch.items()}
    result |= {name: batch[name].repeat_interleave(parts) for name in ("window", "corpus") if name in batch}
    if "position_ids" in batch:
        positions = result["position_ids"]
        of_first = positions.eq(0).cumsum(dim=1).eq(0)
        result["position_ids"] = positions - positions[:, :1] * of_first
    return result


def pairs_in(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Number of rows with a pair's label in the loss of a batch, ()."""
    return batch["pair_label"].ne(NO_LOSS).sum() if "pair_label" in batch else batch["labels"].new_zeros(())


def tokens_read(batch: dict[str, torch.Tensor], encoder_decoder: bool) -> torch.Tensor:
    """Number of input tokens of a batch without padding, (); an encoder-decoder's targets are inputs of its decoder."""
    ids, labels = batch["input_ids"], batch["labels"]
    for known in ("length", "read"):
        if known in batch:
            return batch[known].sum()
    read = batch["attention_mask"].sum() if "attention_mask" in batch else torch.ones_like(ids).sum()
    return read + labels.ne(NO_LOSS).sum() if encoder_decoder else read
