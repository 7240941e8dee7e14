"""Settings: validate YAML or dictionaries as pydantic models, and report all problems in one message."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from contextwise.base.errors import ConfigError, Problem, misspelt, one_line
from contextwise.base.problems import IN_NAMES, problems_of

Model = TypeVar("Model", bound="Settings")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MISREAD = re.compile(r"[-+]?0[0-9_]*[0-9]|.*:.*")
"""A number of YAML 1.1 that people read as another one: 010 is 8, and 1:30 is 90."""
LARGEST_INTEGER, LARGEST_NUMBER = 2**48, 1e30
"""Of a setting: more tokens than there are texts, more FLOPs than there are machines."""

Name = Annotated[str, Field(pattern=IN_NAMES, max_length=200)]
"""The name of a run or of runs, which is part of a folder's name."""


def distinct(values: list[Any]) -> list[Any]:
    """Return a list without repetitions as it is; ConfigError if a value is in it twice."""
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ConfigError(f"{value!r} is given twice; give it once")
    return values


Seeds = Annotated[list[Annotated[int, Field(ge=0)]], AfterValidator(distinct)]
"""Seeds of runs: one that is given twice would count as two runs in an interval."""
Lengths = Annotated[list[Annotated[int, Field(ge=1)]], AfterValidator(distinct), AfterValidator(sorted)]
"""Different numbers of tokens, bits or samples, ascending."""


_SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_NUMBER = re.compile(r"([0-9][0-9_]*\.?[0-9]*(?:e[+-]?[0-9]+)?) ?([kmbgt]?)", re.IGNORECASE)


def _takes_numbers_only(annotation: Any) -> bool:
    """Whether all values of a type are numbers, lists of numbers, or None."""
    inner = [each for each in get_args(annotation) if isinstance(each, type) or get_args(each)]
    if annotation in (int, float, type(None)):
        return True
    return (
        get_origin(annotation) in (list, tuple, Annotated, Union, UnionType)
        and bool(inner)
        and all(map(_takes_numbers_only, inner[:1] if get_origin(annotation) is Annotated else inner))
    )


def as_numbers(value: Any, name: str) -> Any:
    """A number for a text such as ``1M``, ``1_000`` or ``1e6``, also in a list; other values as they are."""
    if isinstance(value, bool):
        raise ConfigError(Problem("but must be a number", name, value))
    if isinstance(value, list):
        return [as_numbers(each, name) for each in value]
    found = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    number = float(found[1]) * _SUFFIXES.get(found[2].lower(), 1)
    return int(number) if number.is_integer() else number


def plain_number(name: str, value: Any) -> Any:
    """The argument ``name`` of a function, a number or None; as Python's own where it is numpy's, which JSON does not know."""
    plain = value.item() if hasattr(value, "item") else value
    if plain is not None and (isinstance(plain, bool) or not isinstance(plain, int | float)):
        raise ConfigError(Problem("but must be a number", name, value))
    return plain


class Settings(BaseModel):
    """Base class of all settings: unknown keys are errors, values are checked on assignment, numbers are finite and bounded."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False, protected_namespaces=())

    short_form: ClassVar[dict[str, Any] | None] = None
    """JSON Schema of another form in which a file may give these settings, such as a string."""
    below: ClassVar[Mapping[str, str]] = {}
    """Unknown key -> the key below which it is meant."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        return schema if cls.short_form is None else {"anyOf": [cls.short_form, schema]}

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        """Read ``1M`` and ``1e6`` as numbers where only numbers are allowed, and refuse true and false there."""
        if not isinstance(data, dict):
            return data
        read = dict(data)
        validators = cls.__pydantic_decorators__.field_validators.values()
        # Values with a validator of their own have a form of their own.
        own = {name for each in validators if each.info.mode == "before" for name in each.info.fields}
        for name, value in data.items():
            field = cls.model_fields.get(name)
            if field is not None and name not in own and _takes_numbers_only(field.annotation):
                read[name] = as_numbers(value, name)
        return read

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Refuse numbers that no machine can use; arithmetic with them would overflow far from here."""
        problems = []
        for name in type(self).model_fields:
            value = self.__dict__[name]
            for number in value if isinstance(value, list | tuple) else [value]:
                limit = LARGEST_INTEGER if isinstance(number, int) else LARGEST_NUMBER
                if isinstance(number, int | float) and abs(number) > limit:
                    problems.append(Problem(f"but must be at most {limit:.4g}", name, number))
        if problems:
            raise ConfigError(*problems)
        return self


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the one in C is several times faster
    """Refuses a key that is given twice, of which PyYAML drops the first value, and numbers that people read as others."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolve the merges ``<<`` of a mapping, once: the keys that it has then may be those that they replace."""
        if vars(node).setdefault("flat", False):
            return
        vars(node)["flat"] = True
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (name := (key.tag, key.value)) in lines:
                raise ValueError(f"the key {key.value!r} is given twice, first in line {lines[name]}")
            lines[name] = key.start_mark.line + 1
        super().flatten_mapping(node)

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        text = super().construct_scalar(node)
        text.encode()  # a UnicodeEncodeError for half of a surrogate pair
        if node.tag in _NUMBERS and _MISREAD.fullmatch(text):
            raise ValueError(
                f"{text} in line {node.start_mark.line + 1} is octal or of base 60 in YAML; "
                "write the number in decimal, or quote it if it is a text"
            )
        return text


def parse_yaml(text: str) -> Any:
    """Read the values of a YAML document that a user wrote; a ValueError of one line for what is not YAML or refused."""
    try:
        values = yaml.load(text, _Loader)
        return copy.deepcopy(values)  # a RecursionError for what is nested deeper than others can read
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(one_line(error, 1000).replace('in "<unicode string>", line', "in line")) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; a :class:`ConfigError` if it is missing, unreadable, invalid YAML, or not a mapping."""
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; give the path of a YAML file{misspelt(path)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the recipe {path} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error}") from None
    except ValueError as error:
        if path.suffix == ".py":
            raise ConfigError(f"{path} is a Python file, but a recipe is YAML; name it there (model.variant)") from None
        raise ConfigError(f"the recipe {path} is not valid YAML: {error}") from None
    if data is None:
        raise ConfigError(f"the recipe {path} is empty; give a YAML file with settings")
    if not isinstance(data, dict):
        raise ConfigError(f"the recipe {path} must be a mapping of keys to values, not {type(data).__name__}")
    return data


def with_overrides(data: dict[str, Any], overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``data`` with settings replaced: ``section.key=value`` each, in YAML, or dotted key -> value."""
    result = copy.deepcopy(data)
    for key, value in settings_of(overrides):
        *sections, last = key.split(".")
        target = result
        for depth, section in enumerate(sections, 1):
            if target.get(section) is None:
                target[section] = {}
            target = target[section]
            if not isinstance(target, dict):
                raise ConfigError(
                    f"the setting {key}={value} is below {section!r}, which is a single value; where it may be a mapping, give "
                    f"all of it at once: --set '{'.'.join(sections[:depth])}={{…}}'"
                )
        target[last] = value
    return result


def settings_of(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Dotted key and value of each override of :func:`with_overrides`."""
    texts = isinstance(overrides, list | tuple) and all(isinstance(each, str) for each in overrides)
    if not texts and not isinstance(overrides, Mapping):
        raise ConfigError(
            Problem("but must be section.key=value, or dotted keys and their values", "changes", overrides)
        )
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_setting, overrides)
    return [(str(key).strip(), value) for key, value in pairs]


def with_options(overrides: Sequence[str] | None, options: Mapping[str, Any]) -> list[str]:
    """Overrides and the options that stand for settings: dotted key -> value, None if it is not given."""
    given = {key: value for key, value in options.items() if value is not None}
    check_once(overrides, given)
    return [*(overrides or []), *(f"{key}={json.dumps(value)}" for key, value in given.items())]


def check_once(overrides: Sequence[str] | Mapping[str, Any] | None, options: Mapping[str, Any]) -> None:
    """Raise a ConfigError if an override gives another value to one of ``options``, dotted key -> value."""
    for key, value in settings_of(overrides or []):
        if key in options and (first := _in_words(options[key])) != (second := _in_words(value)):
            raise ConfigError(f"{key} is given twice, as {first} and as --set {key}={second}; give one of them")


def _in_words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def with_output(
    values: dict[str, Any], overrides: Sequence[str] | Mapping[str, Any] | None, output: str | Path | None
) -> dict[str, Any]:
    """Settings with the folder ``output`` in place of their own, if it is given; ConfigError if ``overrides`` name one too."""
    if output is None:
        return values
    if "output" in dict(settings_of(overrides or [])):
        raise ConfigError("the folder is given twice, as --out and as --set output; give one of them")
    return values | {"output": str(output)}


def _setting(override: str) -> tuple[str, Any]:
    """Key and value of a setting ``section.key=value``."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"the setting {override!r} is not of the form section.key=value")
    try:
        return key, parse_yaml(text)
    except ValueError as error:
        raise ConfigError(
            f"the setting {override[:200]!r} is not valid YAML ({error}); correct it, or quote it"
        ) from None


def validate(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """Build ``model`` from ``data`` of the source ``where`` ("the recipe x.yaml"), with all problems in one error.

    Checks across several fields of a section run only if each field is valid. So a second pass without the unknown keys
    finds further problems.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
    if any(problem["type"] == "extra_forbidden" for problem in errors):
        try:
            model.model_validate(data, extra="ignore")
        except ValidationError as error:
            seen = [(problem["loc"], problem["type"]) for problem in errors]
            errors += [problem for problem in error.errors() if (problem["loc"], problem["type"]) not in seen]
    raise ConfigError(*(problem for error in errors for problem in problems_of(model, error)), where=where)
