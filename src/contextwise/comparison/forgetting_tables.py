"""The report on forgetting as tables that read well in 80 columns."""

import numpy as np
from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contextwise.comparison.comparison import Comparison
from contextwise.comparison.forgetting import Change, Forgetting, Point
from contextwise.comparison.tables import difference_cell
from contextwise.evaluation.tables import NOT_KNOWN, count, interval, number

ROWS = 6
"""Validations of a run that the table shows; the JSON has all."""


def forgetting_tables(found: Forgetting) -> RenderableType:
    """Losses before and after on both corpora, with what is told apart; losses during training; notes."""
    parts: list[RenderableType] = []
    for comparison, name, meaning in (
        (found.old, "old", "forgetting"),
        (found.new, "new", "change"),
    ):
        corpus, counts = (
            comparison.corpus,
            f"{comparison.documents:,} documents, {comparison.tokens:,} tokens",
        )
        parts.append(_sentence(f"{name}: {corpus['path']}, {corpus['split']}; {counts}; 95% intervals"))
        parts.append(_domain_table(comparison, meaning, found.changes))
        parts += [_sentence(f"{difference.verdict}.") for difference in comparison.differences]
        parts.append("")
    during = [change for change in found.changes if change.during]
    if during:
        parts.append(_during_table(during))
    parts += [_sentence(f"Note: {note}") for note in found.notes]
    return Stack(*parts)


def _sentence(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 1))


def _domain_table(comparison: Comparison, meaning: str, changes: list[Change]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold", min_width=16)
    table.add_column("loss\n(nats/token)", justify="right", no_wrap=True)
    table.add_column(f"{meaning}\n(after − before)", justify="right", no_wrap=True)
    replay = {change.group: change.replay for change in changes}
    since = {d.group: d.difference for d in comparison.differences if d.reference == comparison.reference}
    for group in comparison.groups:
        seeds = f", {len(group.seeds)} seeds" if len(group.seeds) > 1 else ""
        table.add_row(
            f"{group.name}\n{_kind(comparison, group.name, replay.get(group.name))}{seeds}",
            f"{number(group.loss.value)} {interval(group.loss.low, group.loss.high)}",
            difference_cell(since.get(group.name)),
        )
    return table


def _kind(comparison: Comparison, group: str, replay: float | None) -> str:
    if group == comparison.reference:
        return "before"
    return "no replay" if replay is None else f"{replay:.3g} replayed"


def _during_table(changes: list[Change]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=" validation losses while training",
        title_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("step", justify="right")
    table.add_column("trained on", justify="right")
    table.add_column("old", justify="right")
    table.add_column("new", justify="right")
    for change in changes:
        for i, point in enumerate(_some(change.during)):
            old = NOT_KNOWN if point.old is None else number(point.old)
            name = change.group if i == 0 else ""
            table.add_row(name, str(point.step), count(point.tokens), old, number(point.new))
    return table


def _some(points: list[Point]) -> list[Point]:
    """The first, the last and some between."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(ROWS, len(points))).round().astype(int))
    return [points[i] for i in chosen]
