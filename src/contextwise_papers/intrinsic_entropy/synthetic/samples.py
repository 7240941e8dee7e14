"""Samples of the parity task, generated when they are read: sample i depends only on (seed, split, i).

All randomness comes from one SplitMix64 stream (Steele, Lea and Flood 2014, Figure 16) for each seed and split, whose n-th
word is a function of n. Sample i uses the words ``i * words`` to ``(i + 1) * words - 1``: its task, its mask, its bits.

An example for a model is a dictionary of int64 tensors like a decoder's (:mod:`contextwise.objectives.objective`), but
with a single label: ``input_ids`` (context + 1,), the bits in their order, the nearest first, then the task's token; ``labels``
(1,), the answer, 0 or 1; ``window`` (), the number of the sample.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from contextwise.objectives import Stream
from contextwise_papers.intrinsic_entropy.synthetic.parity import FIRST_TASK, MASK, ParityData

Split = Literal["train", "validation"]


class Drawn(NamedTuple):
    """N drawn samples."""

    bits: np.ndarray  # (N, bits) uint8, 0 or 1, before masking
    tasks: np.ndarray  # (N,) int64
    visible: np.ndarray  # (N,) int64, number of nearest bits that are visible


class Samples:
    """Samples of a split, indexed by number; a pickled copy draws the same samples.

    Training samples are masked according to the settings, samples of ``validation`` never. The attributes ``path`` and
    ``splits`` are as for a corpus; no file exists at ``path``.
    """

    splits = ("train", "validation")

    def __init__(self, data: ParityData, seed: int, split: Split = "train") -> None:
        self.data, self.seed, self.split = data, seed, split
        self.parity = data.parity()
        self.context = data.context or data.bits
        self.path = Path(f"parity-{data.bits}-bits-{data.tasks}-tasks")
        self.words = 2 + -(-data.bits // 64)
        sequence = np.random.SeedSequence([seed, self.splits.index(split), 0x5A3])
        self._start = sequence.generate_state(1, np.uint64)[0]

    def draw(self, numbers: np.ndarray) -> Drawn:
        """Draw the samples with these numbers, (N,)."""
        first = np.asarray(numbers, np.uint64)[:, None] * np.uint64(self.words)
        words = _splitmix64(self._start, first, self.words)
        tasks = np.searchsorted(self.parity.cumulative, (words[:, 0] >> np.uint64(11)) * 2.0**-53, "right")
        bits = np.unpackbits(words[:, 2:].astype("<u8").view(np.uint8), axis=1, bitorder="little")
        visible = np.full(len(words), self.context)
        if self.split == "train" and self.data.masked:
            low, high = words[:, 1] & np.uint64(0xFFFFFFFF), words[:, 1] >> np.uint64(32)
            choices = self.context - self.data.shortest + 1
            drawn = self.data.shortest + (high * np.uint64(choices) >> np.uint64(32)).astype(np.int64)
            visible = np.where(low < self.data.masked * 2.0**32, drawn, visible)
        return Drawn(bits[:, : self.data.bits], tasks, visible)

    def batch(self, numbers: np.ndarray, visible: int | None = None) -> dict[str, torch.Tensor]:
        """Build a batch of the examples with these numbers, with the nearest ``visible`` bits if given, up to the context."""
        drawn = self.draw(numbers)
        if visible is not None:
            drawn = drawn._replace(visible=np.full(len(drawn.tasks), visible))
        rows, context = np.arange(len(drawn.tasks)), self.context
        larger, smaller = (
            drawn.bits[rows, bit[drawn.tasks] - 1].astype(np.int64) for bit in (self.parity.larger, self.parity.smaller)
        )
        is_visible = np.arange(context) < drawn.visible[:, None]
        inputs = np.empty((len(rows), context + 1), dtype=np.int64)
        inputs[:, :context] = np.where(is_visible, drawn.bits[:, :context], MASK)
        inputs[:, context] = FIRST_TASK + drawn.tasks
        return {
            "input_ids": torch.from_numpy(inputs),
            "labels": torch.from_numpy(larger ^ smaller)[:, None],
            "window": torch.from_numpy(np.asarray(numbers, dtype=np.int64)),
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256, hexadecimal, of the settings that determine the samples: not how many of them an epoch has."""
        settings = self.data.model_dump(mode="json", exclude={"samples", "validation_samples"})
        identity = json.dumps([settings, self.seed, self.split], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()

    def verify(self) -> None:
        """Do nothing: generated samples have no files to verify."""


class ParityStream(Stream):
    """The ``length`` examples of a run in training order.

    An epoch of ``epoch`` samples is shuffled from (seed, epoch's number); with None, item i is sample i.
    """

    def __init__(self, samples: Samples, length: int, epoch: int | None) -> None:
        self.samples, self.length, self.epoch = samples, length, epoch
        self._shuffled, self._order = -1, np.empty(0, dtype=np.int64)

    def item(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        """Return several items at once, for torch's loaders: drawing many samples costs little more than drawing one."""
        batch = self.samples.batch(self.numbers(np.asarray(indices, dtype=np.int64)))
        columns = [value.unbind(0) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """Map indices to sample numbers."""
        if self.epoch is None:
            return indices
        numbers = np.empty_like(indices)
        epochs, positions = np.divmod(indices, self.epoch)
        for epoch in np.unique(epochs):
            if epoch != self._shuffled:
                shuffle = np.random.Generator(np.random.PCG64([self.samples.seed, int(epoch)]))
                self._shuffled, self._order = int(epoch), shuffle.permutation(self.epoch)
            selected = epochs == epoch
            numbers[selected] = self._order[positions[selected]]
        return numbers


def _splitmix64(start: np.uint64, first: np.ndarray, count: int) -> np.ndarray:
    """Generate words ``first`` to ``first + count - 1`` of the stream with state ``start``: (N, 1) to (N, count), uint64."""
    with np.errstate(over="ignore"):  # it counts modulo 2**64
        state = first + np.arange(1, count + 1, dtype=np.uint64)
        state *= np.uint64(0x9E3779B97F4A7C15)
        state += start
        state ^= state >> np.uint64(30)
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(27)
        state *= np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
