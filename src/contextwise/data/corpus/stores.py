"""Storage of a corpus's tokens: Arrow files, a flat ``.bin`` file, a Zarr array. Opening a store reads no tokens."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from contextwise.base.errors import DataError

OWN_COLUMNS = ("input_ids", "n_bytes", "n_words", "document_hash")
# The header of 256 int32 that llm.c and modded-nanogpt put before the tokens.
_BIN_MAGIC, _BIN_HEADER = 20240520, 1024
# Arrays that come without hashes may be hundreds of gigabytes: their fingerprint is of all names and sizes, and of the
# content of this many evenly spaced blocks. Up to 64 MiB that is all of the content.
_BLOCKS, _BLOCK = 64, 2**20


class Store(Protocol):
    """Interface of a store: documents of token ids."""

    dtype: np.dtype
    lengths: np.ndarray  # int64, tokens of each document

    def document(self, index: int) -> np.ndarray:
        """Token ids of a document."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokens."""


def read_stream(path: Path) -> Iterator[pa.RecordBatch]:
    """Record batches of an Arrow stream file, memory-mapped: no copy is made."""
    with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
        yield from reader


class ArrowStore:
    """Rows of Arrow stream files, memory-mapped. Token ids are views of the map; only the lengths are in memory.

    Raises:
        DataError: a file is not an Arrow file, or lacks the columns of a corpus.
    """

    def __init__(self, paths: Sequence[Path], fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.batches: list[pa.RecordBatch] = []
        ids: list[pa.ListArray] = []
        for path in paths:
            try:
                batches = list(read_stream(path))
                ids += [batch.column("input_ids") for batch in batches]
            except (pa.ArrowException, OSError, KeyError) as error:
                raise DataError(f"{path} is damaged: {str(error)[:200]}; prepare the corpus again") from None
            self.batches += batches
        self._values = [column.values.to_numpy(zero_copy_only=True) for column in ids]
        self._offsets = [column.offsets.to_numpy(zero_copy_only=True) for column in ids]
        self._starts = [0, *np.cumsum([batch.num_rows for batch in self.batches]).tolist()]
        self.dtype = self._values[0].dtype
        self.lengths = np.concatenate([np.diff(offsets) for offsets in self._offsets]).astype(np.int64)

    def locate(self, index: int) -> tuple[int, int]:
        """Index of the batch that holds a document, and the row in that batch."""
        batch = bisect_right(self._starts, index) - 1
        return batch, index - self._starts[batch]

    def document(self, index: int) -> np.ndarray:
        batch, row = self.locate(index)
        offsets = self._offsets[batch]
        return self._values[batch][offsets[row] : offsets[row + 1]]

    @property
    def columns(self) -> list[str]:
        """``document_hash`` and the columns of the source."""
        return [
            name
            for name in self.batches[0].schema.names
            if name not in OWN_COLUMNS or name == "document_hash"
        ]

    def column(self, name: str) -> list[Any]:
        """All values of a column, as Python objects."""
        return [value for batch in self.batches for value in batch.column(name).to_pylist()]

    def numbers(self, name: str) -> np.ndarray:
        """All values of an int64 column."""
        return np.concatenate([batch.column(name).to_numpy(zero_copy_only=True) for batch in self.batches])

    def row(self, index: int, names: Sequence[str]) -> dict[str, Any]:
        """Values of the named columns for a document."""
        batch, row = self.locate(index)
        return {name: self.batches[batch].column(name)[row].as_py() for name in names}


class BinStore:
    """Flat file of uint16 token ids, as nanoGPT writes it: a single document, memory-mapped.

    The header of 1,024 bytes that llm.c and modded-nanogpt write is skipped.

    Raises:
        DataError: the file is empty or does not hold a whole number of tokens.
    """

    dtype = np.dtype("<u2")

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = _BIN_HEADER if np.frombuffer(file.read(4).ljust(4), "<i4")[0] == _BIN_MAGIC else 0
        if size <= start or (size - start) % 2:
            raise DataError(
                f"{path} has {size:,} bytes, which is not a whole number of uint16 tokens, one at least"
            )
        self.tokens = np.memmap(path, dtype=self.dtype, mode="r", offset=start)
        self.lengths = np.array([len(self.tokens)], dtype=np.int64)

    def document(self, index: int) -> np.ndarray:
        return self.tokens

    @cached_property
    def fingerprint(self) -> str:
        total = hashlib.sha256(f"{self.tokens.nbytes}".encode())
        content = self.tokens.view(np.uint8)
        for start in _evenly(len(content) // _BLOCK + 1, _BLOCKS):
            total.update(content[start * _BLOCK : (start + 1) * _BLOCK].data)
        return total.hexdigest()


class ZarrStore:
    """Rows of a Zarr array (documents x length), as in LongCrawl64. A row is decompressed when it is read.

    Raises:
        DataError: the array is not two-dimensional, or not of integers.
    """

    def __init__(self, array: Any, path: Path) -> None:
        if array.ndim != 2 or array.dtype.kind not in "ui" or not array.shape[1]:
            raise DataError(
                f"the Zarr array {path} is {array.dtype} of shape {array.shape}, "
                "but a corpus is (documents, length) of token ids such as uint16"
            )
        self.array, self.path = array, path
        self.dtype = np.dtype(array.dtype)
        self.lengths = np.full(array.shape[0], array.shape[1], dtype=np.int64)

    def document(self, index: int) -> np.ndarray:
        return np.asarray(self.array[index])

    @cached_property
    def fingerprint(self) -> str:
        total = hashlib.sha256(f"{self.dtype.name} {self.array.shape}".encode())
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        for file in files:
            total.update(f"{file.relative_to(self.path).as_posix()} {file.stat().st_size} ".encode())
        for number in _evenly(len(files), _BLOCKS):
            with files[number].open("rb") as content:
                total.update(content.read(_BLOCK))
        return total.hexdigest()


def _evenly(count: int, most: int) -> list[int]:
    """Select at most ``most`` evenly spaced indices of ``range(count)``, including the first and the last."""
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // (most - 1) for i in range(most)]


def open_zarr(path: Path) -> dict[str, Path]:
    """Folders of the arrays at ``path``, by split: a single array is ``train``; arrays of a group keep their names.

    Raises:
        DataError: zarr is not installed, or no array exists at ``path``.
    """
    opened = _zarr_open(path)
    if hasattr(opened, "shape"):
        return {"train": path}
    names = sorted(name for name, _ in opened.arrays())
    if not names:
        raise DataError(
            f"the Zarr group {path} holds no array; give the folder of one, (documents, length) of token ids"
        )
    return {name.removesuffix(".zarr"): path / name for name in names}


def zarr_store(path: Path) -> ZarrStore:
    """Open the Zarr array in a folder.

    Raises:
        DataError: zarr is not installed, or the array is damaged or not a corpus.
    """
    return ZarrStore(_zarr_open(path), path)


def _zarr_open(path: Path) -> Any:
    try:
        import zarr
    except ModuleNotFoundError:
        raise DataError(f"{path} is a Zarr array; to read it: pip install contextwise[zarr]") from None
    try:
        return zarr.open(str(path), mode="r")
    except Exception as error:  # zarr's errors have no common class
        raise DataError(
            f"the Zarr array {path} cannot be opened: {' '.join(str(error).split())[:200]}"
        ) from None
