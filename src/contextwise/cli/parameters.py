"""``contextwise parameters``: where a model's parameters are, and which of them are trained."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from contextwise.training.cue.parameters import Module


def parameters(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE_OR_RUN",
            help="A recipe (a YAML file), a run, a Hugging Face model folder, or a name on the Hub.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Report where a model's parameters are, and which of them are trained.

    Nothing is trained and no weights are loaded. The runs that a recipe
    builds on need not be there yet if their recipes lie beside it.
    """
    from contextwise.training.cue.parameters import modules_of

    what, modules = modules_of(source)
    if as_json:
        print(json.dumps([vars(module) for module in modules], indent=2))
        return
    from rich.console import Console

    printed = Console(highlight=False)
    printed.print(f"Parameters of {what}:", markup=False, soft_wrap=True)
    printed.print(_table(modules))


def _table(modules: "list[Module]") -> "Table":
    from rich import box
    from rich.table import Table

    total, trained = (sum(getattr(module, name) for module in modules) for name in ("parameters", "trained"))
    staged = any(module.stages for module in modules)
    table = Table("Module", box=box.SIMPLE_HEAD)
    for name in ("Parameters", "Share", "Trained"):
        table.add_column(name, justify="right")
    if staged:
        table.add_column("Stages that train")
    for module in modules:
        stages = [", ".join(module.stages) or "none"] if staged else []
        table.add_row(module.name, *_numbers(module.parameters, module.trained, total), *stages)
    table.add_section()
    table.add_row("total", *_numbers(total, trained, total), *([""] if staged else []))
    return table


def _numbers(count: int, trained: int, total: int) -> tuple[str, str, str]:
    return f"{count:,}", f"{count / total:.1%}", f"{trained:,}" if trained else "frozen"
