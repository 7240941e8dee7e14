"""Results in a notebook: the page of each kind of result, and the table, figure and data frame that are taken from it."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, count, duration
from contextwise.base.runs import RunFolder, measured_on
from contextwise.base.tables import Column, Table
from contextwise.reports.page import (
    Page,
    Plot,
    Section,
    asset,
    error_bars,
    figure,
    joined,
    level,
    markup,
    scatter,
    shown,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def page_of(result: Any) -> Page:
    """The page of a result; a ConfigError if results of its class have none."""
    return _own(PAGES, result)(result)


def _own(views: Mapping[str, Callable[[Any], Any]], result: Any) -> Callable[[Any], Any]:
    """The view of a result's class or of its nearest base class, by the name of the class, so that no other is imported."""
    name = next((kind.__name__ for kind in type(result).__mro__ if kind.__name__ in views), None)
    if name is None:
        raise ConfigError(f"a {type(result).__name__} has no page")
    return views[name]


def _page_of_run(run: RunFolder) -> Page:
    from contextwise.reports.runs import report_page

    return report_page([run])


def _page_of_comparison(comparison: Any) -> Page:
    from contextwise.reports.runs import report_page

    return report_page([], comparison)


def _page_of_trial(result: Any) -> Page:
    from contextwise.experiments.folder import Question
    from contextwise.reports.trial import trial_command, trial_page

    recipe = Question(result.path, "trial").settings_file.read_text(encoding="utf-8")
    return trial_page(result, recipe, trial_command(result.path))


def _page_of_decision(decision: Any) -> Page:
    from contextwise.reports.decided import decision_page

    return decision_page(decision, f"contextwise.decide(…, {decision.reference!r})")


def _page_of_evaluation(result: Any) -> Page:
    documents = result.documents
    tokens, nats = (documents[name].to_numpy() for name in ("tokens", "nats"))
    scored = tokens > 0
    loss = nats[scored] / tokens[scored]
    points = scatter(tokens[scored], loss, 0, "%{x:,} tokens: %{y:.4f}", mode="markers")
    xaxis, yaxis = {"title": "tokens of the document", "type": "log"}, {"title": "loss, nats per token"}
    mean = level(float(nats.sum() / tokens.sum()))
    layout = figure([points], xaxis=xaxis, yaxis=yaxis, shapes=[mean])
    plot = Plot("documents", layout, "Loss of each document", "A point is a document; the line is the loss of all.")
    return _measured(result, Section("Document by document", [plot]))


def _page_of_curve(result: Any) -> Page:
    bins = [each for each in result.bins if each["targets"]]
    at = [(each["visible_from"] * each["visible_to"]) ** 0.5 for each in bins]
    losses = [Estimate(each["loss"], each["low"], each["high"]) for each in bins]
    bars = {"error_y": error_bars(losses)} if losses and all(loss.has_interval for loss in losses) else {}
    y = [loss.value for loss in losses]
    line = scatter(at, y, 0, "%{x:.0f} visible: %{y:.4f}", mode="lines+markers", **bars)
    xaxis, yaxis = {"title": "visible tokens", "type": "log"}, {"title": "loss, nats per token"}
    plot = Plot("curve", figure([line], xaxis=xaxis, yaxis=yaxis), "Loss at each number of visible tokens")
    return _measured(result, Section("The curve", [plot]))


def _measured(result: Any, *further: Section) -> Page:
    """The page of a measurement: what the verb prints, and further sections."""
    from contextwise.evaluation.kernel import measures

    sections = (Section("Result", list(_parts(measures()[result.measure].table(result.summary)))), *further)
    model, label = Path(result.summary["model"]).name, result.summary.get("label") or ""
    return Page(f"{result.measure}: {model}", sections, f"{result.summary['model']} · {label}".rstrip(" ·"))


def _parts(shown: Any) -> Iterator[str | Table]:
    """The sentences and tables of what a measure prints on the terminal."""
    if isinstance(shown, Group):
        for part in shown.renderables:
            yield from _parts(part)
    elif isinstance(shown, Padding):
        yield from _parts(shown.renderable)
    elif isinstance(shown, Table):
        yield shown
    elif text := str(getattr(shown, "plain", shown)).strip():
        yield text


def _of_run(run: RunFolder) -> Table:
    """Name, state, losses and cost of a run."""
    recipe, metrics = run.recipe(), run.metrics()
    rows: list[list[Any]] = [["name", str(recipe.get("name"))], ["seed", str(recipe.get("seed"))]]
    if run.finished:
        known = run.summary()
        rows.append(["parameters", count(known["parameters"])])
        rows.append(["tokens", f"{known['tokens']:,} in {known['steps']:,} steps"])
        rows.append(["training time", duration(known["seconds"])])
    else:
        step = max((row.get("step", 0) for row in metrics), default=0)
        rows.append(["state", f"not finished, at step {step:,}"])
    losses = [row["loss"] for row in metrics if row.get("kind") == "train"]
    rows += [["training loss", f"{losses[-1]:.4f}, of the newest steps"]] if losses else []
    for row in run.validations()[-1:]:
        rows.append(["validation loss", f"{row['loss']:.4f}{measured_on(recipe, row.get('examples'))}"])
    return Table(f"Run {run.path}", [Column("", "text"), Column("", "text", align="left")], rows)


def html_of(result: Any) -> str:
    """A result for a notebook: its conclusions and its first tables."""
    if isinstance(result, RunFolder):
        return shown(_of_run(result)) if result.exists else shown(f"no run at {result.path}")
    whole = page_of(result)
    tables = next(([part for part in section.parts if not isinstance(part, Plot)] for section in whole.sections), [])
    head = markup("<h4>{title}</h4>", title=whole.title)
    return "\n".join([head, *(f"<p>{shown(each)}</p>" for each in whole.result), joined(tables)])


def figure_of(result: Any) -> "go.Figure":
    """The first figure of the page of a result, in the colours that pages have on a light ground.

    Raises:
        ConfigError: the page has no figure.
    """
    plots = [part for section in page_of(result).sections for part in section.parts if isinstance(part, Plot)]
    if not plots:
        raise ConfigError(f"a {type(result).__name__} of {getattr(result, 'path', '')} has no figure")
    import plotly.graph_objects as go

    values, colours = plots[0].figure, re.findall(r"--series-\d: (#\w+)", asset("base.css"))[:6]
    drawn = go.Figure(values["data"], values["layout"])
    for trace in drawn.data:
        series = (trace.meta or {}).get("series")
        colour = "#333333" if series is None else colours[series % len(colours)]
        trace.update({part: {"color": colour} for part in ("line", "marker", "error_x", "error_y") if part in trace})
    return drawn.update_layout(template="plotly_white")


def frame_of(result: Any) -> "pd.DataFrame":
    """The numbers of a result: by default those of the first table of its page."""
    import pandas as pd

    names = {kind.__name__ for kind in type(result).__mro__}
    if "Evaluation" in names:
        return result.documents.to_pandas()
    if names & {"RunFolder", "CurveResult"}:
        return pd.DataFrame(result.metrics() if "RunFolder" in names else result.bins)
    tables = (part for section in page_of(result).sections for part in section.parts if isinstance(part, Table))
    first = next(tables, None)
    if first is None:
        raise ConfigError(f"a {type(result).__name__} of {getattr(result, 'path', '')} has no table; see its summary")
    return first.to_pandas()


PAGES: dict[str, Callable[[Any], Page]] = {
    "RunFolder": _page_of_run,
    "Comparison": _page_of_comparison,
    "TrialResult": _page_of_trial,
    "Decision": _page_of_decision,
    "Evaluation": _page_of_evaluation,
    "CurveResult": _page_of_curve,
    "Result": _measured,
}
"""Name of a class -> the page of its results."""
