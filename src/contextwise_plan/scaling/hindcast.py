"""Validation of a law: hide the largest budgets of a sweep, predict them, and compare.

The measured optimum is one of the sweep's contexts, and often others are within its noise: both are reported, as on the sweep's
page.
"""

import contextlib
from dataclasses import dataclass
from typing import ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, as_json
from contextwise_plan.optimum import size_optima
from contextwise_plan.scaling.analysis import CONFIDENCE, Analysis, ensemble_estimate
from contextwise_plan.scaling.fitting import RESAMPLES
from contextwise_plan.scaling.observations import (
    FEWEST_BUDGETS,
    Observations,
    budgets_of,
    cells_at,
    check_enough,
    common_budgets,
    measured,
)
from contextwise_plan.scaling.optimum import best_context, measured_cost
from contextwise_plan.scaling.trend import METHOD, fit_trend
from contextwise_plan.tracks import NEARLY


@dataclass(frozen=True)
class HiddenOptimum:
    """The best context of a size at a hidden budget, in FLOPs.

    Attributes:
        contexts: how many were measured at this budget.
        predicted: the best context among them and between them, by the trend, or by the law alone where what was shown did not
            bracket the best context of the size; ``measured``: the one with the lowest loss.
        within_noise: the other contexts whose loss is not significantly higher.
        at_end: whether it is the shortest or the longest that was measured, so that the optimum may be beyond.
        before: the best measured context at the largest budget that all contexts of the size reached in what was shown; None
            where there is none.
        predicted_loss, measured_loss: at the context that was measured best; predicted with the variation of one run.
        inside: whether the interval of the context reaches into the half-steps around the measured one.
    """

    size: str
    budget: float
    contexts: int
    predicted: Estimate
    measured: float
    within_noise: tuple[int, ...]
    at_end: bool
    before: float | None
    predicted_loss: Estimate
    measured_loss: float
    inside: bool


@dataclass(frozen=True)
class HiddenRun:
    """The last point of a run that went beyond what was shown."""

    run: str
    size: str
    context: int
    flops: float
    predicted: Estimate
    measured: float

    IN_JSON: ClassVar = ("inside",)

    @property
    def inside(self) -> bool:
        low, high = self.predicted.limits
        return low <= self.measured <= high


class HindcastJson(TypedDict):
    """:class:`Hindcast` as JSON, with the form of the law."""

    above: float
    beyond: float
    shown: int
    hidden: int
    form: str
    error: float
    unchanged: float | None
    optima: list[HiddenOptimum]
    runs: list[HiddenRun]
    law: Analysis


class Hindcast:
    """Predicted against measured: the points below a budget are fitted, and those above it predicted.

    Args:
        above: FLOPs; by default those of a budget about the middle, in the logarithm, of those that all contexts of a size
            passed through, of the size that went furthest; a larger one where a law needs more to be shown.

    Attributes:
        above: FLOPs above which, by more than :data:`NEARLY`, points were hidden; ``beyond``: the largest hidden FLOPs over
            them.
        shown, hidden: how many points.
        analysis: the law of the points that were shown.
        error: root mean square of ln L over the hidden runs' last points.
        unchanged: the same error if each run's last shown loss is the prediction.

    Raises:
        DataError: there are no points above, no such size, too few budgets, or a law cannot be fitted to the points below.
    """

    def __init__(
        self,
        observed: Observations,
        above: float | None = None,
        resamples: int = RESAMPLES,
        confidence: float = CONFIDENCE,
        seed: int = 0,
    ) -> None:
        if above is None:
            spans = [common_budgets(observed, size) for size in range(len(observed.sizes))]
            furthest = max(filter(len, spans), key=lambda budgets: float(budgets[-1]), default=None)
            if furthest is None:
                raise DataError(
                    "no model size of the sweep was trained at three contexts with budgets (FLOPs) in common, so that there is "
                    "no optimum to check; train the contexts of a size for about the same FLOPs"
                )
            above = _cut(observed, float(np.sqrt(furthest[0] * furthest[-1])))
        hidden = observed.flops > above * NEARLY
        if not hidden.any():
            raise DataError(
                f"no point of the sweep is above {above:.2g} FLOPs (the largest is {observed.flops.max():.2g}); hide less"
            )
        if hidden.all():
            raise DataError(f"all points of the sweep are above {above:.2g} FLOPs; hide less")
        analysis = Analysis(observed.where(~hidden), resamples, confidence, seed)
        runs, still = _hidden_runs(observed, analysis, hidden)
        errors = np.log([run.predicted.value / run.measured for run in runs])
        self.above, self.shown, self.hidden = above, len(analysis.observed), int(hidden.sum())
        self.beyond, self.analysis = float(observed.flops.max() / above), analysis
        self.optima, self.runs = _hidden_optima(observed, analysis, above * NEARLY), runs
        self.error = float(np.sqrt((errors**2).mean()))
        self.unchanged = float(np.sqrt((np.array(still) ** 2).mean())) if still else None

    def to_dict(self) -> HindcastJson:
        """Plain values, for JSON."""
        values = vars(self) | {"form": self.analysis.chosen.form.name, "law": self.analysis}
        return as_json({name: value for name, value in values.items() if name != "analysis"})


def _cut(observed: Observations, middle: float) -> float:
    """The largest FLOPs shown: of the last budget up to the middle, or of the first one that leaves enough for a law."""
    check_enough(observed)
    budgets = budgets_of(observed)
    for following in budgets[1:]:
        above = float(observed.flops[observed.flops < following].max())
        with contextlib.suppress(DataError):  # too few are shown
            if following > middle:
                check_enough(observed.where(observed.flops <= above))
                return above
    raise DataError(
        f"a check needs {FEWEST_BUDGETS + 1} budgets at least, {FEWEST_BUDGETS} to show and one to hide, and the sweep has "
        f"{len(budgets)}; give every size and context more budgets"
    )


def _hidden_runs(
    observed: Observations, analysis: Analysis, hidden: NDArray[np.bool_]
) -> tuple[list[HiddenRun], list[float]]:
    """The last points, and ln of each run's last shown loss over its last one."""
    rows, still = [], []
    for run, name in enumerate(observed.runs):
        mine = np.flatnonzero(observed.run == run)
        mine = mine[observed.tokens[mine].argsort()]
        last, shown = mine[-1], mine[~hidden[mine]]
        if not hidden[last]:
            continue
        at = observed.context[last], observed.parameters[last], observed.tokens[last]
        context, flops, loss = round(float(at[0])), float(observed.flops[last]), float(observed.loss[last])
        size = observed.sizes[observed.size[last]]
        rows.append(HiddenRun(name, size, context, flops, predicted_loss(analysis, at, flops), loss))
        if len(shown):
            still.append(float(np.log(observed.loss[shown[-1]] / observed.loss[last])))
    return rows, still


def predicted_loss(analysis: Analysis, at: tuple[float, float, float], flops: float) -> Estimate:
    """The predicted loss of one run, in nats a token, with the variation between runs; ``at``: context, parameters, tokens."""
    log_losses = np.log(analysis.ensemble.loss(*(np.array([x]) for x in at)))
    samples = analysis.one_run(analysis.beyond(log_losses, flops / float(analysis.observed.flops.max())))
    return ensemble_estimate(analysis.law.loss(*at)[0], np.exp(samples), analysis.confidence)


def _hidden_optima(observed: Observations, analysis: Analysis, above: float) -> list[HiddenOptimum]:
    rows, shown = [], analysis.observed
    cost, trend = measured_cost(observed, "flops"), None
    with contextlib.suppress(DataError):  # none was measured
        trend = fit_trend(shown)
    for size, name in enumerate(observed.sizes):
        budgets = common_budgets(observed, size)
        if not len(budgets) or budgets[-1] <= above:
            continue
        budget, parameters = float(budgets[-1]), float(observed.size_parameters[size])
        at_budget = cells_at(observed, size, budget)
        optimum = size_optima(at_budget, observed.planned)[name]
        contexts = np.array([cell.context for cell in at_budget], dtype=np.float64)
        best, lowest = float(optimum.cell.context), int(np.searchsorted(contexts, optimum.cell.context))
        bounds = float(contexts.min()), float(contexts.max())
        laws = analysis.law, analysis.ensemble
        optima, method = [best_context(law, cost, budget, parameters, bounds) for law in laws], {}
        if trend is not None and name in trend.sizes:
            method = {"method": METHOD}
            optima = [trend.followed(law, one, cost, budget, bounds) for law, one in zip(laws, optima, strict=True)]
        predicted = ensemble_estimate(optima[0].context[0], optima[1].context, analysis.confidence, **method)
        at = best, parameters, budget / float(cost.per_token(parameters, best))
        lower, upper = np.pad(np.sqrt(contexts[1:] / contexts[:-1]) * 1.001, 1, "edge")[lowest:][:2]
        before = None
        if name in shown.sizes and len(early := common_budgets(shown, shown.sizes.index(name))):
            tried, then = measured(shown, shown.sizes.index(name), float(early[-1]))
            before = float(tried[then.argmin()])
        rows.append(
            HiddenOptimum(
                size=name,
                budget=budget,
                contexts=len(contexts),
                predicted=predicted,
                measured=best,
                within_noise=optimum.within_noise,
                at_end=best in bounds,
                before=before,
                predicted_loss=predicted_loss(analysis, at, budget),
                measured_loss=optimum.cell.loss,
                inside=bool(predicted.limits[0] <= best * upper and best / lower <= predicted.limits[1]),
            )
        )
    return rows
