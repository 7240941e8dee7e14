"""The runs of a sweep, what they cost and how far they are: a terminal table, and JSON."""

from collections.abc import Sequence
from typing import TypedDict

from rich.table import Table
from rich.text import Text

from contextwise.base.estimates import count, written
from contextwise.experiments.folder import RunState


class SweepJson(TypedDict):
    """The runs of a sweep, what they cost and how far they are, as JSON."""

    path: str
    flops: float
    runs: list[RunState]


def plan_table(states: Sequence[RunState]) -> Table:
    """A table of the runs with what each is, what it costs, and how far it is."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    for name in ("params", "lr", "tokens", "FLOPs", "done", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for state in states:
        run, done = state.run, "failed" if state.state == "failed" else f"{state.share:.0%}"
        counts = count(run.parameters), f"{run.learning_rate:.2g}", count(run.tokens)
        table.add_row(Text(run.id), *counts, f"{run.flops:.2e}", done, written(state.loss, ".4f"))
    return table
