"""Views of one entropy measurement: the tables, plots and claims of each figure of intrinsic entropy.

Whether a line holds is decided by the 95% interval of its correlation over contexts (Fisher's transformation), which is wide
over few contexts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.analysis.fits import LineFit
from contextwise.analysis.intrinsic import SHARE_OF_SUBSPACES, IntrinsicEntropy
from contextwise.analysis.spectra import increments, relative_eigenvalues
from contextwise.base.config import Settings
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import correlation_estimate
from contextwise.base.tables import Table
from contextwise.reproductions.claims import Claim, Verdict, above, all_hold, exact, point, undecided
from contextwise.reproductions.item import Plot

View = tuple[list[Table], list[Claim], list[Plot]]
LOSS = "cross entropy, nats per token"
MOST_POINTS = 120
"""Of a spectrum in a plot, evenly spaced in the logarithm of the index."""


class Limits(Settings):
    """Thresholds of the claims, for most of which the document gives no number."""

    correlation: float = Field(0.97, gt=0, lt=1, description="of a line; the document's Figure 1 says > 0.97")
    fit: float = Field(0.99, gt=0, lt=1, description="R² of the power law")
    spread: float = Field(
        0.5,
        gt=0,
        description="of even increments: half of the directions lie within so much of the median, relatively",
    )


def entropy_view(entropy: IntrinsicEntropy, limits: Limits) -> View:
    """Figures 1 and 13: the loss against S_N for several N, and how S_N of several subspaces and the loss correlate."""
    points = len(entropy.contexts)
    lines = {n: entropy.by_entropy[n] for n in entropy.sizes if n in entropy.by_entropy}
    table = Table(
        "CE = k S_N + b over contexts, with 95% intervals",
        ["N", "k", "R²", "−correlation"],
        [[str(n), *_line_cells(line, 4, points)] for n, line in lines.items()],
    )
    matrix = Table(
        "Correlations over contexts",
        ["", *entropy.names],
        [
            [name, *(f"{value:.3f}" for value in row)]
            for name, row in zip(entropy.names, entropy.correlation, strict=True)
        ],
    )
    least = SHARE_OF_SUBSPACES * entropy.measurement.summary["width"]
    correlations = {n: -line.correlation for n, line in entropy.by_entropy.items() if n >= least}
    between = entropy.least_subspace_correlation()
    claims = [
        _all_linear(
            f"the loss is linear in S_N, falling, with a correlation above {limits.correlation:g}, for every subspace of a "
            "tenth of the channels or more",
            correlations, points, limits.correlation, "N",
        ),
        _correlated(f"entropies of different subspaces correlate by more than {limits.correlation:g}", between, points,
                    limits.correlation),
    ]  # fmt: skip
    # S_N means something up to a constant; without it the lines of all N are seen side by side.
    first = entropy.contexts[0]
    series = {
        f"N = {n}": _against(
            {c: s - entropy.entropies[n][first] for c, s in entropy.entropies[n].items()}, entropy.losses
        )
        for n in entropy.sizes
    }
    label = f"S_N minus S_N at {first:,} tokens, nats"
    return [table, matrix], claims, [Plot("Loss against intrinsic entropy", label, LOSS, series)]


def context_view(entropy: IntrinsicEntropy, limits: Limits) -> View:
    """Figures 2 and 11: the loss against the context, and the power law through it (Eq. 3)."""
    fit = entropy.power
    rows = []
    for context in entropy.contexts:
        fitted = "" if fit is None else f"{float(fit.at(np.array([context]))[0]):.4f}"
        more = entropy.differences.get(context)
        rows.append([
            f"{context:,}", f"{entropy.losses[context]:.4f}", fitted, "" if more is None else f"{more:+.4f}"
        ])  # fmt: skip
    tables = [Table(f"{LOSS}, with 95% intervals over documents",
                    ["context", "loss", "C0 + C/l^γ", f"minus that at {entropy.contexts[-1]:,}"], rows)]  # fmt: skip
    series = {"measured": [point(c, entropy.losses[c]) for c in entropy.contexts]}
    verdict = undecided("no power law has its optimum here: the losses do not level off")
    evidence = ""
    if fit is not None:
        pairs = {"C0": fit.floor, "C": fit.scale, "γ": fit.exponent}
        rows = [[name, f"{value:.3f}"] for name, value in pairs.items()]
        tables.append(
            Table(
                "CE = C0 + C / l^γ, with 95% intervals", ["", "ours"], [*rows, ["R²", f"{fit.r_squared:.5f}"]]
            )
        )
        x = np.geomspace(entropy.contexts[0], entropy.contexts[-1], 40)
        series["C0 + C/l^γ"] = [{"x": float(a), "y": float(b)} for a, b in zip(x, fit.at(x), strict=True)]
        verdict = _fits(fit.r_squared, fit.exponent, limits.fit)
        evidence = f"R² {fit.r_squared:.5f}, γ {fit.exponent:.3f}"
    falls = all_hold(above(more) for more in entropy.differences.values())
    least = min(entropy.differences.items(), key=lambda pair: pair[1].value, default=None)
    claims = [
        Claim.of("the loss falls as the context grows, as C0 + C/l^γ", verdict, evidence),
        Claim.of(
            f"at every shorter context the loss is above that at {entropy.contexts[-1]:,} tokens",
            falls,
            "one context" if least is None else f"least at {least[0]:,}: {least[1]:+.4f} nats",
        ),
    ]
    return tables, claims, [Plot("Loss against context", "visible tokens", LOSS, series, logarithmic="x")]


def spectra_view(entropy: IntrinsicEntropy, limits: Limits) -> View:
    """Figure 3: relative eigenvalues at each context, and by how much they grow with it."""
    logarithms = {context: np.log1p(values) for context, values in increments(entropy.spectra).items()}
    noise = 2 / np.sqrt(entropy.measurement.summary["samples"])
    # Relative to the largest eigenvalue, whose own chance is that of all of them.
    quartiles = {c: np.quantile(values[1:], [0.25, 0.5, 0.75]) for c, values in logarithms.items()}
    table = Table(
        f"ln of the growth of relative eigenvalues since a context of {entropy.contexts[0]:,}, over directions",
        ["context", "directions", "lower quartile", "median", "upper quartile"],
        [[f"{c:,}", str(len(logarithms[c]) - 1), *(f"{v:+.4f}" for v in q)] for c, q in quartiles.items()],
    )
    medians = [0.0, *(float(q[1]) for q in quartiles.values())]
    listed = ", ".join(f"{c:,}: {q[1]:+.3f}" for c, q in quartiles.items())
    last = entropy.contexts[-1]
    low, middle, high = (float(value) for value in quartiles[last])
    claims = [
        Claim.of(
            "the longer the context, the larger the relative eigenvalues",
            _grows(medians, noise),
            f"median of ln growth: {listed}; an eigenvalue's own chance is about {noise:.3f}",
        ),
        Claim.of(
            "relative eigenvalues grow by about the same factor in all directions",
            undecided("the median is within chance")
            if abs(middle) < 2 * noise
            else exact(middle > 0 and (high - low) / 2 <= limits.spread * middle, middle),
            f"at {last:,} tokens half of the directions lie between {low:+.3f} and {high:+.3f}, the median is {middle:+.3f}",
        ),
    ]
    spectra = {f"{c:,} tokens": _curve(relative_eigenvalues(values)) for c, values in entropy.spectra.items()}
    grown = {f"{c:,} tokens": _curve(values) for c, values in logarithms.items()}
    plots = [
        Plot("Relative eigenvalues", "index i", "λ_i / λ_1", spectra, logarithmic="xy"),
        Plot(
            "Their growth",
            "index i",
            f"ln growth since {entropy.contexts[0]:,} tokens",
            grown,
            logarithmic="x",
        ),
    ]
    return [table], claims, plots


def density_view(entropy: IntrinsicEntropy, limits: Limits) -> View:
    """Figure 10: entropy by a Gaussian kernel density against S_N, the dimension and the loss."""
    points = len(entropy.contexts)
    kde = {c: entropy.kde[c] for c in entropy.contexts if c in entropy.kde}
    rows = [
        [f"{c:,}", f"{kde[c]:.3f}" if c in kde else "none", f"{entropy.kde_with_own.get(c, float('nan')):.3f}",
         f"{entropy.losses[c].value:.4f}"]
        for c in entropy.contexts
    ]  # fmt: skip
    table = Table(
        f"Kernel density over {entropy.directions} leading directions, nats",
        ["context", "entropy", "with its own point", "loss"],
        rows,
    )
    with_entropy = {
        n: _correlation(kde, values) for n, values in entropy.entropies.items() if n in entropy.sizes
    }
    with_dimension = {t: _correlation(kde, values) for t, values in entropy.dimensions.items()}
    by_loss = None if entropy.by_kde is None else -entropy.by_kde.correlation
    bound = limits.correlation
    claims = [
        _all_linear("entropy by kernel density is linear in S_N", _known(with_entropy), points, bound, "N"),
        _all_linear("and in the intrinsic dimension", _known(with_dimension), points, bound, "θ"),
        _correlated("and the loss falls linearly with it", by_loss, points, bound),
    ]
    plots = [
        Plot("Loss against entropy by kernel density", "entropy, nats", LOSS, {"": _against(kde, entropy.losses)}),
        Plot("Kernel density against S_N", "S_N, nats", "entropy, nats", {
            f"N = {n}": _pairs(entropy.entropies[n], kde) for n in entropy.sizes
        }),
    ]  # fmt: skip
    return [table], claims, plots


def dimension_view(entropy: IntrinsicEntropy, limits: Limits) -> View:
    """Figure 15: the loss against the number of relative eigenvalues above a threshold, for 20 thresholds."""
    points = len(entropy.contexts)
    rows = []
    for threshold, dimensions in entropy.dimensions.items():
        line = entropy.by_dimension.get(threshold)
        counts = [f"{dimensions[entropy.contexts[index]]:.0f}" for index in (0, -1)]
        cells = ["the same at all", "", ""] if line is None else _line_cells(line, 5, points)
        rows.append([f"{threshold:.4f}", *counts, *cells])
    at_ends = [f"ID at {entropy.contexts[index]:,}" for index in (0, -1)]
    table = Table(
        f"Intrinsic dimension, and CE = k ID + b over {points} contexts, with 95% intervals",
        ["threshold", *at_ends, "k", "R²", "−correlation"],
        rows,
    )
    lines = {threshold: -line.correlation for threshold, line in entropy.by_dimension.items()}
    left = len(entropy.dimensions) - len(lines)
    claim = _all_linear(
        "whatever the threshold, the loss is linear in the intrinsic dimension, falling"
        + (f" ({left} thresholds count the same at every context)" if left else ""),
        lines, points, limits.correlation, "θ",
    )  # fmt: skip
    spectra = {f"{c:,} tokens": _curve(relative_eigenvalues(values)) for c, values in entropy.spectra.items()}
    series = {f"{t:.3f}": _against(entropy.dimensions[t], entropy.losses) for t in list(lines)[::4]}
    plots = [
        Plot("Relative eigenvalues", "index i", "λ_i / λ_1", spectra, logarithmic="xy"),
        Plot("Loss against dimension, by threshold", "intrinsic dimension", LOSS, series),
    ]
    return [table], [claim], plots


VIEWS: dict[str, Callable[[IntrinsicEntropy, Limits], View]] = {
    "entropy": entropy_view,
    "context": context_view,
    "spectra": spectra_view,
    "density": density_view,
    "dimension": dimension_view,
}


def _line_cells(line: LineFit, digits: int, points: int) -> list[str]:
    correlated = f"{correlation_estimate(-line.correlation, points):.3f}"
    return [f"{line.slope:.{digits}f}", f"{line.r_squared:.4f}", correlated]


def _all_linear(text: str, correlations: Mapping[Any, float], points: int, bound: float, what: str) -> Claim:
    """Whether all of some correlations are above the bound."""
    if not correlations:
        return Claim.of(text, undecided("there is no line to decide it by"))
    verdicts = [above(correlation_estimate(value, points), bound) for value in correlations.values()]
    name, least = min(correlations.items(), key=lambda pair: pair[1])
    name = f"{name:.4g}" if isinstance(name, float) else name
    lowest = f"{correlation_estimate(least, points):.3f}"
    evidence = f"least correlation {lowest}, at {what} = {name}; {len(correlations)} lines, {points} contexts"
    return Claim.of(text, all_hold(verdicts), evidence)


def _correlated(text: str, value: float | None, points: int, bound: float) -> Claim:
    if value is None:
        return Claim.of(text, undecided("there is no correlation to decide it by"))
    correlation = correlation_estimate(value, points)
    return Claim.of(text, above(correlation, bound), f"{correlation:.3f}; {points} contexts")


def _fits(r_squared: float, exponent: Estimate, least: float) -> Verdict:
    return above(exponent) if r_squared >= least else exact(False, r_squared)


def _grows(medians: list[float], noise: float) -> Verdict:
    steps = np.diff(medians)
    if (steps >= -noise).all() and medians[-1] - medians[0] <= noise:
        return undecided("the growth is within chance")
    return exact(not (steps < -noise).any(), *medians)


def _correlation(x: Mapping[int, float], y: Mapping[int, float]) -> float | None:
    contexts = sorted(x.keys() & y.keys())
    rows = np.array([[values[c] for c in contexts] for values in (x, y)])
    if len(contexts) < 3 or (np.ptp(rows, axis=1) == 0).any():
        return None
    return float(np.corrcoef(rows)[0, 1])


def _known(values: Mapping[Any, float | None]) -> dict[Any, float]:
    return {name: value for name, value in values.items() if value is not None}


def _against(x: Mapping[int, float], losses: Mapping[int, Estimate]) -> list[dict[str, Any]]:
    """Losses against something that each context has, from left to right; their intervals share what documents differ in."""
    points = [{"x": x[c], "y": losses[c].value, "text": f"{c:,} tokens"} for c in losses if c in x]
    return sorted(points, key=lambda mark: mark["x"])


def _pairs(x: Mapping[int, float], y: Mapping[int, float]) -> list[dict[str, Any]]:
    points = [{"x": x[c], "y": y[c], "text": f"{c:,} tokens"} for c in x if c in y]
    return sorted(points, key=lambda mark: float(mark["x"]))


def _curve(values: Iterable[float]) -> list[dict[str, Any]]:
    kept = np.asarray(list(values), dtype=float)
    index = np.unique(np.geomspace(1, len(kept), MOST_POINTS).round().astype(int))
    return [{"x": int(i), "y": float(kept[i - 1])} for i in index if np.isfinite(kept[i - 1])]
