"""The losses of runs along a budget: training FLOPs, seconds or tokens.

Runs are whole steps, so equal budgets differ a little: up to 2% beyond its ends a track's line is continued. Where a track is
one point, that point stands for these budgets, and the most that the loss may change so far is known with it.

Legend: N documents, M points.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from contextwise.report import count, duration
from contextwise_plan.sweeps.points import SweepPoint

STEPS = 97  # number of budgets, evenly spaced in the logarithm
NEARLY = 1.02  # budgets within this factor are equal: runs are whole steps


@dataclass(frozen=True)
class Track:
    """The points of a size, context and seed: ``losses`` and ``errors`` (nats per token, (M,)) at increasing ``budgets`` (M,).

    ``run`` is the longest of them. ``errors`` are NaN where they are not known. ``sums`` (M, 2, N) are nats and targets of each
    of the ``documents``; None where they are not known.
    """

    run: str
    size: str
    parameters: int
    context: int
    budgets: np.ndarray
    losses: np.ndarray
    errors: np.ndarray
    seed: int = 0
    documents: tuple[int, ...] = ()
    sums: np.ndarray | None = None

    def _line(self, budget: float) -> tuple[int, int]:
        """The two points through which the line at a budget goes; the same point twice if there is no second one.

        Beyond the first or last point they are that one and the nearest that differs by :data:`NEARLY` or more, since the line
        through closer points has the slope of their noise.
        """
        budgets, last = self.budgets, len(self.budgets) - 1
        if budget >= budgets[-1]:
            return last, next((i for i in range(last - 1, -1, -1) if budgets[i] * NEARLY <= budgets[-1]), last)
        if budget <= budgets[0]:
            return 0, next((i for i in range(1, last + 1) if budgets[i] >= budgets[0] * NEARLY), 0)
        right = int(np.searchsorted(budgets, budget, side="right"))
        return right - 1, right

    def slope(self, budget: float) -> float:
        """Change of the loss for each unit of the logarithm of the budget; NaN for a single point, and where there is none."""
        a, b = self._line(budget)
        if a == b or not self.covers(budget):
            return math.nan
        return float((self.losses[b] - self.losses[a]) / np.log(self.budgets[b] / self.budgets[a]))

    def covers(self, budget: float) -> bool:
        """Whether the run was measured at a budget, or at most :data:`NEARLY` from it."""
        return bool(self.budgets[0] / NEARLY <= budget <= self.budgets[-1] * NEARLY)

    def at(self, budget: float, slope: float = math.nan) -> "Reading | None":
        """The loss at a budget; None where the run did not measure. ``slope``: the steepest of the size, for a single point."""
        if not self.covers(budget):
            return None
        a, b = self._line(budget)
        distance, part = float(np.log(budget / self.budgets[a])), 0.0
        if a != b:
            part = distance / float(np.log(self.budgets[b] / self.budgets[a]))

        def on_line(values: np.ndarray) -> Any:
            return values[a] + part * (values[b] - values[a])

        error = float(self.errors[a] + max(part, 0) * (self.errors[b] - self.errors[a]))
        shift = abs(distance * slope) if a == b and distance else 0.0
        sums = None if self.sums is None else on_line(self.sums)
        return Reading(float(on_line(self.losses)), error, self.documents, sums, shift)


class Reading(NamedTuple):
    """A loss at a budget, nats per token."""

    loss: float
    error: float  # standard error over documents; NaN if it is not known
    documents: tuple[int, ...] = ()
    sums: np.ndarray | None = None  # (2, N) nats and targets of each of the documents; None if they are not known
    shift: float = 0.0  # the most that the loss of a single point may change up to the budget; NaN if that is not known


def tracks(points: Iterable[SweepPoint], unit: str) -> list[Track]:
    """The track of each size, context and seed, along one kind of budget: ``flops``, ``seconds`` or ``tokens``.

    Losses that are not finite, and measurements before anything was spent, are left out.
    """
    by_cell: dict[tuple[str, int, int], dict[float, SweepPoint]] = {}
    for point in points:
        spent = getattr(point, unit)
        if spent > 0 and np.isfinite(point.loss):
            by_cell.setdefault(point.cell, {})[float(spent)] = point
    tracks = []
    for measured in by_cell.values():
        budgets = sorted(measured)
        along = [measured[budget] for budget in budgets]
        losses = np.array([each.loss for each in along])
        errors = np.array([each.standard_error for each in along], dtype=float)  # None: NaN
        last = along[-1]
        documents, sums = last.document_ids or tuple(range(len(last.document_targets))), None
        if documents and len({(each.document_ids, each.document_targets) for each in along}) == 1:
            sums = np.array([(each.document_nats, each.document_targets) for each in along], dtype=np.float64)
        about = last.run, last.size, last.parameters, last.context, np.array(budgets), losses, errors
        tracks.append(Track(*about, last.seed, documents, sums))
    return tracks


def budget_steps(tracks: Sequence[Track]) -> np.ndarray:
    """Budgets from the smallest to the largest that any run measured, (97,); fewer if there is only one."""
    if not tracks:
        return np.empty(0)
    low, high = min(track.budgets[0] for track in tracks), max(track.budgets[-1] for track in tracks)
    return np.geomspace(low, high, STEPS) if high > low else np.array([low])


def power_of_ten(value: float) -> str:
    """A positive number as 1.3 × 10¹⁵."""
    digits, power = f"{value:.1e}".split("e")
    return f"{digits} × 10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def budget_words(unit: str, budget: float) -> str:
    """A budget in words: 1.3 × 10¹⁵ FLOPs, 12.5 min, 8.19M tokens."""
    if unit == "flops":
        return f"{power_of_ten(budget)} FLOPs"
    if unit == "seconds":
        return f"{duration(budget)} of training"
    return f"{count(budget)} tokens"
