"""JSON Schema of what :func:`~contextwise.base.estimates.as_json` makes of a type, from its annotations."""

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel

from contextwise.base.lazy import object_named

PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # NaN and infinities are null
    str: {"type": "string"},
    Path: {"type": "string"},
    types.NoneType: {"type": "null"},
}


def named_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a class, ``MODULE:NAME``, or of a list of them, ``MODULE:NAME[]``."""
    schema = json_schema(object_named(name.removesuffix("[]")))
    return {"type": "array", "items": schema} if name.endswith("[]") else schema


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type: dataclasses, typed dictionaries, other annotated classes, pydantic models, and unions of them.

    Further keys are allowed. The schema of a class with a method ``to_dict`` is that of its return type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [json_schema(each) for each in arguments]}
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
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
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    hints = {name: hint for name, hint in hints.items() if name[0] != "_" and ClassVar not in (hint, get_origin(hint))}
    for name in getattr(kind, "IN_JSON", ()):
        derived = inspect.getattr_static(kind, name)
        hints[name] = get_type_hints(getattr(derived, "fget", None) or derived.func)["return"]
    if not hints:
        return {}
    shown = {"type": "object", "properties": {name: json_schema(hint) for name, hint in hints.items()}}
    return shown | {"required": sorted(getattr(kind, "__required_keys__", hints))}
