"""The page of runs: everything about some runs in one HTML file, which needs no network and opens from disk."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import yaml

from contextwise.base.estimates import Estimate, listed
from contextwise.base.files import without_folders
from contextwise.base.runs import RunFolder, measured_on
from contextwise.base.tables import mark
from contextwise.comparison.compared_runs import measures_of_loss
from contextwise.comparison.result import UNITS, Comparison
from contextwise.comparison.tables import difference_table, model_table, verdict
from contextwise.evaluation.kernel import measures, results_of
from contextwise.evaluation.measures.curve import CurveResult, minus_longest
from contextwise.reports import page
from contextwise.reports.page import SYMBOLS, Markup, Page, Part, Plot, Section, plain, scatter

MOST_POINTS = 1000
"""Points of a curve; longer logs are averaged in bins, which keeps the page of a long run small."""
SMOOTHED_SHARE = 0.02
BEHIND_START = 0.1
"""The first tenth of training, where the loss falls from ln(vocabulary), does not set the vertical axis."""
LOGGED = (
    "A loss that was logged while training is that of windows, each read from its own start. The losses by document, above, "
    "read whole documents, in which most tokens have more context. So the two of a run differ."
)
PAIRED = "Bars: 95% intervals of the difference to the longest context, paired by document."


@dataclass(frozen=True)
class Curve:
    """A run whose losses are drawn: its label, and the number of the model it belongs to."""

    run: RunFolder
    label: str
    series: int


def report_page(runs: list[RunFolder], comparison: Comparison | None = None, *, notes: list[str] | None = None) -> Page:
    """The page of some runs, finished or not, without what they have not made yet. No runs: those of the comparison."""
    if comparison is not None and not runs:
        runs = [run for group in comparison.groups for run in group.runs]
    curves, series = _curves(runs, comparison)
    names, subtitle = list(series), ""
    caption = (
        "Lines: training loss, smoothed, over the raw values. Points: validation loss; open ones: other held-out "
        "losses of the run. A double click shows all, the steep start included." + _validated(curves)
    )
    if comparison is not None and comparison.unit == UNITS["byte"]:
        caption += " Losses per token of different tokenizers cannot be compared: the differences per byte below can."
    figure, label = training_figure(curves), "Training and validation loss of each run"
    controls = page.choices("Horizontal axis")
    training = [Plot("training", figure, label, caption, controls=controls)] if figure is not None else []
    sections = [Section("Training", training)]
    if comparison is None:
        evaluations = (
            each for run in runs for each in results_of(run.evaluation) if each.measure in measures_of_loss()
        )
        tables = [part for each in evaluations for part in page.printed(measures()[each.measure].table(each.summary))]
        sections.insert(0, Section("Losses of documents", tables))
    else:
        corpus = comparison.corpus
        differences: list[Part] = []
        with_notes = model_table(comparison, series)
        with_notes = replace(with_notes, notes=[*with_notes.notes, *comparison.notes])
        subtitle = (
            f"{comparison.documents:,} held-out documents, {comparison.tokens:,} tokens "
            f"({Path(corpus['path']).name}, split {corpus['split']})"
        )
        if comparison.differences:
            label = "Differences of held-out loss with 95% intervals"
            fallback = "This figure needs JavaScript. The table below holds its numbers."
            plot = Plot("differences", difference_figure(comparison, series), label, fallback=fallback)
            differences = [plot, difference_table(comparison)]
        sections = [
            Section("Differences, document by document", differences),
            Section("The models", [with_notes]),
            *sections,
        ]
    measured = _context_curves(curves)
    sections = [Section("How much context the models use", measured), *sections]
    remarks = notes or []
    sections += [
        Section("Notes", [page.bullets(remarks)] if remarks else []),
        Section("How it was made", [*map(_run, curves)]),
    ]
    title = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
    return Page(title, sections, subtitle, verdict(comparison) if comparison else _answers(curves), __file__)


def page_of(result: RunFolder | Comparison) -> Page:
    """The page of a run, or of a comparison with its runs."""
    return report_page([result]) if isinstance(result, RunFolder) else report_page([], result)


def _answers(curves: list[Curve]) -> list[str]:
    """What each run has reached, and what its context curves say, for a page without a comparison."""
    answers = []
    for curve in curves:
        found, label = curve.run.answer, "" if curve.run.answer.startswith(f"{curve.label},") else f"{curve.label}: "
        measured = (CurveResult(each.path, each.summary) for each in results_of(curve.run.evaluation, "curve"))
        answers += [
            f"{label}{found}.",
            *(f"Context curve on {each.summary['label']}{_mode(each)}, {each.answer}." for each in measured),
        ]
    return answers


def _mode(curve: CurveResult) -> str:
    """A word on a curve whose targets differ from one number of visible tokens to the next."""
    return ", of other targets at each context" if curve.summary["settings"]["mode"] == "running" else ""


def _context_curves(curves: list[Curve]) -> list[Part]:
    """The context curves that were measured of the runs: a figure for each corpus, and how they were measured."""
    found: dict[tuple[str, str], dict[str, tuple[Any, int]]] = {}
    for curve in curves:
        for result in results_of(curve.run.evaluation, "curve"):
            mode = result.summary["settings"]["mode"]
            on, name, series = found.setdefault((result.summary["label"], mode), {}), curve.label, curve.series
            if name in on:  # a further curve of one run has a colour of its own
                name, series = f"{name} ({result.path.name})", max(used for _, used in on.values()) + len(curves)
            on[name] = (result, series)
    parts: list[Part] = []
    for number, ((data, mode), results) in enumerate(found.items()):
        windows = (
            f"{name} with windows of {summary['settings']['context']:,} tokens of {summary['documents']:,} documents"
            for name, summary in ((name, result.summary) for name, (result, _) in results.items())
        )
        lacking = [curve.label for curve in curves if all(series != curve.series for _, series in results.values())]
        unmeasured = f" Not measured: {listed(lacking)} (contextwise curve)." if lacking else ""
        each = {"running": "whose targets differ", "bands": "of the same targets", "truncated": "of the same targets"}
        about = f"at each number of visible tokens, {each[mode]} (mode {mode})"
        caption = f"Loss on {data} {about}: {'; '.join(windows)}.{unmeasured}"
        label = f"Loss on {data} at each number of visible tokens, mode {mode}"
        parts.append(curve_plot(f"context-{number}", results, label, caption))
    return parts


def curve_plot(id: str, results: Mapping[str, tuple[Any, int]], label: str, caption: str = "") -> Plot:
    """The plot of context curves, whose caption says what its bars are where it has some."""
    figure = curve_figure(results)
    bars = any("error_y" in trace for trace in figure["data"])
    return Plot(id, figure, label, " ".join(filter(None, [caption, PAIRED if bars else ""])))


def curve_figure(results: Mapping[str, tuple[Any, int]]) -> dict[str, Any]:
    """Context curves: name -> the result, whose ``bins`` are drawn, and the number of its colour.

    The bars are the intervals of the differences to the longest context: the documents of all points are the same, so those of
    the losses themselves, which say how much documents differ, would hide whether context helps.
    """
    traces, most = [], 1
    for name, (result, series) in results.items():
        bins = [each for each in result.summary["bins"] if each["targets"]]
        limits = [(each["visible_from"], each["visible_to"]) for each in bins]
        bars = [minus_longest(each, result.summary["documents"]) or Estimate(0.0, 0.0, 0.0) for each in bins]
        traces.append(page.visible_points(name, series, limits, [each["loss"] for each in bins], bars))
        most = max([most, *(last for _, last in limits)])
    xaxis = page.powers_of_two("visible tokens", most)
    return page.figure(traces, xaxis=xaxis, yaxis={"title": "loss, nats per token"}, showlegend=any(results))


def _validated(curves: list[Curve]) -> str:
    """What the validation losses of some runs were measured on, and why those by document differ; a text for a caption."""
    words: dict[str, list[str]] = {}
    for curve in curves:
        for row in curve.run.metrics("validation")[-1:]:
            words.setdefault(measured_on(curve.run.recipe(), row.get("examples")), []).append(curve.label)
    known = [f"{listed(labels)}{on}" for on, labels in words.items() if on]
    if not known:
        return ""
    return f" Validated while training: {'; '.join(known)}. {LOGGED}"


def _curves(runs: list[RunFolder], comparison: Comparison | None) -> tuple[list[Curve], dict[str, int]]:
    """The runs with their labels, and the colour number of each model: a group of the comparison, else a recipe's name.

    Runs of one recipe have a colour each where there is no other model to tell them from.
    """
    groups = comparison.groups if comparison else []
    names = {run.path.resolve(): str(run.recipe().get("name") or run.path.resolve().name) for run in runs}
    for group in groups:
        names |= {run.path.resolve(): group.name for run in group.runs}
    every = dict.fromkeys([*(group.name for group in groups), *names.values()])
    series = {name: number for number, name in enumerate(every)}
    models = [names[run.path.resolve()] for run in runs]
    curves = []
    for number, (run, model) in enumerate(zip(runs, models, strict=True)):
        label = f"{model} ({run.path.name})" if models.count(model) > 1 else model
        curves.append(Curve(run, label, number if len(every) == 1 and comparison is None else series[model]))
    return curves, series


def _run(curve: Curve) -> Markup:
    """A run's recipe and environment, collapsed."""
    run = curve.run
    recipe = yaml.safe_dump(without_folders(run.recipe()), sort_keys=False, allow_unicode=True)
    facts = page.facts(facts_of(run))
    both = '<div class="facts">\n<div><h3>recipe</h3>{recipe}</div>\n<div><h3>environment</h3>{facts}</div>\n</div>'
    line, state = "{mark}{label}: recipe and environment{state}", "" if run.finished else " (not finished)"
    summary = page.markup(line, mark=Markup(mark(curve.series)), label=curve.label, state=state)
    return page.details(summary, page.markup(both, recipe=page.code(recipe), facts=facts))


def facts_of(run: RunFolder) -> dict[str, str]:
    """The corpus, hardware and versions of a run, as a page lists them."""
    about = {"run": without_folders(str(run.path))}
    if run.finished:
        corpus = run.summary()["corpus"]
        about |= {"corpus": without_folders(corpus["path"]), "content hash": corpus["fingerprint"]}
    return about | page.environment_facts(run.environment())


def training_figure(curves: list[Curve]) -> dict[str, Any] | None:
    """Training and validation loss over tokens; None if no run has logged anything.

    ``axes`` has the ``label``, ``layout`` and x of every trace for tokens, training time and FLOPs.
    """
    drawn = [pair for curve in curves for pair in _traces(curve)]
    if not drawn:
        return None
    traces = [trace for trace, _ in drawn]
    axes = _axes([rows for _, rows in drawn])
    # The losses after the first tenth of training set the vertical axis.
    start = BEHIND_START * max(float(rows["tokens"].max(initial=0)) for _, rows in drawn)
    losses = np.concatenate([np.asarray(trace.y)[rows["tokens"] >= start] for trace, rows in drawn])
    low, high = float(losses.min()), float(losses.max())
    room = 0.04 * (high - low) or 0.1
    yaxis = {"title": "loss, nats per token", "range": [low - room, high + room]}
    return page.figure(traces, xaxis=axes[0]["layout"], yaxis=yaxis) | {"axes": axes}


def difference_figure(comparison: Comparison, series: dict[str, int]) -> dict[str, Any]:
    """Paired differences with their intervals; ``series``: name of a group -> number of its colour."""
    rows = [
        page.IntervalRow(f"{each.group} − {each.reference}", each.difference, each.seed_differences, series[each.group])
        for each in comparison.differences
    ]
    title = f"difference of held-out loss, {plain(comparison.unit)}<br>left of zero: the first has the lower loss"
    return page.interval_rows(rows, title)


def _traces(curve: Curve) -> list[tuple[go.Scatter, dict[str, np.ndarray]]]:
    """Traces with what was spent by each point: raw training loss (faint), smoothed; validation losses."""
    traces = []
    shared = {"name": plain(curve.label), "legendgroup": curve.label}

    def add(rows: dict[str, np.ndarray], hover: str, **style: Any) -> None:
        hover = hover and f"%{{fullData.name}}<br>{hover}"
        traces.append((scatter(rows["tokens"], rows["loss"], curve.series, hover, **shared, **style), rows))

    train = _columns(curve.run.metrics("train"))
    if train:
        add(_binned(train), "", mode="lines", opacity=0.25, line_width=1, showlegend=False)
        smooth = _binned({**train, "loss": smoothed(train["loss"])})
        add(smooth, "training loss %{y:.4f}", mode="lines", line_width=2)
    symbol = SYMBOLS[curve.series % len(SYMBOLS)]
    rows = curve.run.metrics("validation")
    further = sorted({name for row in rows for name in row if name.endswith("_loss") and row[name] is not None})
    held_out = {name: [row | {"loss": row[name]} for row in rows if row.get(name) is not None] for name in further}
    for what, columns, shape in (
        ("validation loss", _columns(rows), symbol),
        *((name.replace("_", " "), _columns(those), f"{symbol}-open") for name, those in held_out.items()),
    ):
        if columns:
            legend = not train and shape == symbol
            marker = {"size": 8, "symbol": shape}
            add(columns, f"{what} %{{y:.4f}}", mode="markers", marker=marker, showlegend=legend)
    return traces


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    if not rows:
        return {}
    names = ["step", "tokens", "seconds", "loss", *(["flops"] if all("flops" in row for row in rows) else [])]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in names}


def smoothed(losses: np.ndarray) -> np.ndarray:
    """Mean over about 2% of the rows around each row; near the ends over fewer, as many before as after."""
    rows = len(losses)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    positions = np.arange(rows)
    reach = np.minimum(max(2, round(SMOOTHED_SHARE * rows / 2)), np.minimum(positions, rows - 1 - positions))
    return (sums[positions + reach + 1] - sums[positions - reach]) / (2 * reach + 1)


def _binned(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """At most :data:`MOST_POINTS` points: the mean loss of each bin, at the bin's end."""
    rows = len(columns["loss"])
    if rows <= MOST_POINTS:
        return columns
    edges = np.linspace(0, rows, MOST_POINTS + 1).astype(int)
    at_edges = {name: values[edges[1:] - 1] for name, values in columns.items()}
    return {**at_edges, "loss": np.add.reduceat(columns["loss"], edges[:-1]) / np.diff(edges)}


def _axes(drawn: list[dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """The axes that a reader may choose from; ``drawn``: what was spent by each point of each trace."""
    longest = max(float(rows["seconds"].max(initial=0)) for rows in drawn)
    unit, divisor = next(
        (unit, size)
        for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
        if longest >= 3 * size or size == 1
    )

    def axis(label: str, name: str, title: str, divisor: int = 1, **layout: str) -> dict[str, Any]:
        x = [(rows[name] / divisor).tolist() for rows in drawn]
        return {"label": label, "x": x, "layout": {"title": {"text": title}, **layout}}

    axes = [
        axis("tokens", "tokens", "training tokens", tickformat="~s"),
        axis("training time", "seconds", f"training time, {unit}", divisor, tickformat="~g"),
    ]
    if all("flops" in rows for rows in drawn):
        axes.append(axis("FLOPs", "flops", "training FLOPs", tickformat="", exponentformat="power"))
    return axes
