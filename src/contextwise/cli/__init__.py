"""The command line: a verb for each measure, made from its settings, and a module for each other verb.

A verb's module is imported when it is run, so ``--help``, ``--version`` and a mistyped verb are answered without torch.

Exit status: 0 done; 2 the input is at fault; 130 stopped by Ctrl-C; 1 anything else.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.cli.errors import INTERRUPTED, print_error

PANELS = {
    "Start": {
        "demo": "Train three small models on real text, and see which is better, by how much, at what cost.",
        "prepare": "Tokenize text into a corpus: documents, split by their content, with their metadata.",
        "corpus": "Report how long the documents of a corpus are, and how much training context they can reward.",
    },
    "Train": {
        "train": "Train the model of a recipe; run the same command again to resume.",
        "sweep": "Train a grid of model sizes and contexts; run it again to resume.",
        "parameters": "Report where a model's parameters are, and which of them are trained.",
    },
    "Measure": {
        "attention": "Show which tokens a model attends to, and where predicting the context helped.",
        "entropy": "Measure a model's loss and the spectrum of its features at several contexts.",
        "judge": "Let a judge behind an OpenAI-compatible endpoint grade or compare answers.",
    },
    "Decide": {
        "compare": "Compare runs on the same documents.",
        "compare-curves": "Compare context curves: average and best-context loss.",
        "ledger": "List objectives side by side: tokens read and predicted, FLOPs, own losses.",
        "forgetting": "Measure what models forget of an old corpus while they are trained on a new one.",
        "plan": "Recommend model size, training context and tokens for a budget, from a sweep.",
        "report": "Write one page about runs: losses, differences, curves, texts, and how they were made.",
    },
    "Use": {
        "generate": "Continue a prompt with a model, or fill in between --prefix and --suffix.",
        "embed": "Turn each text of a file into a vector; row i of the NumPy file is the vector of line i.",
        "serve": "Answer OpenAI-compatible requests, with the server of transformers.",
        "export": "Copy a model into a folder of its own, with a model card, ready to be shared.",
    },
    "Papers": {
        "reproduce": "Reproduce a table or figure of a source document, and print it beside theirs.",
    },
}
"""The verbs with a module of their own, by panel of ``--help``: name and first line of help.

The verbs of all other measures stand in the panel of measures too; they are made from their settings.
"""
COMMANDS = {name: text for verbs in PANELS.values() for name, text in verbs.items()}
MEASURE_PANEL = "Measure"


class Verb(TyperCommand):
    """A verb: where an error of the library opens with a setting, it names the option."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            options = {str(parameter.name): parameter.opts[0] for parameter in self.params}
            raise ConfigError(in_options(str(error), options)) from error


class LazyCommand(TyperCommand):
    """Stands for a verb in the list of verbs, and becomes the verb itself when that is run."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(self.name, cls=Verb)(function_of(str(self.name)))
        return typer.main.get_command(single).make_context(info_name, args, parent=parent, **extra)


class LazyCommands(TyperGroup):
    """The verbs of :data:`PANELS` and of all measures, in that order."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        del self.commands  # made when first asked for: --version needs no measures

    @cached_property
    def commands(self) -> dict[str, Any]:  # type: ignore[override]
        """Name -> verb."""
        return {
            name: LazyCommand(name, help=text, rich_help_panel=panel)
            for panel, verbs in panels().items()
            for name, text in verbs.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


def panels() -> dict[str, dict[str, str]]:
    """All verbs with the first lines of their helps, by panel."""
    from contextwise.evaluation.kernel import measures

    measured = {name: first_line(measure) for name, measure in measures().items() if name not in COMMANDS}
    return {
        panel: dict(sorted((verbs | measured).items())) if panel == MEASURE_PANEL else verbs
        for panel, verbs in PANELS.items()
    }


def first_line(documented: Any) -> str:
    """Of a docstring."""
    return (documented.__doc__ or "").strip().split("\n")[0]


def function_of(name: str) -> Callable[..., None]:
    """The function of a verb: ``contextwise.cli.NAME.NAME``, or made from the settings of the measure."""
    if name in COMMANDS:
        identifier = name.replace("-", "_")
        return getattr(importlib.import_module(f"contextwise.cli.{identifier}"), identifier)
    from contextwise.cli.measuring import verb
    from contextwise.evaluation.kernel import measures

    return verb(measures()[name])


def in_options(message: str, options: Mapping[str, str]) -> str:
    """An error with the settings that it, or one of its problems, opens with written as options.

    Args:
        options: name of a setting -> option.
    """
    return re.sub(
        r"((?:^|problem: |\n  - ))(\w+)(?:\.\d+(?:\.\w+)*)?(?=:? )",
        lambda match: match[1] + options.get(match[2], match[2]),
        message,
    )


app = typer.Typer(
    cls=LazyCommands,
    name="contextwise",
    help="Pretrain language models that predict their context, and measure how much context they really use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"contextwise {metadata.version('contextwise')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


def quieten_libraries() -> None:
    """Keep other libraries' progress bars and warnings off the terminal; what the user has set himself stays.

    Set before those libraries are imported, which is when they read it. It changes what is shown, no result.
    """
    for name, value in {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "DATASETS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)


def main() -> None:
    """Run the command line and exit."""
    quieten_libraries()
    try:
        app()
    except ContextwiseError as error:
        print_error(error)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


__all__ = ["app", "main"]
