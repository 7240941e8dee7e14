"""Files of texts, one a line."""

import sys
from collections.abc import Iterable

from contextwise.base.errors import DataError
from contextwise.base.files import expanded
from contextwise.data.input_files import JSON_LINES, readable, text_and_others, unpacked


def read_texts(file: str, text_field: str | None = None) -> list[str]:
    """Read a file of texts, or standard input (``-``); text i is that of line i. Lines are split only on ``\\n``.

    Args:
        file: text, one per line; or JSON Lines (``.jsonl``, ``.ndjson``, ``.json``); each may be compressed (``.gz``).
        text_field: the field of JSON Lines that holds the text (``text`` by default). If given, a file of any name and
            standard input are read as JSON Lines.

    Raises:
        DataError: the file cannot be read, is empty, or a line is not a text.
    """
    if file == "-":
        return _texts(sys.stdin.buffer, "standard input", text_field)
    path = expanded(file)
    if text_field is None and file.lower().removesuffix(".gz").endswith(JSON_LINES):
        text_field = "text"
    with readable(path), path.open("rb") as raw, unpacked(raw, path) as lines:
        return _texts(lines, file, text_field)


def _texts(lines: Iterable[bytes], name: str, text_field: str | None) -> list[str]:
    texts = []
    for number, line in enumerate(lines, start=1):
        where = f"{name}:{number}"
        if not line.strip():
            raise DataError(f"{where}: the line is empty; every line must hold a text, so take it out")
        try:
            if text_field is None:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            else:
                text, _ = text_and_others(line, text_field)
        except UnicodeDecodeError:
            raise DataError(f"{where}: the line is not UTF-8 text; give text, or JSON Lines") from None
        except ValueError as error:
            raise DataError(f"{where}: {error}; fix the line, or take it out") from None
        if not text or text.isspace():
            raise DataError(f"{where}: the text is empty; every line must hold a text, so take it out")
        texts.append(text)
    if not texts:
        raise DataError(f"{name} is empty; give a file with one text a line")
    return texts
