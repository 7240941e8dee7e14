"""Results in a notebook: the page of each kind of result, and the table, figure and data frame that are taken from it."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.estimates import Estimate
from contextwise.base.lazy import object_named
from contextwise.base.progress import Terminal
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.reports.drawing import colours, drawn
from contextwise.reports.page import (
    Page,
    Plot,
    Section,
    figure,
    joined,
    level,
    markup,
    powers_of_two,
    printed,
    scatter,
    shown,
    visible_points,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def page_of(result: Any) -> Page:
    """The page of a result; a ConfigError if results of its class have none."""
    return _view(PAGES, result)


def _view(views: Mapping[str, str], result: Any) -> Any:
    """The view of a result's class or of its nearest base class, by the name of the class, so that no other is imported."""
    name = next((kind.__name__ for kind in type(result).__mro__ if kind.__name__ in views), None)
    if name is None:
        raise ConfigError(f"a {type(result).__name__} has no page")
    return object_named(views[name])(result)


def _curve_differences(curves: list[Any], names: list[str]) -> Plot:
    """The plot of the differences of curves to the first."""
    traces, most = [], 1
    for series, (curve, name) in enumerate(zip(curves, names, strict=True)):
        bins = sorted(curve.bin_differences or {})
        values = [curve.bin_differences[each] for each in bins]
        if bins:
            most = max(most, bins[-1][1])
            traces.append(visible_points(name, series, bins, [each.value for each in values], values))
    title = {"title": "difference of the losses, nats per token"}
    layout = figure(
        traces, xaxis=powers_of_two("visible tokens", most), yaxis=title, shapes=[level(0)], showlegend=True
    )
    caption = f"The loss minus that of {names[0]}, with 95% intervals over documents. Below zero it is lower."
    return Plot("differences", layout, f"Differences to {names[0]} at each number of visible tokens", caption)


def page_of_curves(comparison: Any) -> Page:
    """The page of a comparison of context curves."""
    from contextwise.comparison.curves import curves_table, differences_table
    from contextwise.reports.runs import curve_plot

    names = [curve.shown for curve in comparison.curves]
    named = [f"{name} ({i + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]
    drawn = {name: (result, i) for i, (name, result) in enumerate(zip(named, comparison.measured, strict=True))}
    plot = curve_plot("curves", drawn, "Loss at each number of visible tokens")
    parts: list[Plot | Table] = [_curve_differences(comparison.curves, named), differences_table(comparison.curves)]
    sections = [
        Section("The curves", [plot]),
        Section("The differences", parts),
        Section("Side by side", [curves_table(comparison.curves)]),
    ]
    label = str(comparison.measured[0].summary.get("label") or "")
    return Page("Context curves", sections, label, [f"{comparison.answer}."])


def page_of_evaluation(result: Any) -> Page:
    """The page of an evaluation."""
    documents = result.documents
    tokens, nats = (documents[name].to_numpy() for name in ("tokens", "nats"))
    scored = tokens > 0
    loss = nats[scored] / tokens[scored]
    points = scatter(tokens[scored], loss, 0, "%{x:,} tokens: %{y:.4f}", mode="markers")
    xaxis = powers_of_two("tokens of the document", int(tokens.max(initial=1)))
    yaxis = {"title": "loss, nats per token"}
    mean = level(float(nats.sum() / tokens.sum()))
    layout = figure([points], xaxis=xaxis, yaxis=yaxis, shapes=[mean])
    plot = Plot(
        "documents", layout, "Loss of each document", "A point is a document; the dashed line is the loss of all."
    )
    return page_of_measurement(result, Section("Document by document", [plot]))


def page_of_curve(result: Any) -> Page:
    """The page of a context curve."""
    from contextwise.reports.runs import curve_plot

    plot = curve_plot("curve", {"": (result, 0)}, "Loss at each number of visible tokens")
    return page_of_measurement(result, Section("The curve", [plot]))


def page_of_measurement(result: Any, *figures: Section) -> Page:
    """The page of a measurement: its main figure in words, drawn, and what the verb prints."""
    from contextwise.evaluation.kernel import measures

    sections = (*figures, Section("Result", list(printed(measures()[result.measure].table(result.summary)))))
    model, label = Path(result.summary["model"]).name, result.summary.get("label") or ""
    subtitle = f"{result.summary['model']} · {label}".rstrip(" ·")
    return Page(f"{result.measure}: {model}", sections, subtitle, [f"{result.answer}."])


def text_of(result: Any) -> str:
    """What the verb of a result prints, in 80 columns."""
    text = io.StringIO()
    Terminal(file=text, width=80, highlight=False).print(*parts_of(result), sep="\n", markup=False)
    return text.getvalue().rstrip()


def parts_of(result: Any) -> list[Any]:
    """The tables and sentences that the verb of a result prints."""
    parts = _view(TEXTS, result)
    return parts if isinstance(parts, list) else [parts]


def text_of_measurement(result: Any) -> Any:
    """What the verb of a measure prints."""
    from contextwise.base import plugins

    measure = plugins.load("measures").get(result.measure)
    return result.answer if measure is None else measure.table(result.summary)


TEXTS = {
    "Comparison": "contextwise.comparison.tables:comparison_tables",
    "CurveComparison": "contextwise.comparison.curves:comparison_parts",
    "TrialResult": "contextwise.reports.trial:trial_tables",
    "Decision": "contextwise.reports.decided:decision_parts",
    "Result": "contextwise.reports.views:text_of_measurement",
}
"""Name of a class -> the function that gives what its verb prints."""


def html_of(result: Any) -> str:
    """A result for a notebook: its conclusions, its main figure as a drawing, and its first tables with their notes."""
    if isinstance(result, RunFolder) and not result.exists:
        return shown(f"no run at {result.path}")
    try:
        whole = page_of(result)
    except ContextwiseError as error:  # such as a damaged measurement of a run
        return shown(f"{result!r}; its page cannot be shown: {error}")
    plots, tables = _main_plots(result, whole), [each for each in whole.sections if _has_table(each)][:2]
    numbers = [part for section in tables for part in section.parts if not isinstance(part, Plot)]
    head = markup("<h4>{title}</h4>", title=whole.title)
    picture = [drawn(part.figure, part.label) for part in plots[:1]]
    return "\n".join([head, *(f"<p>{shown(each)}</p>" for each in whole.result), *picture, joined(numbers)])


def _main_plots(result: Any, whole: Page) -> list[Plot]:
    """The figures of a page, those beside a table first: they show its numbers. A run's is that of its training."""
    sections = sorted(whole.sections, key=lambda section: not _has_table(section))
    plots = [part for section in sections for part in section.parts if isinstance(part, Plot)]
    return sorted(plots, key=lambda plot: isinstance(result, RunFolder) and plot.id != "training")


def _has_table(section: Section) -> bool:
    return any(isinstance(part, Table) for part in section.parts)


def figure_of(result: Any) -> "go.Figure":
    """The main figure of the page of a result, in the colours that pages have on a light ground."""
    plots = _main_plots(result, page_of(result))
    if not plots:
        raise ConfigError(f"the {type(result).__name__} of {getattr(result, 'path', '')} has no figure")
    import plotly.graph_objects as go

    values, known = plots[0].figure, colours()
    made = go.Figure(values["data"], values["layout"])
    for trace in made.data:
        series = (trace.meta or {}).get("series")
        colour = "#333333" if series is None else known[series % len(known)]
        trace.update({part: {"color": colour} for part in ("line", "marker", "error_x", "error_y") if part in trace})
    return made.update_layout(template="plotly_white")


def frame_of(result: Any) -> "pd.DataFrame":
    """The numbers of a result, one a column: by default those of the first table of its page."""
    import pandas as pd

    names = {kind.__name__ for kind in type(result).__mro__}
    if "Evaluation" in names:
        return result.documents.to_pandas()
    if own := next((rows for name, rows in ROWS.items() if name in names), None):
        frame = pd.DataFrame(own(result))
        return frame.astype({name: float for name in frame if frame[name].isna().all()})  # a number that is not known
    tables = (part for section in page_of(result).sections for part in section.parts if isinstance(part, Table))
    first = next(tables, None)
    if first is None:
        raise ConfigError(f"the {type(result).__name__} of {getattr(result, 'path', '')} has no table; see its summary")
    return first.to_pandas()


def _limits(name: str, value: Estimate | None) -> dict[str, float | None]:
    """A value and its limits as columns."""
    named = ("low", "high") if name == "difference" else (f"{name}_low", f"{name}_high")
    parts = (None, None, None) if value is None else (value.value, value.low, value.high)
    return dict(zip((name, *named), parts, strict=True))


def _rows_of_comparison(comparison: Any) -> list[dict[str, Any]]:
    """A row for each difference: the difference, and losses and costs of the two models."""
    groups = {group.name: group for group in comparison.groups}
    rows: list[dict[str, Any]] = []
    if not comparison.differences:  # seeds of one recipe
        return [
            {"model": each.name, **_limits("loss", each.loss), "seeds": len(each.seeds)} for each in comparison.groups
        ]
    for each in comparison.differences:
        row = {"model": each.group, "reference": each.reference, **_limits("difference", each.difference)}
        row |= {"unit": each.unit, "decision": each.decision, "documents": comparison.documents}
        row |= {"tokens": comparison.tokens, "documents_lower": each.documents_lower}
        for of, name in (("", each.group), ("reference_", each.reference)):
            group = groups[name]
            row |= {f"{of}seeds": len(group.seeds), f"{of}parameters": group.parameters}
            for field in ("loss", "perplexity", "bits_per_byte"):
                row |= _limits(f"{of}{field}", getattr(group, field))
            for field in ("training_tokens", "training_seconds", "flops_per_token"):
                row[f"{of}{field}"] = getattr(group, field)
        rows.append(row)
    return rows


def _rows_of_curves(comparison: Any) -> list[dict[str, Any]]:
    """A row for each bin of each model: its loss, and its difference to the first model where both have the bin."""
    rows = []
    for compared, measured in zip(comparison.curves, comparison.measured, strict=True):
        for each in measured.bins:
            row = {"model": compared.shown, **{name: each[name] for name in ("visible_from", "visible_to")}}
            loss = Estimate(each["loss"], each["low"], each["high"])
            difference = (compared.bin_differences or {}).get((each["visible_from"], each["visible_to"]))
            rows.append(row | _limits("loss", loss) | _limits("difference", difference))
    return rows


def _rows_of_decision(result: Any) -> list[dict[str, Any]]:
    """A row for each comparison: its difference at the look that decided, or at the newest."""
    rows = []
    for each in result.comparisons:
        row = {"arm": each.arm, "reference": each.reference, "decision": each.decision}
        row |= _limits("difference", each.difference)
        look = each.looks[(each.decided_after or len(each.looks)) - 1]
        row |= {"seeds": look.seeds, "decided_after": each.decided_after, "margin": each.margin}
        on = {name: result.held_out[name] for name in ("documents", "tokens")}
        rows.append(row | {"deviation": look.deviation, **on})
    return rows


def _rows_of_trial(result: Any) -> list[dict[str, Any]]:
    """The rows of a decision with budgets, and with what was spent."""
    lengths = {(length.arm, length.budget): length for length in result.lengths}
    rows = []
    for row, each in zip(_rows_of_decision(result), result.comparisons, strict=True):
        length = lengths[each.arm, each.budget]
        row |= {"budget": each.budget, "parameters": result.parameters[each.arm]}
        rows.append(row | {"training_tokens": length.tokens, "steps": length.steps, "flops": length.flops})
    return rows


ROWS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "RunFolder": lambda run: run.metrics(),
    "CurveResult": lambda result: result.bins,
    "Comparison": _rows_of_comparison,
    "CurveComparison": _rows_of_curves,
    "TrialResult": _rows_of_trial,
    "Decision": _rows_of_decision,
}
"""Name of a class -> the rows of its data frame."""
PAGES = {
    "RunFolder": "contextwise.reports.runs:page_of",
    "Comparison": "contextwise.reports.runs:page_of",
    "CurveComparison": "contextwise.reports.views:page_of_curves",
    "TrialResult": "contextwise.reports.trial:trial_page",
    "Decision": "contextwise.reports.decided:decision_page",
    "Evaluation": "contextwise.reports.views:page_of_evaluation",
    "CurveResult": "contextwise.reports.views:page_of_curve",
    "Result": "contextwise.reports.views:page_of_measurement",
}
"""Name of a class -> the function that gives the page of its results."""
