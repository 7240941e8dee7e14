"""``contextwise reproduce``: a table or figure of a source document, made again, beside what is printed there."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from contextwise.base.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from contextwise.reproductions.item import Item, ItemMeasure, Outcome, Scale

RUNS = Path("runs/reproduce")
ASSUMED_FLOPS = 989e12 * 0.3
"""What GPU time is reckoned with: an H100 at 30% of its dense bf16 throughput."""
A100_FLOPS = 312e12


def reproduce(
    item: Annotated[
        str | None, typer.Argument(metavar="DOCUMENT/ITEM", help="See --list.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="How large: tiny, gpu or paper.")] = "tiny",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would train, and what that takes; train nothing.")
    ] = False,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="Say what there is to reproduce; of one item, what each scale can support."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs and outcomes; runs/reproduce/DOCUMENT/SCALE if not given.",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the item's scale to change, such as corpus=corpora/mine; may be given again.",
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

    from contextwise.base.files import read_json
    from contextwise.reports.reproduction import write_reproduction_page
    from contextwise.reproductions.item import find_item, measure_at, recipes_folder

    printed = Console(highlight=False)
    place = recipes_folder(recipes)
    if list_:
        _print_list(printed, place, item)
        return
    if item is None:
        raise ConfigError("nothing is named to reproduce; give DOCUMENT/ITEM (--list says what there is)")
    item, found = find_item(item, place)
    measure = measure_at(found, scale, set_)
    folder = out or RUNS / item.split("/")[0] / scale
    if dry_run:
        _print_plan(printed, found, scale, measure, folder)
        return
    outcome = measure.measure(found, folder)
    printed.print(f"[bold]{found.title}[/bold] ({found.source}), scale {scale}\n")
    _print_outcome(printed, outcome, found.scales[scale].supports)
    _print_printed(printed, found)
    for note in found.inferred:
        printed.print(f"inferred: {note}", markup=False)
    file = folder / f"{item.split('/')[1]}.json"
    outcome.write(file, found, scale)
    page = file.with_suffix(".html")
    command = shlex.join(
        ["contextwise", "reproduce", item, "--scale", scale, *(f"--set={one}" for one in set_ or [])]
    )
    write_reproduction_page(read_json(file, "the outcome"), page, command)
    printed.print(f"written to {file}; page: {page}", markup=False, soft_wrap=True)


def _print_list(printed: "Console", place: Path, only: str | None) -> None:
    """All items, a line or two each; or one with its recipe, and what each scale can support."""
    from rich.padding import Padding

    from contextwise.reproductions.item import find_item, last_run, list_items

    items = list_items(place) if only is None else dict([find_item(only, place)])
    for name, item in items.items():
        printed.print(f"[bold]{name}[/bold]")
        lines = [item.title + (f" (also {', '.join(item.also)})" if item.also else "")]
        runs = [state for one in item.scales if (state := last_run(RUNS, name, one))]
        if only is None:
            scales = ", ".join(_scale_words(scale, one) for scale, one in item.scales.items())
            lines.append(" · ".join([scales, *runs]))
        else:
            lines.append(f"{item.source}; recipe: {place / f'{name}.yaml'}")
            for scale, one in item.scales.items():
                supports = one.supports or "all of its claims"
                lines.append(f"{_scale_words(scale, one)}, {one.machine}; it can support: {supports}")
            lines.append(f"last run: {', '.join(runs) or 'none'}")
        for line in lines:
            printed.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


def _scale_words(name: str, scale: "Scale") -> str:
    return name + (f" ({scale.minutes:g} min)" if scale.minutes else "")


def _print_plan(printed: "Console", item: "Item", scale: str, measure: "ItemMeasure", folder: Path) -> None:
    from rich.table import Table

    from contextwise.base.estimates import duration
    from contextwise.models.sizes import readable_count
    from contextwise.reproductions.cost import plan_all

    plans = plan_all(measure.recipes(folder), measure.vocab_size) + measure.passes(folder)
    if not plans:
        printed.print("trains nothing, and measuring takes little")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "parameters", "steps", "examples", "tokens", "FLOPs"):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    for one in plans:
        counts = (one.parameters, one.steps, one.examples, one.tokens)
        table.add_row(one.name, *map(readable_count, counts), f"{one.flops:.2e}")
    printed.print(table)
    flops = sum(one.flops for one in plans)
    state, activations = (
        max(getattr(one, f"{part}_bytes") for one in plans) for part in ("state", "activation")
    )
    seconds = flops / ASSUMED_FLOPS
    time = duration(seconds) if seconds >= 1 else "under a second"
    small = "" if flops > 1e18 else " (models this small reach less)"
    printed.print(
        f"{len(plans)} run{'s' * (len(plans) > 1)}, {flops:.2e} FLOPs: {time} of an H100 at 30% of its peak{small}; weights "
        f"(in training with gradients and optimizer) take {state / 1e9:.2g} GB at most, the activations of a micro-batch about "
        f"{activations / 1e9:.2g} GB",
        markup=False,
    )
    for one in plans:
        hours = item.gpu_hours.get(one.name)
        if hours:
            share = one.flops / (hours * 3600 * A100_FLOPS)
            printed.print(
                f"{one.name}: the document spent {hours:,.0f} A100 hours, {share:.0%} of that GPU's peak by these FLOPs",
                markup=False,
            )
    supports = item.scales[scale].supports
    if supports:
        printed.print(f"what this scale can support: {supports}", markup=False)


def _print_printed(printed: "Console", item: "Item") -> None:
    """What the document prints, where the item has it as a table."""
    from rich.table import Table

    if not {"columns", "rows"} <= set(item.printed):
        return
    printed.print("The document prints:")
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(item.printed["columns"]):
        table.add_column(str(column), justify="right" if i else "left", overflow="fold")
    for name, values in item.printed["rows"].items():
        table.add_row(str(name), *map(str, values))
    printed.print(table)
    printed.print()


def _print_outcome(printed: "Console", outcome: "Outcome", supports: str) -> None:
    from rich.table import Table

    from contextwise.reproductions.claims import VERDICTS

    for one in outcome.tables:
        printed.print(one.title, markup=False)
        table = Table(box=None, pad_edge=False)
        for i, column in enumerate(one.columns):
            table.add_column(column, justify="right" if i else "left", overflow="fold")
        for row in one.rows:
            table.add_row(*(Text(cell) for cell in row))
        printed.print(table)
        printed.print()
    if supports:
        printed.print(f"what this scale can support: {supports}", markup=False)
    for claim in outcome.claims:
        printed.print(f"{VERDICTS[claim.holds]}: {claim.text} ({claim.evidence})", markup=False)
