"""The metadata of a corpus's documents as English text.

Dates are written as "Wednesday 29 May 1985", categories and symbols as their English text.
"""

import contextlib
import math
import re
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from contextwise.settings import DataError

if TYPE_CHECKING:
    from contextwise.data import Corpus

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
_MONTHS += ["September", "October", "November", "December"]
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?")


def as_english(value: Any) -> str | None:
    """Convert a metadata value to English text on a single line; None if it is empty. DataError if it has no text.

    Dates, and strings that are ISO dates, become "Wednesday 29 May 1985" (and a time of day 14:05); truth values "yes" or
    "no"; numbers decimals (fractions to six digits); lists their items, separated by commas. White space becomes single spaces.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, list):
        items = [text for text in map(as_english, value) if text is not None]
        return ", ".join(items) or None
    if isinstance(value, str):
        text = " ".join(value.split())
        if _ISO_DATE.fullmatch(text):
            with contextlib.suppress(ValueError):  # an invalid date such as 1985-02-31 is plain text
                return _date(datetime.fromisoformat(text))
        return text or None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not value.is_integer():
        text = f"{value:.6g}"
        return f"{value:.0f}" if "e+" in text else text  # 1234568, and not 1.23457e+06
    if isinstance(value, int | float):
        return str(int(value))
    if isinstance(value, date):  # includes datetime
        return _date(value)
    if isinstance(value, time):
        return f"{value:%H:%M}"
    kind = "an object" if isinstance(value, dict) else f"of type {type(value).__name__}"
    raise DataError(f"a value is {kind}, which has no text of its own; name one of its fields")


def _date(value: date) -> str:
    # strftime would write the names in the language of the machine.
    day = f"{_DAYS[value.weekday()]} {value.day} {_MONTHS[value.month - 1]} {value.year}"
    return f"{day} {value:%H:%M}" if isinstance(value, datetime) and value.time() != time.min else day


def column_values(corpus: "Corpus", name: str) -> list[Any]:
    """The values of a metadata column, which may be a field of objects (``meta.title``), one per document."""
    column, dot, field = name.partition(".")
    if not dot or name in corpus.columns:
        column, field = name, ""
    values: list[Any] = corpus.column(column)
    kinds = {float if type(value) is int else type(value) for value in values if value is not None}
    if not field and len(kinds) > 1:
        raise DataError(
            f"the values of the column {name!r} of {corpus.path} have no common type, so they are kept as JSON text; "
            "give them one type and prepare the corpus again, or leave the column out"
        )
    if field:
        *parents, last = field.split(".")
        objects = (_field(value, parents) for value in values)
        if not any(isinstance(inner, dict) and last in inner for inner in objects):
            raise DataError(
                f"the column {name!r} of {corpus.path} does not exist: {column} has no field {field!r}; "
                "name one that it has"
            )
        values = [_field(value, [*parents, last]) for value in values]
    return values


def column_texts(corpus: "Corpus", name: str) -> list[str | None]:
    """The text of a metadata column for each document; None where it has none. Equal texts are one string in memory."""
    shared: dict[str, str] = {}
    texts: list[str | None] = []
    for value in column_values(corpus, name):
        try:
            text = as_english(value)
        except DataError:
            fields = f", {name}.{next(iter(value))} for one" if isinstance(value, dict) and value else ""
            raise DataError(
                f"the column {name!r} of {corpus.path} holds objects, which have no text of their own; "
                f"name one of their fields{fields}"
            ) from None
        texts.append(None if text is None else shared.setdefault(text, text))
    return texts


def _field(value: Any, path: list[str]) -> Any:
    """The field of nested objects at a path; None where one of them is missing."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
