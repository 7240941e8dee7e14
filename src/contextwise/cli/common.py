"""Common parts of the verbs: options, printing of results, and verbs that are made from measures.

In a verb that is made from a measure, each field of the settings is an option. A field without a default is an argument
after MODEL. Help, default and bounds are those of the field; values are read as text and checked by pydantic, so that all
problems come in one message.
"""

import functools
import inspect
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from rich.console import Console, RenderableType
from typer import Argument, Option

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import as_json as json_values
from contextwise.base.files import write_output
from contextwise.base.pretrained import hub_revision
from contextwise.base.progress import document_printed, say
from contextwise.base.schemas import named_schema
from contextwise.evaluation.kernel import Measure, Result, Subject, measures, open_documents
from contextwise.evaluation.kernel import measure as measure_model

ON_HUB = "may be on the Hub"
"""Marks an argument that :func:`with_revision` gives an option ``--revision``."""
Model = Annotated[str, Argument(help="A run, a Hugging Face model folder, or a name on the Hub."), ON_HUB]
Revision = Annotated[
    str | None, Option(help="Branch, tag or commit of a model on the Hub.", show_default="the main branch")
]
Split = Annotated[str, Option(help="Which documents of the corpus.")]
BatchTokens = Annotated[int, Option(help="Tokens of one forward pass.")]
Dtype = Annotated[str, Option(help="float32, bfloat16, float16; auto: float32 on the CPU, else as saved.")]
Out = Annotated[Path | None, Option(help="Folder of the result.", show_default="with the run's evaluations")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace another result in --out.")]
Corpus = Annotated[
    Path, Option(help="A prepared corpus; or a file of texts (.txt, .jsonl, .parquet), for the model's own tokenizer.")
]
SummaryAsJson = Annotated[bool, Option("--json", help="Print the summary as JSON.")]
AsJson = Annotated[bool, Option("--json", help="Print everything as JSON.")]


class Prints:
    """What an option ``--json`` prints: one of these types.

    ``MODULE:NAME`` is a class, ``MODULE:NAME[]`` a list of them, and the name of a measure its summary.
    """

    def __init__(self, *types: str) -> None:
        self.types = types

    def schema(self) -> dict[str, Any]:
        """The JSON Schema."""
        known = measures()
        schemas = [known[each].summary_schema() if each in known else named_schema(each) for each in self.types]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


Device = Annotated[str, Option(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")]
Label = Annotated[str | None, Option(help="Which evaluation (CORPUS-SPLIT), where the runs have several.")]


def prints_of(function: Callable[..., Any]) -> Prints | None:
    """What a verb prints with ``--json``; None if it has no such option."""
    parameter = inspect.signature(function, eval_str=True).parameters.get("as_json")
    parts = () if parameter is None else getattr(parameter.annotation, "__metadata__", ())
    return next((each for each in parts if isinstance(each, Prints)), None)


def set_option(help: str, **more: Any) -> Any:
    """The repeatable option ``--set KEY=VALUE``; ``more`` are further arguments of the option."""
    return Option("--set", metavar="KEY=VALUE", help=help, **more)


COMMON: dict[str, tuple[Any, Any]] = {
    "batch_tokens": (BatchTokens, 16384),
    "dtype": (Dtype, "auto"),
    "device": (Device, "auto"),
    "out": (Out, None),
    "overwrite": (Overwrite, False),
}
"""Options of :func:`contextwise.evaluation.kernel.measure`: annotation and default."""
BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def show(*parts: RenderableType) -> None:
    """Print tables and sentences on standard output."""
    printed = Console(highlight=False)
    for part in parts:
        printed.print(part, markup=False)


def show_line(text: str) -> None:
    """Print one line on standard output; long paths are not wrapped."""
    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def show_json(values: Any) -> None:
    """Print JSON of dataclasses, dictionaries and lists on standard output; what is not finite is null."""
    print(json.dumps(json_values(values), indent=2, ensure_ascii=False, allow_nan=False))
    document_printed.set()


def show_values(values: Any, as_json: bool, *parts: RenderableType) -> None:
    """Print a result on standard output: as JSON, or as tables and sentences."""
    if as_json:
        show_json(values)
    else:
        show(*parts)


def show_and_write(tables: list[RenderableType], what: str, values: Any, out: Path | None, as_json: bool) -> None:
    """Print tables, or the values as JSON, and write the values to a file."""
    show_values(values, as_json, *tables)
    if out is not None:
        write_output(out, json_values(values), what)
        (say if as_json else show_line)(f"written to {out}")


def verb(measure: type[Measure], show: Callable[..., None] | None = None) -> Callable[..., None]:
    """The function of the verb of a measure, for Typer.

    Args:
        show: prints a result, in place of :func:`show_result`; its keyword-only parameters are further options.
    """
    show = show or show_result
    fields = measure.model_fields
    show_parameters = inspect.signature(show, eval_str=True).parameters.values()
    further = [parameter for parameter in show_parameters if parameter.kind is parameter.KEYWORD_ONLY]

    def run(model: str, **given: Any) -> None:
        values = {name: read_value(info, given[name]) for name, info in fields.items()}
        values = {name: value for name, value in values.items() if value is not None}
        settings = validate(measure, values, f"contextwise {measure.name}")
        corpus = open_documents(model, given["corpus"], given["split"]) if measure.on_corpus else None
        subject = Subject(model, **{name: given[name] for name in ("dtype", "device", "batch_tokens")})
        result = measure_model(subject, settings, corpus, out=given["out"], overwrite=given["overwrite"])
        if corpus is not None and subject.trained_on(corpus.fingerprint):
            say("note: the run was trained on these very documents; they are not held out")
        show(result, given["as_json"], **{parameter.name: given[parameter.name] for parameter in further})

    parameters = [_parameter("model", Model)]
    parameters += [field_parameter(name, info) for name, info in fields.items() if info.is_required()]
    if measure.on_corpus:
        parameters += [_parameter("corpus", Corpus), _parameter("split", Split, "validation")]
    parameters += [field_parameter(name, info) for name, info in fields.items() if not info.is_required()]
    common = COMMON | {"dtype": (Dtype, measure.default_dtype)}
    parameters += [*further, *(_parameter(name, *pair) for name, pair in common.items())]
    prints = prints_of(show) or Prints(measure.name)
    parameters.append(_parameter("as_json", Annotated[SummaryAsJson, prints], False))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    paragraphs = (inspect.getdoc(measure) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


def with_revision(function: Callable[..., None]) -> Callable[..., None]:
    """The function of a verb with an option ``--revision`` if an argument may be on the Hub; else the same function."""
    signature = inspect.signature(function, eval_str=True)
    models = [
        name for name, each in signature.parameters.items() if ON_HUB in getattr(each.annotation, "__metadata__", ())
    ]
    if not models:
        return function

    @functools.wraps(function)
    def run(revision: str | None, **given: Any) -> None:
        if revision is not None:
            for name in models:
                several = isinstance(given[name], list)
                given[name] = [_at(each, revision) for each in given[name]] if several else _at(given[name], revision)
        function(**given)

    parameters = [*signature.parameters.values(), _parameter("revision", Revision, None)]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _at(model: str, revision: str) -> str:
    """``MODEL@REVISION``; raises ConfigError for a model of this machine, or one that names its revision."""
    about = f"revision is {revision!r}, but"
    if Path(model).exists():
        raise ConfigError(f"{about} {model} is on this machine, where it has one version; leave it out")
    if hub_revision(model)[1] is not None:
        raise ConfigError(f"{about} {model} names a revision already; leave one of the two out")
    pinned = f"{model}@{revision}"
    if hub_revision(pinned)[1] is None:
        raise ConfigError(f"{about} {pinned} is no NAME@REVISION of a model on the Hub; correct one of the two")
    return pinned


def show_result(result: Result, as_json: bool) -> None:
    """Print the table of a result and its folder, or its summary as JSON; exit status 1 if the model does not pass."""
    measure = measures()[result.measure]
    if as_json:
        show_json(result.summary)
    else:
        show(measure.table(result.summary))
        show_line(f"written to {result.path}/")
    if not measure.passed(result.summary):
        raise typer.Exit(1)


def field_parameter(name: str, info: FieldInfo) -> inspect.Parameter:
    """The option of a field of settings, or its argument where the field has no default.

    A description ``…; default: WORDS.`` describes the default.
    """
    text, _, words = (info.description or "").partition("; default: ")
    text, words = f"{text.rstrip('.')}.", words.rstrip(".")
    if info.is_required():
        several = _is_list(info) and Path in _elements(info)
        return _parameter(name, Annotated[list[str] if several else str, Argument(help=text, metavar=name.upper())])
    default = info.get_default(call_default_factory=True)
    if isinstance(default, bool):
        option = name.replace("_", "-")
        flags = f"--{option}/--no-{option}" if default else f"--{option}"
        return _parameter(name, Annotated[bool, Option(flags, help=text)], default)
    shown: Any = words or (default is not None and default != () and default != [])
    option_info = Option(help=text, metavar=_metavar(info), show_default=shown)
    written = ",".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return _parameter(name, Annotated[str | None, option_info], written if shown is True else None)


def read_value(info: FieldInfo, value: Any) -> Any:
    """The value of a field from its text: a list has commas between its parts, and ``none`` is an empty one.

    In a list of numbers, ``16,32,…,2048`` continues by the same factor up to the last one.
    """
    if not isinstance(value, str) or not _is_list(info):
        return value
    parts = [] if value == "none" else [part.strip() for part in value.split(",")]
    if int not in _elements(info) or len(parts) != 4 or parts[2] not in ("…", "..."):
        return parts
    numbers = [int(part) if part.isdecimal() else 0 for part in parts]
    first, second, last = numbers[0], numbers[1], numbers[3]
    if not 0 < first < second < last or second % first:
        return parts
    result = [first, second]
    while result[-1] * (second // first) < last:
        result.append(result[-1] * (second // first))
    return [*result, last]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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


def _metavar(info: FieldInfo) -> str:
    names = {int: "int", float: "float", Path: "path"}
    words: dict[str, None] = {}
    for kind in _elements(info):
        choices = get_args(kind) if get_origin(kind) is Literal else [names.get(kind, "str")]
        words |= dict.fromkeys(map(str, choices))
    text = f"<{'|'.join(words)}>"
    if _is_list(info):
        return f"{text},…"
    bounds = [
        f"{sign}{getattr(bound, key):,}"
        for bound in info.metadata
        for kind, (sign, key) in BOUNDS.items()
        if isinstance(bound, kind)
    ]
    return f"{text} [{', '.join(bounds)}]" if bounds else text
