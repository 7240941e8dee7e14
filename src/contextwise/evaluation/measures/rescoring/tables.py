"""Ranked lists as a table that reads well in 80 columns."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from contextwise.evaluation.measures.rescoring.files import RankedFile


def ranking_table(found: RankedFile, most: int = 5) -> Table:
    """The best candidate of each of the first lists: its place in the list, and its log-probability."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("list", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("was", justify="right")
    table.add_column("log P", justify="right")
    table.add_column("per token", justify="right")
    table.add_column("best", no_wrap=True, overflow="ellipsis")
    for i, (name, ranked) in enumerate(zip(found.ids[:most], found.lists[:most], strict=True), start=1):
        best = ranked[0]
        table.add_row(
            Text(str(i if name is None else name)),
            str(best.index + 1),
            f"{best.log_probability:.2f}",
            f"{best.per_token:.3f}",
            Text(" ".join(best.text.split())),
        )
    return table


def ranking_sentence(
    source: str, lists: Sequence[Sequence[Any]], with_contexts: int, takes_contexts: bool
) -> Text:
    """How many candidates were ranked, and what the model changed."""
    candidates = sum(map(len, lists))
    moved = sum(ranked[0].index != 0 for ranked in lists)
    words = f"{source}: {candidates:,} candidates in {len(lists):,} list{'s' * (len(lists) != 1)}"
    words += f" ({with_contexts:,} with contexts)" if takes_contexts else ""
    return Text(f"{words}. In {moved:,} of them the best is not the one that stood first.")
