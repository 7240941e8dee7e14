"""Losses and spectra of a real model at several visible contexts: intrinsic entropy, Figures 1, 2, 3, 10, 11, 13 and 15.

All share one measurement (:mod:`contextwise_papers.intrinsic_entropy.entropy`) in the folder of the reproduction; each item
reports the view of its figure: tables, claims and plots. Whether a line holds is decided by the 95% interval of its correlation
over contexts (Fisher's transformation), which is wide over few contexts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from contextwise.report import Table, written
from contextwise.settings import ConfigError, validate
from contextwise.stats import Estimate, correlation_estimate, mean_estimate
from contextwise_papers.claims import Claim, Verdict, above, all_hold, below, exact, undecided, within
from contextwise_papers.intrinsic_entropy.analysis import SHARE_OF_SUBSPACES, IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.entropy import Entropy
from contextwise_papers.intrinsic_entropy.fits import LineFit, fit_line
from contextwise_papers.intrinsic_entropy.spectra import (
    ExponentialRegime,
    exponential_regime,
    increments,
    relative_eigenvalues,
)
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import GivenModel
from contextwise_papers.tables import Plot, points, seeds_behind, table_of

LOSS = "cross entropy, nats per token"
MOST_POINTS = 120
"""Points of a spectrum, evenly spaced in the logarithm of the index; ``spectra.parquet`` of the result has them all."""
CORRELATION = 0.97
"""Of a line, at least: the document's Figure 1 says > 0.97. For the bounds of the other claims it gives no number."""
LEAST_FIT = 0.99
"""R² of the power law."""
SPREAD = 0.5
"""Relative, about the median: half of even increments."""
DECAY = 0.1
"""Relative difference of α_l to α that counts as none."""
SLOPE = 0.2
"""Relative difference to the slope of Eq. 37 that counts as none."""
View = tuple[list[Table], list[Claim], list[Plot]]


class RealEntropy(GivenModel, name="real_entropy"):
    """The same held-out tokens predicted from the nearest l tokens, for each context l."""

    several: ClassVar = True
    show: Literal["entropy", "context", "spectra", "density", "dimension", "regimes"] = Field(
        description="the figure: loss against S_N, loss against context, eigenvalues, kernel density, loss against dimension; "
        "or the decay of the eigenvalues"
    )
    contexts: list[int] = Field(min_length=4, description="visible tokens")
    samples: int = Field(ge=50, description="tokens to predict, the same at each context")
    kept: int = Field(default=2000, ge=2, description="features that the kernel density is of")
    well_trained: bool = Field(default=True, description="whether the law applies; if not, no claim fails")

    @model_validator(mode="after")
    def _several_seeds(self) -> "RealEntropy":
        if self.models > 1 and self.show != "regimes":
            raise ConfigError(
                f"seeds are several, but show: {self.show} is of one model; give one seed, or show: regimes"
            )
        return self

    @field_validator("contexts")
    @classmethod
    def _contexts(cls, contexts: list[int]) -> list[int]:
        return sorted(validate(Entropy, {"contexts": contexts}, "").contexts)

    def tokens_read(self) -> int:
        return self.samples * sum(self.contexts)

    def measure(self, item: Item, folder: Path) -> Outcome:
        settings = self.settings_of(Entropy, "contexts", "samples", density_samples=self.kept)
        entropies = [IntrinsicEntropy(self.measured(settings, folder, index)) for index in range(self.models)]
        entropy = entropies[0]
        summary = entropy.measurement.summary
        if self.show == "regimes":
            tables, claims, plots = regimes_view(entropies)
        else:
            tables, claims, plots = VIEWS[self.show](entropy)
        if not self.model:  # it was trained here
            if not self.well_trained:
                # The claims are on models near the Bayes model (Appendix G); for another one a failure is no evidence.
                reason = "fails for this small model, to which the document's claim does not apply"
                claims = [claim.without_refutation(reason) for claim in claims]
            claims = [claim.over_seeds(self.models) for claim in claims]
        about = [
            ["model", Path(summary["model"]).name],
            ["parameters", f"{summary['parameters']:,}"],
            ["targets, documents", f"{summary['samples']:,}, {summary['documents']:,}"],
            ["channels", f"{summary['width']:,}"],
            *(["note", note] for note in entropy.notes),
        ]
        figures = {
            "contexts": entropy.contexts,
            "losses": entropy.losses,
            "entropies": {n: entropy.entropies[n] for n in entropy.sizes},
            "measurement": entropy.measurement.path.name,
        }
        tables.append(Table("What was measured", ["", ""], about))
        return Outcome(tables, claims, figures, self.run_set(folder).paths, plots)


def entropy_view(entropy: IntrinsicEntropy) -> View:
    """Figures 1 and 13: the loss against S_N for several N, and how S_N of several subspaces and the loss correlate."""
    count = len(entropy.contexts)
    lines = {n: entropy.by_entropy[n] for n in entropy.sizes if n in entropy.by_entropy}
    columns = ["N", ("k", ".4f"), ("R²", ".4f"), ("−correlation", ".3f")]
    rows = [[n, *_line_cells(line, count)] for n, line in lines.items()]
    tables = [table_of("CE = k S_N + b over contexts, with 95% intervals", columns, rows)]
    columns = ["", *((name, ".3f") for name in entropy.names)]
    rows = [[name, *row] for name, row in zip(entropy.names, entropy.correlation, strict=True)]
    tables.append(table_of("Correlations over contexts", columns, rows))
    least = SHARE_OF_SUBSPACES * entropy.measurement.summary["width"]
    correlations = {n: -line.correlation for n, line in entropy.by_entropy.items() if n >= least}
    between = entropy.least_subspace_correlation()
    claims = [
        _all_linear(
            f"the loss is linear in S_N, falling, with a correlation above {CORRELATION:g}, for every subspace of a "
            "tenth of the channels or more",
            correlations, count, "N",
        ),
        _correlated(f"entropies of different subspaces correlate by more than {CORRELATION:g}", between, count),
    ]  # fmt: skip
    # S_N means something up to a constant; without it the lines of all N are seen side by side.
    first = entropy.contexts[0]
    series = {}
    for n in entropy.sizes:
        own = entropy.entropies[n]
        series[f"N = {n}"] = against({c: s - own[first] for c, s in own.items()}, entropy.measurement.losses())
    label = f"S_N minus S_N at {first:,} tokens, nats"
    return tables, claims, [Plot("Loss against intrinsic entropy", label, LOSS, series)]


def context_view(entropy: IntrinsicEntropy) -> View:
    """Figures 2 and 11: the loss against the context, and the power law through it (Eq. 3)."""
    fit, longest = entropy.power, f"{entropy.contexts[-1]:,}"
    fitted = np.full(len(entropy.contexts), None) if fit is None else fit.at(np.array(entropy.contexts))
    columns = [("context", ","), ("loss", ".4f"), ("C0 + C/l^γ", ".4f"), (f"minus that at {longest}", "+.4f")]
    rows = [
        [context, entropy.losses[context], by_law, entropy.differences.get(context)]
        for context, by_law in zip(entropy.contexts, fitted, strict=True)
    ]
    tables = [table_of(f"{LOSS}, with 95% intervals over documents", columns, rows)]
    series = {"measured": points({c: entropy.losses[c] for c in entropy.contexts})}
    verdict = undecided("no power law has its optimum here: the losses do not level off")
    evidence = ""
    if fit is not None:
        rows = [["C0", fit.floor], ["C", fit.scale], ["γ", fit.exponent], ["R²", f"{fit.r_squared:.5f}"]]
        tables.append(table_of("CE = C0 + C / l^γ, with 95% intervals", ["", ("ours", ".3f")], rows))
        x = np.geomspace(entropy.contexts[0], entropy.contexts[-1], 40)
        series["C0 + C/l^γ"] = points(dict(zip(x.tolist(), fit.at(x).tolist(), strict=True)))
        fits = fit.r_squared >= LEAST_FIT and fit.scale.value > 0  # else the losses rise
        verdict = above(fit.exponent) if fits else exact(False, fit.r_squared)
        evidence = f"R² {fit.r_squared:.5f}, γ {fit.exponent:.3f}"
    falls = all_hold(above(more) for more in entropy.differences.values())
    least = min(entropy.differences.items(), key=lambda pair: pair[1].value, default=None)
    nearest = "one context" if least is None else f"least at {least[0]:,}: {least[1]:+.4f} nats"
    claims = [
        Claim.of("the loss falls as the context grows, as C0 + C/l^γ", verdict, evidence),
        Claim.of(f"at every shorter context the loss is above that at {longest} tokens", falls, nearest),
    ]
    return tables, claims, [Plot("Loss against context", "visible tokens", LOSS, series, logarithmic="x")]


def spectra_view(entropy: IntrinsicEntropy) -> View:
    """Figure 3: relative eigenvalues at each context, and by how much they grow with it."""
    logarithms = {context: np.log1p(values) for context, values in increments(entropy.spectra).items()}
    noise = 2 / np.sqrt(entropy.measurement.summary["samples"])
    # Relative to the largest eigenvalue, whose own chance is that of all of them.
    quartiles = {c: np.quantile(values[1:], [0.25, 0.5, 0.75]) for c, values in logarithms.items()}
    columns = [(name, "+.4f") for name in ("lower quartile", "median", "upper quartile")]
    table = table_of(
        f"ln of the growth of relative eigenvalues since a context of {entropy.contexts[0]:,}, over directions",
        [("context", ","), "directions", *columns],
        [[c, len(logarithms[c]) - 1, *of_context] for c, of_context in quartiles.items()],
    )
    last = entropy.contexts[-1]
    low, middle, high = (float(value) for value in quartiles[last])
    even = exact(middle > 0 and (high - low) / 2 <= SPREAD * middle, middle)
    if abs(middle) < 2 * noise:
        even = undecided("the median is within chance")
    listed = ", ".join(f"{c:,}: {written(of_context[1], '+.3f')}" for c, of_context in quartiles.items())
    claims = [
        Claim.of(
            "the longer the context, the larger the relative eigenvalues",
            _grows([0.0, *(float(of_context[1]) for of_context in quartiles.values())], noise),
            f"median of ln growth: {listed}; an eigenvalue's own chance is about {noise:.3f}",
        ),
        Claim.of(
            "relative eigenvalues grow by about the same factor in all directions",
            even,
            f"at {last:,} tokens half of the directions lie between {written(low, '+.3f')} and {written(high, '+.3f')}, "
            f"the median is {written(middle, '+.3f')}",
        ),
    ]
    grown = {f"{c:,} tokens": curve(values) for c, values in logarithms.items()}
    label = f"ln growth since {entropy.contexts[0]:,} tokens"
    plots = [eigenvalues(entropy), Plot("Their growth", "index i", label, grown, logarithmic="x")]
    return [table], claims, plots


def density_view(entropy: IntrinsicEntropy) -> View:
    """Figure 10: entropy by a Gaussian kernel density against S_N, the dimension and the loss."""
    count = len(entropy.contexts)
    kde = {c: entropy.kde[c] for c in entropy.contexts if c in entropy.kde}
    table = table_of(
        f"Kernel density over {entropy.directions} leading directions, nats",
        [("context", ","), ("entropy", ".3f"), ("with its own point", ".3f"), ("loss", ".4f")],
        [
            [c, kde.get(c, "none"), entropy.kde_with_own.get(c, float("nan")), entropy.losses[c].value]
            for c in entropy.contexts
        ],
    )
    with_entropy = {n: _correlation(kde, entropy.entropies[n]) for n in entropy.sizes}
    with_dimension = {t: _correlation(kde, values) for t, values in entropy.dimensions.items()}
    by_loss = None if entropy.by_kde is None else -entropy.by_kde.correlation
    claims = [
        _all_linear("entropy by kernel density is linear in S_N", with_entropy, count, "N"),
        _all_linear("and in the intrinsic dimension", with_dimension, count, "θ"),
        _correlated("and the loss falls linearly with it", by_loss, count),
    ]
    label = "entropy, nats"
    against_entropy = {f"N = {n}": against(entropy.entropies[n], kde) for n in entropy.sizes}
    plots = [
        Plot("Loss against entropy by kernel density", label, LOSS, {"": against(kde, entropy.measurement.losses())}),
        Plot("Kernel density against S_N", "S_N, nats", label, against_entropy),
    ]
    return [table], claims, plots


def dimension_view(entropy: IntrinsicEntropy) -> View:
    """Figure 15: the loss against the number of relative eigenvalues above a threshold, for 20 thresholds."""
    count, ends = len(entropy.contexts), (entropy.contexts[0], entropy.contexts[-1])
    rows = []
    for threshold, dimensions in entropy.dimensions.items():
        line = entropy.by_dimension.get(threshold)
        cells = ["the same at all", "", ""] if line is None else _line_cells(line, count)
        rows.append([threshold, *(dimensions[context] for context in ends), *cells])
    table = table_of(
        f"Intrinsic dimension, and CE = k ID + b over {count} contexts, with 95% intervals",
        [("threshold", ".4f"), *((f"ID at {context:,}", ".0f") for context in ends), ("k", ".5f"), ("R²", ".4f"),
         ("−correlation", ".3f")],
        rows,
    )  # fmt: skip
    lines = {threshold: -line.correlation for threshold, line in entropy.by_dimension.items()}
    left = len(entropy.dimensions) - len(lines)
    claim = _all_linear(
        "whatever the threshold, the loss is linear in the intrinsic dimension, falling"
        + (f" ({left} thresholds count the same at every context)" if left else ""),
        lines, count, "θ",
    )  # fmt: skip
    series = {f"{t:.3f}": against(entropy.dimensions[t], entropy.measurement.losses()) for t in list(lines)[::4]}
    by_threshold = Plot("Loss against dimension, by threshold", "intrinsic dimension", LOSS, series)
    return [table], [claim], [eigenvalues(entropy), by_threshold]


def regimes_view(entropies: Sequence[IntrinsicEntropy]) -> View:
    """Sections J.2 and J.4: the decay of eigenvalues at each context, and the slope s = m α that follows (Eq. 36, 37).

    Of one model, or of several that differ in their seed: then the intervals are over seeds. A single model's are those of the
    lines through its eigenvalues and contexts.

    The document's γ(l), of the fitted decays at index 0, is relative to an infinite context, ours to the longest one, at which
    ln γ is 0. Where the α_l differ it is not the growth of the regime, whose mean over the directions stands beside it.
    """
    regimes = [exponential_regime(entropy.spectra) for entropy in entropies]
    contexts, directions = entropies[0].contexts, regimes[0].directions
    decay = {c: _mean([-regime.decay[c].slope for regime in regimes]) for c in contexts}
    relative = {c: _mean([-regime.decay[c].slope.scaled(1 / regime.alpha) for regime in regimes]) for c in contexts}
    zipf = {c: _mean([-regime.zipf[c].slope for regime in regimes]) for c in contexts}
    growth = {c: _mean([Estimate(regime.growth[c]) for regime in regimes]) for c in contexts}
    prefactors = {c: _mean([Estimate(regime.prefactors[c]) for regime in regimes]) for c in contexts}
    fits = {
        c: (fmean(r.zipf[c].r_squared for r in regimes), fmean(r.decay[c].r_squared for r in regimes)) for c in contexts
    }
    rows = [[c, zipf[c], fits[c][0], decay[c], relative[c], fits[c][1], prefactors[c], growth[c]] for c in contexts]
    columns = [("context", ","), ("Zipf exponent", ".3f"), ("R²", ".3f"), ("α_l", ".5f"), ("α_l / α", ".3f"),
               ("R² of it", ".3f"), ("ln γ(l)", "+.4f"), ("mean growth", "+.4f")]  # fmt: skip
    title = f"Eigenvalues; exponential from i = {directions[0]} to {directions[-1]} ({seeds_behind(len(regimes))})"
    alpha = fmean(regime.alpha for regime in regimes)
    ends = min(relative.values(), key=lambda e: e.value), max(relative.values(), key=lambda e: e.value)
    claims = [
        Claim.of(
            f"the exponential decay is the same at every context: α_l is within {DECAY:.0%} of α",
            all_hold(within(each, 1 - DECAY, 1 + DECAY) for each in relative.values()),
            f"α = {alpha:.5f}; α_l / α from {ends[0]:.3f} to {ends[1]:.3f}",
        ),
        Claim.of(
            "relative eigenvalues of the regime grow with the context: their mean logarithm is lower before the longest",
            all_hold(below(growth[c]) for c in contexts[:-1]),
            f"at {contexts[0]:,} tokens {growth[contexts[0]]:+.4f}; ln γ({contexts[0]:,}) = {prefactors[contexts[0]]:+.4f}",
        ),
    ]
    tables, claim = _slopes_by_dimension(entropies, regimes)
    return [table_of(title, columns, rows), *tables], [*claims, claim], [eigenvalues(entropies[0])]


def _slopes_by_dimension(
    entropies: Sequence[IntrinsicEntropy], regimes: Sequence[ExponentialRegime]
) -> tuple[list[Table], Claim]:
    """Slopes of the loss over the dimension beside those of Eq. 37, at the thresholds that all models have in the regime."""
    text = (
        f"the loss falls with the dimension s = m α times as fast as with the regime's entropy, within {SLOPE:.0%} "
        "(Eq. 37)"
    )
    lines: list[dict[float, LineFit]] = []
    expected: list[float] = []
    try:
        for entropy, regime in zip(entropies, regimes, strict=True):
            losses = {context: loss.value for context, loss in entropy.losses.items()}
            expected.append(fit_line(regime.entropies(), losses).slope.value * regime.scale)
            dimensions = regime.dimensions(entropy.spectra)
            lines.append({t: fit_line(row, losses) for t, row in dimensions.items() if len(set(row.values())) > 1})
    except ConfigError as error:
        return [], Claim.of(text, undecided(str(error)))
    shared = [t for t in lines[0] if all(t in of_model for of_model in lines)]
    ratios = {
        t: _mean([_over(own[t].slope, by_law) for own, by_law in zip(lines, expected, strict=True)]) for t in shared
    }
    rows = [
        [t, _mean([own[t].slope for own in lines]), fmean(own[t].r_squared for own in lines), ratio]
        for t, ratio in ratios.items()
    ]
    scale = fmean(regime.scale for regime in regimes)
    table = table_of(
        f"Slope of the loss over the dimension; by Eq. 37 it is {fmean(expected):.5f}, from s = m α = {scale:.3f}",
        [("threshold", ".4f"), ("slope", ".5f"), ("R²", ".3f"), ("over that of Eq. 37", ".3f")],
        rows,
    )
    verdict = all_hold(within(ratio, 1 - SLOPE, 1 + SLOPE) for ratio in ratios.values())
    return [table], Claim.of(text, verdict, f"{len(shared)} thresholds in the regime")


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over models with its interval over them; a single one's own estimate."""
    return estimates[0] if len(estimates) == 1 else mean_estimate(np.array([each.value for each in estimates]))


def _over(estimate: Estimate, divisor: float) -> Estimate:
    return estimate.scaled(1 / divisor) if divisor > 0 else (-estimate).scaled(-1 / divisor)


VIEWS: dict[str, Callable[[IntrinsicEntropy], View]] = {
    "entropy": entropy_view,
    "context": context_view,
    "spectra": spectra_view,
    "density": density_view,
    "dimension": dimension_view,
}


def eigenvalues(entropy: IntrinsicEntropy) -> Plot:
    """Relative eigenvalues at each context (Figure 3, left)."""
    spectra = {f"{c:,} tokens": curve(relative_eigenvalues(values)) for c, values in entropy.spectra.items()}
    return Plot("Relative eigenvalues", "index i", "λ_i / λ_1", spectra, logarithmic="xy")


def curve(values: Iterable[float]) -> list[dict[str, Any]]:
    """Values over their index, from 1 on, at most :data:`MOST_POINTS` of them."""
    kept = np.asarray(list(values), dtype=float)
    indices = np.unique(np.geomspace(1, len(kept), MOST_POINTS).round().astype(int)).tolist()
    return points({i: float(kept[i - 1]) for i in indices if np.isfinite(kept[i - 1])})


def against(x: Mapping[int, float], y: Mapping[int, float]) -> list[dict[str, Any]]:
    """What each context has of two things, as points from left to right."""
    marks = [{"x": x[c], "y": y[c], "text": f"{c:,} tokens"} for c in x if c in y]
    return sorted(marks, key=lambda mark: float(mark["x"]))


def _line_cells(line: LineFit, count: int) -> list[Any]:
    return [line.slope, line.r_squared, correlation_estimate(-line.correlation, count)]


def _all_linear(text: str, correlations: Mapping[Any, float | None], count: int, what: str) -> Claim:
    """Whether all correlations over ``count`` contexts that exist are above the bound; ``what`` names their keys."""
    known = {name: correlation_estimate(r, count) for name, r in correlations.items() if r is not None}
    if not known:
        return Claim.of(text, undecided("there is no line to decide it by"))
    name, least = min(known.items(), key=lambda pair: pair[1].value)
    name = f"{name:.4g}" if isinstance(name, float) else name
    evidence = f"least correlation {least:.3f}, at {what} = {name}; {len(known)} lines, {count} contexts"
    return Claim.of(text, all_hold(above(estimate, CORRELATION) for estimate in known.values()), evidence)


def _correlated(text: str, value: float | None, count: int) -> Claim:
    if value is None:
        return Claim.of(text, undecided("there is no correlation to decide it by"))
    correlation = correlation_estimate(value, count)
    return Claim.of(text, above(correlation, CORRELATION), f"{correlation:.3f}; {count} contexts")


def _grows(medians: list[float], noise: float) -> Verdict:
    """Whether the medians rise from one context to the next, and none falls below an earlier one by more than chance."""
    falls = np.array(medians) - np.maximum.accumulate(medians)
    if (falls >= -noise).all() and medians[-1] - medians[0] <= noise:
        return undecided("the growth is within chance")
    return exact(not (falls < -noise).any(), *medians)


def _correlation(x: Mapping[int, float], y: Mapping[int, float]) -> float | None:
    contexts = sorted(x.keys() & y.keys())
    rows = np.array([[values[c] for c in contexts] for values in (x, y)])
    if len(contexts) < 3 or (np.ptp(rows, axis=1) == 0).any():
        return None
    return float(np.corrcoef(rows)[0, 1])
