"""Atomic writing of files and folders, and locks.

A file or folder is written next to its final path, synced to disk, and renamed. A reader, or a process that restarts after
a power failure, sees the old content or the new, never a mixture.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from contextwise.base.errors import ConfigError, ContextwiseError, DataError, one_line, refuse_pipe
from contextwise.base.hashes import sealed, unsealed
from contextwise.base.progress import interruption, say
from contextwise.base.schemas import json_schema, mismatch, parse_json

PARTIAL = ".partial-"
_REPLACED = f"{PARTIAL}old"
_REFUSED = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FAILED = {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN}
_NOT_WRITABLE = {errno.EROFS, errno.ENOENT, errno.EIO, errno.ENAMETOOLONG}
_NUMBER = re.compile(r"\(os error (\d+)\)")  # in the messages of libraries in Rust
_PATH = re.compile(r"(~|\.\.)?(/[^/\n{}<>|]+)(/[^/\n{}<>|]+)+/?|~(/[^/\n{}<>|]+)+/?")
_NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EBADF}
_ATTEMPTS = 4  # more than one: `is_held` of another process holds a lock for a moment
_POLL_SECONDS = 0.05


# ---- errors of disks ----


def system_error(error: BaseException) -> int | None:
    """The system's number (``errno``) of an error; libraries in Rust (safetensors, tokenizers) put it into the message."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = _NUMBER.search(str(error))
    return int(match[1]) if match else None


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that caused it, says that the disk is full or a file as large as it may be."""
    return _caused_by(error, _FULL) is not None


def failure_of_disk(error: BaseException) -> str | None:
    """The system's words for a failure of a disk or of a file server, in an error or its cause; None for other errors."""
    number = _caused_by(error, _FAILED)
    return None if number is None else os.strerror(number)


def _caused_by(error: BaseException, numbers: Collection[int]) -> int | None:
    """The first of the system's numbers ``numbers`` that an error, or one that caused it, has."""
    cause: BaseException | None = error
    while cause is not None:
        if (number := system_error(cause)) in numbers:
            return number
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


@contextlib.contextmanager
def disk_errors(what: str, where: Path) -> Iterator[None]:
    """Convert errors of a full disk or a forbidden write to a :class:`DataError` with a description and the path."""
    try:
        yield
    except ContextwiseError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise DataError(
                f"no space left while writing {what} to {where}; existing files are unchanged: "
                "free some space, or choose another folder, and run the same command again"
            ) from error
        number = system_error(error)
        if number == errno.ENOENT:
            check_locks(where)
        if isinstance(error, _REFUSED) or number in _NOT_WRITABLE:
            reason = os.strerror(number) if number else error
            raise DataError(
                f"{what} cannot be written to {where}: {reason}; make its folder writable, or choose another"
            ) from error
        raise


# ---- paths ----


class KeptPath:
    """Attribute of an object for its path: as it was given, or absolute once the current folder is another one."""

    def __set_name__(self, _: type, name: str) -> None:
        self.name = name

    def __set__(self, instance: Any, path: Path) -> None:
        instance.__dict__[self.name] = path, path.absolute()

    def __get__(self, instance: Any, _: type | None = None) -> Path:
        if instance is None:  # a dataclass looks for a default
            raise AttributeError(self.name)
        given, absolute = instance.__dict__[self.name]
        return given if given.is_absolute() or Path.cwd() / given == absolute else absolute


def expanded(path: str | Path) -> Path:
    """A path with a home folder in place of ``~``; a ConfigError if it is empty, or there is no such home folder."""
    if not str(path).strip():  # the path of an empty text is the current folder, which nobody meant
        raise ConfigError("a path is empty; give the path of a file or folder")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path} begins with ~, but there is no such home folder; give the whole path, or begin it with ./~ if a file is "
            "called so"
        ) from None


def at_home(value: Any) -> Any:
    """A path, or the text of one, with the home folder in place of ``~/`` at its start; anything else as it is."""
    return type(value)(expanded(value)) if isinstance(value, str | Path) and str(value).startswith("~/") else value


def output_folder(path: Path) -> Path:
    """The folder to write for a path that a user gave: what a link stands for, so that it has one lock.

    Raises:
        ConfigError: it has no name of its own (``.``, ``..``, ``/``), so that nothing can be written beside it and renamed.
    """
    path = expanded(path)
    if path.name in ("", "..", "."):
        raise ConfigError(f"the output is {str(path)!r}, which names no new folder; give a name in it")
    try:
        return path.resolve() if path.is_symlink() else path
    except (RuntimeError, OSError) as error:  # which one depends on the version of Python
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            raise
        raise ConfigError(
            f"the output {path} is a link that leads back to itself; remove it, or give another path"
        ) from None


def without_folders(value: Any) -> Any:
    """A copy of JSON values in which each path of this machine with two parts or more is its last part."""
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and _PATH.fullmatch(value):
        return Path(value).name
    return value


def relative_to_here(text: str) -> str:
    """A text to be shared, in which paths begin at the current folder, or at ``~``, instead of at the root."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (which is an error for a user without one)
    for folder, name in ((Path.cwd(), ""), (home, "~/")):
        if len(folder.parts) > 1:
            here = re.escape(f"{folder}/")
            text = re.sub(rf"{here}(?<![\w.~/-]{here})", name, text)  # a pattern that begins with text is found faster
    return text


# ---- locks ----


def _lock_file(path: Path, inside: bool) -> Path:
    return path / ".lock" if inside else path.with_name(f".{path.name}.lock")


def _owner_file(file: Path) -> Path:
    """The lock file on a file system without ``flock``."""
    return file.with_name(f"{file.name}.owner")


@dataclass(frozen=True)
class _Lock:
    """A lock that this process holds on ``path`` (``what`` in messages), by its lock file ``file``, which is open."""

    path: Path
    what: str
    file: Path
    opened: BinaryIO

    @property
    def in_place(self) -> bool:
        """Whether the file is still the one that this process locked; without it, another process can lock ``path``."""
        try:
            return os.path.samestat(os.fstat(self.opened.fileno()), self.file.stat())
        except OSError:
            return False


_held: dict[Path, _Lock] = {}


def _hold_nothing() -> None:
    """Close the lock files that a forked child inherits: a loader of data would keep the locks of a parent that was killed."""
    for lock in _held.values():
        lock.opened.close()
    _held.clear()


os.register_at_fork(after_in_child=_hold_nothing)


def check_locks(path: Path) -> None:
    """Raise a DataError if this process locked ``path``, or a folder that contains it, and the lock file was removed since.

    It is called before every write to an output: another process may have locked and written the output in the meantime.
    """
    absolute = path.absolute()
    for lock in list(_held.values()):
        if (lock.path == absolute or lock.path in absolute.parents) and not lock.in_place:
            raise DataError(
                f"{path} was not written: the lock file {lock.file} was removed while this process used {lock.what}, or moved "
                "with its folder, so another process may use it too; run the same command again, with the folder's new path if "
                "it was moved"
            )


@contextlib.contextmanager
def exclusive(path: Path, what: str, *, wait: bool = False, inside: bool = False) -> Iterator[None]:
    """Lock ``path`` (``what`` in messages: "the corpus") against other processes that lock it, inside the ``with`` block.

    The lock is advisory (``flock``), on ``.NAME.lock`` next to ``path``, which need not exist. The system releases it when
    the process ends in any way. A second lock in the same process also waits or fails. On a file system without ``flock`` the
    lock is the existence of ``.NAME.lock.owner``, which names the process; that of a process of this machine that was killed
    is removed. So is what killed attempts at writing ``path`` left beside it, and folders made for ``path`` in which nothing is
    written.

    Args:
        wait: wait for the other process, with a message on standard error, instead of failing.
        inside: put the lock file into the folder ``path``, as ``.lock``; the folder is created if it does not exist.

    Raises:
        ConfigError: another process holds the lock, and ``wait`` is false.
        DataError: the lock file cannot be written.
    """
    absolute = path.absolute()
    file = _lock_file(absolute, inside)
    check_locks(file)
    created = [folder for folder in file.parents if not folder.exists()]
    attempts = 0
    while True:
        lock = None
        with disk_errors(what, path):
            try:
                make_folder(file.parent)
                lock = _locked(absolute, what, file)
            except FileNotFoundError:  # another process that wrote nothing removed the folder in the meantime
                if attempts == _ATTEMPTS - 1:  # or it cannot be created, as in /proc
                    raise
            except OSError:
                _remove_empty(created)
                raise
        if lock is not None:
            break
        attempts += 1
        if attempts == _ATTEMPTS:
            owner = _shown_owner(file)
            if not wait:
                raise ConfigError(
                    f"another process is using {what} {path}{owner}; wait for it to end, or choose another folder"
                )
            say(f"another process is writing {what} {path}{owner}; waiting for it to end")
        interruption.check(f"stopped while waiting for {what} {path}; run the same command again")
        time.sleep(_POLL_SECONDS)
    with lock.opened:
        _held[lock.file] = lock
        try:
            if not inside:
                _remove_leftovers(absolute)
            yield
        finally:
            del _held[lock.file]
            if lock.in_place:
                lock.file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                fcntl.flock(lock.opened, fcntl.LOCK_UN)  # a forked child may still have the file open
            _remove_empty(created)


def _locked(path: Path, what: str, file: Path) -> _Lock | None:
    """Create and lock the lock file; None if another process holds it."""
    refuse_pipe(file)  # it would wait for a reader
    lock = _Lock(path, what, file, file.open("ab"))
    try:
        fcntl.flock(lock.opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder removes the file when it ends: a lock on a removed file has no effect.
        if lock.in_place:
            return lock
    except OSError as error:
        if error.errno in _NO_FLOCK:
            lock.opened.close()
            file.unlink(missing_ok=True)
            return _owned(path, what, _owner_file(file))
        if not isinstance(error, BlockingIOError):
            raise
    lock.opened.close()
    return None


def _owned(path: Path, what: str, file: Path) -> _Lock | None:
    """Create the lock file where there is no ``flock``; None if another process is its owner."""
    owner = _owner(file)
    if owner and not _may_live(owner):
        # Should another process have just replaced the file, its lock is removed here: it notices that at its next write.
        file.unlink(missing_ok=True)
    try:
        opened = file.open("xb", buffering=0)
    except FileExistsError:
        return None
    opened.write(f"{socket.gethostname()} {os.getpid()}".encode())
    return _Lock(path, what, file, opened)


def _owner(file: Path) -> str | None:
    """Machine and process that own a lock where there is no ``flock``; None without such a lock."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _may_live(owner: str) -> bool:
    """Whether a process of this machine lives; those of other machines may."""
    host, _, process = owner.partition(" ")
    if host == socket.gethostname() and process.isdigit():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            pass
    return True


def _shown_owner(file: Path) -> str:
    """The owner in a message; nothing if the system knows it."""
    owner = _owner(_owner_file(file))
    if owner is None:
        return ""
    host, _, process = owner.partition(" ")
    return f" (process {process or '?'} on {host or '?'}; if it has ended, remove {_owner_file(file)})"


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders in which nothing was written, from the innermost one on."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left beside a path that this process holds; a folder that was moved away comes back."""
    replaced = path.with_name(f"{path.name}{_REPLACED}")
    with contextlib.suppress(OSError):
        if replaced.exists() and not path.exists():  # a process was killed while it replaced the folder
            replaced.rename(path)
    for leftover in path.parent.glob(f"{glob.escape(path.name)}{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def remove_abandoned_lock(path: Path) -> None:
    """Remove the lock file beside ``path`` that a killed process left, if it did; :func:`exclusive` does so too."""
    if _lock_file(path.absolute(), inside=False).exists():
        with contextlib.suppress(ContextwiseError), exclusive(path, "the lock"):
            pass


def check_new(out: Path) -> None:
    """Raise a ConfigError if the folder to write exists."""
    if out.exists():
        remove_abandoned_lock(out)  # of a process that was killed when it had written the folder
        raise ConfigError(f"{out} already exists; choose another folder")


def is_held(path: Path, *, inside: bool = False) -> bool:
    """Whether a process holds ``path`` with :func:`exclusive`. The check acquires the lock for a moment."""
    file = _lock_file(path, inside)
    try:
        # NFS locks only what is opened for writing; the lock of another user, or a mount that is read only, cannot be.
        with file.open("r+b" if os.access(file, os.W_OK) else "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or no flock
        owner = _owner(_owner_file(file))
        return owner is not None and _may_live(owner)
    return False


# ---- folders and files, written whole ----


def make_folder(folder: Path) -> None:
    """Create a folder, and those that contain it, if they do not exist; behind a link, what the link names."""
    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)


def sync_directory(path: Path) -> None:
    """Sync the entries of a folder to disk (a rename is only durable after its folder is synced)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Sync every file and folder under ``path`` to disk."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, onerror=refuse):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


@contextlib.contextmanager
def atomic_directory(
    path: Path, what: str = "the output", *, replace: bool = False, held: bool = False
) -> Iterator[Path]:
    """Yield an empty folder next to ``path``; on success sync it and rename it to ``path``, on failure remove it.

    One process at a time writes ``path``; others wait.
    With ``replace`` an existing folder is replaced; otherwise ``path`` must not exist when the block ends, or be an empty
    folder. With ``held`` this process already holds ``path``, or a folder that contains it, with :func:`exclusive`.

    Raises:
        DataError: the disk is full, ``path`` cannot be written, or exists without ``replace``.
    """
    with disk_errors(what, path), contextlib.nullcontext() if held else exclusive(path, what, wait=True):
        partial = path.parent / f"{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}"
        partial.mkdir(parents=True)
        try:
            yield partial
            sync_tree(partial)
            check_locks(path)
            replaces = replace and path.exists()
            if replaces:
                _exchange(partial, path)
            else:
                try:
                    partial.rename(path)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    raise DataError(
                        f"{path} was created by another process while {what} was written; choose another folder"
                    ) from None
            try:
                sync_directory(path.parent)
            except OSError:
                if replaces:
                    _exchange(partial, path)
                else:
                    path.rename(partial)
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _exchange(partial: Path, path: Path) -> None:
    """Swap two folders in one operation of the file system, or in two if it does not support that."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = _AT_FDCWD, os.fsencode(partial), _AT_FDCWD, os.fsencode(path)
    if swap is not None and swap(*names, _RENAME_EXCHANGE) == 0:
        return
    old = path.with_name(f"{path.name}{_REPLACED}")
    path.rename(old)
    try:
        partial.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in ``folder``, which this process holds, of the folders that they wrote there."""
    for leftover in folder.glob(f"*{PARTIAL}*"):
        if leftover.is_dir():
            _remove_leftovers(folder / leftover.name.partition(PARTIAL)[0])


def check_nothing_else(folder: Path, own: Collection[str]) -> None:
    """Raise a DataError if a folder that is to be replaced holds other files or folders than ``own``, which would be lost."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in own) if folder.is_dir() else []
    if others:
        raise DataError(
            f"{folder} holds {others[0]}{' and more' * (len(others) > 1)}, which overwriting would remove; move it, or choose "
            "another folder"
        )


@contextlib.contextmanager
def atomic_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """Yield a file next to ``path``; on success sync it and rename it to ``path``, on failure remove it.

    The file is locked until it is renamed, so that the next writer removes what killed ones left, and nothing else.
    """
    refuse_pipe(path)  # the rename would put a file in its place
    if path.absolute().parent == Path("/dev"):  # such as /dev/stdout, the link to a file
        raise OSError(errno.EINVAL, "it stands for a device; give a file", str(path))
    with disk_errors(what, path):
        remove_abandoned(path.parent, glob.escape(path.name))
        partial, file = _partial_file(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                check_locks(path)
                partial.replace(path)
            sync_directory(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _partial_file(path: Path) -> tuple[Path, BinaryIO]:
    """Create and lock a file next to ``path``; a new one where another process took the first one for a leftover."""
    while True:
        partial = path.with_name(f".{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}")
        file = partial.open("xb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if partial.exists():
                return partial, file
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _NO_FLOCK:  # nor can another process lock it, and remove it
                return partial, file
            raise
        file.close()


def remove_abandoned(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of files that they wrote to a folder, whose names match the pattern ``name``."""
    for leftover in folder.glob(f".{name}{PARTIAL}*"):
        with contextlib.suppress(OSError), leftover.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while the file is written
            leftover.unlink()


def atomic_write(path: Path, content: str | bytes, what: str = "the file") -> None:
    """Replace the file at ``path`` by ``content`` (UTF-8 if text) atomically.

    The folder is created if it does not exist, except inside a folder of :func:`atomic_directory`: if that was removed, a
    new one would look complete. A full disk or a forbidden write is a :class:`DataError`.
    """
    check_locks(path)
    if not any(PARTIAL in parent.name and not parent.exists() for parent in path.parents):
        with disk_errors(what, path):
            make_folder(path.parent)
    with atomic_file(path, what) as file:
        file.write(content.encode() if isinstance(content, str) else content)


# ---- JSON ----


def write_json(path: Path, value: Any, what: str = "the file") -> None:
    """Write ``value`` as indented JSON, atomically. NaN and infinities raise an error (JSON has none)."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", what)


def check_output(path: Path, what: str) -> None:
    """Raise a ConfigError if a file of JSON that a user names is a folder, or another kind of file, which would be lost."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for {what}")
    if path.is_file() and path.stat().st_size:
        try:
            read_json(path, what)
        except DataError:
            raise ConfigError(f"{path} is no JSON file, and would be lost; give another name for {what}") from None


def write_output(path: Path, value: Any, what: str) -> None:
    """:func:`write_json` to a file that a user names, after :func:`check_output`."""
    check_output(path, what)
    write_json(path, value, what)


def read_json(path: Path, what: str, form: Any = Any, mend: str = "") -> Any:
    """Read a JSON file that Contextwise wrote.

    Args:
        form: the type of its content, as :func:`~contextwise.base.schemas.json_schema` takes it.
        mend: how to mend the file, the end of an error.

    Raises:
        DataError: it is missing, unreadable, not JSON, or not of that type.
    """
    try:
        refuse_pipe(path)
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{what} is missing: there is no file {path}{mend and f'; {mend}'}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{what} cannot be read: {path}: {one_line(error)}{mend and f'; {mend}'}") from None
    check_schema(value, json_schema(form), path, what, mend)
    return value


def disk_failed(error: DataError) -> bool:
    """Whether an error of :func:`read_json` is of the disk or of permissions: not of the content, nor of an absent file."""
    return isinstance(error.__context__, OSError) and not isinstance(
        error.__context__, FileNotFoundError | NotADirectoryError
    )


def check_schema(value: Any, schema: Mapping[str, Any], path: Path, what: str, mend: str = "") -> None:
    """Raise a DataError if the content of a file does not match a schema; ``mend`` as for :func:`read_json`."""
    if why := mismatch(value, schema):
        raise DataError(f"{what} {path} is damaged: {why}{mend and f'; {mend}'}")


def write_sealed_json(path: Path, values: dict[str, Any], what: str = "the file") -> None:
    """Write JSON as :func:`write_json` does, with a hash of the values under ``sha256``."""
    write_json(path, sealed(values), what)


def read_sealed_json(path: Path, what: str, form: Any = Any) -> dict[str, Any]:
    """Read what :func:`write_sealed_json` wrote, as :func:`read_json` does; a :class:`DataError` if it has changed too."""
    try:
        values = unsealed(read_json(path, what))
    except ValueError as error:
        raise DataError(f"{what} cannot be used: {path}: {error}") from None
    check_schema(values, json_schema(form), path, what)
    return values
