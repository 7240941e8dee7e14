"""Errors of pydantic in our words: each one as a problem with the field, the value and the fix."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Tag

from contextwise.base.errors import ConfigError, Problem, did_you_mean

IN_NAMES = r"^[^/\\\x00-\x1f\x7f]+$"
"""The pattern of names: texts without separators of folders and control characters."""
OTHER_NAMES = {
    "lr": ("learning_rate",),
    "max_lr": ("learning_rate",),
    "min_lr": ("minimum_learning_rate",),
    "batch_size": ("tokens_per_step", "examples_per_step"),
    "block_size": ("context",),
    "seq_len": ("context",),
    "max_steps": ("steps",),
    "max_iters": ("steps",),
    "grad_clip": ("clip",),
    "dtype": ("precision",),
    "n_layer": ("layers",),
    "n_embd": ("width",),
    "n_head": ("heads",),
    "eval_every": ("evaluate_every",),
    "eval_steps": ("evaluate_every",),
    "checkpoint_every": ("save_every",),
    "save_steps": ("save_every",),
    "dropout": ("options",),
    "rope_theta": ("options",),
    "activation": ("options",),
    "num_key_value_heads": ("options",),
}
"""Names of other training scripts -> the key that is meant."""
_EXPECTED = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "a valid dictionary": "a mapping of keys to values",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""Requirement in pydantic's messages -> the words of ours."""


def requirement(error: Any) -> tuple[str, str]:
    """What a value must be that pydantic refuses, "must be at least 1", and how to fix it or empty; of one of its errors."""
    message = error["msg"].removeprefix("Value error, ").split(" or instance of ")[0]  # of no meaning in a YAML file
    listed = re.search(r"^Input should be ('.*')$|^'.*' is not one of ('.*')\.?$", message, re.DOTALL)
    if listed is not None:
        known = re.findall("'([^']*)'", listed[1] or listed[2])
        meant = did_you_mean(str(error["input"]), known, " ").strip()
        return f"must be {'one of ' * (len(known) > 1)}{', '.join(known)}", meant
    if (size := re.match(r"\w+ should have (at (?:least|most) \d+) (item|character)", message)) is not None:
        what = "value" if size[2] == "item" else size[2]
        return f"must have {size[1]} {what}{'s' * (not size[1].endswith(' 1'))}", ""
    if (found := re.match("Input should be (.*)", message, re.DOTALL)) is None:
        return message[0].lower() + message[1:], ""
    expected = re.split(", (?:unable to parse|got a number)", found[1])[0]
    for words, ours in _EXPECTED.items():
        expected = re.sub(f"^{words}\\b", ours, expected)
    return f"must be {expected}", ""


def problems_of(model: type[BaseModel], error: Any) -> list[Problem]:
    """Convert a validation error of pydantic to problems."""
    field, kind = ".".join(str(part) for part in error["loc"] if not _is_tag(part)), error["type"]
    field = re.sub(r"(?<=.)\.(int|float)$", "", field)  # which number of a union
    if kind == "extra_forbidden":
        return [_unknown(model, error["loc"], field, error["input"])]
    if kind == "invalid_key":  # YAML reads on, no and null as other values than texts
        where = ".".join(str(part) for part in error["loc"][:-1] if not _is_tag(part))
        return [Problem(f"has a key that is no text: {error['input']!r}", where or "the recipe", fix="correct it")]
    if kind == "missing":
        *sections, name = error["loc"]
        section, _ = _settings_at(model, sections)
        missing = section.model_fields.get(str(name)) if section else None
        fix = f"set it ({missing.description})" if missing and missing.description else ""
        return [Problem("is missing", field, fix=fix)]
    if kind == "value_error":
        cause = error["ctx"]["error"]
        problems = cause.problems if isinstance(cause, ConfigError) else (Problem(str(cause)),)
        return [problem.below(field) for problem in problems]
    why, fix = requirement(error)
    if error.get("ctx", {}).get("pattern") == IN_NAMES:
        why = "must be a name: not empty, and without /, \\ and control characters"
    # YAML reads 1, yes and 2026-01-01 as other values than texts.
    fix = "quote it" if kind == "string_type" and isinstance(error["input"], int | float | date) else fix
    return [Problem(f"but {why}", field or "the recipe", error.get("input"), fix)]


def _unknown(model: type[BaseModel], location: tuple[int | str, ...], field: str, value: Any) -> Problem:
    *sections, name = location
    variant, others = _settings_at(model, sections)
    known = list(variant.model_fields) if variant else []
    if any(name in other.model_fields for other in others):
        return Problem(f"does not apply to {str(sections[-1])[1:-1]}", field, fix="remove it")
    names = (str(name), *OTHER_NAMES.get(str(name), ()))
    elsewhere = [
        f"{section}.{key}"
        for section, settings in model.model_fields.items()
        for _, kind in _variants(settings.annotation)
        for key in names
        if key in kind.model_fields
    ]
    meant = next((each for each in (*names, *elsewhere) if each in known or each in elsewhere), None)
    below: Mapping[str, str] = getattr(variant, "below", {})
    if near := difflib.get_close_matches(str(name), below if meant is None or name in below else [], n=1):
        meant = f"{below[near[0]]}.{near[0]}"
        while isinstance(value, dict) and len(value) == 1:  # one setting of a command line
            [(key, value)] = value.items()
            meant += f".{key}"
    otherwise = f"known keys are {', '.join(sorted(known))}"
    hint = f"did you mean {meant!r}?" if meant else did_you_mean(str(name), known, otherwise)
    return Problem("is an unknown key", field if name else "''", fix=hint)


def _is_tag(part: int | str) -> bool:
    """Whether a part of a location is the tag of a union's variant, ``<like this>``, instead of a key."""
    return isinstance(part, str) and part.startswith("<")


def _settings_at(
    model: type[BaseModel], location: Sequence[int | str]
) -> tuple[type[BaseModel] | None, list[type[BaseModel]]]:
    """Return the settings class at ``location`` below ``model``, and the other variants if it is one of a union."""
    current: type[BaseModel] | None = model
    variants: list[tuple[str, type[BaseModel]]] = []
    keyed = False  # the next part is a key of a mapping
    for part in location:
        if _is_tag(part):
            current = next((variant for tag, variant in variants if tag == part), None)
        elif keyed or isinstance(part, int):
            keyed = False
        else:
            field = current.model_fields.get(str(part)) if current else None
            variants = list(_variants(field.annotation)) if field else []
            current = variants[0][1] if variants else None
            annotations = (field.annotation, *get_args(field.annotation)) if field else ()
            keyed = any(get_origin(each) is dict for each in annotations)
    return current, [variant for _, variant in variants if variant is not current]


def _variants(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the settings classes in a type, each with its tag."""
    tags = [entry.tag for entry in getattr(annotation, "__metadata__", ()) if isinstance(entry, Tag)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    for argument in get_args(annotation):
        yield from ((tags[0] if tags else tag, variant) for tag, variant in _variants(argument))
