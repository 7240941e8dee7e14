"""The command line: one module for each command, imported when that command is run.

So ``--help``, ``--version`` and a mistyped command are answered at once, without torch.

Exit status: 0 done; 2 the input is at fault; 130 stopped by Ctrl-C; 1 anything else.
"""

import importlib
import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from contextwise.base.errors import ContextwiseError
from contextwise.cli.errors import INTERRUPTED, print_error

COMMANDS = {
    "demo": "Train three small models on real text, and see which is better, by how much, at what cost.",
    "prepare": "Tokenize text into a corpus: documents, split by their content, with their metadata.",
    "corpus": "Say how long the documents of a corpus are, and how much training context they can reward.",
    "train": "Train a model as a recipe says; the same command again goes on where a stopped run was.",
    "sweep": "Train a grid of model sizes and contexts; run it again to resume.",
    "evaluate": "Score every token of held-out documents.",
    "entropy": "Measure a model's loss and the spectrum of its features at several contexts.",
    "compare": "Compare runs on the same documents.",
    "forgetting": "Say what models forgot of an old corpus while they went on with a new one.",
    "ruler": "Ask a model about long texts, with more and more of the text visible.",
    "needles": "Measure an answer that depends on two needles, with more and more of the text cut off.",
    "longbench": "Ask a model the long questions of LongBench or L-Eval files, at several visible contexts.",
    "answers": "Let a model answer the questions of MT-Bench or AlpacaEval, in their file formats.",
    "judge": "Let a judge behind an OpenAI-compatible endpoint grade or compare answers.",
    "attention": "Show which tokens a model attends to, and where predicting the context helped.",
    "parameters": "Say where a model's parameters are, and which of them are trained.",
    "generate": "Continue a prompt with a model, or fill in between --prefix and --suffix.",
    "embed": "Turn each text of a file into a vector; row i of the NumPy file is the vector of line i.",
    "serve": "Answer OpenAI-compatible requests, with the server of transformers.",
    "export": "Copy a model into a folder of its own, with a model card, ready to be shared.",
    "plan": "Recommend model size, training context and tokens for a budget, from a sweep.",
    "reproduce": "Make a table or figure of a source document again, and print it beside theirs.",
    "report": "Write one page about runs: losses, differences, curves, texts, and how they were made.",
}
"""Each command's name, which is also its module's and its function's, and the first line of its help."""


class LazyCommand(TyperCommand):
    """Stands for a command in the list of commands, and becomes the command itself when that is run."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        module = importlib.import_module(f"contextwise.cli.{self.name}")
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(self.name)(getattr(module, str(self.name)))
        return typer.main.get_command(single).make_context(info_name, args, parent=parent, **extra)


class LazyCommands(TyperGroup):
    """The commands of :data:`COMMANDS`, in that order."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.commands = {name: LazyCommand(name, help=text) for name, text in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)


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
