"""The figures of the page on intrinsic entropy, as Plotly figures without colours: those follow the reader's scheme.

Source: intrinsic entropy, Figures 1 (loss against S, correlations), 2 (loss against context), 3 and 15 (spectra, increments,
loss against dimension) and 10 (kernel density against the loss, S and the dimension).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from contextwise.analysis.fits import LineFit
from contextwise.analysis.intrinsic import ByContext, IntrinsicEntropy
from contextwise.analysis.spectra import increments, relative_eigenvalues
from contextwise.base.estimates import Estimate
from contextwise.reports.figures import SYMBOLS, figure_layout

MOST_POINTS = 400
"""Points of a spectrum, evenly spaced in the logarithm of the index; the CSV has them all."""
DASHES = ("solid", "dash", "dot")
SHOWN_THRESHOLDS = 6
RELATIVE = "λ<sub>i</sub> / λ<sub>1</sub>"


def figures_of(entropy: IntrinsicEntropy) -> dict[str, dict[str, Any]]:
    """Id -> figure; one that the measurement does not allow is left out."""
    figures = {
        "loss": _loss(entropy),
        "spectra": _spectra(entropy),
        "increments": _increments(entropy) if len(entropy.contexts) > 1 else None,
        "entropy": _against_entropy(entropy),
        "lines": _lines_over_n(entropy) if entropy.by_entropy else None,
        "dimension": _against_dimension(entropy),
        "kde": _against_kde(entropy) if entropy.kde else None,
        "kde_entropy": _kde_against_entropy(entropy) if entropy.kde and entropy.sizes else None,
        "kde_dimension": _kde_against_dimension(entropy) if entropy.kde else None,
        "correlation": _correlation(entropy) if len(entropy.names) > 1 else None,
    }
    return {name: figure.to_plotly_json() for name, figure in figures.items() if figure is not None}


def shown_thresholds(entropy: IntrinsicEntropy) -> list[float]:
    """Some of the thresholds, evenly from the least to the largest."""
    every = list(entropy.dimensions)
    indices = np.unique(np.linspace(0, len(every) - 1, SHOWN_THRESHOLDS).round().astype(int))
    return [every[index] for index in indices]


def _loss(entropy: IntrinsicEntropy) -> go.Figure:
    contexts = entropy.contexts
    traces = [
        go.Scatter(
            x=contexts,
            y=[entropy.losses[context].value for context in contexts],
            error_y=_whiskers(
                [entropy.differences.get(context, Estimate(0.0, 0.0, 0.0)) for context in contexts]
            ),
            mode="markers",
            name="measured",
            marker={"size": 9},
            hovertemplate="%{x} tokens: %{y:.4f}<extra></extra>",
            meta={"series": 0},
        )
    ]
    if entropy.power is not None:
        x = np.geomspace(contexts[0], contexts[-1], 100)
        traces.append(
            go.Scatter(
                x=x.tolist(),
                y=entropy.power.at(x).tolist(),
                mode="lines",
                name="C<sub>0</sub> + C / l<sup>γ</sup>",
                hoverinfo="skip",
                meta={"series": 1},
            )
        )
    return go.Figure(traces, _layout(_contexts_axis(contexts), "cross entropy, nats per token"))


def _whiskers(values: Sequence[Estimate]) -> dict[str, Any] | None:
    up = [value.high - value.value for value in values if value.high is not None]
    down = [value.value - value.low for value in values if value.low is not None]
    if min(len(up), len(down)) < len(values):
        return None
    return {"array": up, "arrayminus": down, "thickness": 1.5, "width": 5}


def _spectra(entropy: IntrinsicEntropy) -> go.Figure:
    traces = []
    for number, context in enumerate(entropy.contexts):
        relative = relative_eigenvalues(entropy.spectra[context])
        relative = relative[relative > 0]
        index = _thinned(len(relative))
        traces.append(_curve(number, context, index, relative[index - 1], "%{y:.4g}"))
    layout = _layout(
        {"title": {"text": "index i of the eigenvalue"}, "type": "log", "dtick": 1},
        f"relative eigenvalue {RELATIVE}",
        yaxis={"type": "log", "dtick": 1, "exponentformat": "power"},
    )
    figure = go.Figure(traces, layout)
    for threshold in shown_thresholds(entropy):
        figure.add_hline(threshold, line={"color": "rgba(128, 128, 128, 0.5)", "width": 1, "dash": "dot"})
    return figure


def _increments(entropy: IntrinsicEntropy) -> go.Figure:
    traces = []
    for number, (context, values) in enumerate(increments(entropy.spectra).items(), start=1):
        index = _thinned(len(values))
        traces.append(_curve(number, context, index, values[index - 1], "%{y:+.2%}"))
    layout = _layout(
        {"title": {"text": "index i of the eigenvalue"}, "type": "log", "dtick": 1},
        f"change of {RELATIVE} since context {entropy.contexts[0]}",
        yaxis={"tickformat": "+.0%"},
    )
    return go.Figure(traces, layout)


def _curve(number: int, context: int, index: np.ndarray, y: np.ndarray, hover: str) -> go.Scatter:
    return go.Scatter(
        x=index.tolist(),
        y=y.tolist(),
        mode="lines",
        name=f"{context:,} tokens",
        line={"dash": DASHES[number // 6 % len(DASHES)], "width": 1.8},
        hovertemplate=f"{context:,} tokens, i = %{{x}}: {hover}<extra></extra>",
        meta={"series": number},
    )


def _thinned(length: int) -> np.ndarray:
    """Indices from 1 to ``length``, at most :data:`MOST_POINTS` of them."""
    if length <= MOST_POINTS:
        return np.arange(1, length + 1)
    return np.unique(np.geomspace(1, length, MOST_POINTS).round().astype(int))


def _against_entropy(entropy: IntrinsicEntropy) -> go.Figure:
    """Each S_N counted from its value at the shortest context, which leaves a straight line straight."""
    title = f"S<sub>N</sub> since context {entropy.contexts[0]}, nats"
    return _scatters(entropy.measurement.losses(), _entropies(entropy), title, "%{x:+.3f} nats")


def _against_dimension(entropy: IntrinsicEntropy) -> go.Figure:
    title = f"eigenvalues with {RELATIVE} ≥ θ"
    return _scatters(entropy.measurement.losses(), _dimensions(entropy), title, "%{x} dimensions")


def _entropies(entropy: IntrinsicEntropy) -> dict[str, ByContext]:
    return {f"N = {n}": _since(entropy.entropies[n], entropy.contexts[0]) for n in entropy.sizes}


def _dimensions(entropy: IntrinsicEntropy) -> dict[str, ByContext]:
    return {f"θ = {threshold:.3g}": entropy.dimensions[threshold] for threshold in shown_thresholds(entropy)}


def _since(values: ByContext, first: int) -> ByContext:
    return {context: value - values[first] for context, value in values.items()}


def _against_kde(entropy: IntrinsicEntropy) -> go.Figure:
    series = {"each point left out of its own density": entropy.kde, "as in the source": entropy.kde_with_own}
    first = entropy.contexts[0]
    shifted = {name: _since(values, first) for name, values in series.items() if first in values}
    title = f"KDE entropy since context {first}, nats"
    return _scatters(entropy.measurement.losses(), shifted, title, "%{x:+.3f} nats")


def _kde_against_entropy(entropy: IntrinsicEntropy) -> go.Figure:
    first = min(entropy.kde)
    title = f"S<sub>N</sub> since context {entropy.contexts[0]}, nats"
    ytitle = f"KDE entropy since context {first}, nats"
    return _scatters(
        _since(entropy.kde, first), _entropies(entropy), title, "%{x:+.3f} nats", ytitle, "KDE %{y:+.3f}"
    )


def _kde_against_dimension(entropy: IntrinsicEntropy) -> go.Figure:
    first = min(entropy.kde)
    title, ytitle = f"eigenvalues with {RELATIVE} ≥ θ", f"KDE entropy since context {first}, nats"
    return _scatters(
        _since(entropy.kde, first), _dimensions(entropy), title, "%{x} dimensions", ytitle, "KDE %{y:+.3f}"
    )


def _scatters(
    y: Mapping[int, float],
    series: Mapping[str, Mapping[int, float]],
    title: str,
    hover: str,
    ytitle: str = "cross entropy, nats per token",
    yhover: str = "loss %{y:.4f}",
) -> go.Figure:
    """One quantity, the loss by default, against some others: a point a context, joined in their order."""
    traces = []
    for number, (name, values) in enumerate(series.items()):
        contexts = sorted(values.keys() & y.keys())
        traces.append(
            go.Scatter(
                x=[values[context] for context in contexts],
                y=[y[context] for context in contexts],
                customdata=contexts,
                mode="lines+markers",
                name=name,
                marker={"size": 8, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                line={"width": 1.2, "dash": "dot"},
                hovertemplate=f"%{{customdata}} tokens, {name}<br>{hover}, {yhover}<extra></extra>",
                meta={"series": number},
            )
        )
    return go.Figure(traces, _layout({"title": {"text": title}}, ytitle))


def _lines_over_n(entropy: IntrinsicEntropy) -> go.Figure:
    """Correlation of the loss with S_N, for every N."""
    lines: dict[int, LineFit] = entropy.by_entropy
    every = np.array(sorted(lines))
    shown = every[_thinned(len(every)) - 1]
    trace = go.Scatter(
        x=shown.tolist(),
        y=[-lines[int(n)].correlation for n in shown],
        mode="lines",
        name="correlation of −CE with S_N",
        hovertemplate="N = %{x}: %{y:.4f}<extra></extra>",
        meta={"series": 0},
    )
    layout = _layout(
        {"title": {"text": "N, leading eigenvalues in S<sub>N</sub>"}, "type": "log", "dtick": 1},
        "correlation of −CE with S<sub>N</sub>",
        yaxis={"range": [-1.05, 1.05]},
        height=320,
    )
    return go.Figure([trace], layout)


def _correlation(entropy: IntrinsicEntropy) -> go.Figure:
    names = [f"S<sub>{name[2:]}</sub>" if name.startswith("S_") else name for name in entropy.names]
    text = [[f"{value:.2f}" for value in row] for row in entropy.correlation]
    trace = go.Heatmap(
        x=names,
        y=names,
        z=entropy.correlation.tolist(),
        text=text,
        texttemplate="%{text}",
        textfont={"size": 11},
        zmin=-1,
        zmax=1,
        colorscale=[[0, "#b2581a"], [0.5, "#f2f2f2"], [1, "#2b7bba"]],
        showscale=False,
        hovertemplate="%{x}, %{y}: %{z:.4f}<extra></extra>",
        meta={"series": 0},
    )
    layout = _layout(
        {"title": {"text": ""}, "type": "category"}, "", yaxis={"autorange": "reversed", "type": "category"}
    )
    return go.Figure(
        [trace], layout.update(height=130 + 38 * len(names), margin={"l": 56, "r": 12, "t": 34, "b": 52})
    )


def _layout(
    xaxis: dict[str, Any], ytitle: str, yaxis: dict[str, Any] | None = None, height: int = 420
) -> go.Layout:
    return figure_layout(height=height, xaxis=xaxis, yaxis={"title": {"text": ytitle}, **(yaxis or {})})


def _contexts_axis(contexts: Iterable[int]) -> dict[str, Any]:
    values = list(contexts)
    return {
        "title": {"text": "visible context l, tokens"},
        "type": "log",
        "tickmode": "array",
        "tickvals": values,
        "ticktext": [f"{value:,}" for value in values],
    }
