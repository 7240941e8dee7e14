"""The page of a sweep: the optimal training context and model size at each budget, as one interactive HTML file."""

import math
import shlex
from pathlib import Path

import yaml

from contextwise.base.files import read_json
from contextwise.base.tables import Cell, spread
from contextwise.data import in_tokens, token_count
from contextwise.report import Page, Section, Table, counted, figure
from contextwise.reports import page
from contextwise.reports.page import Markup, Part, Plot
from contextwise.runset import RunState
from contextwise.settings import ConfigError, DataError, read_yaml
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.observations import TABLE, read_table
from contextwise_plan.sweeps.figures import UNIT_NAMES, landscape_json, loss_figure, overall_sentence, window_words
from contextwise_plan.sweeps.points import SweepPoint, sweep_points
from contextwise_plan.sweeps.sweep import Sweep, plan_table
from contextwise_plan.tracks import budget_words

SHOWN_BUDGETS = 6
RUN_LOSS = "The loss of a run is its best-context loss at the newest measurement, in nats per token."


class SweepData:
    """A sweep, read from its folder, finished or not, or from its table.

    ``points`` are those whose loss is a number, ``planned`` all training contexts of each size, ``landscapes`` one a kind of
    budget, ``recipe`` the sweep's, as YAML (of a table what the runs share), ``dropped`` how many losses were no number. A
    table has no ``states`` of runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: list[RunState] = []
        points = self._read_table() if path.is_file() else self._read_folder()
        self.points = [point for point in points if math.isfinite(point.loss)]
        self.dropped = len(points) - len(self.points)
        if not self.points:
            raise DataError(
                f"no loss that the sweep {path} measured is a number: its runs diverged; lower their "
                "learning rate and sweep again, into another folder"
            )
        landscapes = (Landscape(self.points, unit, self.planned) for unit in UNIT_NAMES)
        self.landscapes = [result for result in landscapes if len(result.budgets)]

    def _read_folder(self) -> list[SweepPoint]:
        """The points of the folder."""
        path, sweep, points = self.path, Sweep.open(self.path), sweep_points(self.path)
        self.states = sweep.states()
        if not points:
            done = ", ".join(f"{count} {state}" for state, count in sweep.count().items() if count)
            raise ConfigError(
                f"no run of the sweep {path} has measured a context curve yet ({done}); resume it with contextwise plan sweep, "
                "then make the page again"
            )
        self.sizes, self.planned = sweep.sizes, sweep.contexts
        self.recipe, recipe = (path / "sweep.yaml").read_text(encoding="utf-8"), read_yaml(path / "sweep.yaml")
        self.name = str(recipe.get("name") or path.resolve().name)
        self.corpus = str(((recipe.get("base") or {}).get("data") or {}).get("corpus", ""))
        return points

    def _read_table(self) -> list[SweepPoint]:
        """The points of the table."""
        observed, about = read_table(self.path), read_json(self.path, TABLE)
        self.sizes = dict(zip(observed.sizes, observed.size_parameters.astype(int).tolist(), strict=True))
        self.planned = {size: observed.planned[size] for size in observed.sizes}
        self.recipe, self.name = yaml.safe_dump(about["recipe"], sort_keys=False), about["name"]
        self.corpus = str(about["recipe"].get("data", {}).get("corpus", ""))
        return list(observed.points)

    @property
    def contexts(self) -> list[int]:
        """All training contexts of the grid, ascending."""
        return sorted({context for some in self.planned.values() for context in some})


def sweep_verdict(data: SweepData) -> list[str]:
    """Paragraphs: the optimum at the largest budget that decides it, the best context of each size, what was not compared."""
    landscape = data.landscapes[0]
    step = landscape.last_decided
    overall = f"At {budget_words(landscape.unit, landscape.budgets[step])}: {overall_sentence(landscape.overall[step])}"
    axes = {"training context": len(data.contexts), "model size": len(data.sizes)}
    limits = [
        f"This sweep has one {name}, so others were not compared." for name, number in axes.items() if number == 1
    ]
    return [overall, *landscape.findings(), *limits]


def write_sweep_page(sweep: Path, path: Path) -> None:
    """Write the page of a sweep: of its folder, or of its table, of which the page shows the points alone."""
    page.check_file(path)
    data = SweepData(sweep)
    contexts = data.contexts
    interval = " to ".join(token_count(context) for context in sorted({contexts[0], contexts[-1]}))
    number = len(data.states) or len({point.run for point in data.points})
    numbers = {"run": number, "model size": len(data.sizes), "training context": len(contexts)}
    runs, *axes = (counted(number, what) for what, number in numbers.items())
    subtitle = f"{runs}: {', '.join(axes)} ({interval} tokens); corpus {data.corpus}."
    sections = [
        Section("What is missing", _missing(data)),
        Section("Loss against training context, at a budget", _losses(data)),
        Section("Optimal context against budget", _optimal_contexts(data)),
        Section("The runs", [plan_table(data.states), RUN_LOSS] if data.states else []),
        Section("How it was made", _making(data)),
    ]
    series = {size: number for number, size in enumerate(data.sizes)}
    result = sweep_verdict(data)
    sent = {
        "sizes": list(data.sizes),
        "contexts": {str(context): token_count(context) for context in contexts},
        "landscapes": [landscape_json(each, data.planned, series, result) for each in data.landscapes],
    }
    Page(f"Sweep {data.name}", sections, subtitle, result, __file__, {"sweep": sent}).write(path)


def _missing(data: SweepData) -> list[Part]:
    """Which runs are missing, unfinished or failed and why, and measurements that were left out."""
    drawn = {point.run for point in data.points}
    partly = any(state.run.id in drawn for state in data.states if state.state == "unfinished")
    unfinished = f"unfinished, {'drawn as far as measured' if partly else 'not drawn'}"
    sentences = []
    for kind, meaning in {"failed": "failed", "unfinished": unfinished, "missing": "not begun"}.items():
        if runs := [state.run.id for state in data.states if state.state == kind]:
            sentences.append(f"{len(runs)} of {len(data.states)} runs {meaning}: {', '.join(runs)}.")
    if data.dropped:
        sentences.append(f"{counted(data.dropped, 'measurement')} left out: the loss is no number.")
    failures = [
        page.details(f"{state.run.id}: why it failed", page.code(state.failure))
        for state in data.states
        if state.failure
    ]
    return [page.bullets(sentences), *failures] if sentences else []


def _losses(data: SweepData) -> list[Part]:
    controls = page.markup(
        '<div class="controls" hidden>\n{units}<label class="budget"><span>budget</span><input type="range" id="budget" '
        'min="0" step="1"><output id="budget-words" for="budget"></output></label>\n</div>',
        units=page.choices("Unit of the budget", "units"),
    )
    documents = max((cell.documents for landscape in data.landscapes for cell in landscape.cells[-1]), default=0)
    number = f"{documents} " if documents else ""
    caption = (
        f"Each line is a model size. Bars: 95% intervals over {number}held-out document{'s' * (documents != 1)}, and over "
        "seeds if there are several. All runs are scored on the same documents, so two contexts can differ although their bars "
        "overlap; the sentences of this page take this into account. Circle: the best context of a size, if a shorter and a "
        "longer one were measured and the sweep shows that it is best. Dashed line: the best of all sizes, shown in the same "
        "case. Losses between two measured budgets are interpolated."
    )
    label = "Best-context loss against training context, a line for each model size"
    return [
        Plot("loss", loss_figure(data.contexts), label, caption, controls=controls),
        Markup('<ul class="findings" id="findings" aria-live="polite"></ul>'),
        optima_table(data, data.landscapes[0]),
    ]


def _optimal_contexts(data: SweepData) -> list[Part]:
    caption = page.markup(
        "Points: the best context at each budget; a triangle if it is the longest (upwards) or the shortest that was tried, so "
        "that the true optimum may be beyond; hollow if the sweep does not show which context is best. No point: a context "
        "beside it was not measured there. Lines: at each budget, the context that is best most often in a window around it "
        '(<span id="window">{window}</span>). Lines that share a context are drawn a little apart.',
        window=window_words(data.landscapes[0]),
    )
    label = "Optimal training context against the budget, a line for each model size"
    absent = (
        "At no budget of this kind can the optimal context of a size be read off: the contexts next to the best one were not "
        "measured there."
    )
    note = page.missing(absent, ' id="no-context" hidden')
    return [Plot("context", figure(), label, caption), note]


def _making(data: SweepData) -> list[Part]:
    report = shlex.join(["contextwise", "report", str(data.path)])
    if not data.states:
        recipe = page.details("the settings that its runs share", page.code(data.recipe))
        return ["To make this page of the sweep's table again:", page.commands([report]), recipe]
    resume = shlex.join(["contextwise", "plan", "sweep", str(data.path / "sweep.yaml"), "--out", str(data.path)])
    return [
        "To resume the sweep, and to make this page again:",
        page.commands([resume, report]),
        page.details("sweep.yaml", page.code(data.recipe)),
    ]


def optima_table(data: SweepData, landscape: Landscape) -> Table:
    """Contexts with the lowest loss at some budgets, for readers without JavaScript and for quotation."""
    rows: list[list[Cell]] = []
    for step in spread(range(len(landscape.budgets)), SHOWN_BUDGETS):
        row: list[Cell] = [budget_words(landscape.unit, landscape.budgets[step])]
        for size in data.sizes:
            best = landscape.optima[step].get(size)
            if best is None or not best.decided:  # the lowest of those that happen to be measured here
                row.append(None)
                continue
            context = in_tokens(best.cell.context)
            row.append((context if best.shown else f"({context})", f"{best.cell.loss:.4f}"))
        best = landscape.overall[step]
        row.append(f"{best.cell.size}, {in_tokens(best.cell.context)}" if best and best.shown else None)
        rows.append(row)
    title = (
        "The best training context at some budgets, with its loss in nats per token. In brackets: the sweep does not show that "
        "it is best, because it is the shortest or longest that was tried, or the noise is too large. –: a context beside it "
        "was not measured at that budget."
    )
    return Table(title, ["budget", *data.sizes, "overall optimum"], rows)
