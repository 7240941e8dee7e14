"""Run one of the measures on a model.

In the verb of a measure each field of the settings is an option. A field without a default is an argument after MODEL. Help,
default and bounds are those of the field; values are read as text and checked by pydantic, so that all problems come in one
message.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from typer import Argument, Option

from contextwise.base.config import validate
from contextwise.base.files import relative_to_here
from contextwise.base.gguf import gguf_file
from contextwise.cli.common import (
    BatchTokens,
    Corpus,
    Device,
    Dtype,
    Model,
    Out,
    Overwrite,
    Split,
    SummaryAsJson,
    parameter,
    refuse_absent,
    show,
    show_json,
    show_line,
)
from contextwise.evaluation.kernel import Measure, Result, Subject, measures, open_documents
from contextwise.evaluation.kernel import measure as measure_model
from contextwise.models.folders import model_folder

PANEL = "Measure"

COMMON: dict[str, tuple[Any, Any]] = {
    "batch_tokens": (BatchTokens, 16384),
    "dtype": (Dtype, "auto"),
    "device": (Device, "auto"),
    "out": (Out, None),
    "overwrite": (Overwrite, False),
}
"""Options of :func:`contextwise.evaluation.kernel.measure`: annotation and default."""
NAMES = {"integer": "int", "number": "float", "path": "path"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
Schema = Mapping[str, Any]
"""The JSON Schema of a field, as pydantic gives it."""


def verb(measure: type[Measure], show: Callable[..., None] | None = None, typed: str = "") -> Callable[..., None]:
    """The function of the verb of a measure, for Typer; ``typed``: the verb's words, if they are not ``measure NAME``.

    ``show`` prints a result, in place of :func:`show_result`; its keyword-only parameters are further options.
    """
    show = show or show_result
    fields, schemas = measure.model_fields, measure.model_json_schema()["properties"]
    show_parameters = inspect.signature(show, eval_str=True).parameters.values()
    further = [parameter for parameter in show_parameters if parameter.kind is parameter.KEYWORD_ONLY]

    def run(model: str, **given: Any) -> None:
        refuse_absent(model)
        values = {name: read_value(schemas[name], given[name]) for name in fields}
        values = {name: value for name, value in values.items() if value is not None}
        settings = validate(measure, values, f"contextwise {typed or f'measure {measure.name}'}")
        corpus = open_documents(model, given["corpus"], given["split"]) if measure.on_corpus else None
        if Path(model).exists() or gguf_file(model) is not None:  # refused before torch is imported
            model_folder(model)
            if corpus is not None:
                from contextwise.models.tokenizers import check_tokenizer

                check_tokenizer(model, corpus)
        subject = Subject(model, **{name: given[name] for name in ("dtype", "device", "batch_tokens")})
        result = measure_model(subject, settings, corpus, out=given["out"], overwrite=given["overwrite"])
        show(result, given["as_json"], **{parameter.name: given[parameter.name] for parameter in further})

    parameters = [parameter("model", Model)]
    options = {name: field_parameter(name, info, schemas[name]) for name, info in fields.items()}
    parameters += [options[name] for name, info in fields.items() if info.is_required()]
    if measure.on_corpus:
        parameters += [parameter("corpus", Corpus), parameter("split", Split, "validation")]
    parameters += [options[name] for name, info in fields.items() if not info.is_required()]
    common = COMMON | {"dtype": (Dtype, measure.default_dtype)}
    parameters += [*further, *(parameter(name, *pair) for name, pair in common.items())]
    parameters.append(parameter("as_json", SummaryAsJson, False))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    paragraphs = (inspect.getdoc(measure) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


def show_result(result: Result, as_json: bool) -> None:
    """Print the table of a result and its folder, or its summary as JSON; exit status 1 if the model does not pass."""
    measure = measures()[result.measure]
    if as_json:
        show_json(result.summary)
    else:
        show(measure.table(result.summary))
        show_line(relative_to_here(f"written to {result.path}/"))
    if not measure.passed(result.summary):
        raise typer.Exit(1)


def field_parameter(name: str, info: FieldInfo, schema: Schema) -> inspect.Parameter:
    """The option of a field of settings, or its argument where the field has no default.

    A description ``…; default: WORDS.`` describes the default.
    """
    text, _, words = (info.description or "").partition("; default: ")
    text, words = f"{text.rstrip('.')}.", words.rstrip(".")
    if info.is_required():
        several = _is_list(schema) and any(each.get("format") == "path" for each in _elements(schema))
        return parameter(name, Annotated[list[str] if several else str, Argument(help=text, metavar=name.upper())])
    default = info.get_default(call_default_factory=True)
    shown: Any = words or (default is not None and default != () and default != [])
    if isinstance(default, bool) or [form.get("type") for form in _forms(schema)] == ["boolean"]:
        option = name.replace("_", "-")
        flags = f"--{option}" if default is False else f"--{option}/--no-{option}"
        return parameter(name, Annotated[bool | None, Option(flags, help=text, show_default=shown)], default)
    option_info = Option(help=text, metavar=_metavar(schema), show_default=shown)
    written = ",".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return parameter(name, Annotated[str | None, option_info], written if shown is True else None)


def read_value(schema: Schema, value: Any) -> Any:
    """The value of a field from its text: a list has commas between its parts, and ``none`` is an empty one.

    In a list of numbers, ``16,32,…,2048`` continues by the same factor up to the last one.
    """
    if not isinstance(value, str) or not _is_list(schema):
        return value
    parts = [] if value == "none" else [part.strip() for part in value.split(",")]
    whole = any(each.get("type") == "integer" for each in _elements(schema))
    if not whole or len(parts) != 4 or parts[2] not in ("…", "..."):
        return parts
    numbers = [int(part) if part.isdecimal() else 0 for part in parts]
    first, second, last = numbers[0], numbers[1], numbers[3]
    if not 0 < first < second < last or second % first:
        return parts
    result = [first, second]
    while result[-1] * (second // first) < last:
        result.append(result[-1] * (second // first))
    return [*result, last]


def _forms(schema: Schema) -> list[Schema]:
    """The schemas of which a value may match any, but for null."""
    return [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]


def _is_list(schema: Schema) -> bool:
    return any("items" in form for form in _forms(schema))


def _elements(schema: Schema) -> list[Schema]:
    """The accepted forms, those of a list's elements for a list."""
    return [each for form in _forms(schema) for each in (_forms(form["items"]) if "items" in form else [form])]


def _metavar(schema: Schema) -> str:
    elements, words = _elements(schema), dict[str, None]()
    for each in elements:
        choices = each.get("enum") or ([each["const"]] if "const" in each else None)
        words |= dict.fromkeys(choices or [NAMES.get(each.get("format", each.get("type")), "str")])
    text = f"<{'|'.join(words)}>"
    if _is_list(schema):
        return f"{text},…"
    bounds = [f"{sign}{elements[0][key]:,}" for key, sign in BOUNDS.items() if key in elements[0]]
    return f"{text} [{', '.join(bounds)}]" if bounds and len(elements) == 1 else text
