"""JSON values: how they are parsed, and whether a value has the types that are read of it.

Files that carry a hash of their content are read as they were written. For other files a model of pydantic lists the keys
that are read.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, Strict, TypeAdapter, ValidationError

from contextwise.base.estimates import LARGEST
from contextwise.base.problems import requirement

T = TypeVar("T")
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A finite number."""
Count = Annotated[int, Strict(), Field(ge=0)]
"""A whole number that is not negative."""
Positive = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
"""A finite number above zero."""
OneOrMore = Annotated[int, Strict(), Field(ge=1)]
"""A whole number above zero."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that Contextwise wrote; NaN and infinities, which are no JSON, are null.

    A ValueError if it is not JSON, or has a number beyond :data:`LARGEST`.
    """
    try:
        return json.loads(text, parse_int=_bounded(int), parse_float=_bounded(float), parse_constant=lambda name: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _bounded(kind: type) -> Any:
    def number(digits: str) -> Any:
        value = kind(digits) if len(digits) < 400 else math.inf
        if abs(value) > LARGEST:
            raise ValueError(f"the number {digits[:20]}{'…' * (len(digits) > 20)} is too large")
        return value

    return number


def matching(form: type[T], values: Any) -> T:
    """JSON values as a pydantic model or dataclass; further keys are allowed. A ValueError (a clause) if they are none."""
    try:
        return _adapter(form).validate_python(values)  # type: ignore[arg-type]  # classes have hashes
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    *above, name = first["loc"] or ("it",)
    if first["type"] == "missing":
        raise ValueError(f"{'.'.join(map(str, above)) or 'it'} has no {name}")
    shown = json.dumps(first["input"], ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    raise ValueError(f"{'.'.join(map(str, [*above, name]))} is {shown}, but {requirement(first)[0]}")


@functools.cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def built(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """A dataclass from the JSON values of its fields; other keys are ignored."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})
