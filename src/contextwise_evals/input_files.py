"""Reading of files of items: objects of JSON and JSON Lines, with errors that name the file and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from contextwise.base.errors import DataError
from contextwise.data.input_files import HALF_A_PAIR, has_half_a_pair, json_entries, parse_json, readable, unpacked

LONGEST_FILE = 2**31 - 1
"""Bytes that are read at once, unpacked."""


def read_bytes(path: Path) -> bytes:
    """Read a complete file, decompressed if its name ends in ``.gz``; a :class:`DataError` if it is missing or damaged."""
    with readable(path), path.open("rb") as raw, unpacked(raw, path) as file:
        content = file.read(LONGEST_FILE + 1)
    if len(content) > LONGEST_FILE:
        raise DataError(f"{path} holds more than 2 GiB of text; split it")
    return content


def check_text(value: Any, content: bytes, where: str) -> None:
    """Raise a :class:`DataError` if a string of a JSON value, parsed from ``content``, holds an unpaired surrogate."""
    if has_half_a_pair(value, content):
        raise DataError(f"{where} {HALF_A_PAIR}; fix it there")


def read_objects(path: Path, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the objects of a file of JSON Lines or a JSON list, each with its location for error messages.

    ``wanted`` describes the expected content in error messages, as the object of "give".

    Raises:
        DataError: the file is missing or damaged, an entry is not a JSON object, or holds an unpaired surrogate.
    """
    where = str(path)
    try:
        with readable(path):
            for where, content in json_entries(path):
                value = parse_json(content)
                if not isinstance(value, dict):
                    raise DataError(f"{where} is not a JSON object; give {wanted}")
                check_text(value, content, where)
                yield where, value
                where = str(path)
    except ValueError as error:
        raise DataError(f"{where} {error}; give {wanted}") from None


class Form(BaseModel):
    """Base class for the fields of an object in a user file; other fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


RowForm = TypeVar("RowForm", bound=Form)


def checked(form: type[RowForm], row: dict[str, Any], where: str, wanted: str) -> RowForm:
    """Validate an object of a file against its form.

    Args:
        where: file and line.
        wanted: description of the form's fields for the message.

    Raises:
        DataError: fields are missing or invalid; the message names the first five.
    """
    problems = []
    try:
        return form.model_validate(row)
    except ValidationError as error:
        for problem in error.errors():
            name, message = repr(".".join(map(str, problem["loc"]))), problem["msg"]
            why = f"is wrong ({(message[0].lower() + message[1:]).removeprefix('input ')})"
            problems.append(f"{name} is missing" if problem["type"] == "missing" else f"{name} {why}")
    more = f" and {len(problems) - 5:,} more problems" if len(problems) > 5 else ""
    fields = ", ".join(map(repr, list(row)[:8])) or "none"
    raise DataError(f"{where}: {', '.join(problems[:5])}{more} (fields: {fields}); {wanted}")


def read_value(path: Path, wanted: str) -> Any:
    """Read a JSON file; ``.gz`` is decompressed; ``wanted`` and errors are as for :func:`read_objects`."""
    content = read_bytes(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise DataError(f"{path} {error}; give {wanted}") from None
    check_text(value, content, str(path))
    return value
