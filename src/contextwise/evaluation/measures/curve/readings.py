"""Best-context loss, effective context and other readings of a context curve, with 95% intervals over documents.

- **Best-context loss**: the minimum of the binned curve (context scaling, Section 2), and the number of visible tokens at
  which it is reached. Its low-noise form is the mean over the last tenth of the training context (footnote 4), which is the
  same thing for models that do not generalise beyond it.
- **Effective context**: the smallest context from which on no doubling is worth a given number of nats.
- **Average loss**: the mean over all positions, which is what a trainer logs; it ranks models of different contexts wrongly.

Legend of shapes: D documents, K bins, R resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, Estimate
from contextwise.base.intervals import (
    Part,
    bootstrap_estimate,
    jackknife_estimate,
    leave_one_out,
    over_documents,
    ratio_difference,
    resampled_ratios,
    student_t,
)

if TYPE_CHECKING:  # which imports torch
    from contextwise.evaluation.measures.curve.passes import CurveSums


def curve_measures(sums: "CurveSums", worth: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The bins and the measures of a curve, in the format of ``summary.json``; ``worth`` is that of a doubling, in nats."""
    bins, tail, count = sums.bins, sums.tail, len(sums.bins)
    # Columns: the bins, all of them together, and the last tenth.
    nats, sizes = ([part, part.sum(1, keepdims=True)] for part in (sums.bin_nats, sums.bin_targets))
    if tail:
        nats, sizes = [*nats, tail.nats[:, None]], [*sizes, tail.targets[:, None]]
    all_nats, all_sizes = np.hstack(nats), np.hstack(sizes).astype(float)
    losses = all_nats.sum(0) / all_sizes.sum(0)
    left_out = leave_one_out(all_nats, all_sizes)
    estimates = [jackknife_estimate(loss, left_out[:, i], all_sizes[:, i]) for i, loss in enumerate(losses)]
    limits = [
        {"visible_from": int(low), "visible_to": int(high)} for low, high in zip(bins.low, bins.high, strict=True)
    ]
    targets = sums.bin_targets.sum(0).tolist()
    rows: list[dict[str, Any]] = [
        {**limits[k], "loss": loss.value, "low": loss.low, "high": loss.high, "targets": targets[k]}
        | _minus_longest(all_nats[:, :count], all_sizes[:, :count], k)
        for k, loss in enumerate(estimates[:count])
    ]
    curves, documents = resampled_ratios(all_nats[:, :count], all_sizes[:, :count]), len(all_nats)
    best = int(losses[:count].argmin())
    lowest = lowest_estimate(estimates[best], curves.min(axis=1), documents)
    measures = {
        "lowest_bin": {**lowest.to_dict(), **limits[best]},
        "best_context_loss": None,
        "effective_context": effective_context(
            bins.centre, losses[:count], left_out[:, :count], all_sizes[:, :count], worth
        ),
        "average_loss": estimates[count].to_dict() if tail else None,
    }
    if tail:
        of_tail = {"visible_from": tail.low, "visible_to": tail.high}
        measures["best_context_loss"] = {**estimates[count + 1].to_dict(), **of_tail}
    return rows, measures


def _minus_longest(nats_DK: np.ndarray, sizes_DK: np.ndarray, k: int) -> dict[str, float | None]:
    """The loss of a bin minus that of the longest context, paired by document; None for the longest itself."""
    columns_2DK = np.stack([nats_DK, sizes_DK])
    last = columns_2DK.shape[2] - 1
    found = ratio_difference(columns_2DK[:, :, k], columns_2DK[:, :, last]) if k < last else None
    values = (None, None, None) if found is None else (found.value, found.low, found.high)
    return dict(zip(("minus_longest", "minus_longest_low", "minus_longest_high"), values, strict=True))


def lowest_estimate(fixed: Estimate, drawn_R: np.ndarray, documents: int) -> Estimate:
    """The loss ``fixed`` of the lowest bin, or a difference of two, with an interval over documents that draws the bin again.

    Which bin is lowest is a reading of the same documents, and the lowest of several is below what it would be on others. It is
    so once more in each resample ``drawn_R``, whose quantiles are therefore mirrored in the value (the basic bootstrap). Of few
    documents of unequal sizes these are skewed, and may lie within the t-interval of the bin itself: the result holds both
    intervals.
    """
    if documents < FEWEST_DOCUMENTS:
        return fixed
    drawn, value = bootstrap_estimate(fixed.value, drawn_R, documents, freedom=fixed.degrees_of_freedom), fixed.value
    low, high = drawn.limits
    lows, highs = [2 * value - high, value], [2 * value - low, value]
    if fixed.has_interval:
        lows, highs = [*lows, fixed.limits[0]], [*highs, fixed.limits[1]]
    return replace(drawn, low=min(lows), high=max(highs))


def effective_context(
    centre_K: np.ndarray, losses_K: np.ndarray, left_out_DK: np.ndarray, sizes_DK: np.ndarray, worth: float
) -> dict[str, Any]:
    """The effective context; ``value`` is None where every doubling up to ``measured_to`` is worth more.

    A limit that is None beside one that is a number lies beyond ``measured_to`` as well. One that equals ``measured_from`` may
    be smaller: no shorter context was measured.

    Resamples would not do for an interval: the noise of many doublings makes some of them seem worth it, in each resample once
    more. The context is smaller than the lower limit only if doublings behind it that are not worth it seem so at the level of
    all tests together (Bonferroni): of each of the L doublings, and of all of them from each context to the longest, of which
    one is worth it if they are in the mean. It is larger than the upper limit only if the last that is worth it does not seem
    so.

    For the same reason the value is not that of the measured gains: among many, one far behind the effective context is often
    worth it by noise. It is that of the gains which fall with the context and are nearest to them (isotonic regression, by
    their variances), or else the limit that this exceeds.
    """
    from scipy.optimize import isotonic_regression  # takes a third of a second, which few commands need

    doublings = Doublings(centre_K)
    if not (count := len(doublings.start_L)):
        unknown = dict.fromkeys(("value", "low", "high", "measured_from", "measured_to"))
        return {**unknown, "worth": worth}
    gain_L = doublings.gains(losses_K[None])[0]
    measured = centre_K[doublings.start_L]
    about = {"measured_from": float(measured[0]), "measured_to": float(measured[-1]), "worth": worth}
    if len(left_out_DK) < FEWEST_DOCUMENTS:
        return {**Estimate(float(doublings.effective(gain_L[None], worth)[0])).to_dict(), **about}
    parts, to_longest = doublings.parts(losses_K, left_out_DK, sizes_DK), Doublings(centre_K, to_longest=True)
    tests = count + (to_longest.times_L > 1).sum()  # a single doubling to the longest is tested once
    together = 1 - (1 - CONFIDENCE) / tests
    alone, lower = _reach(parts, CONFIDENCE), gain_L - _reach(parts, together)
    lower_mean = to_longest.gains(losses_K[None])[0] - _reach(
        to_longest.parts(losses_K, left_out_DK, sizes_DK), together
    )
    falling_L = isotonic_regression(gain_L, weights=np.clip(alone, 1e-9, 1e9) ** -2, increasing=False).x
    low, low_mean, value, high = doublings.effective(np.array([lower, lower_mean, falling_L, gain_L + alone]), worth)
    low = max(low, low_mean)
    high = max(low, high)
    estimate = Estimate(
        float(min(max(value, low), high)), float(low), float(high), method="t", documents=len(left_out_DK)
    )
    return {**estimate.to_dict(), **about}


def _reach(parts: Sequence[Part | None], confidence: float) -> np.ndarray:
    """Half the widths of t-intervals at a level; infinite where the spread over documents is unknown."""
    return np.array(
        [math.inf if part is None else student_t(part.freedom, confidence) * math.sqrt(part.variance) for part in parts]
    )


class Doublings:
    """What each doubling of the context is worth, between K bins at ``centre_K``, from the L bins ``start_L``.

    A curve is taken as straight between its bins on a logarithmic axis, and so is what a doubling is worth. ``right_L`` is the
    first bin at or behind the doubled context; with ``to_longest``, at or behind the context doubled ``times_L``, as often as
    the longest one allows, and what a doubling is worth is the mean of these.
    """

    def __init__(self, centre_K: np.ndarray, to_longest: bool = False) -> None:
        self.x_K = np.log2(centre_K)
        self.start_L = np.arange(int((2 * centre_K <= centre_K[-1]).sum()))
        start_x_L = self.x_K[self.start_L]
        self.times_L = np.floor(self.x_K[-1] - start_x_L + 1e-9) if to_longest else np.ones(len(self.start_L))
        self.right_L = np.searchsorted(self.x_K, start_x_L + self.times_L - 1e-9)

    def gains(self, losses_RK: np.ndarray) -> np.ndarray:
        """Nats that each doubling is worth, for R curves: (R, L)."""
        left_L, right_L = self.right_L - 1, self.right_L
        share_L = (self.x_K[self.start_L] + self.times_L - self.x_K[left_L]) / (self.x_K[right_L] - self.x_K[left_L])
        doubled_RL = losses_RK[:, left_L] * (1 - share_L) + losses_RK[:, right_L] * share_L
        return (losses_RK[:, self.start_L] - doubled_RL) / self.times_L

    def parts(self, losses_K: np.ndarray, left_out_DK: np.ndarray, sizes_DK: np.ndarray) -> list[Part | None]:
        """The part of the documents in the uncertainty of each gain; arguments as for :func:`effective_context`."""
        gain_L, left_out_DL = self.gains(losses_K[None])[0], self.gains(left_out_DK)
        shares_DK = sizes_DK / sizes_DK.sum(0)
        return [
            over_documents(gain, left_out_DL[:, i], shares_DK[:, [start, end - 1, end]].sum(1))
            for i, (gain, start, end) in enumerate(zip(gain_L, self.start_L, self.right_L, strict=True))
        ]

    def effective(self, gain_RL: np.ndarray, worth: float) -> np.ndarray:
        """The smallest context from which no doubling is worth ``worth`` nats: (R,), infinite if the last one is."""
        last, worth_it = len(self.start_L), gain_RL >= worth
        behind = np.where(worth_it.any(1), last - worth_it[:, ::-1].argmax(1), 0)  # the last doubling that is worth it
        rows, first = np.arange(len(gain_RL)), np.minimum(behind, last - 1)
        before = np.maximum(first - 1, 0)
        # Without a finite gain on both sides, the context of the later one.
        finite = np.isfinite(gain_RL[rows, before]) & np.isfinite(gain_RL[rows, first])
        drop = np.where(finite, gain_RL[rows, before] - gain_RL[rows, first], 0)
        over = np.where(finite, gain_RL[rows, before] - worth, 1)
        part = np.where(first > 0, over / np.where(drop > 0, drop, 1), 1)
        contexts = 2 ** (self.x_K[before] + part.clip(0, 1) * (self.x_K[first] - self.x_K[before]))
        return np.where(behind < last, contexts, np.inf)
