"""Samples of the parity task, generated when they are read or stored on disk: sample i depends only on (seed, split, i).

All randomness comes from one SplitMix64 stream (Steele, Lea and Flood 2014, Figure 16) for each seed and split, whose n-th
word is a function of n. Sample i uses the words ``i * words`` to ``(i + 1) * words - 1``: its task, its mask, its bits.
On disk (:func:`write_samples`) they are three memory-mapped NumPy files and a manifest: ``bits.npy`` (N, bits / 8) uint8, eight
bits a byte · ``tasks.npy`` (N,) and ``visible.npy`` (N,) uint16 · ``manifest.json`` with the settings they were drawn from,
written last. 10 million samples of 60 bits take 120 MB.

An example for a model is a dictionary of int64 tensors like a decoder's (:mod:`contextwise.objectives.objective`), but
with a single label: ``input_ids`` (context + 1,), the bits in their order, the nearest first, then the task's token; ``labels``
(1,), the answer, 0 or 1; ``window`` (), the number of the sample.
"""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_directory, read_sealed_json, write_sealed_json
from contextwise.base.hashes import sha256_file
from contextwise.base.progress import progress_bar
from contextwise_papers.intrinsic_entropy.synthetic.parity import FIRST_TASK, MASK, ParityData

Split = Literal["train", "validation"]
_MANIFEST = "manifest.json"
_FILES = ("bits.npy", "tasks.npy", "visible.npy")
_AT_ONCE = 1 << 17


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
            if not 0 <= visible <= self.context:
                raise ConfigError(
                    f"visible is {visible}, but the inputs have {self.context} bits; give 0 to {self.context}"
                )
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
        """SHA-256, hexadecimal, of the settings that determine the samples: not how many of them an epoch or a file has."""
        settings = self.data.model_dump(mode="json", exclude={"stored", "samples", "validation_samples"})
        identity = json.dumps([settings, self.seed, self.split], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()

    def verify(self) -> None:
        """Do nothing: generated samples have no files to verify."""


class ParityStream(Dataset):
    """Dataset of a run's ``length`` examples in training order.

    An epoch of ``epoch`` samples is shuffled from (seed, epoch's number); with None, item i is sample i.
    """

    def __init__(self, samples: Samples, length: int, epoch: int | None) -> None:
        self.samples, self.length, self.epoch = samples, length, epoch
        self._shuffled, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.length:
            raise IndexError(index)
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


def write_samples(samples: Samples, count: int, path: str | Path) -> "StoredSamples":
    """Write the first ``count`` samples (of at most 65,535 bits and tasks) to the folder ``path``, which must not exist."""
    path = Path(path)
    if path.exists():
        raise ConfigError(f"{path} exists already; choose another folder for the samples, or remove that one")
    if max(samples.data.tasks, samples.data.bits) > 65535:
        raise ConfigError("stored samples have at most 65,535 bits and tasks; leave data.synthetic.stored out for more")
    width = -(-samples.data.bits // 8)
    with atomic_directory(path, "the samples") as folder, progress_bar("draw", count, "samples") as advance:
        shapes = [((count, width), "|u1"), ((count,), "<u2"), ((count,), "<u2")]
        with ExitStack() as stack:  # written, not mapped: a full disk kills a process that writes to a map
            opened = [stack.enter_context((folder / name).open("xb")) for name in _FILES]
            for file, (shape, dtype) in zip(opened, shapes, strict=True):
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, count, _AT_ONCE):
                numbers = np.arange(start, min(start + _AT_ONCE, count))
                drawn = samples.draw(numbers)
                arrays = (np.packbits(drawn.bits, axis=1, bitorder="little"), drawn.tasks, drawn.visible)
                for file, array, (_, dtype) in zip(opened, arrays, shapes, strict=True):
                    file.write(np.ascontiguousarray(array, dtype).data)
                advance(len(numbers))
        manifest = {"format": 1, "samples": count, "fingerprint": samples.fingerprint}
        files = {name: sha256_file(folder / name) for name in _FILES}
        write_sealed_json(folder / _MANIFEST, {**manifest, "files": files}, "the manifest")
    return open_samples(samples, path)


def open_samples(samples: Samples, path: str | Path) -> "StoredSamples":
    """Open the samples that were written to ``path`` with the settings and the seed of ``samples``; others are an error."""
    path = Path(path)
    manifest = read_sealed_json(path / _MANIFEST, "the manifest of the samples")
    if manifest["fingerprint"] != samples.fingerprint:
        raise DataError(
            f"the samples in {path} were drawn with other settings or another seed; write them again, or leave "
            "data.synthetic.stored out"
        )
    return StoredSamples(samples, path, manifest)


class StoredSamples(Samples):
    """Samples that are read from disk instead of drawn."""

    def __init__(self, samples: Samples, path: Path, manifest: dict[str, Any]) -> None:
        super().__init__(samples.data, samples.seed, samples.split)
        self.path, self.manifest = path, manifest
        try:
            arrays = [np.load(path / name, mmap_mode="r", allow_pickle=False) for name in _FILES]
        except (OSError, ValueError) as error:
            raise DataError(f"the samples in {path} cannot be read: {error}; write them again") from None
        self._bits, self._tasks, self._visible = arrays

    def __len__(self) -> int:
        return self.manifest["samples"]

    def draw(self, numbers: np.ndarray) -> Drawn:
        bits = np.unpackbits(self._bits[numbers], axis=1, bitorder="little", count=self.data.bits)
        return Drawn(bits, self._tasks[numbers].astype(np.int64), self._visible[numbers].astype(np.int64))

    def verify(self) -> None:
        """Compare the files with their hashes; a file that has changed is a :class:`DataError`."""
        for name, expected in self.manifest["files"].items():
            if sha256_file(self.path / name) != expected:
                raise DataError(f"{self.path / name} has changed since it was written; write the samples again")
