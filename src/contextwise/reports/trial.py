"""A trial as terminal tables and as a page: the decision first, the path of the intervals, cost, rates, what was held fixed."""

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import RenderableType

from contextwise.base.config import parse_yaml
from contextwise.base.estimates import count, counted, duration, listed, written
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Cell, Column, Row, Table, terminal
from contextwise.comparison.decided import READINGS, Comparison
from contextwise.comparison.sequential import FEWEST_SEEDS, half_widths
from contextwise.experiments.folder import Question
from contextwise.experiments.trial.arms import Length
from contextwise.experiments.trial.result import TrialPlan, TrialResult
from contextwise.experiments.trial.settings import ARM_WORDS, BUILT_IN, setting_in_words
from contextwise.experiments.trial.trial import Trial
from contextwise.reports import page
from contextwise.reports.decided import at_budget, breakable, comparison_table, overview_plots, path_plot
from contextwise.reports.page import Page, Part, Plot, Section
from contextwise.reports.runs import facts_of

PAGE = "report.html"
OWN_RATES = (
    "Learning rates: those of the arms' recipes, none searched. The intervals do not cover the choice of a rate."
)
STOPPED = {
    "decided": "every comparison is decided",
    "diverged": "no comparison is left open but of arms that diverged",
    "seeds": "all seeds are trained",
    "": "it is not finished",
}


def run_with_page(trial: Trial, command: str = "") -> TrialResult:
    """Run a trial to its end, or resume it; after each seed write the page and print what is known so far."""

    def on_look(result: TrialResult) -> None:
        trial_page(result, command=command).write(trial.path / PAGE)
        for sentence in [] if result.stopped else result.findings:
            say(sentence)

    return trial.run(on_look)


def trial_command(folder: Path) -> str:
    """The command that continues the trial in a folder and makes its page again."""
    return shlex.join(["contextwise", "trial", str(Question(folder, "trial").settings_file)])


def trial_tables(result: TrialResult) -> RenderableType:
    """The decisions, the comparisons, the chosen rates and the runs."""
    return terminal(
        *result.sentences,
        "",
        comparison_table(result),
        *([f"Learning rates of {sentence}" for sentence in _rate_sentences(result)] or [OWN_RATES]),
        "",
        result_table(result),
        f"The trial stopped after {duration(result.trained_for)} of training: {STOPPED[result.stopped]}.",
        *(f"Note: {note}" for note in result.notes),
    )


def _rate_sentences(result: TrialResult) -> list[str]:
    """What the search over rates says of each arm, with the arms of which it says the same; empty without a search."""
    arms: dict[str, list[str]] = {}
    for rate in result.chosen_rates:
        arms.setdefault(rate.sentence, []).append(rate.arm)
    return [f"{listed(names)}: {sentence}" for sentence, names in arms.items()]


def rate_table(result: TrialResult) -> Table:
    """The search over rates: the best rate of each arm, its lead, and the rate of whole runs."""
    rows: list[Row] = []
    for each in result.chosen_rates:
        mine = [row for row in result.rates if row.arm == each.arm]
        for number, row in enumerate(mine):
            best = next(other.loss for other in mine if other.chosen)
            above = None if row.loss is None or best is None or row.chosen else row.loss - best
            chosen = "best" + ", at an edge" * each.at_edge if row.chosen else ""
            cells: list[Cell] = [
                each.arm if number == 0 else "",
                row.steps,
                f"{row.learning_rate:.2g}",
                f"{row.factor:g}",
            ]
            cells += [row.loss, above, None if above is None else above / result.margin, chosen]
            rows.append(Row(cells, bold=row.chosen, last=number == len(mine) - 1))
    title = "Learning rates: short runs, the same for every arm, on documents and seeds that no decision uses."
    loss = Column("loss", "estimate", ".4f", missing="diverged")
    more = Column("more than\nbest", "estimate", "+.4f", missing="")
    margins = Column("in\nmargins", "estimate", ".1f", missing="")
    columns: list[str | Column] = [
        "arm",
        Column("steps", "integer"),
        "AdamW's\nrate",
        "factor",
        loss,
        more,
        margins,
        "",
    ]
    return Table(title, columns, rows, _rate_sentences(result))


def runs_table(
    title: str,
    lengths: Sequence[Length],
    parameters: dict[str, int],
    further: Sequence[Column] = (),
    *cells: list[Cell],
) -> Table:
    """How long the runs of each arm are: tokens, steps, epochs, tokens for each parameter, and FLOPs.

    ``further`` are columns after these, whose ``cells`` are a list for each row.
    """
    budgets = list(dict.fromkeys(each.budget for each in lengths))
    rows: list[list[Cell]] = []
    for each, own in zip(lengths, cells or [[]] * len(lengths), strict=True):
        arm = *_at(each, budgets), f"{count(parameters[each.arm])} parameters"
        rows.append([arm, float(each.tokens), each.steps, each.epochs, each.tokens_per_parameter, each.flops, *own])
    columns = [Column("arm"), Column("tokens", "count"), Column("steps", "integer")]
    columns += [Column("epochs", "estimate", ".3g"), Column("tokens a\nparameter", "estimate", ".3g")]
    return Table(title, [*columns, Column("FLOPs", "estimate", ".2e"), *further], rows)


def result_table(result: TrialResult) -> Table:
    """The runs of each arm, with their median training time and the mean loss over the seeds."""
    cells: list[list[Cell]] = []
    for each in result.lengths:
        losses = result.losses.get(each.arm, {}).get(each.budget, [])
        times = result.training_seconds.get(each.arm, {}).get(each.budget, [])
        cells.append([statistics.median(times) if times else None, statistics.fmean(losses) if losses else None])
    title = f"The runs, at equal {_equal(result.equal)}, with their median training time and mean loss:"
    further = [Column("trained", "duration"), Column("loss", "estimate", ".4f")]
    return runs_table(title, result.lengths, result.parameters, further, *cells)


def _at(length: Length, budgets: Sequence[int]) -> tuple[str, str]:
    """The arm of a row, with its budget where there are several."""
    return breakable(length.arm), f"{count(length.budget)} tokens" if len(budgets) > 1 else ""


def plan_tables(plan: TrialPlan, equal: str) -> RenderableType:
    """What a trial will cost."""
    budgets = list(dict.fromkeys(each.budget for each in plan.lengths))
    rows: list[list[Cell]] = [
        [_at(each, budgets), f"{plan.learning_rates[each.arm]:.2g}", each.seconds, each.scoring]
        for each in plan.lengths
    ]
    times = (Column(name, "duration") for name in ("training", "scoring"))
    total = plan.search_seconds + plan.seeds * plan.seed_seconds
    return terminal(
        runs_table(f"Each run, at equal {_equal(equal)}:", plan.lengths, plan.parameters),
        "",
        Table("The rate and the time of a run, from timed steps:", ["arm", "AdamW's\nrate", *times], rows),
        "",
        f"At most {plan.seeds} seeds: {plan.runs} runs ({plan.search_runs} of them short, for the rates), "
        f"{plan.flops:.2e} FLOPs, about {duration(total)}; a seed takes {duration(plan.seed_seconds)}."
        + f" Up to {plan.widening_runs} more short runs follow where a best rate is at an edge."
        * bool(plan.widening_runs),
        _expected(plan),
        *([f"Warning: {plan.warning}"] if plan.warning else []),
        *(f"Note: {note}" for note in plan.notes),
    )


def _expected(plan: TrialPlan) -> str:
    """What the seeds can decide."""
    if plan.seeds < FEWEST_SEEDS:
        return f"Nothing will be decided: the first interval comes after {FEWEST_SEEDS} seeds."
    first, ten, twenty = (half_widths(20, plan.confidence)[seeds - 1] for seeds in (FEWEST_SEEDS, 10, 20))
    return (
        "How many seeds decide depends on the standard deviation of the difference over seeds, which the first seeds tell. The "
        f"interval is the mean ± {first:.1f} standard deviations after {FEWEST_SEEDS} seeds, ± {ten:.1f} after ten, and "
        f"± {twenty:.1f} after twenty."
    )


def trial_page(result: TrialResult, recipe: str = "", command: str = "") -> Page:
    """The page of a trial; by default with the ``trial.yaml`` in its folder, and the command that continues it."""
    recipe = recipe or Question(result.path, "trial").settings_file.read_text(encoding="utf-8")
    command = command or trial_command(result.path)
    paths = [path_plot(each, number, result) for number, each in enumerate(result.comparisons)]
    numbers = page.details("The numbers", *(_path_table(each, result) for each in result.comparisons))
    compared = comparison_table(result)
    fixed = {name: str(value) for name, value in result.unchanged.items()}
    seeds = counted(result.seeds, "seed")
    runs = (RunFolder(path) for path in sorted(result.path.glob("runs/*")))
    finished = next((run for run in runs if run.finished), None)
    made_on = [page.details("Corpus and machine of a run", page.facts(facts_of(finished)))] if finished else []
    sections = [
        Section("Seed by seed", paths if len(paths) == 1 else []),
        Section(
            "Comparisons",
            [
                *overview_plots(result),
                replace(compared, notes=[*compared.notes, *result.notes]),
                _arms(recipe),
                "The guide to trials (docs/trial.md in the source of Contextwise) explains each figure.",
                numbers,
            ],
        ),
        Section("Along the budgets", _along(result)),
        Section("Seed by seed", paths if len(paths) > 1 else []),
        Section("Cost", [result_table(result), f"The runs took {duration(result.trained_for)} of training."]),
        Section("Learning rates", [rate_table(result) if result.rates else OWN_RATES]),
        Section(
            "What was held fixed",
            [
                "All arms of a seed read the same windows in the same order, and start from the same values of the tensors "
                "that they share by name. Each run ends with its own schedule.",
                page.details("Settings that all arms share", page.facts(fixed)),
            ],
        ),
        Section("Made with", [page.commands([command]), page.details("trial.yaml", page.code(recipe)), *made_on]),
    ]
    subtitle = (
        f"{', '.join(dict.fromkeys(each.arm for each in result.lengths))}: {seeds} at equal {_equal(result.equal)}; "
        f"{STOPPED[result.stopped]}"
    )
    return Page(f"Trial {result.trial}", sections, subtitle, result.sentences)


def _arms(recipe: str) -> Table:
    """What each arm is: its name's meaning, its own settings, or its own recipe."""
    rows: list[list[Cell]] = []
    for name, arm in parse_yaml(recipe)["arms"].items():
        own, words = ", ".join(map(setting_in_words, arm["settings"])), ARM_WORDS.get(name, "")
        whole = "a recipe of its own" if arm["recipe"] else arm["model"] or "the trial's recipe, unchanged"
        rows.append([name, f"{words} ({own})" if words and arm["settings"] == BUILT_IN[name] else own or whole])
    return Table("", ["arm", Column("what it is", align="left")], rows)


def _along(result: TrialResult) -> list[Part]:
    """The difference at each budget with its interval, and what the budgets say together; nothing for one budget."""
    parts: list[Part] = []
    for number, each in enumerate(result.along_budgets):
        mine = [comparison for comparison in result.comparisons if comparison.arm == each.arm]
        shown = [comparison for comparison in mine if comparison.last.of(result.documents).has_interval]
        if shown:
            estimates = [comparison.last.of(result.documents) for comparison in shown]
            budgets, values = [each.budget for each in shown], [estimate.value for estimate in estimates]
            style = {"mode": "lines+markers", "error_y": page.error_bars(estimates)}
            trace = page.scatter(budgets, values, number, "%{x:.3s} tokens: %{y:+.4f}", **style)
            name = f"{each.arm} − {each.reference}"
            xaxis = {"title": "training tokens of the reference", "type": "log"}
            yaxis = {"title": "difference, nats per token"}
            layout = page.figure([trace], xaxis=xaxis, yaxis=yaxis)
            parts.append(Plot(f"along-{number}", layout, f"{name} at each budget", f"{name} at each budget."))
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


def _path_table(comparison: Comparison, result: TrialResult) -> Table:
    """The looks of a comparison."""
    arms = comparison.arm, comparison.reference
    losses = [dict(enumerate(result.losses[arm][comparison.budget])) for arm in arms]
    rows: list[list[Cell]] = []
    for number, look in enumerate(comparison.looks):
        of_seed = [of_arm.get(number) for of_arm in losses]
        difference = None if None in of_seed else of_seed[0] - of_seed[1]  # type: ignore[operator]
        rows.append([written(look.seeds, "integer"), *of_seed, difference, look.fixed, look.random])
    columns = [Column(f"loss of\n{arm}", "estimate", ".4f") for arm in arms]
    columns.append(Column("difference of\nthis seed", "estimate", "+.4f"))
    columns += [Column(f"mean so far\n{words}", "difference", interval="below") for words in READINGS.values()]
    return Table(" against ".join(arms) + at_budget(comparison, result), ["seeds\nso far", *columns], rows)


def _equal(equal: str) -> str:
    return {"flops": "FLOPs", "time": "training time", "tokens": "tokens"}[equal]
