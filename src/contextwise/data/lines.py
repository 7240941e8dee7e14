"""A file of texts, one a line: plain text or JSON Lines, every line checked, read again as often as needed."""

import codecs
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from contextwise.base.errors import DataError
from contextwise.data.documents import BadRecord
from contextwise.data.sources import parse_line, readable, unpacked

STANDARD_INPUT = "-"
_JSON_LINES = (".jsonl", ".ndjson", ".json")


class Lines:
    """The texts of a file, line by line, split on ``\\n`` alone; ``.gz`` is unpacked on the way.

    Unlike a corpus, where an empty record is passed over, each line must be a text: what is made of line i stands in row i.

    Args:
        path: what is read.
        name: what messages call it.
        text_field: of a JSON object a line; None for lines that are texts themselves.
    """

    def __init__(self, path: Path, name: str, text_field: str | None) -> None:
        self.path, self.name, self.text_field = path, name, text_field

    def __iter__(self) -> Iterator[str]:
        with readable(self.path), self.path.open("rb") as raw, unpacked(raw, self.path) as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield self._text(line, f"{self.name}:{number}")

    def count(self) -> int:
        """Reads and checks every line.

        Raises:
            DataError: the file is missing, damaged or empty, or a line is no text; names the line.
        """
        count = sum(1 for _ in self)
        if count == 0:
            raise DataError(f"{self.name} is empty; give a file with one text a line")
        return count

    def _text(self, line: bytes, where: str) -> str:
        if not line.strip():
            raise DataError(f"{where}: the line is empty; every line must hold a text, so take it out")
        if self.text_field is None:
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise DataError(f"{where}: the line is not UTF-8 text; give text, or JSON Lines") from None
        else:
            record = parse_line(line, where, self.text_field)
            if isinstance(record, BadRecord):
                raise DataError(f"{record.where}: {record.why}; mend the line, or take it out")
            text = record.text
        if not text or text.isspace():
            raise DataError(f"{where}: the text is empty; every line must hold a text, so take it out")
        return text


@contextlib.contextmanager
def open_lines(file: str, text_field: str | None = None) -> Iterator[Lines]:
    """Open a file of texts, or standard input (``-``), which is kept in a temporary file so that it can be read twice.

    Args:
        file: text, one a line; or JSON Lines (``.jsonl``, ``.ndjson``, ``.json``), all also as ``.gz``.
        text_field: where the text is in an object of JSON Lines (``text``, if not given). Given, it makes JSON Lines of a
            file of any name, and of standard input.
    """
    if file != STANDARD_INPUT:
        is_json = file.lower().removesuffix(".gz").endswith(_JSON_LINES)
        yield Lines(Path(file).expanduser(), file, text_field or ("text" if is_json else None))
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "input"
        with kept.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        yield Lines(kept, "standard input", text_field)
