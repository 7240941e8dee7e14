"""The plan for a budget: model size, training context, tokens and the expected loss, with intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from contextwise.analysis.scaling.analysis import Analysis, ensemble_estimate
from contextwise.analysis.scaling.cost import Cost, measured_cost
from contextwise.analysis.scaling.experiments import Candidate, next_runs
from contextwise.analysis.scaling.forms import Law
from contextwise.analysis.scaling.optimum import Optimum, best_anywhere, best_context, best_of_sizes
from contextwise.analysis.scaling.reach import (
    Budget,
    bound_notes,
    bracket_notes,
    check_inside,
    check_reach,
    context_bounds,
    distance_notes,
    size_bounds,
    width_notes,
)
from contextwise.analysis.scaling.shapes import Shape, nearest_shapes
from contextwise.base.estimates import Estimate, as_json, count

FREE_SIZES = 3
"""Number of sizes from which the plan also recommends sizes between and beyond them."""
RIVALS = 1.5
"""Forms whose held-out error is within this factor of the chosen one's are evaluated too."""


@dataclass(frozen=True)
class Recommendation:
    """A size with its best context.

    ``parameters`` is None in a sweep of one size; ``size`` is None for a size that the sweep does not have.
    """

    size: str | None
    parameters: Estimate | None
    context: Estimate
    tokens: Estimate
    loss: Estimate


@dataclass(frozen=True)
class Rival:
    """What another form of the law recommends."""

    form: str
    error: float
    parameters: float
    context: float
    loss: float


@dataclass(frozen=True)
class Plan:
    """A recommendation for a budget, with alternatives and notes.

    Attributes:
        budget: what may be spent.
        best: the recommendation.
        flops, seconds: that it takes, at the costs that the sweep measured.
        each_size: the best context of each size of the sweep.
        rounded: the power of two nearest to the context, and what it loses against it, nats.
        extrapolation: of flops, context, parameters and tokens, the recommended over the largest in the sweep.
        rivals: other forms.
        shapes: models that can be built, near the recommended parameters.
        next_runs: single runs that would narrow the answer, the best first.
        notes: sentences for the reader.
    """

    budget: Budget
    best: Recommendation
    flops: float
    seconds: float
    each_size: list[Recommendation]
    rounded: tuple[int, float]
    extrapolation: dict[str, float]
    rivals: list[Rival]
    shapes: list[Shape]
    next_runs: list[Candidate]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return as_json(self)


def make_plan(analysis: Analysis, budget: Budget, far: bool = False) -> Plan:
    """Recommend size, context and tokens for a budget.

    Args:
        analysis: the sweep's law.
        budget: what may be spent.
        far: answer beyond thirty times the sweep's FLOPs too, and where it shows no best context.

    Raises:
        DataError: the budget is too far from the sweep, or the law has no optimal context near its contexts.
    """
    observed, own = analysis.observed, analysis.observed.size_parameters
    cost, flops = measured_cost(observed, budget.unit), measured_cost(observed, "flops")
    check_reach(analysis, budget, far)
    notes = bracket_notes(analysis, budget, far)
    centre, samples, note = _sized_optima(analysis, cost, budget.amount)
    notes += [note] if note else []
    check_inside(float(centre.context[0]), analysis)
    free = not note
    best = _recommendation(analysis, centre, samples, free)
    notes += width_notes(analysis, best.context, samples, free)
    context, tokens = best.context.value, best.tokens.value
    parameters = float(centre.parameters[0])
    rounded = 2 ** round(float(np.log2(context)))
    lost = analysis.law.loss(
        rounded, parameters, budget.amount / cost.per_token(parameters, rounded)
    ) - analysis.law.loss(context, parameters, tokens)
    spent = float(tokens * flops.per_token(parameters, context))
    seconds = float(tokens * measured_cost(observed, "seconds").per_token(parameters, context))
    times = {
        "flops": spent / float(observed.flops.max()),
        "tokens": tokens / float(observed.tokens.max()),
        "context": context / float(observed.context.max()),
        **({"parameters": parameters / float(own[-1])} if len(own) > 1 else {}),
    }
    return Plan(
        budget=budget,
        best=best,
        flops=spent,
        seconds=seconds,
        each_size=[_for_size(analysis, cost, budget.amount, i) for i in range(len(own))],
        rounded=(rounded, float(lost[0])),
        extrapolation=times,
        rivals=_rivals(analysis, cost, budget.amount),
        shapes=nearest_shapes(observed, parameters, rounded) if free else [],
        next_runs=next_runs(analysis, samples, flops, spent),
        notes=notes + bound_notes(analysis) + distance_notes(times),
    )


def _sized_optima(analysis: Analysis, cost: Cost, amount: float) -> tuple[Optimum, Optimum, str]:
    """Optima of the law and of its ensemble; and why only sizes of the sweep are recommended, else an empty text."""
    own = analysis.observed.size_parameters
    centre, samples = _optima(analysis, analysis.law, analysis.ensemble, cost, amount)
    if len(own) == 1:
        note = "The sweep has one model size: the context and the tokens are recommended for it, and no size."
        return centre, samples, note
    if len(own) < FREE_SIZES:
        note = (
            f"The sweep has {len(own)} model sizes: one of them is recommended; sizes between and beyond need "
            f"{FREE_SIZES} at least."
        )
        return centre, samples, note
    (low, high), best = size_bounds(analysis), float(centre.parameters[0])
    if low * 1.02 < best < high / 1.02:
        return centre, samples, ""
    contexts = context_bounds(analysis)
    where = f"below {count(low)}" if best < low * 1.05 else f"above {count(high)}"
    note = f"The law's best size is {where} parameters, too far from the sweep's sizes: the best of those is recommended."
    return (
        best_of_sizes(analysis.law, cost, amount, own, contexts),
        best_of_sizes(analysis.ensemble, cost, amount, own, contexts),
        note,
    )


def _optima(
    analysis: Analysis, law: Law, ensemble: Law, cost: Cost, amount: float
) -> tuple[Optimum, Optimum]:
    """Optima of the law and of its ensemble."""
    sizes, contexts = analysis.observed.size_parameters, context_bounds(analysis)
    if len(sizes) >= FREE_SIZES:
        bounds = size_bounds(analysis)
        return (
            best_anywhere(law, cost, amount, bounds, contexts),
            best_anywhere(ensemble, cost, amount, bounds, contexts),
        )
    return (
        best_of_sizes(law, cost, amount, sizes, contexts),
        best_of_sizes(ensemble, cost, amount, sizes, contexts),
    )


def _recommendation(
    analysis: Analysis, centre: Optimum, samples: Optimum, free: bool, size: int | None = None
) -> Recommendation:
    def of(name: str) -> Estimate:
        return ensemble_estimate(float(getattr(centre, name)[0]), getattr(samples, name), analysis.confidence)

    observed, several = analysis.observed, len(analysis.observed.sizes) > 1
    if size is None:
        size = int(np.abs(observed.size_parameters - centre.parameters[0]).argmin())
    return Recommendation(
        size=None if free else observed.sizes[size],
        parameters=of("parameters") if several else None,
        context=of("context"),
        tokens=of("tokens"),
        loss=of("loss"),
    )


def _for_size(analysis: Analysis, cost: Cost, amount: float, size: int) -> Recommendation:
    parameters = float(analysis.observed.size_parameters[size])
    contexts = context_bounds(analysis)
    return _recommendation(
        analysis,
        best_context(analysis.law, cost, amount, parameters, contexts),
        best_context(analysis.ensemble, cost, amount, parameters, contexts),
        False,
        size,
    )


def _rivals(analysis: Analysis, cost: Cost, amount: float) -> list[Rival]:
    rivals = []
    for score in analysis.scores:
        near = score.error <= RIVALS * analysis.chosen.error
        if score is analysis.chosen or not near or not score.form.sees_context:
            continue
        law = Law(score.form, score.theta[0], analysis.law.centre)
        optimum, _ = _optima(analysis, law, law, cost, amount)
        rivals.append(
            Rival(
                score.form.name,
                score.error,
                float(optimum.parameters[0]),
                float(optimum.context[0]),
                float(optimum.loss[0]),
            )
        )
    return rivals
