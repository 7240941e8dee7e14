"""Limits of extrapolation from a sweep: budgets and optima that are refused, and notes on an answer."""

from dataclasses import dataclass

import numpy as np

from contextwise.analysis.scaling.analysis import Analysis
from contextwise.analysis.scaling.observations import check_bracketed
from contextwise.analysis.scaling.optimum import Optimum
from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, count

FARTHEST = 30.0
"""A budget beyond this multiple of the sweep's largest FLOPs is refused without ``far``."""
CONTEXTS_BEYOND = 8.0
"""Contexts are searched up to this multiple of the sweep's longest, and down to half of its shortest."""
SIZES_BEYOND = 30.0
"""Sizes are searched up to this multiple of the sweep's largest, and down to a quarter of its smallest."""
LONG = 10.0
"""An extrapolation in one direction beyond this factor gets a note."""
WIDE = 8.0
"""An interval of the context wider than this factor gets a note."""


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    Attributes:
        unit: ``flops``, or ``seconds`` of the machine of the sweep.
        amount: in that unit.
        description: how it was given, for the reader.
    """

    unit: str
    amount: float
    description: str


def context_bounds(analysis: Analysis) -> tuple[float, float]:
    """Bounds of the contexts that are searched."""
    observed = analysis.observed
    return float(observed.context.min()) / 2, float(observed.context.max()) * CONTEXTS_BEYOND


def size_bounds(analysis: Analysis) -> tuple[float, float]:
    """Bounds of the numbers of parameters that are searched."""
    sizes = analysis.observed.size_parameters
    return float(sizes[0]) / 4, float(sizes[-1]) * SIZES_BEYOND


def check_reach(analysis: Analysis, budget: Budget, far: bool) -> None:
    """Refuse a budget too far above the sweep, or below it.

    Raises:
        DataError: saying how far.
    """
    spent = getattr(analysis.observed, budget.unit)
    factor, least = budget.amount / spent.max(), spent.min() / budget.amount
    unit = "FLOPs" if budget.unit == "flops" else "seconds"
    if least > 1:
        raise DataError(
            f"the budget ({budget.amount:.2g} {unit}) is below the smallest that the sweep measured "
            f"({spent.min():.2g}); give a larger one"
        )
    if factor > FARTHEST and not far:
        raise DataError(
            f"the budget ({budget.amount:.2g} {unit}) is {factor:.3g} times the largest run of the sweep "
            f"({spent.max():.2g}), and beyond {FARTHEST:.0f} times a law of these few runs is a guess; add larger runs, or "
            "ask for the guess by --far"
        )


def check_inside(context: float, analysis: Analysis) -> None:
    """Refuse an optimal context at an end of what was searched.

    Raises:
        DataError: saying at which.
    """
    bounds = context_bounds(analysis)
    if bounds[0] * 1.02 < context < bounds[1] / 1.02:
        return
    side = "below" if context < np.sqrt(bounds[0] * bounds[1]) else "above"
    near = bounds[0] if side == "below" else bounds[1]
    raise DataError(
        f"at this budget the law has no optimal context near the sweep's: it is {side} {near:.0f} tokens "
        f"(form {analysis.chosen.form.name}); add runs with {'shorter' if side == 'below' else 'longer'} contexts"
    )


def bracket_notes(analysis: Analysis, budget: Budget, far: bool) -> list[str]:
    """The note on a sweep whose best context is never between its shortest and longest one.

    Raises:
        DataError: it has no such context, and ``far`` is false.
    """
    try:
        check_bracketed(analysis.observed, budget.unit)
    except DataError:
        if not far:
            raise
        return [
            "At no budget does the sweep show a best context between its shortest and its longest: what is recommended is the "
            "law's alone."
        ]
    return []


def bound_notes(analysis: Analysis) -> list[str]:
    """The note on parameters of the law that the sweep does not determine."""
    held = [
        parameter.name
        for parameter in analysis.chosen.form.parameters
        if parameter.name in analysis.at_bounds
    ]
    if not held:
        return []
    several = len(held) > 1
    note = (
        f"The sweep does not determine {' and '.join(held)}: the fit left {'them' if several else 'it'} at a bound of its "
        "search."
    )
    if "E" in held:
        note += " Without a floor E the predicted loss may be too low, and more so the farther the plan is beyond the sweep."
    return [note]


def distance_notes(times: dict[str, float]) -> list[str]:
    """The note on directions in which the plan extrapolates far; ``times``: multiple of the sweep's largest, by name."""
    far = [
        f"{factor:.0f} times the {name}"
        for name, factor in times.items()
        if factor > LONG and name != "flops"
    ]
    if not far:
        return []
    return [
        f"The plan has {' and '.join(far)} of any run of the sweep. If the sweep's curves have hardly begun to flatten, the "
        "loss predicted so far beyond them is too low."
    ]


def width_notes(analysis: Analysis, context: Estimate, samples: Optimum, free: bool) -> list[str]:
    """Notes on wide intervals, and on intervals that end at a bound of the search."""
    notes = []
    low, high = context.limits
    if high > WIDE * low:
        notes.append(
            f"The interval of the context spans a factor of {high / low:.0f}: the sweep hardly determines "
            "the best one."
        )
    searched = {
        "context": context_bounds(analysis),
        **({"parameters": size_bounds(analysis)} if free else {}),
    }
    for name, (low, high) in searched.items():
        values = getattr(samples, name)
        share = ((values < low * 1.02) | (values > high / 1.02)).mean()
        if share > 0:
            notes.append(
                f"In {share:.0%} of the resamples the best {name} is at a bound of the search ({count(low)} to "
                f"{count(high)}): its interval may be open there."
            )
    return notes
