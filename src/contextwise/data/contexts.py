"""Settings of a sentence's contexts, and the conversion of metadata values to English text.

CUE (Section 3.1) passes every context to its encoder as a string: dates as "Wednesday 29 May 1985", categories and symbols
as their English text.
"""

import contextlib
import math
import re
from datetime import date, datetime, time
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import DataError

PREVIOUS = "previous_sentence"
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
_MONTHS += ["September", "October", "November", "December"]
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?")


class ContextSettings(Settings):
    """Names of the contexts of a sentence; their order has no effect on a model."""

    columns: list[str] = Field(
        [], description="metadata columns; 'meta.title' is the field title of the column meta"
    )
    previous_sentence: bool = Field(
        False, description="the sentence before, of the same document, is a context as well"
    )

    @model_validator(mode="after")
    def _check(self) -> "ContextSettings":
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice:
            raise ValueError(f"the context column {twice[0]!r} is named twice; name it once")
        if PREVIOUS in self.columns:
            raise ValueError(
                f"{PREVIOUS!r} is not a column but the sentence before; set {PREVIOUS}: true instead"
            )
        if "document_hash" in self.columns:
            raise ValueError(
                "'document_hash' is computed from the document's own text, which a context must not contain; take it out"
            )
        if not self.types:
            raise ValueError(f"there is no context; name columns, or set {PREVIOUS}: true")
        return self

    @property
    def types(self) -> list[str]:
        """Names of the contexts: the columns, then the previous sentence."""
        return [*self.columns, *([PREVIOUS] if self.previous_sentence else [])]


def as_english(value: Any) -> str | None:
    """Convert a metadata value to English text on a single line; None if it is empty.

    Dates, and strings that are ISO dates, become "Wednesday 29 May 1985" (and a time of day 14:05); truth values "yes" or
    "no"; numbers decimals (fractions to six digits); lists their items, separated by commas. White space becomes single spaces.

    Raises:
        DataError: the value is an object, or of another type that has no text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, list | tuple | np.ndarray):
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
    raise DataError(f"a context value is {kind}, which has no text of its own; name one of its fields")


def _date(value: date) -> str:
    # strftime would write the names in the language of the machine.
    day = f"{_DAYS[value.weekday()]} {value.day} {_MONTHS[value.month - 1]} {value.year}"
    return f"{day} {value:%H:%M}" if isinstance(value, datetime) and value.time() != time.min else day
