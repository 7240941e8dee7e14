"""A comparison as tables, the same on the terminal and on pages, and in sentences."""

from collections.abc import Mapping

from rich.console import RenderableType

from contextwise.base.estimates import FEWEST_DOCUMENTS, count, counted, written
from contextwise.base.tables import Cell, Column, Row, Table, terminal
from contextwise.comparison.compared_runs import number_of_seeds
from contextwise.comparison.result import UNITS, Comparison


def comparison_tables(comparison: Comparison) -> RenderableType:
    """Models, differences and notes, one below the other."""
    return terminal(
        model_table(comparison),
        *(f"{difference.verdict}." for difference in comparison.differences),
        "",
        *(f"Note: {note}" for note in comparison.notes),
    )


def model_table(comparison: Comparison, series: Mapping[str, int] = {}) -> Table:
    """A row for each model: parameters, losses, costs of training; ``series``: its color on a page.

    In bits per byte alone if that is the unit: losses per token of other tokenizers are no losses of the same thing.
    """
    by_byte = comparison.unit == UNITS["byte"]
    rows = [
        Row(
            [
                (group.name, count(group.parameters) + number_of_seeds(group.seeds)),
                *([] if by_byte else [group.loss, group.perplexity]),
                group.bits_per_byte,
                (written(group.training_tokens, "count"), written(group.training_seconds, "duration")),
            ],
            series.get(group.name),
            bold=group is comparison.best,
        )
        for group in comparison.groups
    ]
    return Table(
        f"{counted(comparison.documents, 'document')}, {comparison.tokens:,} tokens; 95% intervals",
        [
            Column("model,\nparameters", width=16),
            *([] if by_byte else [Column("loss\n(nats/token)", "estimate", ".4f", interval="below")]),
            *([] if by_byte else [Column("perplex-\nity", "estimate", interval="none")]),
            Column("bits/\nbyte", "estimate", ".4f", interval="below" if by_byte else "none"),
            Column("trained\nfor"),
        ],
        rows,
    )


def difference_table(comparison: Comparison) -> Table:
    """A row for each pair: the difference, on how many of the documents the first is lower, and which is lower on all."""
    rows: list[list[Cell]] = []
    for each in comparison.differences:
        result = "no significant difference" if each.difference.has_interval else "no interval"
        result = f"no verdict: fewer than {FEWEST_DOCUMENTS} documents" if each.difference.too_few else result
        lower: Cell = (each.lower, each.restriction) if each.lower else result
        rows.append([f"{each.group} − {each.reference}", each.difference, each.documents_lower, lower])
    columns = [
        Column("pair"),
        Column("difference", "difference", interval="own"),
        Column("documents with\na lower loss", "percent", ".0%"),
        Column("lower loss"),
    ]
    title = f"Held-out loss, {comparison.unit}, first minus second on the same documents."
    return Table(title, columns, rows)


def verdict(comparison: Comparison) -> list[str]:
    """The result in paragraphs: the model with the lowest loss against each of the others."""
    lowest = comparison.lowest.name
    return [f"{each.verdict}." for each in comparison.differences if lowest in (each.group, each.reference)]
