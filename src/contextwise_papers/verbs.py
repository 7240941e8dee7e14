"""The verb ``contextwise reproduce``: a table or figure of a source document, reproduced, beside the printed one."""

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.padding import Padding
from rich.text import Text
from typer import Argument, Option

from contextwise.base.config import with_options
from contextwise.base.hashes import MANIFEST
from contextwise.cli.common import set_option, show, show_json, show_line
from contextwise.report import Column, Table, say
from contextwise.settings import ConfigError, DataError

if TYPE_CHECKING:
    from contextwise_papers.item import Item, ItemMeasure, Outcome, Scale

PANEL = "Papers"

RUNS = Path("runs/reproduce")
ASSUMED_FLOPS = 989e12 * 0.3
"""FLOPs a second of an H100 at 30% of its dense bf16 throughput."""
_HOW_TO_PREPARE = "prepare it with contextwise prepare, or give another with --set corpus=PATH"


def reproduce(
    item: Annotated[str | None, Argument(metavar="DOCUMENT/ITEM", help="See --list.")] = None,
    scale: Annotated[str, Option(help="How large: tiny, gpu or paper.")] = "tiny",
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the runs it would train and their cost; train nothing.")
    ] = False,
    list_: Annotated[
        bool, Option("--list", help="List all items; with an item, what each of its scales can support.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="Folder of the runs and outcomes.", show_default="runs/reproduce/DOCUMENT/SCALE")
    ] = None,
    set_: Annotated[
        list[str] | None,
        set_option("A setting of the item's scale to change, such as corpus=corpora/mine; may be given again."),
    ] = None,
    jobs: Annotated[int | None, Option(help="Runs at a time.", show_default="1, in this process")] = None,
    recipes: Annotated[Path | None, Option(help="Folder of the items.", show_default="those of the package")] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the outcome, the planned runs or the items as JSON.")
    ] = False,
) -> None:
    """Reproduce a table or figure of a source document, and print it beside theirs.

    Run the same command again to resume; runs that have finished are used again.
    """
    from contextwise.base.files import write_json
    from contextwise.report import as_json as as_json_values
    from contextwise_papers.item import find_item, measure_at, recipes_folder
    from contextwise_papers.page import write_reproduction_page

    items = recipes_folder(recipes)
    if list_:
        _show_list(items, item, as_json)
        return
    if item is None:
        raise ConfigError("no item is given; give DOCUMENT/ITEM (--list shows all)")
    name, read = find_item(item, items)
    measure = measure_at(read, scale, with_options(set_, {"executor.jobs": jobs}))
    folder = out or RUNS / name.split("/")[0] / scale
    if dry_run:
        _show_plan(read, scale, measure, folder, as_json)
        return
    outcome = measure.reproduce(read, folder)
    file = folder / f"{name.split('/')[1]}.json"
    values = as_json_values(outcome.to_dict(read, scale))
    write_json(file, values, "the outcome")
    if as_json:
        show_json(values)
    else:
        _show_outcome(outcome, read, scale)
    page, settings = file.with_suffix(".html"), [f"--set={setting}" for setting in set_ or []]
    command = shlex.join(["contextwise", "reproduce", name, "--scale", scale, *settings])
    write_reproduction_page(outcome, values, page, command)
    (say if as_json else show_line)(f"written to {file}; page: {page}")


def _show_list(folder: Path, only: str | None, as_json: bool) -> None:
    """All items, a line or two each; or one with its recipe, and what each scale can support."""
    from contextwise_papers.item import find_item, list_items

    items = list_items(folder) if only is None else dict([find_item(only, folder)])
    if as_json:
        fields = {"title", "source", "also", "scales"}
        show_json([{"name": name, **each.model_dump(include=fields)} for name, each in items.items()])
        return
    for name, item in items.items():
        lines = [item.title + (f" (also {', '.join(item.also)})" if item.also else "")]
        scales = {
            label: label + (f" ({scale.minutes:g} min)" if scale.minutes else "")
            for label, scale in item.scales.items()
        }
        if only is None:
            lines.append(", ".join(scales.values()))
        else:
            lines += [item.source, f"recipe: {folder / f'{name}.yaml'}"]
            for label, scale in item.scales.items():
                supports = scale.supports or "all of its claims"
                why = f" ({scale.over_ten_minutes})" if scale.over_ten_minutes else ""
                lines.append(f"{scales[label]}{why}, {scale.machine}; it can support: {supports}")
        show(Text(name, style="bold"))
        for line in lines:
            show_line(f"    {line}") if line.startswith("recipe: ") else show(
                Padding(Text(line), (0, 0, 0, 4), expand=False)
            )


def _show_plan(item: "Item", scale: str, measure: "ItemMeasure", folder: Path, as_json: bool) -> None:
    """The cost of each run, and of all together."""
    from contextwise.experiments.cost import costs_of
    from contextwise.report import count, counted, duration
    from contextwise.training.recipe import few_steps

    costs = costs_of(measure.recipes(folder), measure.vocab_size) + measure.passes(folder)
    corpus = measure.needed_corpus
    missing = corpus is not None and not (Path(corpus) / MANIFEST).exists()
    if missing and not costs:
        raise DataError(f"{corpus} is not a prepared corpus, which scale {scale} needs; {_HOW_TO_PREPARE}")
    if as_json:
        show_json(costs)
        return
    minutes = item.scales[scale].minutes
    takes = f"takes about {minutes:g} min on {item.scales[scale].machine}" if minutes else ""
    if not costs:
        show("; ".join(filter(None, ["trains nothing", takes])))
        return
    rows = Counter(  # the seeds of a run cost the same: one row
        (c.name, *map(count, (c.parameters, c.steps, c.examples, c.tokens)), f"{c.flops:.2e}") for c in costs
    )
    cells = [[f"{name} × {times}" if times > 1 else name, *rest] for (name, *rest), times in rows.items()]
    flops = sum(cost.flops for cost in costs)
    state, activations = (max(getattr(c, f"{part}_bytes") for c in costs) for part in ("state", "activation"))
    time = duration(flops / ASSUMED_FLOPS)
    small = "" if flops > 1e18 else " (models this small reach less)"
    show(
        Table("", [Column("run"), "parameters", "steps", "examples", "tokens", "FLOPs"], cells),
        f"{counted(len(costs), 'run')}, {flops:.2e} FLOPs: {time} of an H100 at 30% of its peak{small}; weights "
        f"(in training with gradients and optimizer) take {state / 1e9:.2g} GB at most, the activations of a micro-batch about "
        f"{activations / 1e9:.2g} GB",
    )
    if warning := few_steps(cost.steps for cost in costs if cost.steps):
        show(f"note: {warning}")
    if missing:
        show(f"note: {corpus} is not a prepared corpus yet; {_HOW_TO_PREPARE}")
    show(*filter(None, [takes]))
    _show_support(item.scales[scale])


def _show_support(scale: "Scale") -> None:
    if scale.supports:
        show(f"what this scale can support: {scale.supports}")


def _show_outcome(outcome: "Outcome", item: "Item", scale: str) -> None:
    """Our tables and claims, and what the document prints, where the item has it as a table."""
    from contextwise_papers.claims import VERDICTS
    from contextwise_papers.tables import printed_table

    show(Text.assemble((item.title, "bold"), f" ({item.source}), scale {scale}\n"), *outcome.tables)
    _show_support(item.scales[scale])
    show(*(f"{VERDICTS[claim.holds]}: {claim.text} ({claim.evidence})" for claim in outcome.claims))
    theirs = printed_table(item.printed, "The document prints:")
    show(*([theirs] if theirs else []), *(f"inferred: {note}" for note in item.inferred))
