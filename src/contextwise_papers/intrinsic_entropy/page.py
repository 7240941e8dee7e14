"""Report of intrinsic entropy: the source's figures for one model, with their numbers, as a page and on the terminal.

Its Figures 1 (loss against S, correlations), 2 (loss against context), 3 and 15 (spectra, increments, loss against dimension)
and 10 (kernel density against the loss, S and the dimension).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from rich.console import RenderableType

from contextwise.base.estimates import Estimate, counted
from contextwise.base.intervals import correlation_estimate
from contextwise.base.tables import Cell, Column, Table, csv_text, spread, terminal
from contextwise.reports import page
from contextwise.reports.page import Page, Section, figure
from contextwise_papers.intrinsic_entropy.analysis import SHARE_OF_SUBSPACES, ByContext, IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.spectra import increments, relative_eigenvalues
from contextwise_papers.page import command_line, plot_figure
from contextwise_papers.tables import Plot, point, points

FIGURES = {
    "loss": (
        "Loss against visible context",
        "The same tokens at every context. Bars: 95% intervals over documents of the difference to the longest context, which "
        "is what they tell apart. Line: the fit.",
    ),
    "spectra": (
        "Spectra",
        "Eigenvalues of the covariance of the features, each over the largest. Dashed lines: some thresholds θ of the "
        "intrinsic dimension.",
    ),
    "increments": (
        "How the spectrum changes with context",
        "Relative change of each relative eigenvalue since the shortest context.",
    ),
    "entropy": (
        "Loss against intrinsic entropy",
        "S_N is the sum of ln(λ_i / λ_1) over the first N eigenvalues; a point for each context, joined in their order. Each "
        "S_N is counted from its value at the shortest context.",
    ),
    "lines": (
        "Which subspaces correlate with the loss",
        "Correlation over contexts of −CE with S_N, for every N. The source finds values near one.",
    ),
    "dimension": (
        "Loss against intrinsic dimension",
        "The dimension is the number of eigenvalues with λ_i / λ_1 ≥ θ; a point for each context.",
    ),
    "kde": (
        "Loss against Gaussian-KDE entropy",
        "Entropy of a Gaussian kernel density over the leading directions. Where each point counts in its own density, as in "
        "the source, the estimate comes close to the log-determinant of the covariance in many dimensions.",
    ),
    "kde_entropy": (
        "Gaussian-KDE entropy against intrinsic entropy",
        "Two estimates of one thing, at each context; both counted from the shortest context. Each point is left out of its "
        "own density.",
    ),
    "kde_dimension": (
        "Gaussian-KDE entropy against intrinsic dimension",
        "The same KDE entropy over the number of eigenvalues with λ_i / λ_1 ≥ θ.",
    ),
    "correlation": (
        "Correlations between subspaces",
        "Pearson's correlations over contexts: −CE, S_N for some N, and the KDE entropy.",
    ),
}
"""Id of a figure -> headline and caption."""
NOTES = (
    "Intervals of fits come from the scatter of the contexts about the fit; the losses of neighbouring contexts are of the "
    "same tokens and so not independent.",
    "A covariance does not determine the shape of a distribution: S_N is the entropy of the features only if it is Gaussian.",
)
FITS: list[Column | str] = [
    "loss against",
    Column("slope", "difference", "+.3g", interval="own", missing="no line"),
    Column("R²", "estimate", ".3f"),
]


def write_entropy_page(entropy: IntrinsicEntropy, path: Path, command: list[str] | None = None) -> None:
    """Write the page (:meth:`~contextwise.reports.page.Page.write`); ``command``: the command line that made it."""
    summary, figures = entropy.measurement.summary, figures_of(entropy)
    fallback = "This figure needs JavaScript. The option --csv writes its numbers."
    plots = [
        Section(headline, [page.Plot(name, figures[name], headline, caption, fallback)])
        for name, (headline, caption) in FIGURES.items()
        if name in figures
    ]
    title = "The loss as a line over each measure: nats per nat of entropy, or per dimension."
    by_context = measures(entropy, 3, 3, "By visible context. Losses and entropies in nats.", further=True)
    environment = page.facts(page.environment_facts(summary["environment"]))
    notes = [*entropy.notes, *NOTES]
    if entropy.kde:
        notes.append(
            f"The kernel density is over {entropy.directions:,} leading directions of {summary['kept']:,} features. Its values "
            "are biased, and more so in more dimensions; differences between contexts are what to read."
        )
    sections = [
        Section("Measures", [by_context, Table(title, FITS, line_rows(entropy))]),
        *plots,
        Section("Notes", [page.bullets(notes)]),
        Section("How it was made", [*command_line(command), page.details("Environment", environment)]),
    ]
    title, settings, corpus = (f"Intrinsic entropy of {summary['name']}", summary["settings"], summary["corpus"])
    last = settings["layer"] == "last"
    layer = "what the vocabulary head reads" if last else f"hidden state {settings['layer']}"
    subtitle = (
        f"{summary['samples']:,} tokens of {summary['documents']:,} documents ({Path(corpus['path']).name}, split "
        f"{corpus['split']}), {summary['width']:,} channels of {layer}, {summary['dtype']}, covariances "
        f"{'centred' if settings['centred'] else 'not centred'}"
    )
    Page(title, sections, subtitle, verdict(entropy), __file__).write(path)


def terminal_report(entropy: IntrinsicEntropy) -> RenderableType:
    """The table by context, the fits and the notes, for 80 columns."""
    summary = entropy.measurement.summary
    heading = (
        f"{summary['model']} on {summary['label']}: {summary['samples']:,} tokens of {summary['documents']:,} documents, each "
        f"predicted from the nearest tokens only; {summary['width']:,} channels, "
        f"{'centred' if summary['settings']['centred'] else 'not centred'}."
    )
    return terminal(
        heading,
        measures(entropy, 2, 2),
        Table("", FITS, line_rows(entropy, 3, 3)),
        *verdict(entropy),
        *(f"Note: {note}" for note in entropy.notes),
    )


def csv_files(entropy: IntrinsicEntropy) -> dict[str, str]:
    """Name of a figure -> the CSV with its numbers."""
    columns = ["x", "y", "low", "high", "text"]
    tables = {
        name: csv_text(
            ["series", *columns],
            ([series, *map(mark.get, columns)] for series, marks in plot.series.items() for mark in marks),
        )
        for name, plot in plots_of(entropy).items()
    }
    if len(entropy.names) > 1:
        rows = zip(entropy.names, entropy.correlation.tolist(), strict=True)
        tables["correlation"] = csv_text(["", *entropy.names], ([name, *row] for name, row in rows))
    return tables


def measures(entropy: IntrinsicEntropy, sizes: int, thresholds: int, title: str = "", further: bool = False) -> Table:
    """The table by context: the loss, S_N for some N, the dimension at some thresholds, the KDE entropy.

    ``further``: whether to include dimensions by distances, if there are any.
    """
    some_n, some_theta = spread(entropy.sizes, sizes), spread(shown_thresholds(entropy), thresholds)
    estimates = entropy.further if further else {}
    columns: dict[Column, dict[int, Any]] = {
        Column("context", "integer", align="right"): {c: c for c in entropy.contexts},
        Column("loss", "estimate", ".4f"): {c: entropy.losses[c].value for c in entropy.contexts},
        **{Column(f"S,\nN={n}", "estimate", ".2f"): entropy.entropies[n] for n in some_n},
        **{Column(f"dim,\nθ={t:.2g}", "estimate", ".0f"): entropy.dimensions[t] for t in some_theta},
        **({Column("KDE", "estimate", ".2f"): entropy.kde} if entropy.kde else {}),
        **{Column(f"dim,\n{name}", "estimate", ".1f"): values for name, values in estimates.items()},
    }
    rows = [[values.get(context) for values in columns.values()] for context in entropy.contexts]
    return Table(title, list(columns), rows)


def line_rows(entropy: IntrinsicEntropy, sizes: int = 6, thresholds: int = 6) -> list[list[Cell]]:
    """Rows ``what, slope, R²`` of the lines that are shown."""
    some_n, some_theta = spread(entropy.sizes, sizes), spread(shown_thresholds(entropy), thresholds)
    fits = {f"S_N, N = {n}": entropy.by_entropy.get(n) for n in some_n}
    fits |= {f"dimension, θ = {t:.2g}": entropy.by_dimension.get(t) for t in some_theta}
    fits |= {"KDE entropy": entropy.by_kde} if entropy.kde else {}
    return [[name, *((fit.slope, fit.r_squared) if fit else (None, None))] for name, fit in fits.items()]


def verdict(entropy: IntrinsicEntropy) -> list[str]:
    """The results in sentences; each follows from the numbers of the tables."""
    contexts, losses = entropy.contexts, entropy.losses
    first, last = losses[contexts[0]], losses[contexts[-1]]
    best = min(contexts, key=lambda context: losses[context].value)
    between = entropy.differences.get(contexts[0])
    known = between is not None and between.has_interval
    difference = f" (a difference of {between:.4f}, 95% interval over documents)" if known else ""
    shortest = f"{first.value:.4f} nats with {counted(contexts[0], 'token')} visible"
    others = f" and {last.value:.4f} with {contexts[-1]:,}{difference}; it is least with {best:,}"
    others += f" ({losses[best].value:.4f})"
    sentences = [
        f"Of the same {entropy.measurement.summary['samples']:,} tokens, the loss is {shortest}"
        f"{others if len(contexts) > 1 else ', the only context'}."
    ]
    if entropy.power is not None:
        power = entropy.power
        sentences.append(
            f"CE ≈ C₀ + C / l^γ with C₀ = {power.floor:.4f}, C = {power.scale:.3g}, "
            f"γ = {power.exponent:.3g}, R² = {power.r_squared:.4f}."
        )
    if entropy.by_entropy:
        lines = list(entropy.by_entropy.values())
        falls = sum(fit.slope.above(0.0) is False for fit in lines)
        rises = sum(fit.slope.above(0.0) is True for fit in lines)
        squares = sorted(fit.r_squared for fit in lines)
        sentences.append(
            f"The source finds that the loss falls along a line as S_N grows. Here, of {len(lines):,} values of N, it falls at "
            f"{falls:,}, rises at {rises:,}, and at {len(lines) - falls - rises:,} the interval of the slope includes zero; "
            f"the median R² is {squares[len(squares) // 2]:.3f}."
        )
    least = entropy.least_subspace_correlation()
    if least is not None:
        correlation = correlation_estimate(least, len(contexts))
        sentences.append(
            f"Between the entropies S_N of subspaces of at least {SHARE_OF_SUBSPACES:.0%} of the channels, the least "
            f"correlation over contexts is {correlation:.3f} (the source: above 0.97)."
        )
    return sentences


MOST_POINTS = 120
"""Points of a spectrum, evenly spaced in the logarithm of the index; ``spectra.parquet`` of the result has them all."""
INDEX, RELATIVE = "index i", "λ_i / λ_1"
LOSS = "cross entropy, nats per token"
Drawn = list[dict[str, Any]]


def figures_of(entropy: IntrinsicEntropy) -> dict[str, dict[str, Any]]:
    """Id -> Plotly figure; one that the measurement does not allow is left out."""
    figures = {name: plot_figure(vars(plot)) for name, plot in plots_of(entropy).items()}
    return figures | ({"correlation": _correlation(entropy)} if len(entropy.names) > 1 else {})


def plots_of(entropy: IntrinsicEntropy) -> dict[str, Plot]:
    """Id -> plot, of all figures but the correlations."""
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
    return plots


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
