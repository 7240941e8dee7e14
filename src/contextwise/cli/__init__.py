"""The command line: a module for each panel of ``--help``, with a function for each verb, and a verb for each measure.

The verbs import what they run inside their functions: ``--help``, ``--version`` and mistyped verbs are answered without torch.

Exit status: 0 done; 2 the input is at fault; 130 stopped by Ctrl-C; 1 anything else.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable
from functools import cache, cached_property
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.progress import console, first_process

PANELS = {
    "Start": ["demo", "prepare", "corpus", "recipes"],
    "Train": ["train", "sweep", "parameters"],
    "Measure": ["attention", "entropy", "judge"],
    "Decide": ["trial", "compare", "compare-curves", "ledger", "forgetting", "plan", "report"],
    "Use": ["generate", "embed", "serve", "export"],
    "Papers": ["reproduce"],
}
"""The verbs that are written by hand; a panel's verbs are functions of the module with its name.

The verbs of all other measures are in the panel of measures too; they are made from their settings.
"""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it (128 + SIGINT)."""


class Verb(TyperCommand):
    """Command of a verb; replaces the name of a setting at the start of an error by the name of its option."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            options = {str(parameter.name): parameter.opts[0] for parameter in self.params}
            message = re.sub(
                r"((?:^|problem: |\n  - ))(\w+)(?:\.\d+(?:\.\w+)*)?(?=:? )",
                lambda match: match[1] + options.get(match[2], match[2]),
                str(error),
            )
            raise ConfigError(message) from error


class LazyCommand(TyperCommand):
    """Placeholder of a verb in the list of verbs; imports the verb when it is run."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(self.name, cls=Verb)(verbs()[str(self.name)][1])
        return typer.main.get_command(single).make_context(info_name, args, parent=parent, **extra)


class LazyCommands(TyperGroup):
    """All verbs, in the order of :data:`PANELS`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        del self.commands  # made when first asked for: --version needs no measures

    @cached_property
    def commands(self) -> dict[str, Any]:  # type: ignore[override]
        """Name -> verb."""
        return {
            name: LazyCommand(
                name, help=(function.__doc__ or "").strip().split("\n")[0], rich_help_panel=panel
            )
            for name, (panel, function) in verbs().items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


@cache
def verbs() -> dict[str, tuple[str, Callable[..., None]]]:
    """Name -> panel and function of each verb, in the order of ``--help``."""
    from contextwise.cli.common import verb
    from contextwise.evaluation.kernel import measures

    result: dict[str, tuple[str, Callable[..., None]]] = {}
    for panel, names in PANELS.items():
        module = importlib.import_module(f"contextwise.cli.{panel.lower()}")
        functions = {name: getattr(module, name.replace("-", "_")) for name in names}
        if panel == "Measure":
            made = {name: verb(measure) for name, measure in measures().items() if name not in functions}
            functions = dict(sorted((functions | made).items()))
        result |= {name: (panel, function) for name, function in functions.items()}
    return result


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
    """Keep other libraries' progress bars and warnings off the terminal, unless the user has set them.

    Set before those libraries are imported, which is when they read it. It changes what is shown, no result.
    """
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    for name in ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "error")


def print_error(error: ContextwiseError) -> None:
    """Print ``error: <message>`` on standard error, once for all the processes of a launch.

    The message holds text of users (paths, values): it is shown as it is, brackets included, and control
    characters, which could steer the terminal, are shown as escapes.
    """
    if first_process():
        message = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(error))
        # Lines are broken to fit a terminal only: in a log file a broken path could not be searched for.
        console.print(Text.assemble(("error", "bold red"), ": ", message), soft_wrap=not console.is_terminal)


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
