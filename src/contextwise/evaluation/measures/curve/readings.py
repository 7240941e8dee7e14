"""Best-context loss, effective context and other readings of a context curve, with 95% intervals over documents.

- **Best-context loss**: the minimum of the binned curve (context scaling, Section 2), and the number of visible tokens at
  which it is reached. Its low-noise form is the mean over the last tenth of the training context (footnote 4), which is the
  same thing for models that do not generalise beyond it.
- **Effective context**: the smallest context from which the next doubling is worth less than a given number of nats, and
  stays so up to twice that context: one noisy bin does not decide.
- **Average loss**: the mean over all positions, which is what a trainer logs; it ranks models of different contexts wrongly.

Legend of shapes: D documents, K bins, R resamples.
"""

from typing import Any

import numpy as np

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import percentile_estimate, resampled_ratios
from contextwise.evaluation.measures.curve.sums import CurveSums


def curve_measures(sums: CurveSums, worth: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The bins and the measures of a curve, as they stand in ``summary.json``.

    Args:
        worth: nats that the next doubling of an effective context brings at most.
    """
    bins, average = sums.bins, sums.tail is not None
    columns = [sums.bin_nats, sums.bin_nats.sum(1, keepdims=True)]
    sizes = [sums.bin_targets, sums.bin_targets.sum(1, keepdims=True)]
    if sums.tail is not None:
        columns.append(sums.tail.nats[:, None])
        sizes.append(sums.tail.targets[:, None])
    nats, targets = np.hstack(columns), np.hstack(sizes).astype(float)
    losses = nats.sum(0) / targets.sum(0)
    drawn = resampled_ratios(nats, targets) if len(nats) > 1 else None
    found = [
        percentile_estimate(losses[i], None if drawn is None else drawn[:, i]) for i in range(len(losses))
    ]

    count = len(bins)
    rows = [
        {
            "visible_from": int(bins.low[k]),
            "visible_to": int(bins.high[k]),
            "loss": found[k].value,
            "low": found[k].low,
            "high": found[k].high,
            "targets": int(sums.bin_targets[:, k].sum()),
        }
        for k in range(count)
    ]
    curves = None if drawn is None else drawn[:, :count]
    measures = {
        "best_context_loss": best_context(sums, losses[:count], curves, found),
        "last_tenth": None,
        "effective_context": effective(sums, losses[:count], curves, worth),
        "average_loss": found[count].to_dict() if average else None,
    }
    if sums.tail is not None:
        ends = {"visible_from": sums.tail.low, "visible_to": sums.tail.high}
        measures["last_tenth"] = {**found[count + 1].to_dict(), **ends}
    return rows, measures


def best_context(
    sums: CurveSums, losses_K: np.ndarray, drawn_RK: np.ndarray | None, found: list[Estimate]
) -> dict[str, Any]:
    """The lowest bin: its loss with the interval of that bin, and where the lowest bin lies in the resamples."""
    bins, best = sums.bins, int(losses_K.argmin())
    context = percentile_estimate(
        bins.high[best], None if drawn_RK is None else bins.high[drawn_RK.argmin(1)], "nearest"
    )
    return {
        **found[best].to_dict(),
        "visible_from": int(bins.low[best]),
        "visible_to": int(bins.high[best]),
        "context": {name: None if end is None else int(end) for name, end in context.to_dict().items()},
    }


def effective(
    sums: CurveSums, losses_K: np.ndarray, drawn_RK: np.ndarray | None, worth: float
) -> dict[str, Any]:
    """The effective context; ``value`` is None where every doubling up to ``measured_to`` is worth more.

    An end that is None beside one that is a number lies beyond ``measured_to`` as well. One that equals ``measured_from`` may
    be smaller: no shorter context was measured.
    """
    centre = sums.bins.centre
    measured = centre[2 * centre <= centre[-1]]
    none = {"measured_from": None, "measured_to": None}
    if not len(measured):
        return {"value": None, "low": None, "high": None, **none, "worth": worth}
    value = effective_contexts(losses_K[None], centre, worth)[0]
    drawn = None if drawn_RK is None else effective_contexts(drawn_RK, centre, worth)
    reach = {"measured_from": float(measured[0]), "measured_to": float(measured[-1])}
    return {**percentile_estimate(value, drawn, "nearest").to_dict(), **reach, "worth": worth}


def effective_contexts(losses_RK: np.ndarray, centre_K: np.ndarray, worth: float) -> np.ndarray:
    """The smallest context l of each curve with less than ``worth`` nats for a doubling: (R,), infinite if there is none.

    That holds at l and at all measured contexts up to 2l. A curve is taken as straight between its bins on a logarithmic
    axis, and so is what a doubling is worth.
    """
    x = np.log2(centre_K)
    last = int((2 * centre_K <= centre_K[-1]).sum())  # bins whose doubling lies on the curve
    right = np.searchsorted(
        centre_K, 2 * centre_K[:last]
    )  # the doubled context lies between bins right - 1 and right
    share = (x[:last] + 1 - x[right - 1]) / (x[right] - x[right - 1])
    doubled = losses_RK[:, right - 1] * (1 - share) + losses_RK[:, right] * share
    gain = losses_RK[:, :last] - doubled
    end = np.searchsorted(centre_K[:last], 2 * centre_K[:last], side="right")
    above = np.cumsum(
        np.pad(gain >= worth, ((0, 0), (1, 0))), axis=1
    )  # doublings before each bin that are worth it
    below = above[:, end] == above[:, np.arange(last)]
    first = below.argmax(1)
    rows = np.arange(len(gain))
    before = np.maximum(first - 1, 0)
    drop = gain[rows, before] - gain[rows, first]
    part = np.where(first > 0, (gain[rows, before] - worth) / np.where(drop > 0, drop, 1), 1)
    found = 2 ** (x[before] + part * (x[first] - x[before]))
    return np.where(below.any(1), found, np.inf)
