"""Intrinsic entropy as CSV, as tables of its page and of the terminal, and in words."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contextwise.analysis.fits import LineFit
from contextwise.analysis.intrinsic import SHARE_OF_SUBSPACES, IntrinsicEntropy
from contextwise.analysis.spectra import increments, relative_eigenvalues
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import correlation_estimate
from contextwise.evaluation.tables import NOT_KNOWN, interval
from contextwise.reports.entropy_figures import shown_thresholds

LINE = ["slope", "slope_low", "slope_high", "intercept", "r_squared", "correlation"]


def csv_files(found: IntrinsicEntropy) -> dict[str, str]:
    """Name of a figure -> the CSV with all its numbers (and more of them than it draws)."""
    losses, contexts = found.losses, found.contexts
    fitted = found.power.at(np.array(contexts)) if found.power is not None else [None] * len(contexts)
    spectra = {c: (values, relative_eigenvalues(values)) for c, values in found.spectra.items()}
    kde = [
        [
            c,
            found.kde.get(c),
            found.kde_with_own.get(c),
            losses[c].value,
            *(v.get(c) for v in found.further.values()),
        ]
        for c in contexts
    ]
    return {
        "loss": _csv(
            [
                "context",
                "loss",
                "low",
                "high",
                "minus_longest",
                "minus_longest_low",
                "minus_longest_high",
                "fitted",
            ],
            (
                [c, *_ends(losses[c]), *_ends(found.differences.get(c)), fit]
                for c, fit in zip(contexts, fitted, strict=True)
            ),
        ),
        "spectra": _csv(
            ["context", "index", "eigenvalue", "relative"],
            ([c, i + 1, v[i], r[i]] for c, (v, r) in spectra.items() for i in range(len(v))),
        ),
        "increments": _csv(
            ["context", "index", "increment"],
            ([c, i, value] for c, row in increments(found.spectra).items() for i, value in enumerate(row, 1)),
        ),
        "entropy": _csv(
            ["n", "context", "entropy", "loss"],
            ([n, c, s, losses[c].value] for n, values in found.entropies.items() for c, s in values.items()),
        ),
        "lines": _csv(["n", *LINE], ([n, *_line(fit)] for n, fit in found.by_entropy.items())),
        "dimension": _csv(
            ["threshold", "context", "dimension", "loss", *LINE],
            (
                [threshold, c, int(value), losses[c].value, *_line(found.by_dimension.get(threshold))]
                for threshold, values in found.dimensions.items()
                for c, value in values.items()
            ),
        ),
        "kde": _csv(["context", "entropy", "entropy_with_own_point", "loss", *found.further], kde),
        "kde_entropy": _csv(
            ["n", "context", "entropy", "kde"],
            ([n, c, values[c], kde] for n, values in found.entropies.items() for c, kde in found.kde.items()),
        ),
        "kde_dimension": _csv(
            ["threshold", "context", "dimension", "kde"],
            (
                [threshold, c, int(values[c]), kde]
                for threshold, values in found.dimensions.items()
                for c, kde in found.kde.items()
            ),
        ),
        "correlation": _csv(
            ["", *found.names],
            ([name, *row] for name, row in zip(found.names, found.correlation.tolist(), strict=True)),
        ),
    }


def fits_csv(found: IntrinsicEntropy) -> str:
    """The power law over context and the line over the KDE entropy, term by term; other lines stand in their figures' CSV."""
    power, kde = found.power, found.by_kde
    rows: list[list[Any]] = []
    if power is not None:
        terms = {"C0": power.floor, "C": power.scale, "gamma": power.exponent}
        rows += [["C0 + C / l^gamma", name, *_ends(term), power.r_squared] for name, term in terms.items()]
    if kde is not None:
        terms = {"slope": kde.slope, "intercept": kde.intercept}
        rows += [["line over KDE entropy", name, *_ends(term), kde.r_squared] for name, term in terms.items()]
    return _csv(["fit", "term", "value", "low", "high", "r_squared"], rows)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _ends(estimate: Estimate | None) -> list[float | None]:
    return [None] * 3 if estimate is None else [estimate.value, estimate.low, estimate.high]


def _line(fit: LineFit | None) -> list[float | None]:
    if fit is None:
        return [None] * len(LINE)
    return [
        fit.slope.value,
        fit.slope.low,
        fit.slope.high,
        fit.intercept.value,
        fit.r_squared,
        fit.correlation,
    ]


def measures(
    found: IntrinsicEntropy, sizes: int, thresholds: int, further: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table by context: the loss, S_N for some N, the dimension at some thresholds, the KDE entropy.

    Args:
        further: whether estimates of scikit-dimension stand there too, where there are any.
    """
    estimates = found.further if further else {}
    some_n = _spread(found.sizes, sizes)
    some_theta = _spread(shown_thresholds(found), thresholds)
    head = ["context", "loss", *(f"S, N={n}" for n in some_n), *(f"dim, θ={t:.2g}" for t in some_theta)]
    head += [*(["KDE"] if found.kde else []), *(f"dim, {name}" for name in estimates)]
    rows = []
    for context in found.contexts:
        row = [f"{context:,}", f"{found.losses[context].value:.4f}"]
        row += [f"{found.entropies[n][context]:.2f}" for n in some_n]
        row += [f"{found.dimensions[threshold][context]:.0f}" for threshold in some_theta]
        row += [f"{found.kde[context]:.2f}" if context in found.kde else NOT_KNOWN] if found.kde else []
        row += [f"{values[context]:.1f}" if context in values else NOT_KNOWN for values in estimates.values()]
        rows.append(row)
    return head, rows


def line_rows(found: IntrinsicEntropy, sizes: int = 6, thresholds: int = 6) -> list[list[str]]:
    """Rows ``what, slope, interval, R²`` of the lines that are shown."""
    fits = {f"S_N, N = {n}": found.by_entropy.get(n) for n in _spread(found.sizes, sizes)}
    fits |= {
        f"dimension, θ = {t:.2g}": found.by_dimension.get(t)
        for t in _spread(shown_thresholds(found), thresholds)
    }
    fits |= {"KDE entropy": found.by_kde} if found.kde else {}
    return [
        [name, NOT_KNOWN, "no line", NOT_KNOWN]
        if fit is None
        else [name, f"{fit.slope.value:+.3g}", signed(fit.slope), f"{fit.r_squared:.3f}"]
        for name, fit in fits.items()
    ]


def verdict(found: IntrinsicEntropy) -> list[str]:
    """What was found, in words; each sentence follows from the numbers of the tables."""
    contexts, losses = found.contexts, found.losses
    first, last = losses[contexts[0]], losses[contexts[-1]]
    best = min(contexts, key=lambda context: losses[context].value)
    said = [
        f"Of the same {found.measurement.summary['samples']:,} tokens, the loss is {first.value:.4f} nats with {contexts[0]:,} "
        f"tokens visible and {last.value:.4f} with {contexts[-1]:,}{_difference(found)}; it is least with {best:,} "
        f"({losses[best].value:.4f})."
    ]
    if found.power is not None:
        power = found.power
        said.append(
            f"CE ≈ C₀ + C / l^γ with C₀ = {power.floor.value:.4f} {ends(power.floor)}, C = {power.scale.value:.3g} "
            f"{ends(power.scale)}, γ = {power.exponent.value:.3g} {ends(power.exponent)}, R² = {power.r_squared:.4f}."
        )
    if found.by_entropy:
        said.append(_direction(found))
    least = found.least_subspace_correlation()
    if least is not None:
        over = ends(correlation_estimate(least, len(contexts)))
        said.append(
            f"Between the entropies S_N of subspaces of at least {SHARE_OF_SUBSPACES:.0%} of the channels, the least "
            f"correlation over contexts is {least:.3f}{f' {over}' if over else ''} (the source: above 0.97)."
        )
    return said


def _difference(found: IntrinsicEntropy) -> str:
    between = found.differences.get(found.contexts[0])
    if between is None or between.low is None or between.high is None:
        return ""
    return f" (a difference of {between.value:.4f}, 95% interval over documents {interval(between.low, between.high)})"


def _direction(found: IntrinsicEntropy) -> str:
    lines = list(found.by_entropy.values())
    falls = sum(fit.slope.high is not None and fit.slope.high < 0 for fit in lines)
    rises = sum(fit.slope.low is not None and fit.slope.low > 0 for fit in lines)
    squares = sorted(fit.r_squared for fit in lines)
    return (
        f"The source finds that the loss falls along a line as S_N grows. Here, of {len(lines):,} values of N, it falls at "
        f"{falls:,}, rises at {rises:,}, and at {len(lines) - falls - rises:,} the interval of the slope includes zero; the "
        f"median R² is {squares[len(squares) // 2]:.3f}."
    )


def terminal(found: IntrinsicEntropy) -> RenderableType:
    """The table by context, the fits and the notes, for 80 columns."""
    head, rows = measures(found, sizes=2, thresholds=2)
    by_context = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in head:
        by_context.add_column(title.replace(", ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        by_context.add_row(*row)
    lines = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("loss against", "slope", "95% interval", "R²"):
        lines.add_column(title, justify="left" if title == "loss against" else "right")
    for row in line_rows(found, sizes=3, thresholds=3):
        lines.add_row(*row)
    summary = found.measurement.summary
    heading = (
        f"{summary['model']} on {summary['label']}: {summary['samples']:,} tokens of {summary['documents']:,} documents, each "
        f"predicted from the nearest tokens only; {summary['width']:,} channels, "
        f"{'centred' if summary['centred'] else 'not centred'}."
    )
    parts: list[RenderableType] = [_sentence(heading), by_context, lines]
    parts += [_sentence(text) for text in verdict(found)]
    parts += [_sentence(f"Note: {note}") for note in found.notes]
    return Group(*parts)


def _sentence(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 1))


def ends(estimate: Estimate) -> str:
    return "" if estimate.low is None or estimate.high is None else interval(estimate.low, estimate.high)


def signed(estimate: Estimate) -> str:
    return "" if estimate.low is None else f"[{estimate.low:+.3g}, {estimate.high:+.3g}]"


def _spread(values: Sequence[Any], count: int) -> list[Any]:
    """``count`` of the values, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
