"""The figures of the page on intrinsic entropy, as Plotly figures without colours: those follow the reader's scheme.

Source: intrinsic entropy, Figures 1 (loss against S, correlations), 2 (loss against context), 3 and 15 (spectra, increments,
loss against dimension) and 10 (kernel density against the loss, S and the dimension).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.base.estimates import Estimate
from contextwise.base.tables import spread
from contextwise.reports.page import SYMBOLS, error_bars, figure, level, scatter
from contextwise_papers.intrinsic_entropy.analysis import ByContext, IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.spectra import increments, relative_eigenvalues

MOST_POINTS = 400
"""Points of a spectrum, evenly spaced in the logarithm of the index; the CSV has them all."""
DASHES = ("solid", "dash", "dot")
SHOWN_THRESHOLDS = 6
RELATIVE = "λ<sub>i</sub> / λ<sub>1</sub>"
INDEX = {"title": "index i of the eigenvalue", "type": "log", "dtick": 1}
LOSS = "cross entropy, nats per token"
DIMENSIONS = f"eigenvalues with {RELATIVE} ≥ θ"


def figures_of(entropy: IntrinsicEntropy) -> dict[str, dict[str, Any]]:
    """Id -> figure; one that the measurement does not allow is left out."""
    first, losses, kde = entropy.contexts[0], entropy.measurement.losses(), entropy.kde
    # S_N is counted from its value at the shortest context, which leaves a straight line straight.
    sums = {f"N = {n}": _since(entropy.entropies[n], first) for n in entropy.sizes}
    counts = {f"θ = {x:.3g}": entropy.dimensions[x] for x in shown_thresholds(entropy)}
    sum_title = f"S<sub>N</sub> since context {first}, nats"
    nats, dimensions = "%{x:+.3f} nats", "%{x} dimensions"
    figures = {
        "loss": _loss(entropy),
        "spectra": _spectra(entropy),
        "entropy": _scatters(losses, sums, sum_title, nats),
        "dimension": _scatters(losses, counts, DIMENSIONS, dimensions),
    }
    if len(entropy.contexts) > 1:
        curves = enumerate(increments(entropy.spectra).items(), start=1)
        traces = [_curve(number, context, values, "%{y:+.2%}") for number, (context, values) in curves]
        title = f"change of {RELATIVE} since context {first}"
        figures["increments"] = _figure(traces, INDEX, title, {"tickformat": "+.0%"})
    if entropy.by_entropy:
        figures["lines"] = _lines_over_n(entropy)
    if kde:
        since, title = _since(kde, min(kde)), f"KDE entropy since context {min(kde)}, nats"
        both = {"each point left out of its own density": kde, "as in the source": entropy.kde_with_own}
        shifted = {name: _since(values, first) for name, values in both.items() if first in values}
        figures["kde"] = _scatters(losses, shifted, f"KDE entropy since context {first}, nats", nats)
        figures["kde_dimension"] = _scatters(since, counts, DIMENSIONS, dimensions, title, "KDE %{y:+.3f}")
        if entropy.sizes:
            figures["kde_entropy"] = _scatters(since, sums, sum_title, nats, title, "KDE %{y:+.3f}")
    if len(entropy.names) > 1:
        figures["correlation"] = _correlation(entropy)
    return figures


def shown_thresholds(entropy: IntrinsicEntropy) -> list[float]:
    """Some of the thresholds, evenly from the least to the largest."""
    return spread(list(entropy.dimensions), SHOWN_THRESHOLDS)


def _loss(entropy: IntrinsicEntropy) -> dict[str, Any]:
    contexts = entropy.contexts
    differences = [entropy.differences.get(context, Estimate(0.0, 0.0, 0.0)) for context in contexts]
    known = all(difference.has_interval for difference in differences)
    bars = {**error_bars(differences), "thickness": 1.5, "width": 5} if known else None
    losses = [entropy.losses[context].value for context in contexts]
    points = scatter(contexts, losses, 0, "%{x} tokens: %{y:.4f}", mode="markers", marker={"size": 9})
    traces = [points.update(name="measured", error_y=bars)]
    if entropy.power is not None:
        x, name = np.geomspace(contexts[0], contexts[-1], 100), "C<sub>0</sub> + C / l<sup>γ</sup>"
        traces.append(scatter(x, entropy.power.at(x), 1, mode="lines", name=name))
    ticks = {"tickmode": "array", "tickvals": contexts, "ticktext": [f"{value:,}" for value in contexts]}
    return _figure(traces, {"title": "visible context l, tokens", "type": "log", **ticks}, LOSS)


def _spectra(entropy: IntrinsicEntropy) -> dict[str, Any]:
    curves = {context: relative_eigenvalues(values) for context, values in entropy.spectra.items()}
    yaxis = {"type": "log", "dtick": 1, "exponentformat": "power"}
    traces = [
        _curve(number, context, curves[context][curves[context] > 0], "%{y:.4g}")
        for number, context in enumerate(entropy.contexts)
    ]
    shapes = [level(threshold) for threshold in shown_thresholds(entropy)]
    return _figure(traces, INDEX, f"relative eigenvalue {RELATIVE}", yaxis, shapes=shapes)


def _curve(number: int, context: int, values: np.ndarray, hover: str) -> go.Scatter:
    index, name = _thinned(len(values)), f"{context:,} tokens"
    line = {"dash": DASHES[number // 6 % len(DASHES)], "width": 1.8}
    hover = f"{name}, i = %{{x}}: {hover}"
    return scatter(index, values[index - 1], number, hover, mode="lines", name=name, line=line)


def _thinned(length: int) -> np.ndarray:
    """Indices from 1 to ``length``, at most :data:`MOST_POINTS` of them."""
    if length <= MOST_POINTS:
        return np.arange(1, length + 1)
    return np.unique(np.geomspace(1, length, MOST_POINTS).round().astype(int))


def _since(values: ByContext, first: int) -> ByContext:
    return {context: value - values[first] for context, value in values.items()}


def _scatters(
    y: ByContext,
    series: Mapping[str, ByContext],
    title: str,
    hover: str,
    ytitle: str = LOSS,
    yhover: str = "loss %{y:.4f}",
) -> dict[str, Any]:
    """One quantity, the loss by default, against some others: a point a context, joined in their order."""
    traces = []
    for number, (name, values) in enumerate(series.items()):
        contexts = sorted(values.keys() & y.keys())
        points = [values[context] for context in contexts], [y[context] for context in contexts]
        marker = {"size": 8, "symbol": SYMBOLS[number % len(SYMBOLS)]}
        style = {"mode": "lines+markers", "marker": marker, "line": {"width": 1.2, "dash": "dot"}}
        words = f"%{{customdata}} tokens, {name}<br>{hover}, {yhover}"
        traces.append(scatter(*points, number, words, name=name, customdata=contexts, **style))
    return _figure(traces, {"title": title}, ytitle)


def _lines_over_n(entropy: IntrinsicEntropy) -> dict[str, Any]:
    """Correlation of the loss with S_N, for every N."""
    lines = entropy.by_entropy
    every = sorted(lines)
    shown = [every[i - 1] for i in _thinned(len(every))]
    y, name = [-lines[n].correlation for n in shown], "correlation of −CE with S_N"
    trace = scatter(shown, y, 0, "N = %{x}: %{y:.4f}", mode="lines", name=name)
    xaxis = {"title": "N, leading eigenvalues in S<sub>N</sub>", "type": "log", "dtick": 1}
    title, yaxis = "correlation of −CE with S<sub>N</sub>", {"range": [-1.05, 1.05]}
    return _figure([trace], xaxis, title, yaxis, height=320)


def _correlation(entropy: IntrinsicEntropy) -> dict[str, Any]:
    names = [f"S<sub>{name[2:]}</sub>" if name.startswith("S_") else name for name in entropy.names]
    values = entropy.correlation.tolist()
    style: dict[str, Any] = {"text": [[f"{value:.2f}" for value in row] for row in values], "texttemplate": "%{text}"}
    style |= {"colorscale": [[0, "#b2581a"], [0.5, "#f2f2f2"], [1, "#2b7bba"]], "zmin": -1, "zmax": 1}
    style |= {"textfont": {"size": 11}, "showscale": False, "hovertemplate": "%{x}, %{y}: %{z:.4f}<extra></extra>"}
    trace = go.Heatmap(x=names, y=names, z=values, meta={"series": 0}, **style)
    yaxis, margin = {"autorange": "reversed", "type": "category"}, {"l": 56, "r": 12, "t": 34, "b": 52}
    xaxis = {"title": "", "type": "category"}
    return _figure([trace], xaxis, "", yaxis, height=130 + 38 * len(names), margin=margin)


def _figure(
    traces: list[Any], xaxis: dict[str, Any], ytitle: str, yaxis: dict[str, Any] | None = None, **layout: Any
) -> dict[str, Any]:
    yaxis = {"title": ytitle, **(yaxis or {})}
    return figure(traces, **{"height": 420, "xaxis": xaxis, "yaxis": yaxis, **layout})
