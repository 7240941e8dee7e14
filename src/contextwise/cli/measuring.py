"""Verbs of the command line that are made from measures: each field of the settings is an option.

A field without a default is an argument behind MODEL. Help, default and bounds are those of the field; values are read as text
and checked by pydantic, so that all problems come in one message. Typer with this adapter was chosen over cyclopts, tyro
and pydantic-settings, each tried on two verbs: they make options of a pydantic model themselves, but lists with commas, lazy
imports, the common options and errors in one sentence took more code of ours there than the options do here, and tyro and
pydantic-settings have no panels of verbs.
"""

import inspect
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from contextwise.base.config import validate
from contextwise.base.progress import say
from contextwise.cli.options import AsJson, BatchTokens, Corpus, Device, Dtype, Model, Out, Overwrite, Split
from contextwise.evaluation.kernel import Measure, Result, Subject, measures
from contextwise.evaluation.kernel import measure as measure_model

Show = Callable[..., None]

COMMON: dict[str, tuple[Any, Any]] = {
    "batch_tokens": (BatchTokens, 16384),
    "dtype": (Dtype, "auto"),
    "device": (Device, "auto"),
    "out": (Out, None),
    "overwrite": (Overwrite, False),
}
"""Options of :func:`contextwise.evaluation.kernel.measure`: annotation and default."""
BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def verb(measure: type[Measure], show: Show | None = None) -> Callable[..., None]:
    """The function of the verb of a measure, for Typer.

    Args:
        show: prints a result, in place of :func:`show_result`; its keyword-only parameters are further options.
    """
    show = show or show_result
    fields = measure.model_fields
    further = _parameters(show)

    def run(model: str, **given: Any) -> None:
        values = {name: read_value(info, given.pop(name)) for name, info in fields.items()}
        settings = validate(
            measure, {k: v for k, v in values.items() if v is not None}, f"contextwise {measure.name}"
        )
        extra = {parameter.name: given.pop(parameter.name) for parameter in further}
        as_json = given.pop("as_json")
        show(
            measured(model, settings, given.pop("corpus", None), given.pop("split", ""), **given),
            as_json,
            **extra,
        )

    data = (
        [_parameter("corpus", Corpus), _parameter("split", Split, "validation")] if measure.on_corpus else []
    )
    arguments = [field_parameter(name, info) for name, info in fields.items() if info.is_required()]
    options = [field_parameter(name, info) for name, info in fields.items() if not info.is_required()]
    common = [
        _parameter(name, *pair) for name, pair in (COMMON | {"dtype": (Dtype, measure.default_dtype)}).items()
    ]
    parameters = [_parameter("model", Model), *arguments, *data, *options, *further, *common]
    parameters.append(_parameter("as_json", AsJson, False))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    paragraphs = (inspect.getdoc(measure) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


def measured(
    model: str, settings: Measure, corpus: Path | None = None, split: str = "validation", **options: Any
) -> Result:
    """Measure a model on a split of a corpus.

    Args:
        options: of :func:`contextwise.evaluation.kernel.measure`.
    """
    from contextwise import data

    documents = None if corpus is None else data.Corpus.open(corpus, split=split)
    how = {name: options.pop(name) for name in ("dtype", "device", "batch_tokens") if name in options}
    subject = Subject(model, **how)
    result = measure_model(subject, settings, documents, **options)
    if documents is not None and subject.trained_on(documents.fingerprint):
        say("note: the run was trained on these very documents; they are not held out")
    return result


def show_result(result: Result, as_json: bool) -> None:
    """Print the table of a result and its folder, or its summary as JSON.

    Raises:
        typer.Exit: with status 1, if the result is not as it must be.
    """
    from rich.console import Console

    measure = measures()[result.measure]
    if as_json:
        print(json.dumps(result.summary, indent=2, ensure_ascii=False))
    else:
        printed = Console(highlight=False)
        printed.print(measure.table(result.summary))
        printed.print(f"written to {result.path}/", markup=False, soft_wrap=True)
    if not measure.passed(result.summary):
        raise typer.Exit(1)


def field_parameter(name: str, info: FieldInfo) -> inspect.Parameter:
    """The option of a field of settings, or its argument where the field has no default.

    A description ``…; default: WORDS.`` says what holds where nothing is given.
    """
    text, _, words = (info.description or "").partition("; default: ")
    text, words = text.rstrip("."), words.rstrip(".")
    help_text = f"{text}."
    if info.is_required():
        several = _is_list(info) and _accepts(info, Path)
        argument = typer.Argument(help=help_text, metavar=name.upper(), show_default=False)
        return _parameter(name, Annotated[list[str] if several else str, argument])
    default = info.get_default(call_default_factory=True)
    if isinstance(default, bool):
        option = f"--{_option(name)}"
        flags = f"{option}/--no-{_option(name)}" if default else option
        return _parameter(name, Annotated[bool, typer.Option(flags, help=help_text)], default)
    shown: Any = words or (default is not None and default != () and default != [])
    option = typer.Option(help=help_text, metavar=_metavar(info), show_default=shown)
    return _parameter(name, Annotated[str | None, option], _text(default) if shown is True else None)


def read_value(info: FieldInfo, value: Any) -> Any:
    """The value of a field from its text: a list has commas between its parts, and ``none`` is an empty one.

    In a list of numbers, ``16,32,…,2048`` continues by the same factor up to the last one.
    """
    if not isinstance(value, str) or not _is_list(info):
        return value
    parts = [] if value == "none" else [part.strip() for part in value.split(",")]
    if not _accepts(info, int) or len(parts) != 4 or parts[2] not in ("…", "..."):
        return parts
    numbers = [int(part) if part.isdecimal() else 0 for part in parts]
    first, second, last = numbers[0], numbers[1], numbers[3]
    if not 0 < first < second < last or second % first:
        return parts
    result = [first, second]
    while result[-1] * (second // first) < last:
        result.append(result[-1] * (second // first))
    return [*result, last]


def _option(name: str) -> str:
    return name.replace("_", "-")


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameters(show: Show) -> list[inspect.Parameter]:
    parameters = inspect.signature(show, eval_str=True).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _types(annotation: Any) -> list[Any]:
    """The types that an annotation accepts, without None and without what ``Annotated`` adds."""
    if get_origin(annotation) is Annotated:
        return _types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _types(part)]
    return [] if annotation is type(None) else [annotation]


def _is_list(info: FieldInfo) -> bool:
    return any(get_origin(kind) in (list, tuple) for kind in _types(info.annotation))


def _elements(info: FieldInfo) -> list[Any]:
    """The accepted types, those of a list's elements for a list."""
    kinds: list[Any] = []
    for kind in _types(info.annotation):
        parts = [part for part in get_args(kind) if part is not ...]
        kinds += [x for p in parts for x in _types(p)] if get_origin(kind) in (list, tuple) else [kind]
    return kinds


def _accepts(info: FieldInfo, kind: type) -> bool:
    return kind in _elements(info)


def _metavar(info: FieldInfo) -> str:
    names = {int: "int", float: "float", Path: "path"}
    parts: list[str] = []
    for kind in _elements(info):
        words = (
            [str(word) for word in get_args(kind)]
            if get_origin(kind) is Literal
            else [names.get(kind, "str")]
        )
        parts += [word for word in words if word not in parts]
    bounds = [
        f"{sign}{getattr(m, key):,}"
        for m in info.metadata
        for kind, (sign, key) in BOUNDS.items()
        if isinstance(m, kind)
    ]
    text = f"<{'|'.join(parts)}>"
    return f"{text},…" if _is_list(info) else f"{text} [{', '.join(bounds)}]" if bounds else text
