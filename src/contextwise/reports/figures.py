"""The figures of a page, as Plotly figures without colours: in the page those follow the reader's scheme.

``meta.series`` of a trace is the number of its model; the page's script gives it that model's colour.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

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


def figure_layout(**settings: Any) -> go.Layout:
    """A layout with the margins and the legend that all figures share."""
    shared = {
        "height": 440,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
    }
    return go.Layout(**{**shared, **settings})


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
    traces: list[go.Scatter] = []
    spent: dict[str, list[np.ndarray]] = {"tokens": [], "seconds": [], "flops": []}
    for curve in curves:
        for trace, rows in _traces(curve):
            traces.append(trace)
            for name, values in spent.items():
                values.append(rows[name])
    if not traces:
        return None
    layout = figure_layout(
        yaxis={"title": {"text": "loss, nats per token"}, "range": _loss_range(traces, spent["tokens"])}
    )
    axes = _axes(spent)
    return {**go.Figure(traces, layout.update(xaxis=axes[0]["layout"])).to_plotly_json(), "axes": axes}


def difference_figure(comparison: Comparison, series: dict[str, int]) -> dict[str, Any]:
    """Paired differences with their intervals, a row each; the seeds as small points where there are several.

    Args:
        series: name of a group -> number of its colour.
    """
    rows = len(comparison.differences)
    traces, labels = [], []
    for row, difference in enumerate(comparison.differences):
        y = rows - row
        traces += _difference_traces(difference, y, series[difference.group])
        # Above the interval, not at an axis: on a phone the names of two models leave no room beside them.
        where = {"x": 0, "xref": "paper", "xanchor": "left", "y": y + 0.33, "yanchor": "middle"}
        labels.append({"text": _pair(difference), "showarrow": False, **where})
    title = f"difference of held-out loss, {plain(comparison.unit)}<br>left of zero: the first is better"
    layout = go.Layout(
        height=74 + ROW_HEIGHT * rows,
        margin={"l": 12, "r": 12, "t": 4, "b": 56},
        showlegend=False,
        hovermode="closest",
        annotations=labels,
        xaxis={
            "title": {"text": title},
            "zeroline": True,
            "zerolinewidth": 2,
            "range": _difference_range(comparison),
            "tickformat": "~g",
            "nticks": 7,
        },
        yaxis={"visible": False, "range": [0.5, rows + 0.62], "fixedrange": True},
    )
    return go.Figure(traces, layout).to_plotly_json()


def _difference_traces(difference: Difference, y: float, series: int) -> list[go.Scatter]:
    """The difference with its whiskers, and below it the seeds' own differences if there are several."""
    value, low, high = difference.difference.value, difference.difference.low, difference.difference.high
    whiskers, interval = None, ""
    if low is not None and high is not None:
        whiskers = {"array": [high - value], "arrayminus": [value - low], "thickness": 2.5, "width": 7}
        interval = f"<br>95% interval [{low:+.4f}, {high:+.4f}]"
    drawn = [
        go.Scatter(
            x=[value],
            y=[y],
            error_x=whiskers,
            mode="markers",
            marker={"size": 11, "symbol": SYMBOLS[series % len(SYMBOLS)]},
            hovertemplate=f"{_pair(difference)}<br>%{{x:+.4f}}{interval}<extra></extra>",
            meta={"series": series},
        )
    ]
    if len(difference.seed_differences) > 1:
        seeds = list(difference.seed_differences)
        drawn.append(
            go.Scatter(
                x=list(difference.seed_differences.values()),
                y=[y - 0.22] * len(seeds),
                mode="markers",
                marker={"size": 7, "symbol": "circle-open"},
                hovertemplate=[
                    f"{_pair(difference)}<br>seed {seed}: %{{x:+.4f}}<extra></extra>" for seed in seeds
                ],
                meta={"series": series},
            )
        )
    return drawn


def _pair(difference: Difference) -> str:
    return f"{plain(difference.group)} − {plain(difference.reference)}"


def _traces(curve: Curve) -> list[tuple[go.Scatter, dict[str, np.ndarray]]]:
    """Raw training loss (faint), the same smoothed, and validation points, with what was spent by then."""
    shared = {"meta": {"series": curve.series}, "name": plain(curve.label), "legendgroup": curve.label}
    traces = []
    train = _columns(curve.run.metrics("train"))
    if train:
        smooth = {**train, "loss": smoothed(train["loss"])}
        raw, smooth = _binned(train), _binned(smooth)
        traces.append(
            (_line(raw, shared, opacity=0.25, line_width=1, showlegend=False, hoverinfo="skip"), raw)
        )
        hover = "%{fullData.name}<br>training loss %{y:.4f}<extra></extra>"
        traces.append((_line(smooth, shared, line_width=2, hovertemplate=hover), smooth))
        jumps = spikes(train["loss"])
        if len(jumps):
            traces.append(_spike_marks(train, jumps, shared))
    symbol = SYMBOLS[curve.series % len(SYMBOLS)]
    rows = curve.run.metrics("validation")
    old = [row | {"loss": row["replay_loss"]} for row in rows if row.get("replay_loss") is not None]
    for what, held_out, mark in (
        ("validation loss", _columns(rows), symbol),
        ("loss on the old corpus", _columns(old), f"{symbol}-open"),
    ):
        if held_out:
            points = go.Scatter(
                x=held_out["tokens"].tolist(),
                y=held_out["loss"].tolist(),
                mode="markers",
                marker={"size": 8, "symbol": mark},
                showlegend=not train and mark == symbol,
                hovertemplate=f"%{{fullData.name}}<br>{what} %{{y:.4f}}<extra></extra>",
                **shared,
            )
            traces.append((points, held_out))
    return traces


def _spike_marks(
    train: dict[str, np.ndarray], jumps: np.ndarray, shared: dict[str, Any]
) -> tuple[go.Scatter, dict[str, np.ndarray]]:
    """A mark at each spike of a training loss."""
    at = {name: values[jumps] for name, values in train.items()}
    marks = go.Scatter(
        x=at["tokens"].tolist(),
        y=at["loss"].tolist(),
        mode="markers",
        marker={"size": 11, "symbol": "triangle-down-open", "line": {"width": 2}},
        customdata=at["step"].tolist(),
        showlegend=False,
        hovertemplate="%{fullData.name}<br>spike at step %{customdata:.0f}: %{y:.4f}<extra></extra>",
        **shared,
    )
    return marks, at


def _line(rows: dict[str, np.ndarray], shared: dict[str, Any], **style: Any) -> go.Scatter:
    return go.Scatter(x=rows["tokens"].tolist(), y=rows["loss"].tolist(), mode="lines", **shared, **style)


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


def _axes(spent: dict[str, list[np.ndarray]]) -> list[dict[str, Any]]:
    longest = max(float(values.max(initial=0)) for values in spent["seconds"])
    unit, divisor = next(
        (unit, size)
        for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
        if longest >= 3 * size or size == 1
    )
    return [
        {
            "label": "tokens",
            "x": [values.tolist() for values in spent["tokens"]],
            "layout": {"title": {"text": "training tokens"}, "tickformat": "~s"},
        },
        {
            "label": "training time",
            "x": [(values / divisor).tolist() for values in spent["seconds"]],
            "layout": {"title": {"text": f"training time, {unit}"}, "tickformat": "~g"},
        },
        {
            "label": "FLOPs",
            "x": [values.tolist() for values in spent["flops"]],
            "layout": {"title": {"text": "training FLOPs"}, "tickformat": "", "exponentformat": "power"},
        },
    ]


def _loss_range(traces: list[go.Scatter], tokens: list[np.ndarray]) -> list[float]:
    """Vertical range that shows the losses behind the first tenth of training."""
    start = BEHIND_START * max(float(values.max(initial=0)) for values in tokens)
    behind = np.concatenate(
        [np.asarray(trace.y)[at >= start] for trace, at in zip(traces, tokens, strict=True)]
    )
    low, high = float(behind.min()), float(behind.max())
    room = 0.04 * (high - low) or 0.1
    return [low - room, high + room]


def _difference_range(comparison: Comparison) -> list[float]:
    """Horizontal range with zero and all that is drawn in it."""
    shown = [0.0]
    for row in comparison.differences:
        values = (
            row.difference.value,
            row.difference.low,
            row.difference.high,
            *row.seed_differences.values(),
        )
        shown += [value for value in values if value is not None]
    room = 0.08 * (max(shown) - min(shown)) or 0.01
    return [min(shown) - room, max(shown) + room]


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
    edges = np.flatnonzero(np.diff(jumped, prepend=False, append=False))
    return np.array(
        [
            before + start + int(losses[before + start : before + end].argmax())
            for start, end in edges.reshape(-1, 2)
        ],
        dtype=np.int64,
    )
