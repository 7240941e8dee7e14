"""A trial as terminal tables and as a page: the decision first, the path of the intervals, cost, rates, what was held fixed."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from contextwise.base.estimates import Estimate, count, duration, written
from contextwise.base.tables import Cell, Column, Row, Table, terminal
from contextwise.experiments.trial.ledger import LedgerRow
from contextwise.experiments.trial.result import READINGS, Comparison, TrialPlan, TrialResult
from contextwise.reports import page
from contextwise.reports.page import Page, Part, Plot, Section

STOPPED = {
    "decided": "every comparison is decided",
    "seeds": "all seeds are trained",
    "budget": "the wall time is spent",
    "": "it is not finished",
}
ANYTIME = (
    "The interval over seeds is a confidence sequence: it holds after all seeds at once, so the trial may stop after any of "
    "them and continue later."
)


SHOWN_WHOLE = 6
"""The newest intervals, which a plot shows whole; those of the first seeds are many times as wide."""


def trial_tables(result: TrialResult) -> RenderableType:
    """The decisions, the comparisons, the rates and the cost."""
    parts: list[Any] = [*result.sentences, ""]
    parts.append(comparison_table(result))
    if result.rates:
        parts += ["", rate_table(result)]
    parts += [
        "",
        cost_table(result),
        f"The trial stopped after {duration(result.seconds)}: {STOPPED[result.stopped]}.",
    ]
    return terminal(*parts, *(f"Note: {note}" for note in result.notes))


def comparison_table(result: TrialResult) -> Table:
    """A row for each comparison: both readings at the look that decided, or at the newest."""
    rows: list[list[Cell]] = []
    for each in result.comparisons:
        look = each.looks[(each.decided_after or len(each.looks)) - 1]
        name = (each.arm, f"{count(each.budget)} tokens" if len(result.budgets) > 1 else "")
        rows.append([name, each.decision, look.fixed, look.random, look.seeds, f"{look.deviation:.4f}"])
    title = (
        f"Difference to {result.reference}, nats per token, on {result.held_out:,} held-out documents ({result.tokens:,} "
        f"tokens), with intervals that all hold together with {result.confidence:.0%} confidence."
    )
    columns: list[Column | str] = [
        "arm",
        Column("decision", align="left", width=10),
        Column("these\ndocuments", "difference", interval="below"),
        Column("any such\ndocuments", "difference", interval="below"),
        Column("seeds", "integer"),
        Column("dev. by\nseed"),
    ]
    return Table(title, columns, rows, [f"Note: {ANYTIME}"])


def rate_table(result: TrialResult) -> Table:
    """The search over rates: the chosen rate of each arm and its margin over its neighbours."""
    rows: list[Row] = []
    for arm in dict.fromkeys(row.arm for row in result.rates):
        mine = [row for row in result.rates if row.arm == arm]
        chosen = next(number for number, row in enumerate(mine) if row.chosen)
        best = mine[chosen].loss
        for number, row in enumerate(mine):
            above = None if row.loss is None or best is None or row.chosen else row.loss - best
            edge = "chosen" + ", at an edge" * (chosen in (0, len(mine) - 1) and len(mine) > 1)
            cells: list[Cell] = [arm if number == 0 else "", f"{row.learning_rate:.2g}", f"{row.factor:g}"]
            cells += [row.loss, above, edge if row.chosen else ""]
            rows.append(Row(cells, bold=row.chosen, last=number == len(mine) - 1))
    title = (
        "Learning rates: short runs, the same for every arm, on documents and seeds that no decision uses."
    )
    loss, more = (
        Column("loss", "estimate", ".4f", missing="diverged"),
        Column("more than\nbest", "estimate", "+.4f", missing=""),
    )
    return Table(title, ["arm", "rate", "factor", loss, more, ""], rows)


def cost_table(result: TrialResult) -> Table:
    """The runs of each arm: parameters, tokens, FLOPs, planned and median training time, and mean loss over the seeds."""
    rows: list[list[Cell]] = []
    for each in result.lengths:
        losses = result.losses.get(each.arm, {}).get(each.budget, [])
        mean = sum(losses) / len(losses) if losses else None
        times = result.training_seconds.get(each.arm, {}).get(each.budget, [])
        rows.append(
            [
                (each.arm, f"{count(result.parameters[each.arm])} parameters"),
                float(each.tokens),
                each.flops,
                each.seconds,
                statistics.median(times) if times else None,
                len(losses),
                mean,
            ]
        )
    columns: list[Column | str] = [
        "arm",
        Column("tokens", "count"),
        Column("FLOPs", "estimate", ".2e"),
        Column("planned", "duration"),
        Column("trained", "duration"),
        Column("seeds", "integer"),
        Column("loss", "estimate", ".4f"),
    ]
    return Table(f"Each run, at equal {_equal(result.equal)}:", columns, rows)


def ledger_table(ledger: Sequence[LedgerRow], rate: float) -> Table:
    """A row for each comparison of many trials; those that are kept are bold."""
    rows = [
        Row(
            [
                (row.trial, row.arm),
                row.difference,
                row.seeds,
                row.decision,
                row.evidence,
                "kept" if row.kept else "",
            ],
            bold=row.kept,
        )
        for row in ledger
    ]
    kept = sum(row.kept for row in ledger)
    title = (
        f"{kept} of {len(ledger)} changes are kept; at most {rate:.0%} of those that are kept gain nothing, on average over "
        "such ledgers (e-BH)."
    )
    columns: list[Column | str] = [
        "trial, arm",
        Column("difference\n(nats/token)", "difference", interval="below"),
        Column("seeds", "integer"),
        Column("decision", align="left"),
        Column("evidence", "estimate", ".3g"),
        "",
    ]
    return Table(title, columns, rows)


def plan_tables(plan: TrialPlan, equal: str) -> RenderableType:
    """What a trial will cost, and what it can decide."""
    rows: list[list[Cell]] = [
        [
            (each.arm, f"{count(plan.parameters[each.arm])} parameters"),
            f"{plan.learning_rates[each.arm]:.2g}",
            float(each.tokens),
            each.flops,
            each.seconds,
            each.scoring,
        ]
        for each in plan.lengths
    ]
    columns: list[Column | str] = [
        "arm",
        "rate",
        Column("tokens", "count"),
        Column("FLOPs", "estimate", ".2e"),
        Column("training", "duration"),
        Column("scoring", "duration"),
    ]
    total = plan.search_seconds + plan.affordable * plan.seed_seconds
    parts: list[Any] = [
        Table(f"Each run, at equal {_equal(equal)}; times from timed steps:", columns, rows),
        "",
    ]
    parts.append(
        f"At most {plan.affordable} seeds: {plan.runs} runs ({plan.search_runs} of them short, for the rates), "
        f"{plan.flops:.2e} FLOPs, about {duration(total)}; a seed takes {duration(plan.seed_seconds)}."
    )
    parts.append(_expected(plan))
    return terminal(*parts, *(f"Note: {note}" for note in plan.notes))


def _expected(plan: TrialPlan) -> str:
    """What the seeds can decide."""
    if plan.affordable < plan.first_interval:
        return f"Nothing will be decided: the first interval comes after {plan.first_interval} seeds."
    if plan.deviation is None:
        return (
            "The spread between seeds is not known before the first seeds; the first interval comes after "
            f"{plan.first_interval}. At 95% it is about "
            "3.3 standard deviations wide to each side, 1.3 after ten, 0.8 after twenty."
        )
    deviation, seeds = plan.deviation
    words = []
    for times in (1, 2, 4):
        expected = plan.expected_seeds(times * plan.margin)
        within = f"{expected} seeds" if expected is not None else f"not within {plan.affordable} seeds"
        words.append(f"{times * plan.margin:g} nats: {within}")
    none = plan.expected_seeds(0.0)
    words.append(
        f"no difference: {none} seeds"
        if none is not None
        else f"no difference: not within {plan.affordable} seeds"
    )
    least = (
        f" The least difference that {plan.affordable} seeds decide is {plan.least:.4f} nats."
        if plan.least
        else ""
    )
    return (
        f"Differences between seeds have a standard deviation of {deviation:.4f} nats ({plan.source}, {seeds} seeds). A true "
        f"difference is decided in 4 of 5 trials within: {'; '.join(words)}.{least}"
    )


def write_trial_page(result: TrialResult, path: Path, recipe: str, command: str) -> None:
    """Write the page of a trial.

    Args:
        recipe: the text of ``trial.yaml``.
        command: the command line that continues the trial and makes the page again.
    """
    trial_page(result, recipe, command).write(path)


def trial_page(result: TrialResult, recipe: str, command: str) -> Page:
    """The page of a trial."""
    rates: list[Part] = (
        [rate_table(result)] if result.rates else ["Each arm has the learning rate of its recipe."]
    )
    fixed = {name: str(value) for name, value in result.unchanged.items()}
    seeds = f"{result.seeds} seed{'s' * (result.seeds != 1)}"
    sections = [
        Section("Comparisons", [comparison_table(result)]),
        Section("Seed by seed", [*_plots(result), page.details("The numbers", *_path_tables(result))]),
        Section("Along the budgets", _along(result)),
        Section("Cost", [cost_table(result), *_wall_time(result)]),
        Section("Learning rates", rates),
        Section(
            "What was held fixed",
            [
                "All arms of a seed read the same windows in the same order, and start from the same values of the tensors "
                "that they share by name. Each run ends with its own schedule.",
                page.details("Settings that all arms share", page.facts(fixed)),
                *result.notes,
            ],
        ),
        Section("Made with", [page.commands([command]), page.details("trial.yaml", page.code(recipe))]),
    ]
    subtitle = (
        f"{', '.join(dict.fromkeys(each.arm for each in result.lengths))}: {seeds} at equal {_equal(result.equal)}; "
        f"{STOPPED[result.stopped]}"
    )
    return Page(f"Trial {result.name}", sections, subtitle, result.sentences)


def _along(result: TrialResult) -> list[Part]:
    """The difference at each budget with its interval, and what the budgets say together; nothing for one budget."""
    parts: list[Part] = []
    for number, each in enumerate(result.along):
        mine = [comparison for comparison in result.comparisons if comparison.arm == each.arm]
        shown = [comparison for comparison in mine if comparison.last.of(result.documents).has_interval]
        if shown:
            estimates = [comparison.last.of(result.documents) for comparison in shown]
            trace = page.scatter(
                [comparison.budget for comparison in shown],
                [estimate.value for estimate in estimates],
                number,
                "%{x:.3s} tokens: %{y:+.4f}",
                mode="lines+markers",
                error_y=page.error_bars(estimates),
            )
            name = f"{each.arm} − {each.reference}"
            layout = page.figure(
                [trace],
                xaxis={"title": {"text": "training tokens of the reference"}, "type": "log"},
                yaxis={"title": {"text": page.plain(f"{name} (nats per token)")}},
            )
            parts.append(Plot(f"along-{number}", layout, f"{name} at each budget"))
        rows: list[list[Cell]] = [[count(budget), speedup] for budget, speedup in each.speedups.items()]
        title = f"How many times its compute {each.arm} is worth, on the curve through the runs of {each.reference}:"
        worth = Column("speed-up", "estimate", ".3f", interval="own")
        parts += [*each.sentences[:1], Table(title, ["budget (tokens)", worth], rows)]
    if parts:
        parts.append(
            "A point is a set of finished runs. The trend is a line over the logarithm of the budget, outside the budgets an "
            f"extrapolation. Each of these intervals holds after every seed with {result.confidence:.0%} confidence of its own."
        )
    return parts


def _wall_time(result: TrialResult) -> Sequence[str]:
    return [f"Wall time so far: {duration(result.seconds)}."]


def _plots(result: TrialResult) -> list[Plot]:
    """The path of each comparison's interval."""
    return [_plot(each, number, result) for number, each in enumerate(result.comparisons)]


def _plot(comparison: Comparison, number: int, result: TrialResult) -> Plot:
    """The difference of each seed, and the interval after each, for both readings."""
    own = _own_differences(comparison, result)
    seeds = [*range(1, len(own) + 1)]
    dots = {"mode": "markers", "marker": {"symbol": "x-thin-open", "size": 8}}
    traces = [page.scatter(seeds, own, None, "seed %{x}: %{y:+.4f}", name="each seed", **dots)]
    shown: list[Estimate] = []
    for series, (reading, words) in enumerate(READINGS.items()):
        known = [look for look in comparison.looks if look.of(reading).has_interval]
        estimates = [look.of(reading) for look in known]
        shown += estimates[-SHOWN_WHOLE:]
        if known:
            at = [look.seeds + 0.12 * series for look in known]
            style = {"name": words, "mode": "markers", "error_y": page.error_bars(estimates)}
            values = [estimate.value for estimate in estimates]
            traces.append(page.scatter(at, values, series, "%{y:+.4f} nats per token", **style))
    margin = comparison.margin
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": at,
            "y1": at,
            "line": {"width": 1, "dash": dash},
        }
        for at, dash in ((0.0, "solid"), (margin, "dot"), (-margin, "dot"))
    ]
    where = f" at {count(comparison.budget)} tokens" if len(result.budgets) > 1 else ""
    name = f"{comparison.arm} − {comparison.reference}{where}"
    limits = [*own, margin, -margin, *(limit for estimate in shown for limit in estimate.limits)]
    room = 0.05 * (max(limits) - min(limits))
    layout = page.figure(
        traces,
        xaxis={
            "title": {"text": "seeds"},
            "dtick": max(1, len(own) // 10),
            "range": [0.5, max(4, len(own)) + 0.5],
        },
        yaxis={
            "title": {"text": page.plain(f"{name} (nats per token)")},
            "range": [min(limits) - room, max(limits) + room],
        },
        shapes=lines,
    )
    caption = f"{name}: below zero {comparison.arm} is better; the dotted lines are the margin of ± {margin:g}. {ANYTIME}"
    if not shown:
        caption = f"{name}: no interval yet; the first one comes after four seeds or five."
    return Plot(f"path-{number}", layout, f"Interval of {name} after each seed", caption)


def _own_differences(comparison: Comparison, result: TrialResult) -> list[float]:
    """The difference of each seed."""
    arm, reference = (
        result.losses[name][comparison.budget] for name in (comparison.arm, comparison.reference)
    )
    return [a - b for a, b in zip(arm, reference, strict=False)]


def _path_tables(result: TrialResult) -> list[Table]:
    """The looks of each comparison."""
    tables = []
    for each in result.comparisons:
        rows = []
        for number, look in enumerate(each.looks):
            losses = [
                result.losses[arm][each.budget][number]
                if number < len(result.losses[arm][each.budget])
                else None
                for arm in (each.arm, each.reference)
            ]
            rows.append([written(look.seeds, "integer"), *losses, look.fixed, look.random])
        loss = [Column(f"loss of\n{arm}", "estimate", ".4f") for arm in (each.arm, each.reference)]
        readings = [
            Column(f"difference\n{words}", "difference", interval="below") for words in READINGS.values()
        ]
        at = f" at {count(each.budget)} tokens" if len(result.budgets) > 1 else ""
        tables.append(Table(f"{each.arm} against {each.reference}{at}", ["seeds", *loss, *readings], rows))
    return tables


def _equal(equal: str) -> str:
    return {"flops": "FLOPs", "time": "training time", "tokens": "tokens"}[equal]
