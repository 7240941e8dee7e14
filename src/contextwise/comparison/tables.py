"""A comparison as tables, the same on the terminal and on pages, and in sentences."""

from collections.abc import Mapping

from rich.console import RenderableType

from contextwise.base.estimates import FEWEST_DOCUMENTS, count, counted, listed, written
from contextwise.base.tables import Cell, Column, Row, Table, terminal
from contextwise.comparison.compared_runs import number_of_seeds
from contextwise.comparison.result import OTHER_TOKENS, UNITS, Comparison, Group


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
    """The result in paragraphs: the model with the lowest loss against each of the others, and what it costs beside them."""
    lowest = comparison.lowest
    own = (each for each in comparison.differences if lowest.name in (each.group, each.reference))
    unequal = [note for note in comparison.notes if note.startswith(OTHER_TOKENS)]
    return [*(f"{each.verdict}." for each in own), *unequal, " ".join(_costs(comparison, lowest))]


def _costs(comparison: Comparison, best: Group) -> list[str]:
    """Parameters and FLOPs of training of the best model, relative to each of the others."""
    others = [group for group in comparison.groups if group is not best]
    numbers = {group.parameters for group in comparison.groups}
    shown = count if len({count(number) for number in numbers}) == len(numbers) else "{:,}".format
    same = [group.name for group in others if group.parameters == best.parameters]
    unlike = [f"{shown(group.parameters)} of {group.name}" for group in others if group.name not in same]
    parts = [f"as many as {listed(same)}"] * bool(same) + [f"against {listed(unlike)}"] * bool(unlike)
    sentences = [", ".join([f"{best.name} has {shown(best.parameters)} parameters", *parts]) + "."]
    own, known = best.flops_per_token, [(group.name, group.flops_per_token) for group in others]
    if own and all(flops for _, flops in known):
        ratios = {name: f"{own / flops:.2f}" for name, flops in known if flops}
        costs = [f"{ratio} times the FLOPs of {name}" for name, ratio in ratios.items() if ratio != "1.00"]
        if like := listed([name for name, ratio in ratios.items() if ratio == "1.00"]):
            costs.append(f"about as many as {like}" if costs else f"about as many FLOPs as {like}")
        sentences += [f"It takes {listed(costs)} for a token of training."] if costs else []
    return sentences
