"""The plan for a budget: model size, training context, tokens and the expected loss, with intervals; and what is refused.

The context is that of the trend of the sweep's measured optima (:mod:`~contextwise_plan.scaling.trend`); the size is the
law's best, and the loss the law's at both.
"""

from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from contextwise.base.errors import ContextwiseError, DataError
from contextwise.base.estimates import Estimate, as_json, count
from contextwise.experiments.grid import size_name
from contextwise.models.sizes import SIZES
from contextwise.training.settings import model_kinds
from contextwise_plan.scaling.analysis import Analysis, ensemble_estimate
from contextwise_plan.scaling.forms import Array, Law
from contextwise_plan.scaling.hindcast import Hindcast
from contextwise_plan.scaling.next_runs import Candidate, next_runs
from contextwise_plan.scaling.observations import Observations
from contextwise_plan.scaling.optimum import Cost, Optimum, best_anywhere, best_context, best_of_sizes, measured_cost
from contextwise_plan.scaling.trend import METHOD, UNINFORMED, fit_trend, trend_for

FREE_SIZES = 3
"""Number of sizes from which the plan also recommends sizes between and beyond them."""
RIVALS = 1.5
"""Forms whose held-out error is within this factor of the chosen one's are evaluated too."""
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
APART = 2.0
"""Where the laws' own contexts are farther than this factor from the trend's, a note says so."""
LEAST_SHARE = 0.01
"""Resamples at a bound of the search get a note from this share on."""
NO_FLOOR = 0.01
"""A floor whose interval begins below this share of the lowest loss may be zero."""
NEAR = 1.15
"""Where no named size is within this factor of the recommended parameters, one with another number of layers is given too."""


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
class Rival:
    """The optimum of a form of the law alone, without the trend, and the form's error on held-out runs."""

    form: str
    error: float
    parameters: float
    context: float
    loss: float


@dataclass(frozen=True)
class Shape:
    """A model that can be built: its name, and its parameters."""

    name: str
    parameters: int


class PlanJson(TypedDict, total=False):
    """What ``contextwise plan budget`` prints: a plan with its law, and what a check of the sweep found."""

    plan: "Plan"
    law: Analysis
    check: Hindcast


class Plan:
    """A recommendation of size, context and tokens for a budget, with alternatives and notes.

    Args:
        far: answer beyond thirty times the sweep's FLOPs too, and where it shows no best context.

    Attributes:
        flops, seconds: that it takes, at the costs that the sweep measured.
        each_size: the best context of each size of the sweep that has a measured one.
        rounded: the power of two nearest to the context, and what it loses against it, nats.
        extrapolation: of flops, context, parameters and tokens, the recommended over the largest in the sweep.
        trend: why this context, in words; empty where the sweep shows no best context, so that the context is the law's.
        growth: the power of the budget with which the best context grows; ``growth_alone``: without a prior, by the sweep
            alone; ``prior_weight``: share of the prior in ``growth``. None where the context is the law's.
        rivals: the optima of the laws alone.
        shapes: models that can be built, near the recommended parameters.
        next_runs: single runs that would narrow the answer, the best first.
        measured: what the sweep's points say of the best context of each size, without a law, as on the sweep's page.

    Raises:
        DataError: the budget is too far from the sweep, or the best context is not near its contexts, or was not between two of
            them at any budget for the size that is recommended.
    """

    budget: Budget
    best: Recommendation
    flops: float
    seconds: float
    each_size: list[Recommendation]
    rounded: tuple[int, float]
    extrapolation: dict[str, float]
    trend: str
    growth: Estimate | None
    growth_alone: Estimate | None
    prior_weight: float | None
    rivals: list[Rival]
    shapes: list[Shape]
    next_runs: list[Candidate]
    measured: list[str]
    notes: list[str]

    def __init__(self, analysis: Analysis, budget: Budget, far: bool = False) -> None:
        observed, own = analysis.observed, analysis.observed.size_parameters
        laws = analysis.law, analysis.ensemble
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
        trend, notes = trend_for(observed, nearest, budget.unit, far)
        if any(landscape.optima[step][nearest].unclear for step in landscape.decided_steps(nearest)[-1:]):
            notes = [f"The sweep does not show which context is best for {nearest}.", *notes]
        notes += [note] if note else []

        def followed(optima: list[Optimum]) -> list[Optimum]:
            """The optima at the trend's contexts, where there is a trend."""
            if trend is None:
                return optima
            bounds = context_bounds(analysis)
            return [
                trend.followed(law, one, cost, budget.amount, bounds) for law, one in zip(laws, optima, strict=True)
            ]

        of_laws, optima = optima, followed(optima)
        centre, samples = optima
        _check_inside(float(centre.context[0]), analysis)
        trended = trend is not None
        reach = budget.amount / float(getattr(observed, budget.unit).max())
        best = _recommendation(analysis, optima, None if free else nearest, trended, reach)
        if best.size is not None and best.parameters is not None:  # one of a few was chosen, which has no interval
            best = replace(best, parameters=replace(best.parameters, low=None, high=None))
        notes += _width_notes(analysis, best.context, samples, free)
        context, tokens, parameters = best.context.value, best.tokens.value, float(centre.parameters[0])
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
            if trend is not None and name not in trend.sizes:
                continue
            of_size = [best_context(law, cost, budget.amount, size, context_bounds(analysis)) for law in laws]
            each_size.append(_recommendation(analysis, followed(of_size), name, trended, reach))
        self.budget, self.best, self.flops = budget, best, spent
        self.trend, self.growth, self.growth_alone, self.prior_weight = "", None, None, None
        if trend is not None:
            self.growth = trend.growth(analysis.confidence)
            self.growth_alone = fit_trend(observed, budget.unit, UNINFORMED).growth(analysis.confidence)
            self.prior_weight = trend.prior_weight(1)
            self.trend = trend.sentence(budget.unit, nearest, parameters, self.growth_alone)
        self.seconds = float(tokens * measured_cost(observed, "seconds").per_token(parameters, context))
        self.each_size = each_size
        self.rounded = rounded, float((at_rounded - analysis.law.loss(context, parameters, tokens))[0])
        self.extrapolation, self.rivals = times, _rivals(analysis, cost, budget.amount)
        self.shapes = _nearest_shapes(observed, parameters, rounded) if free else []
        self.next_runs = next_runs(analysis, of_laws[1], flops, spent)
        self.measured = landscape.findings()
        notes = _law_notes(best.context, self.rivals) * trended + notes
        self.notes = notes + floor_notes(analysis) + _distance_notes(times)
        if observed.constant_rate:
            self.notes.append(
                "The runs of the sweep keep a constant learning rate: a run whose rate decays at its end reaches a lower loss "
                "than this plan says."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return as_json(vars(self))


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


def _recommendation(
    analysis: Analysis, optima: list[Optimum], size: str | None, trended: bool, reach: float
) -> Recommendation:
    """From the optima of the law and of its ensemble; ``trended``: at the trend's contexts; ``reach``: of the budget."""
    centre, samples = map(vars, optima)
    samples = samples | {"loss": np.exp(analysis.beyond(np.log(samples["loss"]), reach))}
    methods = {"context": {"method": METHOD}} if trended else {}
    parameters, *others = (
        ensemble_estimate(centre[name][0], samples[name], analysis.confidence, **methods.get(name, {}))
        for name in ("parameters", "context", "tokens", "loss")
    )
    return Recommendation(size, parameters if len(analysis.observed.sizes) > 1 else None, *others)


def _rivals(analysis: Analysis, cost: Cost, amount: float) -> list[Rival]:
    free = len(analysis.observed.sizes) >= FREE_SIZES
    rivals = []
    for score in analysis.scores:
        if score.error <= RIVALS * analysis.chosen.error and score.sees_context:
            law = Law(score.form, score.theta[0], analysis.law.centre)
            optimum = _optimum(analysis, law, cost, amount, free)
            at = (float(x[0]) for x in (optimum.parameters, optimum.context, optimum.loss))
            rivals.append(Rival(score.form.name, score.error, *at))
    return rivals


def _check_reach(spent: Array, budget: Budget, far: bool) -> None:
    """Refuse a budget too far above what the sweep spent, or below it."""
    factor, least = budget.amount / spent.max(), spent.min() / budget.amount
    named = f"the budget ({budget.amount:.2g} {'FLOPs' if budget.unit == 'flops' else 'seconds'})"
    if least > 1:
        raise DataError(f"{named} is below the smallest that the sweep measured ({spent.min():.2g}); give a larger one")
    if factor > FARTHEST and not far:
        raise DataError(
            f"{named} is {factor:.3g} times the largest run of the sweep ({spent.max():.2g}), and beyond {FARTHEST:.0f} times "
            "a law of these few runs is a guess; add larger runs, or set --far to get the guess"
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


def _law_notes(context: Estimate, rivals: list[Rival]) -> list[str]:
    """The note on laws whose own best contexts all differ from the trend's: by a factor of two, or out of its interval."""
    own = sorted(rival.context for rival in rivals)
    low, high = context.limits
    if not own or (max(low, context.value / APART) <= own[-1] and own[0] <= min(high, context.value * APART)):
        return []
    among = " to ".join(dict.fromkeys(f"{each:.0f}" for each in (own[0], own[-1])))
    return [f"The laws of the loss alone have their best context at {among}."]


def _distance_notes(times: dict[str, float]) -> list[str]:
    """The note on directions in which the plan extrapolates far; ``times``: multiple of the sweep's largest, by name."""
    far = [f"{times[name]:.0f} times the {name}" for name in times if times[name] > LONG and name != "flops"]
    if not far:
        return []
    return [
        f"The plan has {' and '.join(far)} of any run of the sweep. If the sweep's curves have hardly begun to flatten, the "
        "loss predicted so far beyond them is too low."
    ]


def _width_notes(analysis: Analysis, context: Estimate, samples: Optimum, free: bool) -> list[str]:
    """Notes on wide intervals, and on intervals that end at a bound of the search."""
    notes = []
    low, high = context.limits
    if high > WIDE * low:
        notes.append(f"The sweep hardly determines the context (interval: a factor of {high / low:.0f}).")
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


def _nearest_shapes(observed: Observations, parameters: float, context: int) -> list[Shape]:
    """The named size of the sweep's family that is nearest, and where that is not near, one with other layers.

    The vocabulary is the one with which the sweep's largest size has the parameters that were measured. Empty where the sweep's
    models have no named sizes.
    """
    recipe = observed.model.get(observed.sizes[-1])
    if recipe is None or recipe.get("pretrained"):
        return []
    from contextwise.models.building import parameter_count

    try:
        sized: Any = model_kinds()["sized"]
        settings = sized.model_validate(recipe)
        measured, shortest = float(observed.size_parameters[-1]), int(observed.context.min())
        small, large = (parameter_count(settings.whole(pieces, shortest)) for pieces in (1000, 2000))
        vocabulary = round(1000 + (measured - small) / ((large - small) / 1000))
        if vocabulary < 2:  # the parameters of the sweep are not those of its recipe
            return []

        def shape(**changes: Any) -> Shape:
            """Another shape of the same kind."""
            own = {"layers": None, "width": None, "heads": None}
            changed = sized.model_validate(settings.model_dump() | own | changes)
            size = parameter_count(changed.whole(vocabulary, context))
            return Shape(size_name(changed.model_dump()), size)

        def distance(shape: Shape) -> float:
            return abs(float(np.log(shape.parameters / parameters)))

        named = []
        for name in SIZES[settings.family]:
            named.append(shape(size=name))
            if named[-1].parameters > 4 * parameters:  # counting a large one builds it, which takes time
                break
        nearest = min(named, key=distance)
        if distance(nearest) <= np.log(NEAR):
            return [nearest]
        layers = SIZES[settings.family][nearest.name].layers
        few, more = (shape(size=nearest.name, layers=n).parameters for n in (layers, layers + 1))
        layers = max(1, layers + round((parameters - few) / (more - few)))
        return [nearest, shape(size=nearest.name, layers=layers)]
    except (ContextwiseError, ValueError):  # a recipe of hand-made numbers
        return []
