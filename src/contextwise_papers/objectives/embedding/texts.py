"""Files of texts, one a line, which are read twice."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from contextwise.base.errors import DataError
from contextwise.data.input_files import JSON_LINES, readable, text_and_others, unpacked


class Lines:
    """Iterable over the texts of a file, one per line; it can be read several times.

    Lines are split only on ``\\n``; ``.gz`` is decompressed. Every line must hold a text, so that row i of a result
    belongs to line i. ``text_field`` is the field of JSON Lines that holds the text, None for plain lines.
    """

    def __init__(self, path: Path, name: str, text_field: str | None) -> None:
        self.path, self.name, self.text_field = path, name, text_field

    def __iter__(self) -> Iterator[str]:
        with readable(self.path), self.path.open("rb") as raw, unpacked(raw, self.path) as lines:
            for number, line in enumerate(lines, start=1):
                yield self._text(line, f"{self.name}:{number}")

    def count(self) -> int:
        """Read and check every line; a :class:`DataError` names the first that is not a text."""
        count = sum(1 for _ in self)
        if count == 0:
            raise DataError(f"{self.name} is empty; give a file with one text a line")
        return count

    def _text(self, line: bytes, where: str) -> str:
        if not line.strip():
            raise DataError(f"{where}: the line is empty; every line must hold a text, so take it out")
        if self.text_field is None:
            try:
                text = line.decode("utf-8-sig" if where.endswith(":1") else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise DataError(f"{where}: the line is not UTF-8 text; give text, or JSON Lines") from None
        else:
            try:
                text, _ = text_and_others(line, self.text_field)
            except ValueError as error:
                raise DataError(f"{where}: {error}; fix the line, or take it out") from None
        if not text or text.isspace():
            raise DataError(f"{where}: the text is empty; every line must hold a text, so take it out")
        return text


@contextlib.contextmanager
def open_lines(file: str, text_field: str | None = None) -> Iterator[Lines]:
    """Open a file of texts, or standard input (``-``), which is copied to a temporary file so that it can be read twice.

    Args:
        file: text, one per line; or JSON Lines (``.jsonl``, ``.ndjson``, ``.json``); each may be compressed (``.gz``).
        text_field: the field of JSON Lines that holds the text (``text`` by default). If given, a file of any name and
            standard input are read as JSON Lines.
    """
    if file != "-":
        is_json = file.lower().removesuffix(".gz").endswith(JSON_LINES)
        yield Lines(Path(file).expanduser(), file, text_field or ("text" if is_json else None))
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "input"
        with copy.open("wb") as target:
            shutil.copyfileobj(sys.stdin.buffer, target)
        yield Lines(copy, "standard input", text_field)
