"""Settings: YAML or dictionaries in, validated pydantic models out, every problem in one message."""

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from contextwise.base.errors import ConfigError

Model = TypeVar("Model", bound="Settings")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C where PyYAML has it: several times faster."""


class Settings(BaseModel):
    """Base of all settings: unknown keys are refused, values are checked on assignment, numbers must be finite."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, protected_namespaces=()
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: missing or unreadable file, broken YAML, or not a mapping.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe at {path}; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise ConfigError(f"the recipe {path} is not valid YAML: {detail}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"the recipe {path} must be a mapping of keys to values, not {type(data).__name__}")
    return data


def with_overrides(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Return a copy of ``data`` with ``section.key=value`` settings applied; values are read as YAML.

    Raises:
        ConfigError: an override without ``=``, or one that goes through a value that is not a section.
    """
    result = _copy(data)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override!r} is not of the form section.key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {override!r}: the value is not valid YAML; quote it") from None
        *sections, last = key.strip().split(".")
        place = result
        for section in sections:
            if place.get(section) is None:
                place[section] = {}
            place = place[section]
            if not isinstance(place, dict):
                raise ConfigError(
                    f"--set {override!r}: {section!r} is a single value, it has no keys below it"
                )
        place[last] = value
    return result


def _copy(data: Any) -> Any:
    return {key: _copy(value) for key, value in data.items()} if isinstance(data, dict) else data


def validate(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """Build ``model`` from ``data``; on failure name every problem, with a near key for each unknown one.

    Args:
        where: what the settings come from ("the recipe x.yaml"), for the message.

    Raises:
        ConfigError: listing all the problems, one a line.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_describe(model, problem) for problem in error.errors()]
    head = f"{where} has {'a problem' if len(problems) == 1 else f'{len(problems)} problems'}: "
    raise ConfigError(head + (problems[0] if len(problems) == 1 else "\n  - " + "\n  - ".join(problems)))


def _describe(model: type[BaseModel], problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    name = ".".join(location) or "the recipe"
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        known = _keys_at(model, location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(sorted(known))}"
        return f"unknown key {name!r}; {hint}"
    if kind == "missing":
        return f"{name!r} is missing"
    if kind == "value_error":
        return f"{name}: {problem['ctx']['error']}" if location else str(problem["ctx"]["error"])
    shown = repr(value)
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{name} is {shown if len(shown) <= 60 else shown[:57] + '...'}, but {message}"


def _keys_at(model: type[BaseModel], location: list[str]) -> list[str]:
    """Names of the fields of the settings that lie at ``location`` below ``model``."""
    for part in location:
        field = model.model_fields.get(part)
        nested = _settings_in(field.annotation) if field else None
        if nested is None:
            return []
        model = nested
    return list(model.model_fields)


def _settings_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
