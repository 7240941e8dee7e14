"""Sources of texts: one module per kind. :func:`open_source` selects the kind from the name.

Packages offer further kinds, each by a prefix (the group ``contextwise.sources`` of entry points).
"""

import glob
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from contextwise.base import plugins
from contextwise.base.errors import ConfigError, DataError, misspelt
from contextwise.base.estimates import counted
from contextwise.base.files import expanded
from contextwise.base.hashes import content_digest, content_key
from contextwise.base.progress import say_once
from contextwise.data.input_files import UNREAD, readable
from contextwise.data.sources.files import NOT_TEXT, Csv, FileSource, JsonLines, TextFiles
from contextwise.data.sources.source import BadRecord, Document, Record, Source
from contextwise.data.sources.stdlib import StandardLibrary
from contextwise.data.sources.tables import HUB_NAME, Parquet, open_hub, open_saved

__all__ = [
    "BadRecord",
    "Document",
    "Record",
    "Source",
    "is_file_name",
    "open_source",
    "source_digest",
    "source_path",
    "with_parts",
]
# Names with these suffixes are not looked up on the Hub.
_FILE_SUFFIXES = {".txt", ".md", ".rst", ".csv", ".tsv", ".gz", ".zst", ".bin", *NOT_TEXT}


def open_source(name: str | Path, limit: int | None = None) -> Source:
    """Open ``stdlib``, a file, a folder, a pattern (``data/*.jsonl.gz``), a dataset on the Hub, or a source of a package.

    With a ``limit``, the most documents that will be read, a dataset on the Hub is streamed.
    """
    given = str(name)
    kind, rest = _offered(given)
    if kind is not None:
        return kind(open_source(rest, limit) if kind.wraps else rest)
    if given == StandardLibrary.kind:
        return StandardLibrary()
    path = expanded(given)
    if path.is_dir():
        return open_saved(path) or _open_folder(path)
    if path.exists():
        return _open_files(path.name, [path], path.parent)
    if glob.has_magic(given):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        files = [match for match in matches if match.is_file()]
        if not files:
            raise DataError(f"no file matches {given}")
        return _open_files(path.name, files, Path(os.path.commonpath([file.parent for file in files])))
    if is_file_name(path) or not HUB_NAME.fullmatch(given):
        raise DataError(f"there is no file or folder {given}{misspelt(path)}")
    return open_hub(given, limit)


def is_file_name(path: Path) -> bool:
    """Whether a name has the suffix of a file of texts."""
    return _kind_of(path) is not TextFiles or path.suffix.lower() in _FILE_SUFFIXES


def source_digest(name: str) -> str:
    """SHA-256, hexadecimal, of what :func:`open_source` would read: the names and bytes of files.

    A source of a package is identified by its name, the version of Python, and the file or folder that it names, if any; a
    dataset on the Hub and a missing file by the name alone.
    """
    kind, rest = _offered(name)
    if kind is not None and kind.wraps:
        return content_key(kind=kind.kind, source=source_digest(rest))
    if kind is not None and not kind.alone:
        return content_key(
            kind=kind.kind, content=content_digest(place) if (place := expanded(rest)).exists() else None
        )
    path = expanded(name)
    if path.exists():
        return content_key(name=path.name, content=content_digest(path))
    if glob.has_magic(name):
        files = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        root = Path(os.path.commonpath([file.parent for file in files])) if files else path
        return content_key(name=path.name, content=content_digest(root, files) if files else None)
    own = kind is not None or name == StandardLibrary.kind
    read = {"content": content_digest(path)} if kind is not None and rest and (path := expanded(rest)).exists() else {}
    return content_key(name=name, python=platform.python_version() if own else None, **read)


def source_path(name: str) -> Path:
    """The path of a source: its name without the prefix of a kind."""
    kind, rest = _offered(name)
    return expanded(rest if kind is not None and (kind.wraps or not kind.alone) else name)


def with_parts(given: Sequence[str]) -> list[str]:
    """Replace a single source that names no part by its parts (``PART=KIND:PART``), each for the split of its name."""
    kind, rest = _offered(given[0]) if len(given) == 1 else (None, "")
    if kind is None:
        return list(given)
    parts = kind.parts_of(rest)
    return [f"{part}={kind.kind}:{rest}{'/' * bool(rest)}{part}" for part in parts] or list(given)


def _offered(name: str) -> tuple[Any, str]:
    """The kind of source that a package offers for a prefix of the name, if any, and what follows the prefix."""
    prefix, _, rest = name.partition(":")
    kind = plugins.load("sources", Source).get(prefix) if prefix in plugins.points("sources") else None
    if kind is not None and getattr(kind, "kind", "") != prefix:
        raise ConfigError(f"the source {prefix!r} is {kind.__module__}.{kind.__name__}, whose kind must be {prefix!r}")
    return (None, name) if kind is None or not (rest or (kind.alone and not kind.wraps)) else (kind, rest)


def _kind_of(path: Path) -> type[FileSource]:
    """Kind of a file by its suffix, without that of its compression; text if no kind has that suffix."""
    name = path.name.lower()
    name = next((name.removesuffix(packed) for packed in (".gz", *UNREAD) if name.endswith(packed)), name)
    kinds: tuple[type[FileSource], ...] = (JsonLines, Parquet, Csv)
    return next((kind for kind in kinds if name.endswith(kind.suffixes)), TextFiles)


def _open_files(name: str, files: Sequence[Path], root: Path) -> Source:
    kinds = {kind.kind: kind for kind in map(_kind_of, files)}
    if len(kinds) > 1:
        raise DataError(
            f"{name} holds files of several kinds ({', '.join(sorted(kinds))}); name one kind, such as *.jsonl"
        )
    (kind,) = kinds.values()
    return kind(name, files, root)


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files among paths; raises a DataError for a link to nothing, such as to content that was not fetched."""
    files = []
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise DataError(f"{path} is a link to a file that is not there; restore that file, or remove the link")
        if path.is_file():
            files.append(path)
    return files


def _refuse(error: OSError) -> None:
    """Pass on the error of a folder that cannot be read: its texts must not be missing in silence."""
    raise DataError(f"the folder {error.filename} cannot be read ({error.strerror}); allow it, or move it away")


def _refuse_outputs(folder: Path, names: Collection[str]) -> None:
    """Refuse the folder of a run or a model, whose settings and metrics would be read as texts."""
    if {"recipe.yaml", "environment.json"} <= {*names}:
        why = "is a run and holds no texts; give a corpus (its recipe.yaml names its own), or texts"
        raise DataError(f"{folder} {why}")
    weights = ("*.safetensors", "*.gguf", "pytorch_model*.bin")
    if "config.json" in names and any(fnmatch(name, each) for name in names for each in weights):
        raise DataError(
            f"{folder} is the folder of a model; give a corpus, or name the texts, such as '{folder}/*.txt'"
        )


def _open_folder(folder: Path) -> Source:
    name = folder.resolve().name
    with readable(folder):
        children = _files(path for path in folder.iterdir() if not path.name.startswith("."))
    _refuse_outputs(folder, {path.name for path in children})
    tables = [path for path in children if _kind_of(path) is not TextFiles]
    if tables:
        if others := len(children) - len(tables):
            say_once(
                f"note: of {folder} the tables are read ({tables[0].name}{', …' * (len(tables) > 1)}), and not the "
                f"{counted(others, 'other file')}, which '{folder}/*.txt' would name"
            )
        return _open_files(name, tables, folder)
    files = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        _refuse_outputs(Path(place), names)
        folders[:] = [inner for inner in folders if inner[0] != "."]
        files += _files(Path(place, each) for each in names if each[0] != ".")
    if not files:
        raise DataError(f"the folder {folder} holds no files")
    return TextFiles(name, files, folder)
