"""The optimal training context for a budget, from the measurements of a sweep (context scaling, Section 3; docs/plan.md).

The tracks (:mod:`contextwise_plan.tracks`) of a size and context, averaged over seeds, are a *cell*. The *optimum* of a size is
its cell of the lowest loss. It is *decided* only if it was compared with its neighbours: at the largest budgets only the most
expensive runs are left. Differences between contexts are paired by document and by seed; the spread between seeds is that of
all contexts of a size together, since two seeds of one context say little about it. Legend: S seeds, C contexts.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from contextwise.base.intervals import within_groups
from contextwise.comparison.sequential import simultaneous
from contextwise.data import in_tokens, token_count
from contextwise.stats import CONFIDENCE, Estimate, Part, plus_minus, ratio_difference, ratios, student_t
from contextwise_plan.sweeps.points import SweepPoint
from contextwise_plan.tracks import Reading, Track, budget_steps, budget_words, tracks

WINDOW = 2.0  # width of the window of footnote 5: its largest budget is about twice its smallest
ONE_SEED = "The runs have one seed, so the intervals leave out how much losses differ between seeds."

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Cell:
    """A model size at a training context, at one budget."""

    size: str
    parameters: int
    context: int
    loss: float  # mean over the ``runs``
    half_width: float | None  # of its 95% interval over documents and seeds; None where neither is known
    runs: int  # seeds
    documents: int = 0  # the same in all runs; 0 if not known
    readings: Mapping[int, Reading] = field(default_factory=dict, compare=False, repr=False)  # by seed


@dataclass(frozen=True)
class Optimum:
    """The best cell of a size, or of all sizes, at one budget.

    ``differences``: other context of the size -> its loss minus the optimum's, paired; without an interval if none is known,
    and without ``seeds`` if it is over documents only. They hold together at 95%.
    """

    cell: Cell
    decided: bool  # whether it was compared with its neighbours
    unmeasured: tuple[int | str, ...]  # contexts (of an overall optimum: sizes) next to it, not measured at this budget
    edge: str  # ``shortest`` or ``longest`` if no shorter or longer context was tried; else empty
    differences: Mapping[int, Estimate] = field(default_factory=dict, compare=False, repr=False)
    ends: tuple[int, int] = field(default=(0, 0), compare=False, repr=False)  # the sweep's shortest and longest

    @property
    def inside(self) -> bool:
        """Whether it is decided and both a shorter and a longer context are worse."""
        return self.decided and not self.edge

    @property
    def within_noise(self) -> tuple[int, ...]:
        """The other contexts whose loss is not significantly higher, ascending."""
        return tuple(sorted(context for context, difference in self.differences.items() if not difference.above(0.0)))

    @property
    def shown(self) -> bool:
        """Whether it is inside, and the sweep shows that it is best, or among the best."""
        return self.inside and not self.unclear

    @property
    def unclear(self) -> bool:
        """Whether the sweep does not show which context is best."""
        return bool(self._doubt)

    @property
    def one_seed(self) -> bool:
        """Whether its intervals are over documents only."""
        return bool(self._known) and not any(difference.seeds for difference in self._known)

    @property
    def _known(self) -> list[Estimate]:
        return [each for each in self.differences.values() if each.has_interval and not each.too_few]

    @property
    def _doubt(self) -> str:
        """Why the sweep does not show which context is best, as a clause; empty if it does."""
        if not self._known:
            too_few = next((difference.too_few for difference in self.differences.values()), "")
            return too_few or "no interval is known, which takes several held-out documents and several budgets"
        measured = sorted((self.cell.context, *self.differences))
        ends = {measured[0], measured[-1]} - {self.cell.context}
        return _within_noise(self.within_noise) if ends <= set(self.within_noise) else ""

    def sentence(self) -> str:
        """What the points say of the best context of this size at this budget."""
        size, best, noise = self.cell.size, in_tokens(self.cell.context), self.within_noise
        if not self.decided:
            missing = [context for context in self.unmeasured if isinstance(context, int)]
            return (
                f"{size}: lowest at {best}, but {contexts_listed(missing)} was not measured at this budget, so no optimum is "
                "drawn."
            )
        if self._doubt:
            words = [
                f"the sweep does not show which context is best here; {best} has the lowest loss, but {self._doubt}"
            ]
        else:
            words = [f"{best} is best", *([_within_noise(noise)] if noise else [])]
            behind = [
                (difference.value, context) for context, difference in self.differences.items() if context not in noise
            ]
            if behind:
                value, second = min(behind)
                low, _ = self.differences[second].limits
                words.append(f"{in_tokens(second)} is {value:.4f} ± {value - low:.4f} behind")
            named = dict(zip(self.ends, ("shortest", "longest"), strict=True))
            edge = next((context for context in (self.cell.context, *noise) if context in named), None)
            if edge is not None:
                words[-1] += (
                    f"; {token_count(edge)} is the {named[edge]} that was tried, the true optimum may be beyond"
                )
        return f"{size}: {', '.join(words)}."


def _within_noise(contexts: Sequence[int]) -> str:
    return f"{contexts_listed(contexts)} {'are' if len(contexts) > 1 else 'is'} within its noise"


def one_seed_note(optima: Iterable[Optimum]) -> list[str]:
    """What the intervals of some optima leave out if the runs have one seed."""
    return [ONE_SEED] if any(optimum.one_seed for optimum in optima) else []


def contexts_listed(contexts: Sequence[int]) -> str:
    """Contexts in words: ``64, 1,024``."""
    return ", ".join(map(token_count, contexts))


def cells(tracks: Sequence[Track], budget: float) -> list[Cell]:
    """Every size and context that was measured at a budget, by parameters and context."""
    measured: dict[tuple[int, str, int], dict[int, Reading]] = {}
    steepest: dict[str, float] = {}
    for track in tracks:
        if math.isfinite(slope := track.slope(budget)):
            steepest[track.size] = max(abs(slope), steepest.get(track.size, 0.0))
    for track in tracks:
        reading = track.at(budget, steepest.get(track.size, math.nan))
        if reading is not None:
            measured.setdefault((track.parameters, track.size, track.context), {})[track.seed] = reading
    rows = []
    for (parameters, size, context), by_seed in sorted(measured.items()):
        readings = list(by_seed.values())
        seeds = within_groups(_losses(group) for (_, other, _), group in measured.items() if other == size)
        loss, half = float(np.mean(_losses(by_seed))), _half_width(readings, [], seeds)[0]
        documents = len(readings[0].documents) if _same_documents(readings) else 0
        rows.append(Cell(size, parameters, context, loss, half, len(readings), documents, by_seed))
    return rows


def _losses(readings: Mapping[int, Reading]) -> list[float]:
    return [reading.loss for reading in readings.values()]


def _same_documents(readings: Sequence[Reading]) -> bool:
    """Whether the losses over documents are known, and are of the same documents."""
    return all(reading.sums is not None and reading.documents == readings[0].documents for reading in readings)


def _half_width(
    readings: Sequence[Reading], others: Sequence[Reading], seeds: Part | None
) -> tuple[float | None, list[Part]]:
    """Half the 95% interval of the mean of readings minus the mean of others, None if it is not known; and its parts.

    ``seeds`` is the variance between seeds of one reading; of each pair of readings where both have the same seeds. Documents
    of two contexts are paired although their targets differ a little: a tenth of a context does not divide a tenth of the
    longest evenly (:class:`~contextwise.data.windows.LastTenthWindows`).
    """
    parts: list[Part] = []
    groups = [each for each in (readings, others) if each]
    if _same_documents([*readings, *others]):
        sums = [np.mean([np.asarray(reading.sums) for reading in each], axis=0) for each in groups]
        documents = ratio_difference(sums[0], sums[1]) if others else ratios(sums[0][0], {"": sums[0][1]})[""]
        if documents.high is not None:
            freedom = documents.degrees_of_freedom
            parts.append(Part(((documents.high - documents.value) / student_t(freedom)) ** 2, freedom))
    else:  # as if the documents were different ones, which is wider
        errors = [np.mean([reading.error for reading in each]) for each in groups]
        parts += [Part(float(np.square(errors).sum()), math.inf)] if np.isfinite(errors).all() else []
    if seeds is not None:
        parts.append(Part(seeds.variance / len(readings), seeds.freedom))
    widths = [part.half_width for part in parts]
    half = math.hypot(*widths) + sum(np.mean([reading.shift for reading in each]) for each in groups)
    return float(half) if parts and math.isfinite(half) else None, parts


def _between_pairs(groups: Sequence[Mapping[int, Reading]]) -> Part | None:
    """The variance between seeds of a difference of two contexts, from all contexts of a size that have the same seeds.

    Seeds are blocks: what a seed does to all contexts alike does not count. None for less than two seeds.
    """
    seeds = set.intersection(*map(set, groups))
    if len(seeds) < 2:
        return None
    losses = np.array([[group[seed].loss for seed in sorted(seeds)] for group in groups])  # (C, S)
    rest = losses - losses.mean(0) - losses.mean(1, keepdims=True) + losses.mean()
    freedom = (losses.shape[0] - 1) * (losses.shape[1] - 1)
    return Part(2 * float(np.square(rest).sum()) / freedom, freedom)


def _differences(best: Cell, others: Sequence[Cell]) -> dict[int, Estimate]:
    """The loss of each other context minus that of the best, paired by document, and by seed where all have the same seeds."""
    groups = [cell.readings for cell in (best, *others)]
    pairs, alone = _between_pairs(groups), within_groups(map(_losses, groups))
    differences = {}
    for cell in others:
        shared = sorted(set(cell.readings) & set(best.readings))
        mine, theirs = ([one.readings[seed] for seed in shared or one.readings] for one in (cell, best))
        value = float(np.mean([reading.loss for reading in mine]) - np.mean([reading.loss for reading in theirs]))
        spread = pairs
        if pairs is None and alone is not None:
            spread = Part(alone.variance * (1 + len(mine) / len(theirs)), alone.freedom)
        half, parts = _half_width(mine, theirs, spread)
        seeds = None if spread is None else len(mine)
        about = {"documents": cell.documents or None, "seeds": seeds, "parts": tuple(parts)}
        differences[cell.context] = plus_minus(value, math.nan if half is None else half, method="t", **about)
    return differences


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
        contexts, measured = sorted(planned[size]), {cell.context for cell in own}
        missing = [context for context in _beside(contexts, best.context) if context not in measured]
        edge = {contexts[-1]: "longest", contexts[0]: "shortest"}.get(best.context, "")
        confidence = simultaneous(CONFIDENCE, len(own) * (len(own) - 1) // 2)  # the best is chosen: of every pair
        paired = _differences(best, [cell for cell in own if cell is not best])
        differences = {context: difference.at(confidence) for context, difference in paired.items()}
        ends = contexts[0], contexts[-1]
        optima[size] = Optimum(best, not missing, tuple(missing), edge, differences, ends)
    return optima


def overall_optimum(optima: Mapping[str, Optimum], sizes: Sequence[str]) -> Optimum | None:
    """The lowest of the sizes' optima; decided if it is decided for its size and for the sizes (by parameters) next to it."""
    if not optima:
        return None
    size, best = min(optima.items(), key=lambda item: item[1].cell.loss)
    missing = [other for other in _beside(sizes, size) if other not in optima or not optima[other].decided]
    return replace(best, decided=best.decided and not missing, unmeasured=best.unmeasured + tuple(missing))


def _beside(items: Sequence[Item], item: Item) -> list[Item]:
    """The neighbours of an item."""
    return [items[near] for near in (items.index(item) - 1, items.index(item) + 1) if 0 <= near < len(items)]


def window_reach(budgets: np.ndarray) -> int:
    """Number of steps on each side of a budget in its window: those within a factor of about the root of :data:`WINDOW`."""
    if len(budgets) < 2:
        return 0
    return max(1, round(np.log(WINDOW) / 2 / np.log(budgets[1] / budgets[0])))


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
    """Losses and optima over one kind of budget (``unit``, as for :func:`tracks`); without budgets if nothing was measured.

    ``planned``: size -> all its training contexts; sizes by parameters.

    Attributes:
        budgets: (B,), evenly spaced in the logarithm.
        cells, optima: of each budget; optima by size.
        overall: of each budget; None where no size has an optimum.
        contexts: size -> its optimal context at each budget, smoothed; None where it is not decided.
        pairs: (size, context) of the overall optimum at each budget, smoothed; None where it is not inside the contexts.
        reach: steps on each side of a budget in the windows of the smoothing.
    """

    def __init__(self, points: Iterable[SweepPoint], unit: str, planned: Mapping[str, Sequence[int]]) -> None:
        lines = tracks(points, unit)
        self.unit, self.budgets = unit, budget_steps(lines)
        self.cells = [cells(lines, budget) for budget in self.budgets]
        self.optima = [size_optima(some, planned) for some in self.cells]
        self.overall = [overall_optimum(some, list(planned)) for some in self.optima]
        self.reach = window_reach(self.budgets)
        known = [{size: o.cell.context for size, o in some.items() if o.decided} for some in self.optima]
        self.contexts = {size: mode_smoothed([some.get(size) for some in known], self.reach) for size in planned}
        best = [(o.cell.size, o.cell.context) if o and o.inside else None for o in self.overall]
        self.pairs = mode_smoothed(best, self.reach)

    def lead(self, step: int, pair: tuple[str, int], other: tuple[str, int]) -> Estimate | None:
        """The loss of another (size, context) minus that of ``pair`` at a budget, paired; None where one was not measured."""
        at = {(cell.size, cell.context): cell for cell in self.cells[step]}
        if pair not in at or other not in at:
            return None
        return _differences(at[pair], [at[other]])[other[1]]

    def findings(self) -> list[str]:
        """For each size a sentence on its best context at the largest budget that shows it; then the note on one seed."""
        last = {size: steps[-1] for size in self.contexts if (steps := self.decided_steps(size))}
        sentences = [
            f"At {budget_words(self.unit, float(self.budgets[step]))}, {self.optima[step][size].sentence()}"
            for size, step in last.items()
        ]
        return [*sentences, *one_seed_note(self.optima[step][size] for size, step in last.items())]

    def decided_steps(self, size: str) -> list[int]:
        """Steps of the budgets at which the optimum of a size is decided."""
        return [i for i, some in enumerate(self.optima) if size in some and some[size].decided]

    @property
    def last_decided(self) -> int:
        """Step of the largest budget whose overall optimum is decided; else the largest of those with the most cells."""
        decided = [step for step, best in enumerate(self.overall) if best is not None and best.decided]
        if decided:
            return decided[-1]
        return max(range(len(self.cells)), key=lambda step: (len(self.cells[step]), step))
