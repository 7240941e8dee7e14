"""Files of texts: text files, each a document; JSON Lines and CSV, with the text of each record in one of its fields."""

import abc
import codecs
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contextwise.base.errors import DataError
from contextwise.data.input_files import (
    JSON_LINES,
    LONGEST_LINE,
    UNREAD,
    json_entries,
    readable,
    text_and_others,
    unpacked,
)
from contextwise.data.sources.source import BadRecord, Document, Record, Source, as_record, check_columns

_BLANK_LINES = re.compile(r"\r?\n[ \t]*\r?\n")
HTML, XML, NOTEBOOK = AS_IT_IS = (
    "an HTML page, most of which is mark-up",
    "XML, most of which is mark-up",
    "a notebook, whose cells are inside JSON",
)
NOT_TEXT = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), HTML),
    ".xml": XML,
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pptx", ".xlsx", ".epub"), "an office document"),
    ".ipynb": NOTEBOOK,
    ".pdf": "a PDF",
    **dict.fromkeys((".arrow", ".feather"), "an Arrow table"),
    **dict.fromkeys((".tar", ".tgz", ".zip", ".7z", ".rar"), "an archive"),
    **dict.fromkeys(UNREAD, "compressed in a way that is not read (.gz is)"),
}
"""Suffix of files that are read by other programs -> what they are."""


class FileSource(Source):
    """Base class of a source of files, read in order; ``root`` is the folder that the user named, or that of all files."""

    suffixes: ClassVar[tuple[str, ...]] = ()  # of the file names, without .gz

    def __init__(self, name: str, files: Sequence[Path], root: Path) -> None:
        super().__init__(name)
        self.files, self.root = sorted(files), root
        for file in self.files:
            try:
                str(file).encode()
            except UnicodeEncodeError:  # the corpus keeps names as text
                raise DataError(f"the name of the file {str(file)!r} is not UTF-8 text; rename it") from None

    def description(self) -> dict[str, Any]:
        return {**super().description(), "files": len(self.files)}

    def records(self, text_field: str) -> Iterator[Record]:
        for number, path in enumerate(self.files):
            self.done = number / len(self.files)
            with readable(path):
                yield from self._records_of(path, text_field)

    def _records_of(self, path: Path, text_field: str) -> Iterator[Record]:
        what = NOT_TEXT.get(Path(path.name.lower().removesuffix(".gz")).suffix)
        if what is None:
            yield from self.records_of(path, text_field)
            return
        why = f"is {what}: write its text into a .txt or .jsonl file"
        why += ", or name it .txt to take it as it is" if what in AS_IT_IS else ""
        if len(self.files) == 1:  # nothing would be left without it
            raise DataError(f"{path} {why}")
        yield BadRecord(str(path), f"the file {why}")

    @abc.abstractmethod
    def records_of(self, path: Path, text_field: str) -> Iterator[Record]:
        """Iterate over the records of a file."""


class TextFiles(FileSource):
    """Text files in UTF-8, of any name but :data:`NOT_TEXT`; ``.gz`` is unpacked.

    Metadata: ``path``, relative to the folder that was given.
    """

    kind = "text"

    def records_of(self, path: Path, text_field: str) -> Iterator[Record]:
        with path.open("rb") as raw, unpacked(raw, path) as file:
            content = file.read()
        record: Record
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            code = "UTF-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "LATIN1"
            how = f"convert it, as with iconv -f {code} -t UTF-8"
            if content.startswith(b"%PDF"):
                how = f"it is {NOT_TEXT['.pdf']}: write its text into a .txt or .jsonl file"
            elif code == "LATIN1" and b"\0" in content:
                how = "it holds zero bytes, so it is no text in another encoding either; leave it out"
            if len(self.files) == 1:  # nothing would be left without it
                raise DataError(f"{path} is not UTF-8 text (byte {error.start:,}); {how}") from None
            record = BadRecord(str(path), f"the file is not UTF-8 text (byte {error.start:,}): {how}")
        else:
            record = as_record(text, {"path": path.relative_to(self.root).as_posix()}, str(path), "its text")
        yield record


class JsonLines(FileSource):
    """JSON Lines, or files that hold a JSON list of objects; ``.gz`` is decompressed."""

    kind = "jsonl"
    suffixes = JSON_LINES

    def records_of(self, path: Path, text_field: str) -> Iterator[Record]:
        record: Record
        try:
            for where, content in json_entries(path):
                try:
                    text, metadata = text_and_others(content, text_field)
                except ValueError as error:
                    record = BadRecord(
                        where, str(error).replace("the line", "it") if " entry " in where else str(error)
                    )
                else:
                    record = as_record(text, metadata, where, f"the field {text_field!r}")
                yield record
        except ValueError as error:
            yield BadRecord(str(path), f"the file {error}")


class Csv(FileSource):
    """Tables in CSV (also with semicolons) or TSV, in UTF-8, whose first row names the columns; ``.gz`` is unpacked.

    A TSV may have its quotes around cells, as spreadsheets and pandas write it, or in texts alone (:func:`_quotes_cells`).
    """

    kind = "csv"
    suffixes = (".csv", ".tsv")

    def records_of(self, path: Path, text_field: str) -> Iterator[Record]:
        csv.field_size_limit(LONGEST_LINE)
        tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        quoting: Any = csv.QUOTE_MINIMAL if not tabs or _quotes_cells(path) else csv.QUOTE_NONE
        with _lines(path) as lines:
            first = next(lines, "")
            delimiter = "\t" if tabs else ";" if ";" in first and "," not in first else ","
            rows = csv.reader(itertools.chain([first], lines), delimiter=delimiter, strict=True, quoting=quoting)
            try:
                names = next(rows, [])
            except csv.Error as error:
                raise DataError(f"the first row of {path}, which names its columns, is not CSV ({error})") from None
            if _NOT_UTF8.search("".join(names)):
                raise DataError(f"{path} is not UTF-8 text (in its first row); convert it, as with iconv")
            # Spreadsheets write empty columns, without names, beside a table.
            check_columns(str(path), list(filter(None, names)), text_field, dict.fromkeys(names, ()))
            for number in itertools.count(2):
                where = f"{path} row {number:,}"
                try:
                    row = next(rows, None)
                except csv.Error as error:
                    yield BadRecord(where, f"the row is not CSV ({error})")
                    continue
                if row is None:
                    return
                if row:
                    yield _row_record(names, row, text_field, where)


_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Characters in place of bytes that are not UTF-8."""


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """Iterate over the lines of a table; bytes that are not UTF-8 are :data:`_NOT_UTF8`."""
    with path.open("rb") as raw, unpacked(raw, path) as file:
        yield iter(io.TextIOWrapper(file, encoding="utf-8-sig", newline="", errors="surrogateescape"))


def _quotes_cells(path: Path) -> bool:
    """Whether the quotes of a TSV are around cells, so that these may hold line breaks and tabs, or belong to its texts.

    They belong to the texts if cells would hold line breaks although each line has a cell for each column; or if fewer rows
    are bad without quoted cells than with them, and fewer cells stand in quotes than rows are bad.
    """
    rows, bad, lines, columns = 0, 0, 0, 0
    with _lines(path) as text:
        quoted = csv.reader(text, delimiter="\t", strict=True)
        while True:
            try:
                row = next(quoted, None)
            except csv.Error:
                bad += 1
                continue
            if row is None:
                break
            columns = columns or len(row)
            rows, bad, lines = rows + 1, bad + (len(row) not in (0, columns)), quoted.line_num
    if bad == 0 and (lines == rows or columns == 1):
        return True
    with _lines(path) as text:
        bad_plain, in_quotes = 0, 0
        for row in csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE):
            bad_plain += len(row) not in (0, columns)
            in_quotes += sum(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in row)
    return bad_plain > 0 if bad == 0 else bad_plain >= bad or in_quotes >= bad


def _row_record(names: Sequence[str], row: Sequence[str], text_field: str, where: str) -> Record:
    if _NOT_UTF8.search("".join(row)):
        return BadRecord(where, "the row is not UTF-8 text")
    if len(row) != len(names):
        return BadRecord(where, f"the row has {len(row)} cells, but there are {len(names)} columns")
    values = {name: cell for name, cell in zip(names, row, strict=True) if name}
    return as_record(values.pop(text_field), values, where, f"the column {text_field!r}")


class Paragraphs(Source):
    """The documents of another source, cut at blank lines: ``paragraphs:book.txt``; each has the metadata of the whole."""

    kind, wraps = "paragraphs", True

    def __init__(self, source: Source) -> None:
        super().__init__(f"{self.kind}:{source.name}")
        self.source = source

    def description(self) -> dict[str, Any]:
        return {**self.source.description(), **super().description()}

    def records(self, text_field: str) -> Iterator[Record]:
        for record in self.source.records(text_field):
            if isinstance(record, BadRecord):
                yield record
                continue
            for part in _BLANK_LINES.split(record.text):
                if part.strip():
                    yield Document(part.strip("\r\n"), record.metadata)
