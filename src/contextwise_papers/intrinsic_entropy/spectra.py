"""Relative eigenvalues, intrinsic entropy and intrinsic dimension of a covariance of features.

Source: intrinsic entropy, Section 2.2.2 (entropy), Section J.2 (dimension), Figure 3 (increments). The source does not say
whether its covariances are centred; ours are.

Legend of shapes: D channels, and as many eigenvalues.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from contextwise.settings import ConfigError, DataError
from contextwise_papers.intrinsic_entropy.fits import LineFit, fit_line

THRESHOLDS = tuple(float(threshold) for threshold in np.geomspace(0.002, 0.25, 20))
"""20 thresholds from 0.002 to 0.25 (Section J.2, which does not say how they are spaced): here evenly in their logarithm."""
ZIPF, EXPONENTIAL = (5 / 4096, 1500 / 4096), (500 / 4096, 4000 / 4096)
"""Ranges in which the source sees a power law and an exponential decay, as shares of its 4,096 channels (Section J.2)."""
SMALLEST = 1e-12
"""Relative eigenvalues below this are rounding; their logarithm means nothing."""


def relative_eigenvalues(eigenvalues: np.ndarray) -> np.ndarray:
    """λ_i / λ_1 of a covariance's eigenvalues (D,), in any order: (D,), the largest first."""
    values = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1]
    if not len(values) or not np.isfinite(values).all() or values[-1] < 0:
        raise DataError("eigenvalues of a covariance must be finite and not negative; measure the features again")
    if values[0] == 0:
        raise DataError(
            "all eigenvalues are zero: the features do not vary from sample to sample, so they have no spectrum; "
            "choose another layer, or more documents"
        )
    return values / values[0]


def rank(eigenvalues: np.ndarray) -> int:
    """How many relative eigenvalues are above rounding."""
    return int((relative_eigenvalues(eigenvalues) > SMALLEST).sum())


def intrinsic_entropies(eigenvalues: np.ndarray) -> np.ndarray:
    """S_N = Σ_{i≤N} ln(λ_i / λ_1) in nats for N = 1, 2, …, up to the rank (intrinsic entropy, Figure 1).

    S_1 is zero, and S_N is the entropy of the leading N directions up to a constant, which is the same for all spectra.
    """
    values = relative_eigenvalues(eigenvalues)
    return np.cumsum(np.log(values[: rank(values)]))


def intrinsic_dimensions(eigenvalues: np.ndarray, thresholds: Iterable[float] = THRESHOLDS) -> np.ndarray:
    """How many directions have λ_i / λ_1 ≥ θ, for each threshold θ; int64 (thresholds,) (Section J.2)."""
    ascending = relative_eigenvalues(eigenvalues)[::-1]
    return len(ascending) - np.searchsorted(ascending, np.asarray(list(thresholds)), side="left")


def increments(spectra: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """By how much relative eigenvalues grow with context: r_i(l) / r_i(shortest) − 1 (Figure 3, right).

    Context -> (rank,), for every context but the shortest; the rank is the least of all spectra.
    """
    shared = shared_rank(spectra)
    shortest, *longer = sorted(spectra)
    reference = relative_eigenvalues(spectra[shortest])[:shared]
    return {context: relative_eigenvalues(spectra[context])[:shared] / reference - 1 for context in longer}


def shared_rank(spectra: Mapping[int, np.ndarray]) -> int:
    """The least rank of some spectra: up to here S_N exists for all of them."""
    return min(rank(values) for values in spectra.values())


def chosen_sizes(shared: int) -> list[int]:
    """Up to six N up to ``shared``, from 2 on, evenly spaced in their logarithm and rounded to two digits."""
    if shared < 2:
        return []
    sizes = np.geomspace(min(10, shared), shared, 6)
    rounded = {shared, *(int(float(f"{value:.2g}")) for value in sizes[:-1])}
    return sorted(value for value in rounded if 2 <= value <= shared)


@dataclass(frozen=True)
class ExponentialRegime:
    """The regime in which eigenvalues decay exponentially, alike at all contexts (Section J.4).

    Attributes:
        directions: indices i of the regime, from 1 on; the source's m is their number.
        zipf: context -> line of ln(λ_i / λ_1) over ln i in the regime before; minus its slope is the exponent.
        decay: context -> line of ln(λ_i / λ_1) over i; minus its slope is α_l.
        growth: context -> mean of ln(λ_i / λ_1) minus that at the longest context; ln γ(l) where all α_l are α (Eq. 36).
    """

    directions: range
    zipf: dict[int, LineFit]
    decay: dict[int, LineFit]
    growth: dict[int, float]

    @property
    def alpha(self) -> float:
        """α, the mean over contexts."""
        return -float(np.mean([line.slope.value for line in self.decay.values()]))

    @property
    def scale(self) -> float:
        """s = m α: the loss falls by so many times as much with the dimension as with the entropy of the regime (Eq. 37)."""
        return len(self.directions) * self.alpha

    @property
    def prefactors(self) -> dict[int, float]:
        """Context -> ln γ(l) as the source defines it: the fitted decays at the first index, over the longest context's."""
        first = {context: line.intercept.value + line.slope.value for context, line in self.decay.items()}
        return {context: value - first[max(first)] for context, value in first.items()}

    def entropies(self) -> dict[int, float]:
        """S of the regime's directions up to a constant, by context; m ln γ(l) where all α_l are α (Eq. 36)."""
        return {context: len(self.directions) * value for context, value in self.growth.items()}

    def dimensions(self, spectra: Mapping[int, np.ndarray]) -> dict[float, dict[int, float]]:
        """Threshold -> context -> dimension, for the thresholds that lie in the regime at every context."""
        first, last = self.directions[0], self.directions[-1]
        counted = {context: intrinsic_dimensions(values) for context, values in spectra.items()}
        rows = {t: {c: float(of[i]) for c, of in counted.items()} for i, t in enumerate(THRESHOLDS)}
        return {t: row for t, row in rows.items() if first <= min(row.values()) and max(row.values()) <= last}


def exponential_regime(spectra: Mapping[int, np.ndarray]) -> ExponentialRegime:
    """Fit the regimes of the spectra: context -> (D,) eigenvalues."""
    width, shared = len(next(iter(spectra.values()))), shared_rank(spectra)
    logs = {context: np.log(relative_eigenvalues(values)[:shared]) for context, values in spectra.items()}
    before, within = (
        range(max(2, math.ceil(low * width)), min(shared, int(high * width)) + 1) for low, high in (ZIPF, EXPONENTIAL)
    )

    if min(len(before), len(within)) < 3:
        raise ConfigError(
            f"the spectra have rank {shared}, and their regimes, at width {width}, begin at the directions {before.start} and "
            f"{within.start} and need three each; take more tokens or a wider model"
        )

    def line(values: np.ndarray, directions: range, scale: Callable[[float], float]) -> LineFit:
        return fit_line({i: scale(i) for i in directions}, {i: float(values[i - 1]) for i in directions})

    zipf = {context: line(values, before, math.log) for context, values in logs.items()}
    decay = {context: line(values, within, float) for context, values in logs.items()}
    means = {context: float(values[within[0] - 1 : within[-1]].mean()) for context, values in logs.items()}
    return ExponentialRegime(within, zipf, decay, {c: mean - means[max(means)] for c, mean in means.items()})
