"""The plan for a budget: model size, training context, tokens and the expected loss, with intervals; and what is refused.

The context is that of the trend of the sweep's measured optima (:mod:`~contextwise_plan.scaling.trend`); the size is the
law's best, and the loss the law's at both.
"""

from dataclasses import dataclass, replace

import numpy as np

from contextwise.report import count, duration, listed
from contextwise.settings import DataError
from contextwise.stats import Estimate
from contextwise_plan.scaling.analysis import Analysis, ensemble_estimate
from contextwise_plan.scaling.forms import Array, Law
from contextwise_plan.scaling.optimum import Cost, Optimum, best_anywhere, best_context, best_of_sizes, measured_cost
from contextwise_plan.scaling.trend import METHOD, fit_trend, measured_optima
from contextwise_plan.tracks import budget_words

FREE_SIZES = 3  # number of sizes from which the plan also recommends sizes between and beyond them
FARTHEST = 30.0  # a budget beyond this multiple of the sweep's largest FLOPs is refused without ``far``
CONTEXTS_BEYOND = 8.0  # contexts are searched up to this multiple of the longest, and down to half of the shortest
SIZES_BEYOND = 30.0  # sizes are searched up to this multiple of the largest, and down to a quarter of the smallest
LONG = 10.0  # an extrapolation in one direction beyond this factor gets a note
LEAST_SHARE = 0.01  # resamples at a bound of the search get a note from this share on
NO_FLOOR = 0.01  # a floor whose interval begins below this share of the lowest loss may be zero


@dataclass(frozen=True)
class Budget:
    """What may be spent: an amount of ``flops``, or of ``seconds`` of the sweep's machine; described for the reader."""

    unit: str
    amount: float
    description: str


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
class Plan:
    """A recommendation of size, context and tokens for a budget, with notes (:func:`make_plan`)."""

    budget: Budget
    best: Recommendation
    flops: float  # that it takes, at the costs that the sweep measured
    seconds: float
    each_size: list[Recommendation]  # the best context of each size of the sweep that has a measured one
    rounded: tuple[int, float] | None
    """The power of two nearest to the context, and what it loses, nats; None where the law has other optima."""
    extrapolation: dict[str, float]  # of flops, context, parameters and tokens: over the sweep's largest
    trend: str  # why this context, in words
    growth: Estimate  # the power of the budget with which the best context grows
    prior_weight: float  # share of the prior in it
    doubt: str  # why the context is not shown by the sweep itself; empty if it is
    measured: list[str]  # what the points say of each size's best context, without a law, as on the sweep's page
    notes: list[str]


def make_plan(analysis: Analysis, budget: Budget, far: bool = False) -> Plan:
    """The best size, context and tokens for a budget, beyond thirty times the sweep's FLOPs only if ``far``.

    A DataError if the budget is too far from the sweep, or the best context is not near its contexts, or was not between two of
    them at any budget for the size that is recommended.
    """
    observed, own = analysis.observed, analysis.observed.size_parameters
    laws, bounds = (analysis.law, analysis.ensemble), context_bounds(analysis)
    cost, flops = measured_cost(observed, budget.unit), measured_cost(observed, "flops")
    _check_reach(getattr(observed, budget.unit), budget, far)
    landscape = observed.landscape(budget.unit)
    free, note = len(own) >= FREE_SIZES, ""
    optima = [_optimum(analysis, law, cost, budget.amount, free) for law in laws]
    if len(own) == 1:
        note = "The sweep has one model size: the context and the tokens are recommended for it, and no size."
    elif not free:
        note = f"One of the sweep's {len(own)} model sizes is recommended (others need {FREE_SIZES})."
    else:
        (low, high), size = size_bounds(analysis), float(optima[0].parameters[0])
        if not low * 1.02 < size < high / 1.02:
            where = f"below {count(low)}" if size < low * 1.05 else f"above {count(high)}"
            note = (
                f"The law's best size is {where} parameters, too far from the sweep's sizes: the best of those is "
                "recommended."
            )
            free = False
            optima = [_optimum(analysis, law, cost, budget.amount, free) for law in laws]
        elif not any(o and o.decided and o.cell.size in observed.sizes[1:-1] for o in landscape.overall):
            note = (
                "At no budget does the sweep show that a size between its smallest and its largest is best: the size is "
                "the law's alone."
            )
    nearest = observed.sizes[int(np.abs(np.log(own / optima[0].parameters[0])).argmin())]
    if len(own) > 1 and not free and nearest in (observed.sizes[0], observed.sizes[-1]):
        smallest = nearest == observed.sizes[0]
        note += (
            f" {nearest} is the {'smallest' if smallest else 'largest'} of them: a {'smaller' if smallest else 'larger'} "
            "one may be better."
        )
    trend, measured = fit_trend(observed, budget.unit), landscape.findings()
    if nearest not in trend.sizes:
        raise DataError(
            f"the best size for this budget is nearest to {nearest}, whose best context no budget of the sweep locates between "
            f"two others, so that none can be planned; add contexts beyond its best one{observed.findings(budget.unit)}"
        )
    notes, doubt = [], ""
    for step in landscape.decided_steps(nearest)[-1:]:
        last, at = landscape.optima[step][nearest], budget_words(budget.unit, float(landscape.budgets[step]))
        if last.unclear:
            doubt = f"The sweep does not show which context is best for {nearest}"
        elif last.edge:
            doubt = f"At {at} the lowest loss of {nearest} is at {last.cell.context:,} tokens, the {last.edge} that was tried"
    if without := [size for size in observed.sizes if size not in trend.sizes]:
        notes.append(
            f"No context is planned for {listed(without)}, whose best one no budget locates between two others."
        )
    notes += [note] if note else []

    def followed(optima: list[Optimum]) -> list[Optimum]:
        """The optima at the trend's contexts."""
        return [trend.followed(law, one, cost, budget.amount, bounds) for law, one in zip(laws, optima, strict=True)]

    by_law = float(optima[0].context[0])
    optima = followed(optima)
    centre, samples = optima
    _check_inside(float(centre.context[0]), analysis)
    reach = budget.amount / float(getattr(observed, budget.unit).max())
    best = _recommendation(analysis, optima, None if free else nearest, reach)
    if best.size is not None and best.parameters is not None:  # one of a few was chosen, which has no interval
        best = replace(best, parameters=replace(best.parameters, low=None, high=None))
    notes += _bound_notes(analysis, samples, free)
    context, tokens, parameters = best.context.value, best.tokens.value, float(centre.parameters[0])
    low, high = best.context.limits
    agrees = low <= by_law <= high
    if not agrees:
        several = len(measured_optima(observed, nearest, budget.unit)) > 1
        which = "optima that were measured, which err less" if several else "one optimum that was measured"
        notes.append(
            f"By the law alone {by_law:.0f} tokens would be the best context. The plan follows the {which}; so the law's loss "
            "is not the lowest at this context."
        )
    rounded = 2 ** round(float(np.log2(context)))
    at_rounded = analysis.law.loss(rounded, parameters, budget.amount / cost.per_token(parameters, rounded))
    spent = float(tokens * flops.per_token(parameters, context))
    times = {
        "flops": spent / float(observed.flops.max()),
        "tokens": tokens / float(observed.tokens.max()),
        "context": context / float(observed.context.max()),
        **({"parameters": parameters / float(own[-1])} if len(own) > 1 else {}),
    }
    each_size = []
    for size, name in zip(own.tolist(), observed.sizes, strict=True):
        if name in trend.sizes:
            of_size = [best_context(law, cost, budget.amount, size, bounds) for law in laws]
            each_size.append(_recommendation(analysis, followed(of_size), name, reach))
    far_names = [f"{times[name]:.0f} times the {name}" for name in times if times[name] > LONG and name != "flops"]
    if far_names:
        notes.append(
            f"The plan has {' and '.join(far_names)} of any run of the sweep. If the sweep's curves have hardly begun to "
            "flatten, the loss predicted so far beyond them is too low."
        )
    notes += floor_notes(analysis)
    if observed.constant_rate:
        notes.append(
            "The runs of the sweep keep a constant learning rate: a run whose rate decays at its end reaches a lower loss "
            "than this plan says."
        )
    growth, prior = trend.growth(analysis.confidence), trend.prior_weight(1)
    if doubt:
        doubt += f": from the best that was measured, this one follows published sweeps with {prior:.0%} of the weight."
    return Plan(
        budget=budget,
        best=best,
        flops=spent,
        seconds=float(tokens * measured_cost(observed, "seconds").per_token(parameters, context)),
        each_size=each_size,
        rounded=(rounded, float((at_rounded - analysis.law.loss(context, parameters, tokens))[0])) if agrees else None,
        extrapolation=times,
        trend=trend.sentence(budget.unit, nearest, growth),
        growth=growth,
        prior_weight=prior,
        doubt=doubt,
        measured=measured,
        notes=notes,
    )


def context_bounds(analysis: Analysis) -> tuple[float, float]:
    """Bounds of the contexts that are searched."""
    observed = analysis.observed
    return float(observed.context.min()) / 2, float(observed.context.max()) * CONTEXTS_BEYOND


def size_bounds(analysis: Analysis) -> tuple[float, float]:
    """Bounds of the numbers of parameters that are searched."""
    sizes = analysis.observed.size_parameters
    return float(sizes[0]) / 4, float(sizes[-1]) * SIZES_BEYOND


def _optimum(analysis: Analysis, law: Law, cost: Cost, amount: float, free: bool) -> Optimum:
    """The best context with the best size: between bounds if that is free, else among the sweep's."""
    contexts = context_bounds(analysis)
    if free:
        return best_anywhere(law, cost, amount, size_bounds(analysis), contexts)
    return best_of_sizes(law, cost, amount, analysis.observed.size_parameters, contexts)


def _recommendation(analysis: Analysis, optima: list[Optimum], size: str | None, reach: float) -> Recommendation:
    """From the optima of the law and of its ensemble at the trend's contexts; ``reach``: of the budget."""
    centre, samples = optima

    def estimate(name: str, values: Array, **method: str) -> Estimate:
        return ensemble_estimate(getattr(centre, name)[0], values, analysis.confidence, **method)

    return Recommendation(
        size,
        estimate("parameters", samples.parameters) if len(analysis.observed.sizes) > 1 else None,
        estimate("context", samples.context, method=METHOD),
        estimate("tokens", samples.tokens),
        estimate("loss", np.exp(analysis.beyond(np.log(samples.loss), reach))),
    )


def _check_reach(spent: Array, budget: Budget, far: bool) -> None:
    """Refuse a budget too far above what the sweep spent, or below it."""
    factor, least = budget.amount / spent.max(), spent.min() / budget.amount
    words = duration if budget.unit == "seconds" else "{:.2g} FLOPs".format
    named = f"the budget ({words(budget.amount)})"
    if least > 1:
        raise DataError(
            f"{named} is below the smallest that the sweep measured ({words(spent.min())}); give a larger one"
        )
    if factor > FARTHEST and not far:
        raise DataError(
            f"{named} is {factor:.3g} times the largest run of the sweep ({words(spent.max())}), and beyond {FARTHEST:.0f} "
            "times a law of these few runs is a guess; add larger runs, or set --far to get the guess"
        )


def _check_inside(context: float, analysis: Analysis) -> None:
    """Refuse an optimal context at an end of what was searched."""
    low, high = context_bounds(analysis)
    if not low * 1.02 < context < high / 1.02:
        short = context < np.sqrt(low * high)
        where = f"below {low:.0f}" if short else f"above {high:.0f}"
        raise DataError(
            f"at this budget the best context is not near the sweep's: it is {where} tokens; add runs with "
            f"{'shorter' if short else 'longer'} contexts"
        )


def floor_notes(analysis: Analysis) -> list[str]:
    """The note on a law whose floor may be zero."""
    floor = analysis.parameters()["E"]
    if floor.limits[0] > NO_FLOOR * analysis.observed.loss.min():
        return []
    return [f"The sweep hardly shows a floor of the loss (E is {floor:.2g} nats): the predicted loss may be too low."]


def _bound_notes(analysis: Analysis, samples: Optimum, free: bool) -> list[str]:
    """Notes on intervals that end at a bound of the search."""
    notes = []
    searched = {"context": context_bounds(analysis)} | ({"parameters": size_bounds(analysis)} if free else {})
    for name, (low, high) in searched.items():
        values = getattr(samples, name)
        share = ((values < low * 1.02) | (values > high / 1.02)).mean()
        if share >= LEAST_SHARE:
            notes.append(
                f"In {share:.0%} of the resamples the best {name} is at a bound of the search ({count(low)} to "
                f"{count(high)}): its interval may be open there."
            )
    return notes
