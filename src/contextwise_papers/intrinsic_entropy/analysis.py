"""Analysis of an entropy measurement: intrinsic entropies, dimensions, and fits of the loss over them.

Source: intrinsic entropy, Sections 2.2.2, C.2 and J.2. Everything is joined by context length. Entropies and losses in nats.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from contextwise.report import as_json
from contextwise.settings import ConfigError, DataError
from contextwise.stats import Estimate
from contextwise_papers.intrinsic_entropy.density import density_directions, kde_entropy, leading_directions
from contextwise_papers.intrinsic_entropy.entropy import EntropyResult
from contextwise_papers.intrinsic_entropy.fits import LineFit, PowerFit, correlations, fit_line, fit_power
from contextwise_papers.intrinsic_entropy.spectra import (
    THRESHOLDS,
    chosen_sizes,
    intrinsic_dimensions,
    intrinsic_entropies,
    shared_rank,
)

ByContext = dict[int, float]
K = TypeVar("K")
T = TypeVar("T")
SHARE_OF_SUBSPACES = 0.1
"""Subspaces from this share of the channels on enter the least correlation; S of a few directions is mostly noise."""


class IntrinsicEntropy:
    """Entropies, dimensions and fits of one measurement; what its files do not allow becomes a note.

    Attributes:
        differences: context -> cross entropy minus that at the longest context, for every context but the longest.
        spectra: context -> (D,) eigenvalues, the largest first.
        entropies: N -> context -> S_N, for every N from 2 to the least rank of the spectra; ``sizes`` are those in tables.
        dimensions: threshold -> context -> intrinsic dimension.
        kde: context -> Gaussian-KDE entropy over ``directions`` leading directions; empty where it does not exist.
        power, by_entropy, by_dimension, by_kde: fits of the loss over the context and over these.
        correlation: Pearson's, over contexts, between ``names``: ``−CE``, ``S_N``, and ``KDE`` where there is one.
    """

    def __init__(self, measurement: EntropyResult) -> None:
        summary, means = measurement.summary, measurement.losses()
        self.measurement, self.contexts = measurement, measurement.contexts
        self.notes: list[str] = list(summary["notes"])
        self.losses, self.differences = (
            {int(context): Estimate.from_dict(values) for context, values in summary[name].items()}
            for name in ("losses", "differences")
        )
        self.spectra = measurement.spectra()
        shared = shared_rank(self.spectra)
        sums = {context: intrinsic_entropies(values) for context, values in self.spectra.items()}
        self.entropies = {n: {c: float(s[n - 1]) for c, s in sums.items()} for n in range(2, shared + 1)}
        self.sizes = chosen_sizes(shared)
        counts = {context: intrinsic_dimensions(values) for context, values in self.spectra.items()}
        self.dimensions = {x: {c: float(of[i]) for c, of in counts.items()} for i, x in enumerate(THRESHOLDS)}
        self.directions = density_directions(summary["kept"], min(summary["width"], shared))
        self._estimate_densities()
        series = {"−CE": {context: -loss for context, loss in means.items()}}
        series |= {f"S_{n}": self.entropies[n] for n in self.sizes} | ({"KDE": self.kde} if self.kde else {})
        fit = _fit_or_note(self.notes, correlations, series)
        self.names: list[str]
        self.correlation: np.ndarray
        self.names, self.correlation = fit or ([], np.zeros((0, 0)))
        self.power: PowerFit | None = _fit_or_note(self.notes, fit_power, means)
        self.by_entropy = _lines(self.entropies, means, self.notes)
        self.by_dimension = _lines(self.dimensions, means, [])
        self.by_kde: LineFit | None = _fit_or_note([], fit_line, self.kde, means) if self.kde else None
        fits = [fit for fit in (self.power, *self.by_entropy.values()) if fit is not None]
        if fits and len(fits[0].contexts) < 6:
            self.notes.append(
                f"The fits go through {len(fits[0].contexts)} contexts: so few points fit many curves, and a high R² is weak "
                "evidence."
            )
        if self.power is not None and self.power.scale.value < 0:
            self.notes.append(
                "The losses rise with the context, so the power law's limit is above all of them, no loss that can be reached."
            )
        if self.power is not None and not self.power.exponent.above(0.0):
            self.notes.append("The exponent of the power law is not determined: its interval reaches below zero.")

    def _estimate_densities(self) -> None:
        """Entropies by kernel density of the kept features, without and with each point in its own density."""
        self.kde: ByContext = {}
        self.kde_with_own: ByContext = {}
        for context in self.contexts:
            points_KM = leading_directions(self.measurement.features(context), self.directions)
            try:
                self.kde[context] = kde_entropy(points_KM)
                self.kde_with_own[context] = kde_entropy(points_KM, leave_one_out=False)
            except DataError as error:
                self.notes.append(f"There is no kernel density at a context of {context:,} tokens: {error}.")

    def to_dict(self) -> dict[str, Any]:
        """Everything but the eigenvalues themselves, as JSON-ready values; contexts, N and thresholds are keys."""
        fits = {"power": self.power, "by_kde": self.by_kde}
        by_entropy = {n: self.by_entropy[n] for n in self.sizes if n in self.by_entropy}
        values = {name: getattr(self, name) for name in ("losses", "differences", "dimensions", "kde", "notes")}
        values |= {
            "measurement": self.measurement.summary,
            "entropies": {n: self.entropies[n] for n in self.sizes},
            "fits": {name: fit for name, fit in fits.items() if fit is not None}
            | {"by_entropy": by_entropy, "by_dimension": self.by_dimension},
            "correlation": {"names": self.names, "values": self.correlation},
        }
        return as_json(values)

    def least_subspace_correlation(self) -> float | None:
        """The least correlation between S_N of two subspaces of at least a tenth of the channels (the source's: > 0.97)."""
        least = SHARE_OF_SUBSPACES * len(self.spectra[self.contexts[0]])
        rows = [i for i, name in enumerate(self.names) if name.startswith("S_") and int(name[2:]) >= least]
        return float(self.correlation[np.ix_(rows, rows)].min()) if len(rows) > 1 else None


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
