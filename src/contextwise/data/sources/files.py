"""Files of texts: text files, each a document, and JSON Lines, one object per line with the text in one of its fields."""

import abc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contextwise.base.errors import DataError
from contextwise.data.input_files import JSON_LINES, json_entries, readable, text_and_others, unpacked
from contextwise.data.sources.source import BadRecord, Record, Source, as_record


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
        """Iterate over the records of a file, each with the share of the file read so far."""


class TextFiles(FileSource):
    """Text files in UTF-8, of any name; ``.gz`` is unpacked. Metadata: ``path``, relative to the folder that was given."""

    kind = "text"

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


class JsonLines(FileSource):
    """JSON Lines, or files that hold a JSON list of objects; ``.gz`` is decompressed."""

    kind = "jsonl"
    suffixes = JSON_LINES

    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        record: Record
        try:
            for where, content, share in json_entries(path):
                try:
                    text, metadata = text_and_others(content, text_field)
                except ValueError as error:
                    record = BadRecord(where, str(error))
                else:
                    record = as_record(text, metadata, where, f"the field {text_field!r}")
                yield record, share
        except ValueError as error:
            yield BadRecord(str(path), f"the file {error}"), 1.0
