"""Shards of encoded texts: files of rows (key, cut, vector), named by the hash of their bytes.

A shard is a NumPy file of one structured array: ``key`` (16 bytes, hash of the text), ``cut`` (whether the text was
truncated to the encoder's limit) and ``vector`` (C,) float32.
"""

import hashlib
import io
from pathlib import Path

import numpy as np

from contextwise.base.files import sha256_file

Shard = np.ndarray


def text_key(text: str) -> bytes:
    """128-bit BLAKE2b hash of a text: its key in the cache."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _row_type(width: int) -> np.dtype:
    return np.dtype([("key", "V16"), ("cut", "?"), ("vector", "<f4", (width,))])


def shard_bytes(keys: list[bytes], vectors: np.ndarray, cut: np.ndarray) -> bytes:
    """Serialize N texts: keys, vectors (N, C), and which were truncated (N,)."""
    rows = np.empty(len(keys), dtype=_row_type(vectors.shape[1]))
    rows["key"] = np.frombuffer(b"".join(keys), dtype="V16")
    rows["cut"], rows["vector"] = cut, vectors
    file = io.BytesIO()
    np.save(file, rows, allow_pickle=False)
    return file.getvalue()


def read_shard(path: Path, width: int) -> Shard:
    """Open the rows of a shard, memory-mapped.

    Raises:
        ValueError: the file is not a shard of this width, or is incomplete.
    """
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    if rows.dtype != _row_type(width):
        raise ValueError("its rows have another data type")
    return rows


def damage(path: Path, width: int) -> str | None:
    """Describe the damage of a shard, or None if it is intact; reads the whole file."""
    try:
        if sha256_file(path)[:32] != path.stem:
            return "its bytes have changed since they were written"
        read_shard(path, width)
    except (OSError, ValueError, EOFError) as error:
        return " ".join(str(error).split())[:100]
    return None


class ShardTable:
    """The vectors of several shards, memory-mapped, with rows numbered across shards. A pickled copy opens the same files."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._paths: list[Path] = []
        self._shards: list[np.ndarray] = []
        self._starts = np.zeros(1, dtype=np.int64)  # first row of each shard, and the total

    def __len__(self) -> int:
        return int(self._starts[-1])

    def add(self, path: Path) -> int:
        """Add a shard, and return its first row."""
        first, shard = len(self), read_shard(path, self.width)
        self._paths.append(path)
        self._shards.append(shard["vector"])
        self._starts = np.append(self._starts, first + len(shard))
        return first

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (N, C), float32, of rows (N,).

        Raises:
            IndexError: a row does not exist.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        vectors_NC = np.empty((len(rows), self.width), dtype=np.float32)
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        for shard in set(shards.tolist()):
            selected = shards == shard
            vectors_NC[selected] = self._shards[shard][rows[selected] - self._starts[shard]]
        return vectors_NC

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.width, self._paths)


def _reopen(width: int, paths: list[Path]) -> ShardTable:
    table = ShardTable(width)
    for path in paths:
        table.add(path)
    return table
