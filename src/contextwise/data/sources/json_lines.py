"""JSON Lines: one object per line, with the text in one of its fields."""

from collections.abc import Iterator
from pathlib import Path

from contextwise.data.documents import BadRecord
from contextwise.data.input_files import JSON_LINES, json_entries, text_and_others
from contextwise.data.sources.source import FileSource, Record, as_record


class JsonLines(FileSource):
    """JSON Lines, or files that hold a JSON list of objects; ``.gz`` is decompressed."""

    kind = "jsonl"
    suffixes = JSON_LINES

    def records_of(self, path: Path, text_field: str) -> Iterator[tuple[Record, float]]:
        try:
            for where, content, share in json_entries(path):
                yield _record(content, where, text_field), share
        except ValueError as error:
            yield BadRecord(str(path), f"the file {error}"), 1.0


def _record(content: bytes, where: str, text_field: str) -> Record:
    try:
        text, metadata = text_and_others(content, text_field)
    except ValueError as error:
        return BadRecord(where, str(error))
    return as_record(text, metadata, where, f"the field {text_field!r}")
