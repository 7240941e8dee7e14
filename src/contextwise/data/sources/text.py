"""Text files: each is a document."""

from collections.abc import Iterator
from pathlib import Path

from contextwise.data.documents import BadRecord
from contextwise.data.input_files import unpacked
from contextwise.data.sources.source import FileSource, Record, as_record


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
