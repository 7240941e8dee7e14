"""The document's figures of one model's intrinsic entropy, as numbers: of the page on it, and of the items.

Source: intrinsic entropy, Figures 1 (loss against S, correlations), 2 (loss against context), 3 and 15 (spectra, increments,
loss against dimension) and 10 (kernel density against the loss, S and the dimension).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.base.estimates import Estimate
from contextwise.base.tables import spread
from contextwise.reports.page import figure
from contextwise_papers.intrinsic_entropy.analysis import ByContext, IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.spectra import increments, relative_eigenvalues
from contextwise_papers.page import plot_figure
from contextwise_papers.tables import Plot, point, points

MOST_POINTS = 120
"""Points of a spectrum, evenly spaced in the logarithm of the index; the CSV has them all."""
INDEX, RELATIVE = "index i", "λ_i / λ_1"
LOSS = "cross entropy, nats per token"
Drawn = list[dict[str, Any]]


def figures_of(entropy: IntrinsicEntropy) -> dict[str, dict[str, Any]]:
    """Id -> Plotly figure; one that the measurement does not allow is left out."""
    first, losses, kde = entropy.contexts[0], entropy.measurement.losses(), entropy.kde
    # S_N is counted from its value at the shortest context, which leaves a straight line straight.
    sums = {f"N = {n}": _since(entropy.entropies[n], first) for n in entropy.sizes}
    counts = {f"θ = {x:.3g}": entropy.dimensions[x] for x in shown_thresholds(entropy)}
    sums_words, counts_words = f"S_N since context {first}, nats", f"eigenvalues with {RELATIVE} ≥ θ"
    levels = {f"θ = {x:.2g}": x for x in shown_thresholds(entropy)}
    plots = {
        "loss": _loss(entropy),
        "spectra": eigenvalues(entropy, levels),
        "entropy": Plot("", sums_words, LOSS, _joined(sums, losses)),
        "dimension": Plot("", counts_words, LOSS, _joined(counts, losses)),
    }
    if len(entropy.contexts) > 1:
        curves = {f"{c:,} tokens": curve(100 * values) for c, values in increments(entropy.spectra).items()}
        words = f"change of {RELATIVE} since context {first}, %"
        plots["increments"] = Plot("", INDEX, words, curves, logarithmic="x")
    if lines := entropy.by_entropy:
        series = {"": points({n: -lines[n].correlation for n in _thinned(max(lines)) if n in lines})}
        words = "correlation of −CE with S_N"
        plots["lines"] = Plot("", "N, leading eigenvalues in S_N", words, series, logarithmic="x")
    if kde:
        since, words = _since(kde, min(kde)), f"KDE entropy since context {min(kde)}, nats"
        both = {"each point left out of its own density": kde, "as in the source": entropy.kde_with_own}
        shifted = {name: _since(values, min(kde)) for name, values in both.items()}
        plots["kde"] = Plot("", words, LOSS, _joined(shifted, losses))
        plots["kde_dimension"] = Plot("", counts_words, words, _joined(counts, since))
        if entropy.sizes:
            plots["kde_entropy"] = Plot("", sums_words, words, _joined(sums, since))
    figures = {name: plot_figure(vars(plot)) for name, plot in plots.items()}
    return figures | ({"correlation": _correlation(entropy)} if len(entropy.names) > 1 else {})


def shown_thresholds(entropy: IntrinsicEntropy) -> list[float]:
    """Some of the thresholds, evenly from the least to the largest."""
    return spread(list(entropy.dimensions), 6)


def eigenvalues(entropy: IntrinsicEntropy, levels: dict[str, float] | None = None) -> Plot:
    """Relative eigenvalues at each context (Figure 3, left)."""
    spectra = {f"{c:,} tokens": curve(relative_eigenvalues(values)) for c, values in entropy.spectra.items()}
    return Plot("Relative eigenvalues", INDEX, RELATIVE, spectra, levels=levels or {}, logarithmic="xy")


def curve(values: Iterable[float]) -> Drawn:
    """Values over their index, from 1 on, at most :data:`MOST_POINTS` of them."""
    kept = np.asarray(list(values), dtype=float)
    return points({i: float(kept[i - 1]) for i in _thinned(len(kept)) if np.isfinite(kept[i - 1])})


def _thinned(length: int) -> list[int]:
    return np.unique(np.geomspace(1, length, MOST_POINTS).round().astype(int)).tolist()


def against(x: Mapping[int, float], y: Mapping[int, float]) -> Drawn:
    """What each context has of two things, as points from left to right."""
    marks = [{"x": x[c], "y": y[c], "text": f"{c:,} tokens"} for c in x if c in y]
    return sorted(marks, key=lambda mark: float(mark["x"]))


def _joined(series: Mapping[str, ByContext], y: ByContext) -> dict[str, Drawn]:
    return {name: against(values, y) for name, values in series.items()}


def _since(values: ByContext, first: int) -> ByContext:
    return {context: value - values[first] for context, value in values.items()}


def _loss(entropy: IntrinsicEntropy) -> Plot:
    """Losses, with the intervals of their differences to the longest context; and the fit."""
    ends = {c: entropy.differences.get(c, Estimate(0.0, 0.0, 0.0)) for c in entropy.contexts}
    bars = {c: [limit - end.value for limit in end.limits] for c, end in ends.items() if end.has_interval}
    losses = entropy.measurement.losses()
    if len(bars) == len(losses):
        series = {"measured": points({c: Estimate(y, y + bars[c][0], y + bars[c][1]) for c, y in losses.items()})}
    else:
        series = {"measured": points(losses)}
    if entropy.power is not None:
        x = np.geomspace(entropy.contexts[0], entropy.contexts[-1], 100)
        series["C0 + C / l^γ"] = [point(at, y) for at, y in zip(x.tolist(), entropy.power.at(x).tolist(), strict=True)]
    return Plot("", "visible context l, tokens", LOSS, series, logarithmic="x")


def _correlation(entropy: IntrinsicEntropy) -> dict[str, Any]:
    values = entropy.correlation.tolist()
    style: dict[str, Any] = {"text": [[f"{value:.2f}" for value in row] for row in values], "texttemplate": "%{text}"}
    style |= {"colorscale": [[0, "#b2581a"], [0.5, "#f2f2f2"], [1, "#2b7bba"]], "zmin": -1, "zmax": 1}
    style |= {"textfont": {"size": 11}, "showscale": False, "hovertemplate": "%{x}, %{y}: %{z:.4f}<extra></extra>"}
    trace = go.Heatmap(x=entropy.names, y=entropy.names, z=values, meta={"series": 0}, **style)
    axes = {"xaxis": {"type": "category"}, "yaxis": {"autorange": "reversed", "type": "category"}}
    return figure([trace], height=130 + 38 * len(entropy.names), **axes)
