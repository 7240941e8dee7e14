"""Write a large NumPy file in pieces, in bounded memory, atomically."""

import glob
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from contextwise.base.errors import DataError
from contextwise.base.files import PARTIAL, disk_errors, exclusive, sync_directory


def write_vectors(path: Path, blocks: Iterable[np.ndarray], rows: int) -> tuple[int, int]:
    """Write consecutive blocks of rows as one float32 array to a ``.npy`` file.

    The file is written next to its final path and renamed when it is complete, which replaces an existing file. It uses
    writes instead of a memory map: on a full disk a map would kill the process by a signal.

    Args:
        blocks: (rows of the block, D) each.
        rows: number of rows of all blocks; the header, which comes first, contains it.

    Returns:
        (rows, D).

    Raises:
        DataError: the disk is full, the path cannot be written, or the number of rows is not ``rows``.
    """
    with disk_errors("the vectors", path), exclusive(path, "the vectors", wait=True):
        for leftover in path.parent.glob(f".{glob.escape(path.name)}{PARTIAL}*"):
            leftover.unlink(missing_ok=True)
        partial = path.with_name(f".{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}")
        try:
            shape = _write(partial, blocks, rows)
            partial.replace(path)
            sync_directory(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return shape


def _write(partial: Path, blocks: Iterable[np.ndarray], rows: int) -> tuple[int, int]:
    written = width = 0
    with partial.open("wb") as file:
        for block in blocks:
            if written == 0:
                width = block.shape[1]
                header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(block, dtype="<f4").data)
            written += len(block)
        if written != rows:
            raise DataError(
                f"the input had {rows:,} texts when it was first read, and {written:,} now; "
                "do not change it while it is read"
            )
        file.flush()
        os.fsync(file.fileno())
    return rows, width
