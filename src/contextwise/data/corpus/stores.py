"""Storage of a corpus's tokens: Arrow files, a flat ``.bin`` file, a Zarr array. Opening a store reads no tokens."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from contextwise.base.errors import DataError, not_installed, one_line
from contextwise.base.hashes import content_digest
from contextwise.base.progress import say_once

OWN_COLUMNS = ("input_ids", "n_bytes", "n_words", "text_lost", "document_hash")
# The header of 256 int32 that llm.c and modded-nanogpt put before the tokens.
_BIN_MAGIC, _BIN_HEADER = 20240520, 1024


def read_stream(path: Path) -> Iterator[pa.RecordBatch]:
    """Record batches of an Arrow stream file, memory-mapped: no copy is made."""
    with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
        yield from reader


class ArrowStore:
    """Rows of Arrow stream files, memory-mapped. Token ids are views of the map; only the lengths are in memory.

    Every store has ``lengths`` (int64, tokens of each document), ``fingerprint`` (of the content, hexadecimal) and
    ``table``, all columns of a prepared corpus; None for bare arrays of tokens.
    """

    def __init__(self, paths: Sequence[Path], fingerprint: str) -> None:
        self.fingerprint = fingerprint
        batches: list[pa.RecordBatch] = []
        for path in paths:
            try:
                batches += read_stream(path)
                self.table = pa.Table.from_batches(batches)
                self._ids = self.table.column("input_ids")
            except (pa.ArrowException, OSError, KeyError) as error:
                raise DataError(f"{path} is damaged: {str(error)[:200]}; prepare the corpus again") from None
        self.dtype = np.dtype(str(self._ids.type.value_type))
        # Without a copy; to_numpy would import pandas, which is slow.
        offsets = [np.from_dlpack(column.offsets) for column in self._ids.chunks]
        self.lengths = np.concatenate([np.diff(starts) for starts in offsets]).astype(np.int64)

    def document(self, index: int) -> np.ndarray:
        return np.from_dlpack(self._ids[index].values)


class BinStore:
    """Flat file of uint16 token ids, as nanoGPT writes it: a single document, memory-mapped.

    The header of 1,024 bytes that llm.c and modded-nanogpt write is skipped.
    """

    dtype, table = np.dtype("<u2"), None

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = _BIN_HEADER if np.frombuffer(file.read(4).ljust(4), "<i4")[0] == _BIN_MAGIC else 0
        if size <= start or (size - start) % 2:
            raise DataError(f"{path} has {size:,} bytes, which is not a whole number of uint16 tokens, one at least")
        self.path = path.absolute()
        self.tokens = np.memmap(path, dtype=self.dtype, mode="r", offset=start)
        self.lengths = np.array([len(self.tokens)], dtype=np.int64)

    def document(self, index: int) -> np.ndarray:
        return self.tokens

    @cached_property
    def fingerprint(self) -> str:
        return content_digest(self.path)


class ZarrStore:
    """Rows of a Zarr array (documents x length) of integers, as in LongCrawl64. A row is decompressed when it is read."""

    def __init__(self, array: Any, path: Path) -> None:
        if array.ndim != 2 or array.dtype.kind not in "ui" or not array.shape[1]:
            raise DataError(
                f"the Zarr array {path} is {array.dtype} of shape {array.shape}, "
                "but a corpus is (documents, length) of token ids such as uint16"
            )
        if missing := array.nchunks - array.nchunks_initialized:
            say_once(
                f"note: the Zarr array {path} lacks {missing:,} of its {array.nchunks:,} chunks, which are read as zeros: it "
                "was written without chunks of padding, or its copy is not complete"
            )
        self.array, self.path, self.table = array, path.absolute(), None
        self.dtype = np.dtype(array.dtype)
        self.lengths = np.full(array.shape[0], array.shape[1], dtype=np.int64)

    def document(self, index: int) -> np.ndarray:
        try:
            return np.asarray(self.array[index])
        except Exception as error:  # of the codec, which have no common class
            raise DataError(f"the Zarr array {self.path} is damaged: {one_line(error)}; copy it again") from error

    @cached_property
    def fingerprint(self) -> str:
        return content_digest(self.path)


Store = ArrowStore | BinStore | ZarrStore


def open_zarr(path: Path) -> dict[str, tuple[Any, Path]]:
    """Arrays at ``path`` and their folders, by split: a single array is ``train``; arrays of a group keep their names."""
    try:
        import zarr
    except ModuleNotFoundError:
        raise DataError(f"{path} is a Zarr array; to read it takes zarr, {not_installed('zarr')}") from None
    try:
        opened = zarr.open(str(path), mode="r")
    except Exception as error:  # zarr's errors have no common class
        reason = one_line(error)
        raise DataError(f"the Zarr array {path} cannot be opened: {reason}") from None
    if hasattr(opened, "shape"):
        return {"train": (opened, path)}
    arrays = {name: (array, path / name) for name, array in opened.arrays()}
    if not arrays:
        raise DataError(
            f"the Zarr group {path} holds no array; give the folder of one, (documents, length) of token ids"
        )
    return {name.removesuffix(".zarr"): arrays[name] for name in sorted(arrays)}
