"""Differences along several budgets: their trend, where they cross zero, and how much compute an arm is worth.

Each budget is a set of finished runs, paired by seed. For a quantity θ that solves ``mean over seeds of f(seed, θ) = 0`` the
interval is the set of all θ whose values f(seed, θ) have a mean of zero by the confidence sequence of
:mod:`~contextwise.comparison.sequential` (Fieller's method). It holds after every seed, like that sequence, and needs no
division by an uncertain slope.

- Crossing: f is the line through a seed's differences over the logarithm of the budget; θ is a budget.
- Effective speed-up: f is the arm's loss minus the loss that the reference reaches with θ times the compute, on the curve
  through the reference's own runs of the same seed: a polynomial in the logarithm of the compute, of the second degree from
  three budgets on. At a speed-up of 1.12 the reference needs 1.12 times the compute for the arm's loss. How the loss bends
  between and beyond the budgets is not known, so the interval also holds that of a polynomial in C^(-1/2), where each doubling
  gains less than the one before.
"""

from dataclasses import dataclass, replace

import numpy as np

from contextwise.base.estimates import CONFIDENCE, Estimate
from contextwise.base.intervals import plus_minus
from contextwise.comparison.sequential import sequence_limits

POINTS = 801
BEYOND = 4.0
"""Factor beyond the smallest and the largest budget up to which a solution is looked for."""
BEND = 0.5
"""Exponent of the most bent curve through the reference's losses, C^(-BEND); the least bent is the logarithm."""


@dataclass(frozen=True)
class Trend:
    """How a difference moves along the budgets."""

    slope: Estimate  # change for each doubling of the budget, nats per token
    crossing: Estimate | None  # the budget at which it is zero; None without a bounded interval


def trend(differences_SB: np.ndarray, budgets_B: np.ndarray, confidence: float = CONFIDENCE) -> Trend | None:
    """The trend of paired differences; None for one budget, or before the seeds allow an interval.

    Args:
        differences_SB: (S, B) arm minus reference, nats per token, by seed and budget.
        budgets_B: (B,) in any unit.
    """
    doublings = np.log2(np.asarray(budgets_B, dtype=float))
    if len(doublings) < 2:
        return None
    lines_2S = np.polyfit(doublings, np.asarray(differences_SB).T, 1)
    means, halves = sequence_limits(lines_2S[0], confidence)
    if not np.isfinite(halves[-1]):
        return None
    about = {"seeds": len(differences_SB), "method": "t sequence", "confidence": confidence}
    slope = plus_minus(means[-1], halves[-1], unit="nats per token and doubling", **about)
    grid = _around(doublings)
    values_SX = lines_2S[0][:, None] * grid + lines_2S[1][:, None]
    return Trend(slope, _solution(values_SX, grid, confidence))


def effective_speedup(
    losses_S: np.ndarray,
    compute: float,
    reference_SB: np.ndarray,
    compute_B: np.ndarray,
    confidence: float = CONFIDENCE,
) -> Estimate | None:
    """How many times the compute the reference needs for an arm's loss; None without a bounded interval.

    Args:
        losses_S: (S,) of the arm's runs, nats per token.
        compute: of each of them, FLOPs or seconds.
        reference_SB: (S, B) losses of the reference's runs of the same seeds, at two budgets or more.
        compute_B: (B,) compute of each of those.
    """
    doublings = np.log2(np.asarray(compute_B, dtype=float))
    if len(doublings) < 2:
        return None
    grid = _around(doublings)
    bent_B, bent_X = (2 ** (-BEND * (part - doublings[0])) for part in (doublings, grid))
    found = []
    for at_B, at_X in ((doublings, grid), (bent_B, bent_X)):
        curves = np.polyfit(at_B, np.asarray(reference_SB).T, min(2, len(doublings) - 1))
        reached_SX = sum(
            coefficient[:, None] * at_X**power
            for coefficient, power in zip(curves, reversed(range(len(curves))), strict=True)
        )
        # Only where more compute gives a lower loss: beyond its minimum a parabola would answer twice.
        falling = np.gradient(reached_SX.mean(axis=0)) < 0
        values_SX = (np.asarray(losses_S)[:, None] - reached_SX)[:, falling]
        solution = _solution(values_SX, grid[falling], confidence) if falling.any() else None
        if solution is None:
            return None
        found.append(solution)
    lows, highs = zip(*(each.limits for each in found), strict=True)
    return replace(found[0], low=min(lows), high=max(highs), mapped=None).scaled(1 / compute)


def _around(doublings: np.ndarray) -> np.ndarray:
    beyond = np.log2(BEYOND)
    return np.linspace(doublings.min() - beyond, doublings.max() + beyond, POINTS)


def _solution(values_SX: np.ndarray, grid: np.ndarray, confidence: float) -> Estimate | None:
    """2 to the power of the points of a grid at which the mean over seeds may be zero; None unless they are a bounded interval.

    Args:
        values_SX: (S, X) value of each seed at each point.
    """
    means, halves = (part[:, -1] for part in sequence_limits(values_SX.T, confidence))
    if not np.isfinite(halves).all():
        return None
    signs = np.flatnonzero(np.diff(np.sign(means)) != 0)
    # The interval may lie between two points of the grid.
    inside = np.union1d(np.flatnonzero(np.abs(means) <= halves), np.r_[signs, signs + 1])
    bounded = len(inside) and inside[0] > 0 and inside[-1] < len(grid) - 1
    if not bounded or np.ptp(inside) != len(inside) - 1 or not len(signs):
        return None
    before = signs[0]
    share = means[before] / (means[before] - means[before + 1])
    value = grid[before] + share * (grid[before + 1] - grid[before])
    # The interval ends between two points of the grid: the outer one is taken.
    low, high = grid[inside[0] - 1], grid[inside[-1] + 1]
    about = {"seeds": len(values_SX), "method": "inverted t sequence", "confidence": confidence}
    return Estimate(float(2**value), float(2**low), float(2**high), **about)  # type: ignore[arg-type]
