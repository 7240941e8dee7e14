"""Samples of the parity task on disk: three memory-mapped NumPy files and a manifest.

``bits.npy`` (N, bits / 8) uint8, eight bits a byte · ``tasks.npy`` (N,) and ``visible.npy`` (N,) uint16 · ``manifest.json``
with the settings they were drawn from, written last. 10 million samples of 60 bits take 120 MB.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_directory, read_json, sha256_file, write_json
from contextwise.base.progress import progress_bar
from contextwise.data.synthetic.samples import Drawn, Samples, as_batch

MANIFEST = "manifest.json"
_FILES = ("bits.npy", "tasks.npy", "visible.npy")
_AT_ONCE = 1 << 17


def write_samples(samples: Samples, count: int, path: str | Path) -> "StoredSamples":
    """Write the first ``count`` samples to the folder ``path``.

    Raises:
        ConfigError: ``path`` exists, or the samples have more bits or tasks than the files can store.
        DataError: the disk is full, or ``path`` cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise ConfigError(f"{path} exists already; choose another folder for the samples, or remove that one")
    if max(samples.data.tasks, samples.data.bits) > 65535:
        raise ConfigError(
            "stored samples have at most 65,535 bits and tasks; leave data.synthetic.stored out for more"
        )
    width = -(-samples.data.bits // 8)
    with atomic_directory(path, "the samples") as folder, progress_bar("draw", count, "samples") as advance:
        shapes = [((count, width), np.uint8), ((count,), np.uint16), ((count,), np.uint16)]
        bits, tasks, visible = (
            np.lib.format.open_memmap(folder / name, "w+", dtype, shape)
            for name, (shape, dtype) in zip(_FILES, shapes, strict=True)
        )
        for start in range(0, count, _AT_ONCE):
            numbers = np.arange(start, min(start + _AT_ONCE, count))
            drawn = samples.draw(numbers)
            bits[numbers] = np.packbits(drawn.bits, axis=1, bitorder="little")
            tasks[numbers], visible[numbers] = drawn.tasks, drawn.visible
            advance(len(numbers))
        for array in (bits, tasks, visible):
            array.flush()
        manifest = {
            "format": 1,
            "samples": count,
            "fingerprint": samples.fingerprint,
            "files": {name: sha256_file(folder / name) for name in _FILES},
        }
        write_json(folder / MANIFEST, manifest, "the manifest")
    return open_samples(samples, path)


def open_samples(samples: Samples, path: str | Path) -> "StoredSamples":
    """Open the samples that were written to ``path``.

    Args:
        samples: the settings and seed that the stored samples must have.

    Raises:
        DataError: the samples do not exist, are damaged, or were drawn with other settings.
    """
    path = Path(path)
    manifest = read_json(path / MANIFEST, "the manifest of the samples")
    if manifest["fingerprint"] != samples.fingerprint:
        raise DataError(
            f"the samples in {path} were drawn with other settings or another seed; write them again, or leave "
            "data.synthetic.stored out"
        )
    return StoredSamples(samples, path, manifest)


class StoredSamples:
    """Samples on disk, with the interface that training needs of :class:`~contextwise.data.synthetic.samples.Samples`."""

    def __init__(self, samples: Samples, path: Path, manifest: dict[str, Any]) -> None:
        self.samples, self.path, self.manifest = samples, path, manifest
        self.seed, self.splits = samples.seed, samples.splits
        try:
            arrays = [np.load(path / name, mmap_mode="r", allow_pickle=False) for name in _FILES]
        except (OSError, ValueError) as error:
            raise DataError(f"the samples in {path} cannot be read: {error}; write them again") from None
        self._bits, self._tasks, self._visible = arrays
        if {len(array) for array in arrays} != {manifest["samples"]}:
            raise DataError(f"the samples in {path} are not as many as their manifest says; write them again")

    def __len__(self) -> int:
        return self.manifest["samples"]

    def draw(self, numbers: np.ndarray) -> Drawn:
        """Read the samples with these numbers from the files."""
        bits = np.unpackbits(self._bits[numbers], axis=1, bitorder="little", count=self.samples.data.bits)
        return Drawn(bits, self._tasks[numbers].astype(np.int64), self._visible[numbers].astype(np.int64))

    def batch(self, numbers: np.ndarray) -> dict[str, torch.Tensor]:
        """Build a batch of the examples with these numbers."""
        return as_batch(self.samples.parity, self.draw(numbers), self.samples.context, numbers)

    @property
    def fingerprint(self) -> str:
        return self.samples.fingerprint

    def verify(self) -> None:
        """Compare the files with their hashes.

        Raises:
            DataError: the content of a file has changed.
        """
        for name, expected in self.manifest["files"].items():
            if sha256_file(self.path / name) != expected:
                raise DataError(
                    f"{self.path / name} has changed since it was written; write the samples again"
                )
