"""Ranked lists as a table that reads well in 80 columns."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from contextwise.base.tables import Cell, Column, Table
from contextwise.evaluation.measures.rescoring.files import RankedFile


def ranking_table(found: RankedFile, most: int = 5) -> Table:
    """The best candidate of each of the first lists: its place in the list, and its log-probability."""
    rows: list[list[Cell]] = [
        [
            _cut(str(i if name is None else name), 16),
            ranked[0].index + 1,
            ranked[0].log_probability,
            ranked[0].per_token,
            _cut(" ".join(ranked[0].text.split()), 30),
        ]
        for i, (name, ranked) in enumerate(zip(found.ids[:most], found.lists[:most], strict=True), start=1)
    ]
    columns: list[Column | str] = [
        "list",
        Column("was", "integer"),
        Column("log P", "estimate", ".2f"),
        Column("per token", "estimate", ".3f"),
        Column("best", align="left"),
    ]
    return Table("", columns, rows)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def ranking_sentence(
    source: str, lists: Sequence[Sequence[Any]], with_contexts: int, takes_contexts: bool
) -> Text:
    """How many candidates were ranked, and what the model changed."""
    candidates = sum(map(len, lists))
    moved = sum(ranked[0].index != 0 for ranked in lists)
    words = f"{source}: {candidates:,} candidates in {len(lists):,} list{'s' * (len(lists) != 1)}"
    words += f" ({with_contexts:,} with contexts)" if takes_contexts else ""
    return Text(f"{words}. In {moved:,} of them the best is not the one that stood first.")
