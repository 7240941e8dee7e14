"""Where a prepared corpus goes: a new folder, or in the place of an older corpus."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from contextwise.base.errors import DataError
from contextwise.base.files import PARTIAL, atomic_directory, sync_directory
from contextwise.data.manifest import is_corpus

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def check_output(out: Path, overwrite: bool, sources: Sequence[str | Path]) -> None:
    """Refuse a place that holds anything but a corpus that may be replaced; called before the work starts.

    Raises:
        DataError: ``out`` exists and may not be replaced, or lies in a source folder or around one.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not overwrite:
            raise DataError(
                f"{out} already exists; choose another folder, or pass --overwrite to replace a corpus"
            )
        if not is_corpus(out):
            raise DataError(
                f"{out} is no prepared corpus, so --overwrite leaves it alone; choose another folder"
            )
    place = out.resolve()
    for source in sources:
        folder = Path(source).expanduser().resolve()
        if (
            folder.exists()
            and (folder in (place, *place.parents) or place in folder.parents)
            and folder.is_dir()
        ):
            raise DataError(
                f"--out {out} and the source {source} lie one in the other; choose a folder beside it"
            )
        if place in folder.parents and overwrite:
            raise DataError(
                f"the source {source} lies in {out}, which --overwrite would remove; choose another folder"
            )


@contextlib.contextmanager
def output_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``out`` when the block ends well; an older one stays until then.

    Raises:
        DataError: the disk is full, the place refuses writing, or another process made ``out`` meanwhile.
    """
    if not out.exists() or not any(out.iterdir()):
        with _no_surprise(out), atomic_directory(out, "the corpus") as partial:
            yield partial
        return
    fresh = out.with_name(f"{out.name}{PARTIAL}new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with atomic_directory(fresh, "the corpus") as partial:
            yield partial
        _exchange(fresh, out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextlib.contextmanager
def _no_surprise(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise DataError(f"{out} was made by another process meanwhile; choose another folder") from None


def _exchange(a: Path, b: Path) -> None:
    """Swap two folders in one step of the file system; in two where it has no such step."""
    library = ctypes.CDLL(None, use_errno=True)
    swap = getattr(library, "renameat2", None)
    if swap is not None and swap(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return
    aside = b.with_name(f"{b.name}{PARTIAL}old")
    shutil.rmtree(aside, ignore_errors=True)
    b.rename(aside)
    a.rename(b)
    shutil.rmtree(aside)
