"""The optimal training context for a budget, from the measurements of a sweep.

1. A *track* is the points of one model size, training context and seed: best-context losses along a budget (training FLOPs,
   seconds, GPU-hours or tokens).
2. At a budget the loss is interpolated along the track, linearly in the logarithm of the budget; never beyond its first or last
   point. Tracks of one model size and training context that differ in seed are averaged: a *cell*.
3. The *optimum* of a size is its cell of the lowest loss; the overall optimum is the lowest of all (context scaling,
   Section 3). It is *decided* only if it was compared with its neighbours: runs of equal length end at different FLOPs, and at
   the largest budgets only the most expensive runs are left, with nothing to compare them to.
4. The optimum varies due to noise in the loss, so lines over the budget show the most common one in a window (its
   footnote 5).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from contextwise.analysis.sweep_points import SweepPoint

STEPS = 97
"""Number of budgets, evenly spaced in the logarithm."""
WINDOW = 2.0
"""Width of the window of footnote 5: its largest budget is about twice its smallest."""

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Track:
    """The points of a size, context and seed: ``losses`` and ``errors`` (nats per token, (M,)) at increasing ``budgets`` (M,).

    ``run`` is the longest of them. ``errors`` are NaN where they are not known.
    """

    run: str
    size: str
    parameters: int
    context: int
    budgets: np.ndarray
    losses: np.ndarray
    errors: np.ndarray

    def at(self, budget: float) -> tuple[float, float] | None:
        """Loss and standard error at a budget; None where the run did not measure."""
        if not self.budgets[0] <= budget <= self.budgets[-1]:
            return None
        if len(self.budgets) == 1:
            return float(self.losses[0]), float(self.errors[0])
        first = min(int(np.searchsorted(self.budgets, budget, side="right")), len(self.budgets) - 1) - 1
        low, high = np.log(self.budgets[first : first + 2])
        part = (np.log(budget) - low) / (high - low)
        loss, error = (
            values[first] + part * (values[first + 1] - values[first])
            for values in (self.losses, self.errors)
        )
        return float(loss), float(error)


@dataclass(frozen=True)
class Cell:
    """A model size at a training context, at one budget.

    Attributes:
        loss: mean over the ``runs`` (their number) that measured there.
        standard_error: over held-out documents and, with several runs, over seeds; None where neither is known. The documents
            are those of all runs and all steps, so it is interpolated like the loss, which bounds it from above, and does
            not shrink with the number of runs.
    """

    size: str
    parameters: int
    context: int
    loss: float
    standard_error: float | None
    runs: int


@dataclass(frozen=True)
class Optimum:
    """The best cell of a size, or of all sizes, at one budget.

    Attributes:
        decided: whether it was compared with its neighbours.
        unmeasured: contexts (of an overall optimum: sizes) next to it that were not measured at this budget.
        edge: ``shortest`` or ``longest`` if no shorter or longer context was tried; else empty.
    """

    cell: Cell
    decided: bool
    unmeasured: tuple[int | str, ...]
    edge: str


def tracks(points: Iterable[SweepPoint], unit: str, gpus: Mapping[str, int] | None = None) -> list[Track]:
    """The track of each size, context and seed, along one kind of budget.

    Args:
        unit: ``flops``, ``seconds``, ``tokens`` or ``gpu_hours``.
        gpus: of each run; needed for ``gpu_hours``.

    Losses that are not finite, and measurements before anything was spent, are left out.
    """
    by_cell: dict[tuple[str, int, int], dict[float, SweepPoint]] = {}
    for point in points:
        hours = unit == "gpu_hours"
        spent = point.seconds * (gpus or {})[point.run] / 3600 if hours else getattr(point, unit)
        if spent > 0 and np.isfinite(point.loss):
            by_cell.setdefault(point.cell, {})[float(spent)] = point
    tracks = []
    for measured in by_cell.values():
        budgets = sorted(measured)
        losses = np.array([measured[budget].loss for budget in budgets])
        errors = np.array([measured[budget].standard_error for budget in budgets], dtype=float)  # None: NaN
        point = measured[budgets[-1]]
        tracks.append(
            Track(point.run, point.size, point.parameters, point.context, np.array(budgets), losses, errors)
        )
    return tracks


def budget_steps(tracks: Sequence[Track], steps: int = STEPS) -> np.ndarray:
    """Budgets from the smallest to the largest that any run measured, (steps,); fewer if there is only one."""
    if not tracks:
        return np.empty(0)
    low, high = min(track.budgets[0] for track in tracks), max(track.budgets[-1] for track in tracks)
    return np.geomspace(low, high, steps) if high > low else np.array([low])


def cells(tracks: Sequence[Track], budget: float) -> list[Cell]:
    """Every size and context that was measured at a budget, by parameters and context."""
    measured: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for track in tracks:
        value = track.at(budget)
        if value is not None:
            measured.setdefault((track.parameters, track.size, track.context), []).append(value)
    rows = []
    for (parameters, size, context), values in sorted(measured.items()):
        losses, errors = np.array(values).T
        # Of a mean over runs on the same documents: the documents' share as it is, the seeds' share over their number.
        variance = np.mean(errors) ** 2
        if len(values) > 1:
            variance = np.nan_to_num(variance) + losses.var(ddof=1) / len(values)
        error = None if np.isnan(variance) else float(np.sqrt(variance))
        rows.append(Cell(size, parameters, context, float(np.mean(losses)), error, len(values)))
    return rows


def size_optima(measured_cells: Sequence[Cell], planned: Mapping[str, Sequence[int]]) -> dict[str, Optimum]:
    """The optimum of each size that was measured at two contexts or more.

    ``planned``: size -> all its training contexts, also those that this budget lacks.
    """
    optima = {}
    for size in dict.fromkeys(cell.size for cell in measured_cells):
        own = [cell for cell in measured_cells if cell.size == size]
        if len(own) < 2:
            continue
        best = min(own, key=lambda cell: cell.loss)
        contexts = sorted(planned[size])
        index, measured = contexts.index(best.context), {cell.context for cell in own}
        missing = [context for context in _beside(contexts, index) if context not in measured]
        edge = "shortest" if index == 0 else "longest" if index == len(contexts) - 1 else ""
        optima[size] = Optimum(best, not missing, tuple(missing), edge)
    return optima


def overall_optimum(optima: Mapping[str, Optimum], sizes: Sequence[str]) -> Optimum | None:
    """The lowest of the sizes' optima; decided if it is decided for its size and for the sizes (by parameters) next to it."""
    if not optima:
        return None
    size, best = min(optima.items(), key=lambda item: item[1].cell.loss)
    beside = _beside(list(sizes), list(sizes).index(size))
    missing = [other for other in beside if other not in optima or not optima[other].decided]
    return replace(best, decided=best.decided and not missing, unmeasured=best.unmeasured + tuple(missing))


def _beside(items: Sequence[Item], index: int) -> list[Item]:
    """The neighbours of an item."""
    return [items[near] for near in (index - 1, index + 1) if 0 <= near < len(items)]


def window_reach(budgets: np.ndarray, width: float = WINDOW) -> int:
    """Number of steps on each side of a budget that are in its window: those within a factor of about the root of ``width``."""
    if len(budgets) < 2:
        return 0
    return max(1, round(np.log(width) / 2 / np.log(budgets[1] / budgets[0])))


def mode_smoothed(values: Sequence[Item | None], reach: int) -> list[Item | None]:
    """The most common value in a window of ``reach`` steps on each side (context scaling, footnote 5).

    Of equally common values the one at the step itself is taken, else the nearest. A step without a value (None) stays without,
    and does not count in the windows of others.
    """
    smoothed: list[Item | None] = []
    for step, own in enumerate(values):
        window = range(max(0, step - reach), min(len(values), step + reach + 1))
        near = (values[i] for i in sorted(window, key=lambda i: abs(i - step)))
        counts = Counter(value for value in near if value is not None)
        # Of equal counts the first is the most common.
        smoothed.append(None if own is None else counts.most_common(1)[0][0])
    return smoothed


class Landscape:
    """Losses and optima over one kind of budget; without budgets if nothing was measured.

    Args:
        points, unit, gpus: as for :func:`tracks`.
        planned: size -> all its training contexts; sizes by parameters.

    Attributes:
        budgets: (B,), evenly spaced in the logarithm.
        cells, optima: of each budget; optima by size.
        overall: of each budget; None where no size has an optimum.
        contexts: size -> its optimal context at each budget, smoothed; None where it is not decided.
        pairs: (size, context) of the overall optimum at each budget, smoothed; None where it is not decided.
        reach: steps on each side of a budget in the windows of the smoothing.
    """

    def __init__(
        self,
        points: Iterable[SweepPoint],
        unit: str,
        planned: Mapping[str, Sequence[int]],
        gpus: Mapping[str, int] | None = None,
    ) -> None:
        lines = tracks(points, unit, gpus)
        self.unit, self.budgets = unit, budget_steps(lines)
        self.cells = [cells(lines, budget) for budget in self.budgets]
        self.optima = [size_optima(some, planned) for some in self.cells]
        self.overall = [overall_optimum(some, list(planned)) for some in self.optima]
        self.reach = window_reach(self.budgets)
        known = [{size: o.cell.context for size, o in some.items() if o.decided} for some in self.optima]
        self.contexts = {
            size: mode_smoothed([some.get(size) for some in known], self.reach) for size in planned
        }
        best = [(o.cell.size, o.cell.context) if o and o.decided else None for o in self.overall]
        self.pairs = mode_smoothed(best, self.reach)

    @property
    def last_decided(self) -> int:
        """Step of the largest budget whose overall optimum is decided; else the largest of those with the most cells."""
        decided = [step for step, best in enumerate(self.overall) if best is not None and best.decided]
        if decided:
            return decided[-1]
        return max(range(len(self.cells)), key=lambda step: (len(self.cells[step]), step))
