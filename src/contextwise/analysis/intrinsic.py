"""Analysis of an entropy measurement: intrinsic entropies, dimensions, and fits of the loss over them.

Source: intrinsic entropy, Sections 2.2.2, C.2 and J.2. Everything is joined by context length. Entropies and losses in nats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from contextwise.analysis.density import (
    density_directions,
    further_dimensions,
    kde_entropy,
    leading_directions,
)
from contextwise.analysis.fits import LineFit, PowerFit, correlations, fit_line, fit_power
from contextwise.analysis.spectra import (
    THRESHOLDS,
    chosen_sizes,
    intrinsic_dimensions,
    intrinsic_entropies,
    shared_rank,
)
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import Estimate, as_json
from contextwise.evaluation.measures.entropy import EntropyResult

ByContext = dict[int, float]
K = TypeVar("K")
T = TypeVar("T")
SHARE_OF_SUBSPACES = 0.1
"""Subspaces from this share of the channels on enter the least correlation; S of a few directions is mostly noise."""


@dataclass(frozen=True)
class IntrinsicEntropy:
    """Entropies, dimensions and fits of one measurement.

    Attributes:
        losses: context -> cross entropy with its interval over documents.
        differences: context -> cross entropy minus that at the longest context, of the same targets, with its interval; for
            every context but the longest.
        spectra: context -> (D,) eigenvalues, the largest first.
        entropies: N -> context -> S_N, for every N from 2 to the least rank of the spectra.
        sizes: the N in tables.
        dimensions: threshold -> context -> intrinsic dimension.
        kde: context -> Gaussian-KDE entropy over ``directions`` leading directions; empty where it does not exist.
        kde_with_own: the same with each point in its own density, as in the source.
        further: estimator of scikit-dimension -> context -> dimension.
        power: fit of the loss over context; None with the reason among :attr:`notes`.
        by_entropy: N -> fit of the loss over S_N, for every N where it can be fitted.
        by_dimension: threshold -> fit of the loss over the dimension.
        by_kde: fit of the loss over the KDE entropy.
        correlation: Pearson's, over contexts, between ``names``: ``−CE``, ``S_N``, and ``KDE`` where there is one.
    """

    measurement: EntropyResult
    losses: dict[int, Estimate]
    differences: dict[int, Estimate]
    spectra: dict[int, np.ndarray]
    entropies: dict[int, ByContext]
    sizes: list[int]
    dimensions: dict[float, ByContext]
    kde: ByContext
    kde_with_own: ByContext
    directions: int
    further: dict[str, ByContext]
    power: PowerFit | None
    by_entropy: dict[int, LineFit]
    by_dimension: dict[float, LineFit]
    by_kde: LineFit | None
    names: list[str]
    correlation: np.ndarray
    notes: list[str] = field(default_factory=list)

    @property
    def contexts(self) -> list[int]:
        return self.measurement.contexts

    def to_dict(self) -> dict[str, Any]:
        """Everything but the eigenvalues themselves, as JSON-ready values; contexts, N and thresholds are keys."""
        fits: dict[str, Any] = {"power": self.power, "by_kde": self.by_kde}
        by_entropy = {n: self.by_entropy[n] for n in self.sizes if n in self.by_entropy}
        fits = {name: fit for name, fit in fits.items() if fit is not None}
        values = {
            "measurement": self.measurement.summary,
            "losses": {context: loss.to_dict() for context, loss in self.losses.items()},
            "differences": {context: loss.to_dict() for context, loss in self.differences.items()},
            "entropies": {n: self.entropies[n] for n in self.sizes},
            "dimensions": self.dimensions,
            "kde": self.kde,
            "further_dimensions": self.further,
            "fits": fits | {"by_entropy": by_entropy, "by_dimension": self.by_dimension},
            "correlation": {"names": self.names, "values": self.correlation.tolist()},
            "notes": self.notes,
        }
        return as_json(values)

    def least_subspace_correlation(self) -> float | None:
        """The least correlation between S_N of two subspaces of at least a tenth of the channels (the source's: > 0.97)."""
        least = SHARE_OF_SUBSPACES * len(self.spectra[self.contexts[0]])
        rows = [i for i, name in enumerate(self.names) if name.startswith("S_") and int(name[2:]) >= least]
        return float(self.correlation[np.ix_(rows, rows)].min()) if len(rows) > 1 else None


def analyse(measurement: EntropyResult, bandwidth: float | None = None) -> IntrinsicEntropy:
    """Compute all results of a measurement; what its files do not allow becomes a note.

    Args:
        bandwidth: of the kernel density, in units of the features' own covariance; Scott's if None.

    Raises:
        ConfigError: the bandwidth is not positive.
        DataError: a file is damaged.
    """
    notes = list(measurement.summary["notes"])
    losses = _estimates(measurement.summary["losses"])
    means = measurement.losses()
    spectra = measurement.spectra()
    shared = shared_rank(spectra)
    sums = {context: intrinsic_entropies(values) for context, values in spectra.items()}
    entropies = {n: {context: float(s[n - 1]) for context, s in sums.items()} for n in range(2, shared + 1)}
    counts = {context: intrinsic_dimensions(values) for context, values in spectra.items()}
    dimensions = {
        threshold: {context: float(by_threshold[i]) for context, by_threshold in counts.items()}
        for i, threshold in enumerate(THRESHOLDS)
    }
    kept, width = measurement.summary["kept"], measurement.summary["width"]
    directions = density_directions(kept, min(width, shared))
    kde, with_own, further = _densities(measurement, directions, bandwidth, notes)
    sizes = chosen_sizes(shared)
    series = {"−CE": {context: -loss for context, loss in means.items()}}
    series |= {f"S_{n}": entropies[n] for n in sizes}
    series |= {"KDE": kde} if kde else {}
    names, correlation = _fit_or_note(notes, correlations, series) or ([], np.zeros((0, 0)))
    power = _fit_or_note(notes, fit_power, means)
    by_entropy = _lines(entropies, means, notes)
    fits = [fit for fit in (power, *by_entropy.values()) if fit is not None]
    if fits and len(fits[0].contexts) < 6:
        notes.append(
            f"The fits go through {len(fits[0].contexts)} contexts: so few points fit many curves, and a high R² is weak "
            "evidence."
        )
    if power is not None and not power.exponent.above(0.0):
        notes.append("The exponent of the power law is not determined: its interval reaches below zero.")
    return IntrinsicEntropy(
        measurement,
        losses,
        _estimates(measurement.summary["differences"]),
        spectra,
        entropies,
        sizes,
        dimensions,
        kde,
        with_own,
        directions,
        further,
        power,
        by_entropy,
        _lines(dimensions, means, []),
        _fit_or_note([], fit_line, kde, means) if kde else None,
        names,
        correlation,
        notes,
    )


def _estimates(rows: dict[str, dict[str, Any]]) -> dict[int, Estimate]:
    return {int(context): Estimate(**values) for context, values in rows.items()}


def _densities(
    measurement: EntropyResult, directions: int, bandwidth: float | None, notes: list[str]
) -> tuple[ByContext, ByContext, dict[str, ByContext]]:
    """Entropies by kernel density without and with the own point, and further dimensions, of the kept features."""
    kde: ByContext = {}
    with_own: ByContext = {}
    further: dict[str, ByContext] = {}
    for context in measurement.contexts:
        features_KD = measurement.features(context)
        points_KM = leading_directions(features_KD, directions)
        try:
            kde[context] = kde_entropy(points_KM, bandwidth)
            with_own[context] = kde_entropy(points_KM, bandwidth, leave_one_out=False)
        except DataError as error:
            notes.append(f"There is no kernel density at a context of {context:,} tokens: {error}.")
        for name, value in further_dimensions(features_KD).items():
            further.setdefault(name, {})[context] = value
    return kde, with_own, further


def _lines(x: Mapping[K, ByContext], means: ByContext, notes: list[str]) -> dict[K, LineFit]:
    """Fit a line for each of ``x``; if none can be fitted, the reason becomes a note."""
    reasons: list[str] = []
    lines = {name: _fit_or_note(reasons, fit_line, values, means) for name, values in x.items()}
    notes += reasons[:1] if not any(lines.values()) else []
    return {name: line for name, line in lines.items() if line is not None}


def _fit_or_note(notes: list[str], fit: Callable[..., T], *values: Any) -> T | None:
    """Call a fit; on failure note the reason and return None."""
    try:
        return fit(*values)
    except ConfigError as error:
        sentence = str(error)
        notes.append(f"{sentence[0].upper()}{sentence[1:]}.")
    return None
