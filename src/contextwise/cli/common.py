"""Common parts of the verbs: options, and printing of results."""

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType
from typer import Argument, Option

from contextwise.base.estimates import as_json as json_values
from contextwise.base.gguf import gguf_file
from contextwise.base.pretrained import refuse_missing, refuse_unreachable
from contextwise.base.progress import Terminal, document_printed

Model = Annotated[str, Argument(help="A run, a Hugging Face model folder, or a name on the Hub.")]
Split = Annotated[str, Option(help="Which documents of the corpus.")]
BatchTokens = Annotated[int, Option(help="Tokens of one forward pass.")]
Dtype = Annotated[str, Option(help="float32, bfloat16, float16; auto: float32 on the CPU, else as saved.")]
Out = Annotated[Path | None, Option(help="Folder of the result.", show_default="with the run's evaluations")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace another result in --out.")]
Corpus = Annotated[
    str,
    Option(
        metavar="<path>",
        help="A prepared corpus; or texts, read with the model's tokenizer: files (.txt, .jsonl, .csv, .tsv, .parquet), "
        "folders or quoted patterns of them, paragraphs:FILE.",
    ),
]
SummaryAsJson = Annotated[bool, Option("--json", help="Print the summary as JSON.")]
AsJson = Annotated[bool, Option("--json", help="Print everything as JSON.")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")]
Label = Annotated[str | None, Option(help="Which evaluation (CORPUS-SPLIT), where the runs have several.")]


def set_option(help: str) -> Any:
    """The repeatable option ``--set KEY=VALUE``."""
    return Option("--set", metavar="KEY=VALUE", help=help)


def show(*parts: RenderableType) -> None:
    """Print tables and sentences on standard output."""
    printed = Terminal(highlight=False)
    for part in parts:
        printed.print(part, markup=False)


def show_line(text: str) -> None:
    """Print one line on standard output; long paths are not wrapped."""
    Terminal(highlight=False).print(text, markup=False, soft_wrap=True)


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


def refuse_absent(*models: str) -> None:
    """Refuse a model that is neither here, in a package, nor on the Hub, before torch is imported."""
    for model in models:
        if gguf_file(model) is None:
            refuse_missing(model)
            refuse_unreachable(model)


def parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """An option or argument of a verb, for Typer."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
