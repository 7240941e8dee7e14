"""Where texts come from: JSON Lines, text files, Parquet, Hugging Face datasets, Python's standard library.

:func:`open_source` looks at what a user named and picks the reader; a reader's :meth:`Source.records` can be
called again and gives the same records in the same order.
"""

import abc
import codecs
import contextlib
import glob
import gzip
import io
import os
import platform
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from contextwise.base.errors import DataError
from contextwise.data.documents import LONGEST_TEXT, BadRecord, Document
from contextwise.data.hub import hub_problem
from contextwise.data.parsing import has_half_a_pair, parse_json
from contextwise.data.stdlib import stdlib_document, stdlib_files

Record = Document | BadRecord
ROWS = 64  # rows of a table that are in memory as Python objects at a time: they may be whole books
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_FILE_SUFFIXES = {
    ".txt",
    ".md",
    ".rst",
    ".csv",
    ".tsv",
    ".gz",
    ".zst",
    ".zip",
    ".bin",
    ".arrow",
}  # no names on the Hub
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(:[\w.-]+){0,2}")


class Source(abc.ABC):
    """A readable source.

    Attributes:
        kind: ``jsonl``, ``text``, ``parquet``, ``dataset``, ``hub`` or ``stdlib``.
        name: what the user gave, without folders.
        done: how much of it the current pass has read, from 0 to 1.
    """

    kind: str

    def __init__(self, name: str) -> None:
        self.name, self.done = name, 0.0

    @abc.abstractmethod
    def records(self, text_field: str) -> Iterator[Record]:
        """All records, in a fixed order.

        Raises:
            DataError: a file is missing, unreadable or damaged, or a table has no column ``text_field``.
        """

    def description(self) -> dict[str, Any]:
        """What the manifest says about this source."""
        return {"kind": self.kind, "name": self.name}


class FileSource(Source):
    """A source that is one or more files, read one after the other."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        super().__init__(name)
        self.files = sorted(files)

    def description(self) -> dict[str, Any]:
        return {**super().description(), "files": len(self.files)}

    def records(self, text_field: str) -> Iterator[Record]:
        self.done, before = 0.0, 0
        sizes = [path.stat().st_size if path.exists() else 0 for path in self.files]
        total = max(1, sum(sizes))
        for path, size in zip(self.files, sizes, strict=True):
            with readable(path):
                for record, share in self.records_of(path, text_field):
                    self.done = (before + share * size) / total
                    yield record
            before += size

    @abc.abstractmethod
    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        """Records of one file, each with the share of the file that was read up to there."""


class JsonLines(FileSource):
    """One JSON object a line, split on ``\\n`` alone; ``.gz`` is unpacked on the way."""

    kind = "jsonl"

    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        size = max(1, path.stat().st_size)
        with path.open("rb") as raw, unpacked(raw, path) as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield parse_line(line, f"{path}:{number}", text_field), raw.tell() / size


class TextFiles(FileSource):
    """Each file is a document; metadata: ``path``, relative to the folder that was given."""

    kind = "text"

    def __init__(self, name: str, files: Sequence[Path], root: Path) -> None:
        super().__init__(name, files)
        self.root = root

    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        with path.open("rb") as raw, unpacked(raw, path) as file:
            content = file.read()
        record: Record
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            record = BadRecord(str(path), f"the file is not UTF-8 text (byte {error.start:,})")
        else:
            record = as_record(text, {"path": path.relative_to(self.root).as_posix()}, str(path), "its text")
        yield record, 1.0


class Parquet(FileSource):
    """Rows of Parquet files."""

    kind = "parquet"

    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        with pq.ParquetFile(path) as file:
            rows, count = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(batch_size=ROWS):
                for record in rows_of(batch, str(path), count, text_field):
                    count += 1
                    yield record, count / rows


class HuggingFaceDataset(Source):
    """Rows of a dataset: a folder that ``save_to_disk`` wrote, or a name on the Hub."""

    def __init__(self, name: str, kind: str, dataset: Any) -> None:
        super().__init__(name)
        self.kind, self.dataset = kind, dataset

    def records(self, text_field: str) -> Iterator[Record]:
        rows, count = getattr(self.dataset, "num_rows", None), 0
        self.done = 0.0
        # The "arrow" format leaves images and sounds undecoded.
        with readable(Path(self.name)):
            for table in self.dataset.with_format("arrow").iter(batch_size=ROWS):
                for record in rows_of(table, self.name, count, text_field):
                    count += 1
                    if rows:
                        self.done = count / rows
                    yield record


class StandardLibrary(Source):
    """The source of Python's own standard library: see :mod:`contextwise.data.stdlib`."""

    kind = "stdlib"

    def __init__(self) -> None:
        super().__init__("stdlib")

    def records(self, text_field: str) -> Iterator[Record]:
        modules = stdlib_files()
        for index, (module, path) in enumerate(modules):
            with readable(path):
                document = stdlib_document(module, path)
            self.done = (index + 1) / len(modules)
            if document is not None:
                yield document

    def description(self) -> dict[str, Any]:
        return {**super().description(), "python": platform.python_version()}


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading ``path`` into a :class:`DataError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} is damaged or cut short ({reason}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def unpacked(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """The content of an open file, unpacked if its name ends in ``.gz``."""
    if path.suffix != ".gz":
        yield raw
        return
    with gzip.GzipFile(fileobj=raw) as file:
        yield io.BufferedReader(file, 1 << 20)  # type: ignore[misc, type-var]


def parse_line(line: bytes, where: str, text_field: str) -> Record:
    """One line of JSON Lines as a document, or what is wrong with it."""
    try:
        record = parse_json(line)
    except ValueError as error:
        return BadRecord(where, f"the line {error}")
    if not isinstance(record, dict):
        return BadRecord(where, f"the line is not a JSON object but {_type_name(record)}")
    if text_field not in record:
        fields = ", ".join(map(repr, list(record)[:8])) or "none"
        return BadRecord(
            where, f"there is no field {text_field!r} (fields: {fields}; --text-field names another)"
        )
    if has_half_a_pair(record, line):
        return BadRecord(where, "a string holds half of a surrogate pair, which is no text")
    text = record.pop(text_field)
    return as_record(text, record, where, f"the field {text_field!r}")


def as_record(text: Any, metadata: dict[str, Any], where: str, what: str) -> Record:
    """A document, if ``text`` is a string of a size that Arrow can hold."""
    if not isinstance(text, str):
        return BadRecord(where, f"{what} is not a string but {_type_name(text)}")
    if len(text) >= LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
        return BadRecord(where, f"{what} is longer than 2 GiB")
    return Document(text, metadata)


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def rows_of(table: pa.Table | pa.RecordBatch, name: str, first: int, text_field: str) -> Iterator[Record]:
    """Rows of a table as documents; ``first`` is the number of its first row.

    Raises:
        DataError: there is no such column.
    """
    if text_field not in table.schema.names:
        columns = ", ".join(map(repr, table.schema.names[:12]))
        raise DataError(
            f"{name} has no column {text_field!r}; its columns are {columns}: choose one with --text-field"
        )
    texts = table.column(text_field).to_pylist()
    others = table.select([column for column in table.schema.names if column != text_field]).to_pylist()
    for row, text in enumerate(texts):
        metadata = others[row] if others else {}
        yield as_record(text, metadata, f"{name} row {first + row + 1:,}", f"the column {text_field!r}")


def open_source(name: str | Path, limit: int | None = None) -> Source:
    """Find out what ``name`` is: ``stdlib``, a file, a folder, a pattern (``data/*.jsonl.gz``) or a Hub name.

    ``alpaca:`` before any of them: its records are instructions (:mod:`contextwise.data.instructions`).

    Args:
        limit: how many documents will be read at most; a dataset on the Hub is then streamed.

    Raises:
        DataError: there is no such thing, or it cannot be read.
    """
    given = str(name)
    if given == "stdlib":
        return StandardLibrary()
    if given.startswith("alpaca:"):
        from contextwise.data.instructions import Instructions  # which reads other sources

        return Instructions(open_source(given.removeprefix("alpaca:"), limit))
    path = Path(given).expanduser()
    if path.is_dir():
        return _open_folder(path)
    if path.exists():
        return _open_files(path.name, [path], path.parent)
    if glob.has_magic(given):
        found = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        files = [match for match in found if match.is_file()]
        if not files:
            raise DataError(f"no file matches {given}")
        return _open_files(path.name, files, Path(os.path.commonpath([file.parent for file in files])))
    if not _HUB_NAME.fullmatch(given) or _kind(path) != "text" or path.suffix in _FILE_SUFFIXES:
        raise DataError(f"there is no file or folder {given}")
    return _open_hub(given, limit)


def _kind(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(_JSON_LINES):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def _open_files(name: str, files: Sequence[Path], root: Path) -> Source:
    kinds = sorted({_kind(path) for path in files})
    if len(kinds) > 1:
        raise DataError(
            f"{name} holds files of several kinds ({', '.join(kinds)}); name one kind, such as *.jsonl"
        )
    if kinds == ["jsonl"]:
        return JsonLines(name, files)
    return Parquet(name, files) if kinds == ["parquet"] else TextFiles(name, files, root)


def _open_folder(folder: Path) -> Source:
    name = folder.resolve().name
    if (folder / "dataset_dict.json").exists() and (folder / "manifest.json").exists():
        raise DataError(f"{folder} is a corpus that is already prepared; give the text that it was made from")
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return HuggingFaceDataset(name, "dataset", _load_dataset_folder(folder))
    with readable(folder):
        children = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    tables = [path for path in children if _kind(path) != "text"]
    if tables:
        return _open_files(name, tables, folder)
    files = list(_walk(folder))
    if not files:
        raise DataError(f"the folder {folder} holds no files")
    return TextFiles(name, files, folder)


def _walk(folder: Path) -> Iterator[Path]:
    """Files below ``folder``; hidden ones and what lies in hidden folders are passed over."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [inner for inner in folders if not inner.startswith(".")]
        for name in names:
            path = Path(parent) / name
            if not name.startswith(".") and path.is_file():
                yield path


def _load_dataset_folder(folder: Path) -> Any:
    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{folder} is not a dataset that save_to_disk wrote, or it is damaged: {reason}"
        ) from None
    if isinstance(dataset, datasets.DatasetDict):
        names = sorted(dataset)
        if "train" not in dataset and len(names) > 1:
            raise DataError(
                f"{folder} has no split 'train' but {', '.join(names)}; give {folder}/{names[0]}, for example"
            )
        return dataset["train" if "train" in dataset else names[0]]
    return dataset


def _open_hub(given: str, limit: int | None) -> Source:
    """A dataset on the Hub: ``name``, ``name:config`` or ``name:config:split`` (``train`` by default)."""
    problem = hub_problem()
    if problem:
        raise DataError(f"there is no file or folder {given} here, and {problem}")
    name, _, rest = given.partition(":")
    config, _, split = rest.partition(":")
    try:
        dataset = datasets.load_dataset(
            name, config or None, split=split or "train", streaming=limit is not None
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"there is no file or folder {given} here, and the Hub did not give that dataset: {reason}"
        ) from None
    return HuggingFaceDataset(given, "hub", dataset)
