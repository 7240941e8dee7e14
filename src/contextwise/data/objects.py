"""JSON objects from files: one a line (JSON Lines), or all in one JSON list."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.data.parsing import has_half_a_pair, parse_json
from contextwise.data.sources import readable, unpacked


def read_objects(path: Path, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with where it stands, as an error calls it; blank lines are passed over.

    Args:
        path: JSON Lines or one JSON list, in UTF-8; ``.gz`` is unpacked.
        wanted: what an error says to give instead: it stands behind "give".

    Raises:
        DataError: the file is missing or damaged, a line is no JSON object, or a text holds half of a surrogate pair.
    """
    with readable(path), path.open("rb") as raw, unpacked(raw, path) as file:
        started = False
        for number, line in enumerate(file, start=1):
            content = line.removeprefix(codecs.BOM_UTF8).strip()
            if content.startswith(b"[") and not started:
                yield from _of_list(path, content + file.read(), wanted)
                return
            if content:
                started, where = True, f"{path}:{number}"
                yield where, _checked(_parsed(content, where, wanted), content, where, wanted)


def read_value(path: Path, wanted: str) -> Any:
    """What a JSON file holds, whatever it is; ``.gz`` is unpacked.

    Args:
        wanted: as :func:`read_objects` takes it.

    Raises:
        DataError: the file is missing or damaged, is no JSON, or a text in it holds half of a surrogate pair.
    """
    content = read_bytes(path)
    value = _parsed(content, str(path), wanted)
    check_text(value, content, str(path))
    return value


def read_bytes(path: Path) -> bytes:
    """A whole file, unpacked if its name ends in ``.gz``.

    Raises:
        DataError: the file is missing or damaged.
    """
    with readable(path), path.open("rb") as raw, unpacked(raw, path) as file:
        return file.read()


def _of_list(path: Path, content: bytes, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, value in enumerate(_parsed(content, str(path), wanted), start=1):
        where = f"{path} entry {number:,}"
        yield where, _checked(value, json.dumps(value).encode(), where, wanted)


def _parsed(content: bytes, where: str, wanted: str) -> Any:
    try:
        return parse_json(content)
    except ValueError as error:
        raise DataError(f"{where} {error}; give {wanted}") from None


def _checked(value: Any, content: bytes, where: str, wanted: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object; give {wanted}")
    check_text(value, content, where)
    return value


def check_text(value: Any, content: bytes, where: str) -> None:
    """
    Args:
        value: what ``content``, a JSON text, holds.

    Raises:
        DataError: a text in it holds half of a surrogate pair.
    """
    if has_half_a_pair(value, content):
        raise DataError(f"{where} holds half of a surrogate pair, which is no text; mend it there")
