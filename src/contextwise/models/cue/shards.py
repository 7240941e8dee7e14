"""Shards of encoded texts: files of rows (key, cut, vector), named by the hash of their bytes.

A shard is a NumPy file of one structured array: ``key`` (16 bytes, of the text), ``cut`` (whether the text was longer than the
encoder takes) and ``vector`` (C,) float32.
"""

import hashlib
import io
from pathlib import Path

import numpy as np

from contextwise.base.files import sha256_file

Shard = np.ndarray


def text_key(text: str) -> bytes:
    """128-bit BLAKE2b of a text: what it is known by."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _row_type(width: int) -> np.dtype:
    return np.dtype([("key", "V16"), ("cut", "?"), ("vector", "<f4", (width,))])


def shard_bytes(keys: list[bytes], vectors: np.ndarray, cut: np.ndarray) -> bytes:
    """The file of N texts: keys, vectors (N, C), and which were cut (N,)."""
    rows = np.empty(len(keys), dtype=_row_type(vectors.shape[1]))
    rows["key"] = np.frombuffer(b"".join(keys), dtype="V16")
    rows["cut"], rows["vector"] = cut, vectors
    file = io.BytesIO()
    np.save(file, rows, allow_pickle=False)
    return file.getvalue()


def read_shard(path: Path, width: int) -> Shard:
    """The rows of a shard, memory-mapped.

    Raises:
        ValueError: it is no shard of this width, or cut short.
    """
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    if rows.dtype != _row_type(width):
        raise ValueError("its rows have another form")
    return rows


def damage(path: Path, width: int) -> str | None:
    """What is wrong with a shard; None if nothing is. All of it is read."""
    try:
        if sha256_file(path)[:32] != path.stem:
            return "its bytes have changed since they were written"
        read_shard(path, width)
    except (OSError, ValueError, EOFError) as error:
        return " ".join(str(error).split())[:100]
    return None


class ShardTable:
    """The vectors of several shards by row, through all of them, memory-mapped. A pickled copy opens the same files."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._paths: list[Path] = []
        self._shards: list[np.ndarray] = []
        self._starts = np.zeros(1, dtype=np.int64)  # of each shard, and the row behind the last

    def __len__(self) -> int:
        return int(self._starts[-1])

    def add(self, path: Path) -> int:
        """Take in a shard; returns the row at which it begins."""
        first, shard = len(self), read_shard(path, self.width)
        self._paths.append(path)
        self._shards.append(shard["vector"])
        self._starts = np.append(self._starts, first + len(shard))
        return first

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (N, C), float32, of rows (N,).

        Raises:
            IndexError: there is no such row.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        vectors_NC = np.empty((len(rows), self.width), dtype=np.float32)
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        for shard in set(shards.tolist()):
            here = shards == shard
            vectors_NC[here] = self._shards[shard][rows[here] - self._starts[shard]]
        return vectors_NC

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.width, self._paths)


def _reopen(width: int, paths: list[Path]) -> ShardTable:
    table = ShardTable(width)
    for path in paths:
        table.add(path)
    return table
