"""``contextwise reproduce``: a table or figure of a source document, reproduced, beside the printed one."""

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
"""FLOPs a second of an H100 at 30% of its dense bf16 throughput."""
A100_FLOPS = 312e12


def reproduce(
    item: Annotated[
        str | None, typer.Argument(metavar="DOCUMENT/ITEM", help="See --list.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="How large: tiny, gpu or paper.")] = "tiny",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs it would train and their cost; train nothing.")
    ] = False,
    list_: Annotated[
        bool,
        typer.Option("--list", help="List all items; with an item, what each of its scales can support."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs and outcomes.",
            show_default="runs/reproduce/DOCUMENT/SCALE",
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
        typer.Option(help="Folder of the items.", show_default="the checkout's recipes"),
    ] = None,
) -> None:
    """Reproduce a table or figure of a source document, and print it beside theirs.

    Run the same command again to resume; runs that have finished are used again.
    """
    from rich.console import Console

    from contextwise.base.files import read_json
    from contextwise.reports.reproduction import write_reproduction_page
    from contextwise.reproductions.item import find_item, measure_at, recipes_folder

    printed = Console(highlight=False)
    items = recipes_folder(recipes)
    if list_:
        _print_list(printed, items, item)
        return
    if item is None:
        raise ConfigError("no item is given; give DOCUMENT/ITEM (--list shows all)")
    item, found = find_item(item, items)
    measure = measure_at(found, scale, set_)
    folder = out or RUNS / item.split("/")[0] / scale
    if dry_run:
        _print_plan(printed, found, scale, measure, folder)
        return
    outcome = measure.measure(found, folder)
    _print_outcome(printed, outcome, found, scale)
    file = folder / f"{item.split('/')[1]}.json"
    outcome.write(file, found, scale)
    page = file.with_suffix(".html")
    command = shlex.join(
        ["contextwise", "reproduce", item, "--scale", scale, *(f"--set={setting}" for setting in set_ or [])]
    )
    write_reproduction_page(read_json(file, "the outcome"), page, command)
    printed.print(f"written to {file}; page: {page}", markup=False, soft_wrap=True)


def _print_list(printed: "Console", folder: Path, only: str | None) -> None:
    """All items, a line or two each; or one with its recipe, and what each scale can support."""
    from rich.padding import Padding

    from contextwise.reproductions.item import find_item, last_run, list_items

    items = list_items(folder) if only is None else dict([find_item(only, folder)])
    for name, item in items.items():
        printed.print(f"[bold]{name}[/bold]")
        lines = [item.title + (f" (also {', '.join(item.also)})" if item.also else "")]
        runs = [run for scale in item.scales if (run := last_run(RUNS, name, scale))]
        if only is None:
            scales = ", ".join(_scale_words(*scale) for scale in item.scales.items())
            lines.append(" · ".join([scales, *runs]))
        else:
            lines.append(f"{item.source}; recipe: {folder / f'{name}.yaml'}")
            for label, scale in item.scales.items():
                supports = scale.supports or "all of its claims"
                lines.append(f"{_scale_words(label, scale)}, {scale.machine}; it can support: {supports}")
            lines.append(f"last run: {', '.join(runs) or 'none'}")
        for line in lines:
            printed.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


def _scale_words(name: str, scale: "Scale") -> str:
    return name + (f" ({scale.minutes:g} min)" if scale.minutes else "")


def _print_plan(printed: "Console", item: "Item", scale: str, measure: "ItemMeasure", folder: Path) -> None:
    """The cost of each run, and of all together."""
    from contextwise.base.estimates import duration
    from contextwise.base.tables import Column, Table
    from contextwise.experiments.cost import costs_of
    from contextwise.models.sizes import readable_count

    costs = costs_of(measure.recipes(folder), measure.vocab_size) + measure.passes(folder)
    if not costs:
        printed.print("trains nothing, and measuring takes little")
        return
    rows = [
        [
            cost.name,
            *map(readable_count, (cost.parameters, cost.steps, cost.examples, cost.tokens)),
            f"{cost.flops:.2e}",
        ]
        for cost in costs
    ]
    head = ["parameters", "steps", "examples", "tokens", "FLOPs"]
    printed.print(Table("", [Column("run"), *head], rows))
    flops = sum(cost.flops for cost in costs)
    state, activations = (
        max(getattr(cost, f"{part}_bytes") for cost in costs) for part in ("state", "activation")
    )
    seconds = flops / ASSUMED_FLOPS
    time = duration(seconds) if seconds >= 1 else "under a second"
    small = "" if flops > 1e18 else " (models this small reach less)"
    printed.print(
        f"{len(costs)} run{'s' * (len(costs) > 1)}, {flops:.2e} FLOPs: {time} of an H100 at 30% of its peak{small}; weights "
        f"(in training with gradients and optimizer) take {state / 1e9:.2g} GB at most, the activations of a micro-batch about "
        f"{activations / 1e9:.2g} GB",
        markup=False,
    )
    for cost in costs:
        hours = item.gpu_hours.get(cost.name)
        if hours:
            share = cost.flops / (hours * 3600 * A100_FLOPS)
            printed.print(
                f"{cost.name}: the document spent {hours:,.0f} A100 hours, {share:.0%} of that GPU's peak by these FLOPs",
                markup=False,
            )
    _print_supports(printed, item.scales[scale])


def _print_supports(printed: "Console", scale: "Scale") -> None:
    if scale.supports:
        printed.print(f"what this scale can support: {scale.supports}", markup=False)


def _print_outcome(printed: "Console", outcome: "Outcome", item: "Item", scale: str) -> None:
    """Our tables and claims, and what the document prints, where the item has it as a table."""
    from contextwise.reproductions.claims import VERDICTS
    from contextwise.reproductions.item import printed_table

    printed.print(f"[bold]{item.title}[/bold] ({item.source}), scale {scale}\n")
    for table in outcome.tables:
        printed.print(table)
    _print_supports(printed, item.scales[scale])
    for claim in outcome.claims:
        printed.print(f"{VERDICTS[claim.holds]}: {claim.text} ({claim.evidence})", markup=False)
    theirs = printed_table(item.printed, "The document prints:")
    if theirs is not None:
        printed.print(theirs)
    for note in item.inferred:
        printed.print(f"inferred: {note}", markup=False)
