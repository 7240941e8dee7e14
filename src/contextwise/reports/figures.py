"""The figures of a page, as Plotly figures without colours: in the page those follow the reader's scheme.

``meta.series`` of a trace is the number of its model; the page's script gives it that model's colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.base.estimates import Estimate, as_json
from contextwise.base.runs import RunFolder
from contextwise.comparison.comparison import Comparison, Difference
from contextwise.reports.page import plain

MOST_POINTS = 1000
"""Points of a curve; longer logs are averaged in bins, which keeps the page of a long run small."""
SMOOTHED_SHARE = 0.02
BEHIND_START = 0.1
"""The first tenth of training, where the loss falls from ln(vocabulary), does not set the vertical axis."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross")
ROW_HEIGHT = 62
SPIKE_WINDOW = 50
"""Number of preceding rows that a row is compared to; in a short log a tenth of it."""
SPIKE_DEVIATIONS = 8.0
SMALLEST_SPIKE = 0.05
"""Nats; what is less is no spike, however quiet the rows before are."""


def figure(traces: Sequence[Any] = (), **layout: Any) -> dict[str, Any]:
    """A figure as plain values, with the margins and the legend that all figures share; a page's script may fill it in."""
    shared = {
        "height": 440,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
    }
    return go.Figure(traces, {**shared, **layout}).to_plotly_json()


def scatter(x: Any, y: Any, series: int | None, hover: str = "", **style: Any) -> go.Scatter:
    """Points or lines in the colour of a series; ``hover``: what the pointer shows, nothing if empty."""
    shown = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    return go.Scatter(x=as_json(x), y=as_json(y), meta={"series": series}, **shown, **style)


@dataclass(frozen=True)
class Curve:
    """A run whose losses are drawn: its label, and the number of the model it belongs to."""

    run: RunFolder
    label: str
    series: int


def training_figure(curves: list[Curve]) -> dict[str, Any] | None:
    """Training and validation loss against tokens, training time and FLOPs.

    Returns:
        ``{"data", "layout", "axes"}``: the figure over tokens, and each axis's ``label``, ``layout`` and x of
        every trace; None if no run has logged anything.
    """
    drawn = [pair for curve in curves for pair in _traces(curve)]
    if not drawn:
        return None
    traces = [trace for trace, _ in drawn]
    axes = _axes([rows for _, rows in drawn])
    # The losses after the first tenth of training set the vertical axis.
    start = BEHIND_START * max(float(rows["tokens"].max(initial=0)) for _, rows in drawn)
    behind = np.concatenate([np.asarray(trace.y)[rows["tokens"] >= start] for trace, rows in drawn])
    low, high = float(behind.min()), float(behind.max())
    room = 0.04 * (high - low) or 0.1
    yaxis = {"title": "loss, nats per token", "range": [low - room, high + room]}
    return figure(traces, xaxis=axes[0]["layout"], yaxis=yaxis) | {"axes": axes}


def difference_figure(comparison: Comparison, series: dict[str, int]) -> dict[str, Any]:
    """Paired differences with their intervals, a row each; the seeds as small points where there are several.

    Args:
        series: name of a group -> number of its colour.
    """
    rows = len(comparison.differences)
    traces, labels, shown = [], [], [0.0]
    for row, difference in enumerate(comparison.differences):
        y, estimate = rows - row, difference.difference
        traces += _difference_traces(difference, y, series[difference.group])
        values = estimate.value, estimate.low, estimate.high, *difference.seed_differences.values()
        shown += [value for value in values if value is not None]
        # Above the interval, not at an axis: on a phone the names of two models leave no room beside them.
        where = {"x": 0, "xref": "paper", "xanchor": "left", "y": y + 0.33, "yanchor": "middle"}
        labels.append({"text": _pair(difference), "showarrow": False, **where})
    room = 0.08 * (max(shown) - min(shown)) or 0.01
    title = f"difference of held-out loss, {plain(comparison.unit)}<br>left of zero: the first is better"
    axis = {"title": title, "zeroline": True, "zerolinewidth": 2, "tickformat": "~g", "nticks": 7}
    layout = go.Layout(
        height=74 + ROW_HEIGHT * rows,
        margin={"l": 12, "r": 12, "t": 4, "b": 56},
        showlegend=False,
        hovermode="closest",
        annotations=labels,
        xaxis={**axis, "range": [min(shown) - room, max(shown) + room]},
        yaxis={"visible": False, "range": [0.5, rows + 0.62], "fixedrange": True},
    )
    return go.Figure(traces, layout).to_plotly_json()


def _difference_traces(difference: Difference, y: float, series: int) -> list[go.Scatter]:
    """The difference with its whiskers, and below it the seeds' own differences if there are several."""
    estimate, interval, whiskers = difference.difference, "", None
    if estimate.has_interval:
        low, high = estimate.limits
        interval = f"<br>95% interval [{low:+.4f}, {high:+.4f}]"
        whiskers = {**error_bars([estimate]), "thickness": 2.5, "width": 7}
    hover, marker = f"{_pair(difference)}<br>", {"size": 11, "symbol": SYMBOLS[series % len(SYMBOLS)]}
    style: dict[str, Any] = {"mode": "markers", "marker": marker, "error_x": whiskers}
    drawn = [scatter([estimate.value], [y], series, f"{hover}%{{x:+.4f}}{interval}", **style)]
    seeds = difference.seed_differences
    if len(seeds) > 1:
        style = {"mode": "markers", "marker": {"size": 7, "symbol": "circle-open"}}
        own = scatter(list(seeds.values()), [y - 0.22] * len(seeds), series, **style)
        hovers = [f"{hover}seed {seed}: %{{x:+.4f}}<extra></extra>" for seed in seeds]
        drawn.append(own.update(hoverinfo=None, hovertemplate=hovers))
    return drawn


def error_bars(values: Sequence[Estimate]) -> dict[str, Any]:
    """The intervals of estimates, for ``error_x`` or ``error_y`` of a trace."""
    up, down = zip(*((e.limits[1] - e.value, e.value - e.limits[0]) for e in values), strict=True)
    return {"array": list(up), "arrayminus": list(down)}


def _pair(difference: Difference) -> str:
    return f"{plain(difference.group)} − {plain(difference.reference)}"


def _traces(curve: Curve) -> list[tuple[go.Scatter, dict[str, np.ndarray]]]:
    """Traces with what was spent by each point: raw training loss (faint), smoothed, its spikes; validation losses."""
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
        jumps = spikes(train["loss"])
        if len(jumps):
            at = {name: values[jumps] for name, values in train.items()}
            marker = {"size": 11, "symbol": "triangle-down-open", "line": {"width": 2}}
            hover = "spike at step %{customdata:.0f}: %{y:.4f}"
            add(at, hover, mode="markers", marker=marker, customdata=at["step"].tolist(), showlegend=False)
    symbol = SYMBOLS[curve.series % len(SYMBOLS)]
    rows = curve.run.metrics("validation")
    old = [row | {"loss": row["replay_loss"]} for row in rows if row.get("replay_loss") is not None]
    for what, held_out, mark in (
        ("validation loss", _columns(rows), symbol),
        ("loss on the old corpus", _columns(old), f"{symbol}-open"),
    ):
        if held_out:
            legend = not train and mark == symbol
            marker = {"size": 8, "symbol": mark}
            add(held_out, f"{what} %{{y:.4f}}", mode="markers", marker=marker, showlegend=legend)
    return traces


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    if not rows:
        return {}
    return {
        name: np.array([row[name] for row in rows], dtype=float)
        for name in ("step", "tokens", "seconds", "flops", "loss")
    }


def smoothed(losses: np.ndarray) -> np.ndarray:
    """Mean over about 2% of the rows around each row; near the ends over fewer, as many before as behind."""
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

    return [
        axis("tokens", "tokens", "training tokens", tickformat="~s"),
        axis("training time", "seconds", f"training time, {unit}", divisor, tickformat="~g"),
        axis("FLOPs", "flops", "training FLOPs", tickformat="", exponentformat="power"),
    ]


def spikes(losses: np.ndarray) -> np.ndarray:
    """Indices of spikes in a training loss: the highest row of each jump above what the rows before it allow.

    A row jumps if it is more than 8 standard deviations above the median of the 50 rows before; the deviation is estimated
    from their median absolute deviation, which the jumps themselves do not raise (objectives, Section 6.2.8: sudden spikes
    point to bad data or too high a learning rate).

    Args:
        losses: one a row of the log, in order.
    """
    before = min(SPIKE_WINDOW, max(5, len(losses) // 10))
    if len(losses) <= before:
        return np.empty(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(losses, before)[:-1]
    middle = np.median(windows, axis=1)
    deviation = 1.4826 * np.median(np.abs(windows - middle[:, None]), axis=1)
    jumped = losses[before:] > middle + np.maximum(SPIKE_DEVIATIONS * deviation, SMALLEST_SPIKE)
    edges = before + np.flatnonzero(np.diff(jumped, prepend=False, append=False))
    tops = [start + int(losses[start:end].argmax()) for start, end in edges.reshape(-1, 2)]
    return np.array(tops, dtype=np.int64)
