"""Verdicts on what a document says, from estimates with intervals: it holds, it does not, or this scale cannot tell."""

from collections.abc import Iterable

import numpy as np
from scipy import stats

from contextwise.evaluation.metrics import CONFIDENCE, RESAMPLES, SEED, Estimate


def above(found: Estimate, bound: float = 0.0) -> bool | None:
    """Whether an interval lies above a bound: True, False where it lies below, None where the bound is inside or unknown."""
    if found.low is None or found.high is None or found.low <= bound <= found.high:
        return None
    return found.low > bound


def all_hold(verdicts: Iterable[bool | None]) -> bool | None:
    """Of several: False if one is, True if all are, else None; None of none."""
    found = list(verdicts)
    if False in found:
        return False
    return True if found and None not in found else None


def mean_of(values: np.ndarray) -> Estimate:
    """The mean with its 95% bootstrap interval over the values; without one for a single value or values that are all equal."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0:
        return Estimate(float(values.mean()))
    ends = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Estimate(float(values.mean()), float(ends.low), float(ends.high))


def share_of(count: int, total: int) -> Estimate:
    """``count`` of ``total`` as a share, with the 95% interval of Wilson."""
    ends = stats.binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(count / total, float(ends.low), float(ends.high))


def shown(found: Estimate, digits: int = 3, sign: str = "") -> str:
    """``0.981 [0.950, 0.993]``."""
    form = f"{sign}.{digits}f"
    ends = "" if found.low is None or found.high is None else f" [{found.low:{form}}, {found.high:{form}}]"
    return f"{found.value:{form}}{ends}"


def point(x: float, found: Estimate) -> dict[str, float]:
    """A point of a :class:`~contextwise.reproductions.item.Plot`."""
    ends = {} if found.low is None or found.high is None else {"low": found.low, "high": found.high}
    return {"x": x, "y": found.value, **ends}
