"""``contextwise reproduce``: a table or figure of a source document, made again, beside what is printed there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextwise.base.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from contextwise.analysis.reproduction import Measure, Outcome

ASSUMED_FLOPS = 989e12 * 0.3
"""What GPU time is reckoned with: an H100 at 30% of its dense bf16 throughput."""


def reproduce(
    item: Annotated[
        str | None, typer.Argument(metavar="DOCUMENT/ITEM", help="See --list.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="How large: tiny, gpu or paper.")] = "tiny",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would train, and what that takes; train nothing.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Say what there is to reproduce.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs and outcomes; runs/reproduce/DOCUMENT/SCALE if not given.",
            show_default=False,
        ),
    ] = None,
    recipes: Annotated[
        Path | None,
        typer.Option(help="Folder of the items; the checkout's recipes if not given.", show_default=False),
    ] = None,
) -> None:
    """Make a table or figure of a source document again, and print it beside theirs.

    The same command again goes on where it was stopped; what has finished is
    used again.
    """
    from rich.console import Console

    from contextwise.analysis.reproduction import find_item, measure_at, recipes_folder

    printed = Console(highlight=False)
    place = recipes_folder(recipes)
    if list_:
        _print_list(printed, place)
        return
    if item is None:
        raise ConfigError("nothing is named to reproduce; give DOCUMENT/ITEM (--list says what there is)")
    found = find_item(item, place)
    measure = measure_at(found, scale)
    folder = out or Path("runs/reproduce") / item.split("/")[0] / scale
    if dry_run:
        _print_plan(printed, measure, folder)
        return
    outcome = measure.measure(found, folder)
    printed.print(f"[bold]{found.title}[/bold] ({found.source}), scale {scale}\n")
    _print_outcome(printed, outcome)
    for note in found.inferred:
        printed.print(f"inferred: {note}", markup=False)
    file = folder / f"{item.split('/')[1]}.json"
    outcome.write(file, found, scale)
    printed.print(f"written to {file}", markup=False, soft_wrap=True)


def _print_list(printed: "Console", place: Path) -> None:
    from rich.table import Table

    from contextwise.analysis.reproduction import list_items

    table = Table(box=None, pad_edge=False)
    for column in ("item", "what", "scales"):
        table.add_column(column, overflow="fold")
    for name, item in list_items(place).items():
        scales = [f"{one}" + (f" ({s.minutes:g} min)" if s.minutes else "") for one, s in item.scales.items()]
        table.add_row(name, item.title, ", ".join(scales))
    printed.print(table)


def _print_plan(printed: "Console", measure: "Measure", folder: Path) -> None:
    from rich.table import Table

    from contextwise.analysis.reproduction import plan
    from contextwise.evaluation.tables import duration
    from contextwise.models.sizes import readable_count

    plans = [plan(recipe) for recipe in measure.recipes(folder)]
    table = Table(box=None, pad_edge=False)
    for column in ("run", "parameters", "steps", "examples", "tokens", "FLOPs"):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    for one in plans:
        counts = (one.parameters, one.steps, one.examples, one.tokens)
        table.add_row(one.name, *map(readable_count, counts), f"{one.flops:.2e}")
    printed.print(table)
    flops, state = sum(one.flops for one in plans), max(one.state_bytes for one in plans)
    runs = f"{len(plans)} run{'s' * (len(plans) > 1)}"
    seconds = flops / ASSUMED_FLOPS
    printed.print(
        f"{runs}, {flops:.2e} FLOPs: {duration(seconds) if seconds >= 1 else 'under a second'} of an H100 at 30% of its peak\n"
        f"(models this small reach less); weights, gradients and optimizer take {state / 1e6:.3g} MB at most, activations "
        "on top",
        markup=False,
    )


def _print_outcome(printed: "Console", outcome: "Outcome") -> None:
    from rich.table import Table
    from rich.text import Text

    for one in outcome.tables:
        printed.print(one.title, markup=False)
        table = Table(box=None, pad_edge=False)
        for column in one.columns:
            table.add_column(column, justify="right", overflow="fold")
        for row in one.rows:
            table.add_row(*(Text(cell) for cell in row))
        printed.print(table)
        printed.print()
    verdicts = {True: "holds", False: "does not hold", None: "cannot be told"}
    for claim in outcome.claims:
        printed.print(f"{verdicts[claim.holds]}: {claim.text} ({claim.evidence})", markup=False)
