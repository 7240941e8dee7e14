"""JSON values: how they are parsed, the JSON Schema of a type, and whether a value matches it.

A file that Contextwise wrote is read with a type: a typed dictionary beside the code that writes the file. The schema of a type
is that of what :func:`~contextwise.base.estimates.as_json` makes of it.
"""

import dataclasses
import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel

from contextwise.base.estimates import fields_in_json
from contextwise.base.lazy import object_named

T = TypeVar("T")
PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # NaN and infinities are null
    str: {"type": "string"},
    Path: {"type": "string"},
    types.NoneType: {"type": "null"},
}
Number = Annotated[float, ("type", "number")]
"""A finite number."""
Count = Annotated[int, ("minimum", 0)]
"""A whole number that is not negative."""
Positive = Annotated[float, ("type", "number"), ("exclusiveMinimum", 0)]
"""A finite number above zero."""
OneOrMore = Annotated[int, ("minimum", 1)]
"""A whole number above zero."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that Contextwise wrote; NaN and infinities, which are no JSON, are null. A ValueError if it is not JSON."""
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def named_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a class, ``MODULE:NAME``, or of a list of them, ``MODULE:NAME[]``."""
    schema = json_schema(object_named(name.removesuffix("[]")))
    return {"type": "array", "items": schema} if name.endswith("[]") else schema


@functools.lru_cache(maxsize=256)
def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type: dataclasses, typed dictionaries, other annotated classes, pydantic models, and unions of them.

    Further keys are allowed. The schema of a class with a method ``to_dict`` is that of its return type. Keywords of a schema
    may stand in an annotation, as in :data:`Count`.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return json_schema(arguments[0])
    if origin is Annotated:
        return json_schema(arguments[0]) | dict([each for each in arguments[1:] if isinstance(each, tuple)])
    if kind in PLAIN:
        return PLAIN[kind]
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [json_schema(each) for each in arguments]}
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        numbered = {"propertyNames": {"pattern": r"^-?\d{1,18}$"}} if arguments[0] is int else {}
        return {"type": "object", "additionalProperties": json_schema(arguments[1]), **numbered}
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        items = [json_schema(each) for each in arguments if each is not ...]
        return {"type": "array", "items": items[0] if len(items) == 1 else {"anyOf": items}}
    if not inspect.isclass(kind):
        return {}  # Any
    if issubclass(kind, BaseModel):
        return kind.model_json_schema(mode="serialization")
    to_dict = getattr(kind, "to_dict", None)
    if to_dict is not None:
        returned = get_type_hints(to_dict)["return"]
        if is_typeddict(returned):
            return json_schema(returned)
    return _object(kind)


def _object(kind: type) -> dict[str, Any]:
    """The schema of a class by its annotations and the properties that its ``IN_JSON`` lists."""
    hints = get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        hints = {name: hints[name] for name in fields_in_json(kind)}
    hints = {name: hint for name, hint in hints.items() if name[0] != "_" and ClassVar not in (hint, get_origin(hint))}
    for name in getattr(kind, "IN_JSON", ()):
        derived = inspect.getattr_static(kind, name)
        hints[name] = get_type_hints(getattr(derived, "fget", None) or derived.func)["return"]
    if not hints:
        return {}
    shown = {"type": "object", "properties": {name: json_schema(hint) for name, hint in hints.items()}}
    return shown | {"required": sorted(getattr(kind, "__required_keys__", hints))}


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "string": ((str,), "a text"),
    "null": ((types.NoneType,), "null"),
    "object": ((dict,), "an object"),
    "array": ((list,), "a list"),
}


def mismatch(value: Any, schema: Mapping[str, Any]) -> str:
    """Why a JSON value does not match a schema of :func:`json_schema`, as a clause; empty if it matches."""
    place, why = _mismatch(value, schema)
    return why and f"{place.lstrip('.') or 'it'} {why}"


def _mismatch(value: Any, schema: Mapping[str, Any]) -> tuple[str, str]:
    """The place of what does not match, and why, as a clause after it; both empty if the value matches."""
    if "anyOf" in schema:
        reasons = [_mismatch(value, each) for each in schema["anyOf"]]
        return FITS if FITS in reasons else max(reasons)  # the one that is deepest inside
    if "enum" in schema and value not in schema["enum"]:
        return "", f"is {_short(value)}, but must be one of {', '.join(map(str, schema['enum']))}"
    allowed = schema.get("type", ())
    kinds = (allowed,) if isinstance(allowed, str) else allowed
    kind = type(value)
    if kinds and not any(kind in _KINDS[each][0] for each in kinds):
        return "", f"is {_short(value)}, but must be {' or '.join(_KINDS[each][1] for each in kinds)}"
    if "minimum" in schema and value < schema["minimum"]:
        return "", f"is {_short(value)}, but must be {schema['minimum']} or more"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return "", f"is {_short(value)}, but must be above {schema['exclusiveMinimum']}"
    if kind is list and len(value) < schema.get("minItems", 0):
        return "", "is empty"
    if kind is list and "items" in schema:
        parts = ((f"[{i}]", each, schema["items"]) for i, each in enumerate(value))
    elif kind is dict:
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        if missing := [key for key in schema.get("required", ()) if key not in value]:
            return "", f"has no {missing[0]}"
        pattern = schema.get("propertyNames", {}).get("pattern", ".*")
        if strange := [key for key in value if not re.fullmatch(pattern, key, re.DOTALL)]:
            return "", f"has the key {_short(strange[0])}, which is not a whole number"
        keys = value if other else known.keys() & value.keys()
        parts = ((f".{key}", value[key], known.get(key, other)) for key in keys)
    else:
        return FITS
    for place, part, inner in parts:
        if inner and (found := _mismatch(part, inner)) != FITS:
            return f"{place}{found[0]}", found[1]
    return FITS


FITS = ("", "")


def built(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """A dataclass from the JSON values of its fields; other keys are ignored."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"
