"""Reading of texts: decompression, lines and JSON Lines, with errors that name the file and line."""

import codecs
import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from contextwise.base.errors import DataError, misspelt, one_line
from contextwise.base.problems import problems_of

UNREAD = (".bz2", ".xz", ".zst", ".lz4")  # suffixes of compressed files that are not read
JSON_LINES = (".jsonl", ".ndjson", ".json")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
HALF_A_PAIR = "holds half of a surrogate pair, which is no text"


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a ValueError if it has a key twice, of which Python would keep the last value."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object_of)
LONGEST_LINE = 2**28  # bytes, unpacked


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert errors while reading ``path`` into a :class:`DataError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file {path}{misspelt(path)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, error) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def damaged(path: Path, error: Exception) -> DataError:
    """Build the error for a file with damaged content."""
    reason = one_line(error)
    return DataError(f"{path} is damaged or cut short ({reason}); fetch it again")


@contextlib.contextmanager
def unpacked(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """Yield the content of an open file, decompressed if its name ends in ``.gz``."""
    if path.suffix.lower() != ".gz":
        yield raw
        return
    with gzip.GzipFile(fileobj=raw) as file:
        yield io.BufferedReader(file, 1 << 20)  # type: ignore[misc, type-var]


def parse_json(content: bytes) -> Any:
    """Parse a JSON text; the message of its ValueError is a predicate, "is not ..." or "holds ..."."""
    try:
        return _DECODER.decode(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            where = f"line {error.lineno}, " * (error.lineno > 1) + f"column {error.colno}"
            raise ValueError(f"holds more than one JSON value, the second from {where}") from None
        raise ValueError(f"is not JSON ({str(error)[:100]})") from None


def has_half_a_pair(value: Any, content: bytes) -> bool:
    """Whether a JSON value, parsed from ``content``, holds an unpaired surrogate, which UTF-8 cannot encode."""
    if not _SURROGATE.search(content):
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def json_entries(path: Path) -> Iterator[tuple[str, bytes]]:
    """Iterate over the JSON texts of a file: its lines, split only on ``\\n``, or the items of a JSON list.

    Yields the location and the content. Blank lines are skipped; ``.gz`` is decompressed. The message of the ValueError for a
    list that is not valid is a predicate, "is not ...".
    """
    with path.open("rb") as raw, unpacked(raw, path) as file:
        started = False
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
            if len(line) > LONGEST_LINE:
                raise DataError(f"{path}:{number}: the line is longer than 256 MiB; split the text")
            content = line.removeprefix(codecs.BOM_UTF8).strip()
            if content.startswith(b"[") and not started:
                items = parse_json(b"\n" * (number - 1) + line.removeprefix(codecs.BOM_UTF8) + file.read())
                for index, item in enumerate(items, start=1):
                    yield f"{path} entry {index:,}", json.dumps(item).encode()
                return
            if content:
                started = True
                yield f"{path}:{number}", content


def json_object(content: bytes, where: str, wanted: str) -> dict[str, Any]:
    """The object of a JSON text at ``where``; a :class:`DataError` that ends in "give ``wanted``" if it is none."""
    try:
        value = parse_json(content)
    except ValueError as error:
        raise DataError(f"{where} {error}; give {wanted}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object; give {wanted}")
    if has_half_a_pair(value, content):
        raise DataError(f"{where} {HALF_A_PAIR}; fix it there")
    return value


def read_objects(path: Path, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the objects of a file of JSON Lines or a JSON list, each with its location for error messages.

    ``wanted`` describes the expected content in error messages, as the object of "give".
    """
    where = str(path)
    try:
        with readable(path):
            for where, content in json_entries(path):
                yield where, json_object(content, where, wanted)
                where = str(path)
    except ValueError as error:
        raise DataError(f"{where} {error}; give {wanted}") from None


class Form(BaseModel):
    """Base class for the fields of an object in a user's file; other fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


RowForm = TypeVar("RowForm", bound=Form)


def checked(form: type[RowForm], row: dict[str, Any], where: str, wanted: str) -> RowForm:
    """The fields of an object of :func:`read_objects`; a DataError names the first five problems."""
    try:
        return form.model_validate(row)
    except ValidationError as error:
        problems = [str(problem) for each in error.errors() for problem in problems_of(form, each)]
    more = f" and {len(problems) - 5:,} more problems" if len(problems) > 5 else ""
    fields = ", ".join(map(repr, list(row)[:8])) or "none"
    raise DataError(f"{where}: {', '.join(problems[:5])}{more} (fields: {fields}); give {wanted}")


def text_and_others(content: bytes, text_field: str) -> tuple[str, dict[str, Any]]:
    """Split a JSON object into its text and its other fields; the message of its ValueError is a clause."""
    try:
        record = parse_json(content)
    except ValueError as error:
        raise ValueError(f"the line {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"the line is not a JSON object but {type_name(record)}")
    if text_field not in record:
        fields = listed_fields({name: [value] for name, value in record.items()})
        raise ValueError(f"there is no field {text_field!r} (fields: {fields}; text_field names another)")
    if has_half_a_pair(record, content):
        raise ValueError(f"a string {HALF_A_PAIR}")
    text = record.pop(text_field)
    if not isinstance(text, str):
        raise ValueError(f"the field {text_field!r} is not a string but {type_name(text)}")
    return text, record


def listed_fields(values: Mapping[str, Sequence[Any]]) -> str:
    """The names of fields for a message, those with the most text in the given sample of values first."""
    lengths = {name: sum(len(value) for value in some if isinstance(value, str)) for name, some in values.items()}
    names = [repr(name) for name in sorted(values, key=lambda name: -lengths[name])]
    return ", ".join([*names[:12], *(["…"] if len(names) > 12 else [])]) or "none"


def type_name(value: Any) -> str:
    """Name of a value's JSON type, with its article."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
