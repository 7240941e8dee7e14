"""From the points of a sweep to one law with its ensemble: forms compared, one chosen, its uncertainty measured."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from contextwise.analysis.scaling.bootstrap import RESAMPLES, ensemble, widened_residuals
from contextwise.analysis.scaling.comparison import Score, compare_forms, data_of, not_significantly_worse
from contextwise.analysis.scaling.forms import EVERY, Array, Law, widened
from contextwise.analysis.scaling.observations import Observations, check_enough
from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import percentile_interval

CONFIDENCE = 0.9


def ensemble_estimate(value: float, samples: Array, confidence: float) -> Estimate:
    """A value with the percentile interval of an ensemble's values; the interval holds the value itself."""
    low, high = percentile_interval(samples, confidence)
    return Estimate(
        float(value),
        float(min(low, value)),
        float(max(high, value)),
        n=len(samples),
        method="wild bootstrap over runs",
        confidence=confidence,
    )


@dataclass(frozen=True)
class Analysis:
    """A sweep's law.

    Attributes:
        observed: the points.
        scores: of all forms, the simplest first.
        tied: forms without a significant difference to the best on held-out runs; the first, the simplest, is chosen.
        law: the fit of the chosen form.
        own: its fits to the resamples.
        ensemble: R laws of the tied forms, as many of each: what intervals of predictions come from.
        residuals: (n,) ln of measured over fitted loss.
        run_effects: (G,) mean deviation of each run from the law, widened by its leverage.
        confidence: of all intervals.
        seed: of the bootstrap.
    """

    observed: Observations
    scores: list[Score]
    tied: list[Score]
    law: Law
    own: Law
    ensemble: Law
    residuals: Array
    run_effects: Array
    confidence: float
    seed: int

    @property
    def chosen(self) -> Score:
        """The form that was chosen."""
        return self.tied[0]

    def parameters(self) -> dict[str, Estimate]:
        """The law's parameters, in the formula's own units."""
        values, samples = self.law.printed(), self.own.printed()
        return {
            name: ensemble_estimate(float(values[name]), samples[name], self.confidence) for name in values
        }

    @property
    def at_bounds(self) -> set[str]:
        """Parameters that the fit left at a bound of its search: the points do not determine them."""
        low, high = self.chosen.form.bounds
        held = (self.law.theta <= low) | (self.law.theta >= high)
        return {parameter.name for parameter, at in zip(self.chosen.form.parameters, held, strict=True) if at}

    def to_dict(self) -> dict[str, Any]:
        """The forms that were compared, the parameters of the chosen one and every residual, as plain values for JSON."""
        observed = self.observed
        columns = ("context", "parameters", "tokens", "flops", "loss")
        return {
            "form": self.chosen.form.name,
            "formula": self.chosen.form.formula,
            "confidence": self.confidence,
            "resamples": len(self.ensemble.theta),
            "points": len(observed),
            "left_out": observed.left_out,
            "runs": len(observed.runs),
            "sizes": dict(zip(observed.sizes, observed.size_parameters.tolist(), strict=True)),
            "contexts": np.unique(observed.context).tolist(),
            "parameters": {name: value.to_dict() for name, value in self.parameters().items()},
            "at_bounds": sorted(self.at_bounds),
            "forms": [
                {
                    "form": score.form.name,
                    "formula": score.form.formula,
                    "numbers": len(score.form.parameters),
                    "seen": score.fitted,
                    "unseen_runs": score.error,
                    "unseen_budgets": score.held_out_budgets,
                    "in_intervals": any(score is tied for tied in self.tied),
                }
                for score in self.scores
            ],
            "residuals": [
                {
                    "run": observed.runs[observed.run[i]],
                    "size": observed.sizes[observed.size[i]],
                    **{name: float(getattr(observed, name)[i]) for name in columns},
                    "residual": float(self.residuals[i]),
                }
                for i in range(len(observed))
            ],
        }

    def one_run(self, log_losses: Array) -> Array:
        """(R, ...) ln losses of the ensemble with a random effect of one new run each, to compare with a measurement."""
        draw = np.random.default_rng(self.seed + 1)
        count = len(log_losses)
        effects = self.run_effects[draw.integers(len(self.run_effects), size=count)] * draw.choice(
            [-1.0, 1.0], size=count
        )
        return log_losses + effects.reshape(-1, *[1] * (log_losses.ndim - 1))


def analyse(
    observed: Observations, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Analysis:
    """Compare the forms, choose one, and fit it with its ensemble.

    Args:
        observed: the points.
        resamples: laws of the ensemble.
        confidence: of all intervals.
        seed: of the bootstrap.

    Raises:
        DataError: the points cannot carry a law of the context.
    """
    check_enough(observed)
    scores = compare_forms(observed)
    tied = not_significantly_worse(scores)
    _check_context_matters(scores)
    data, chosen = data_of(observed), tied[0]
    own, *others = (
        ensemble(score.form, score.theta, data, observed.run, count, seed)
        for score, count in zip(tied, [resamples] + [resamples // len(tied)] * len(tied), strict=False)
    )
    mixed = [widened(chosen.form, own[: resamples - sum(map(len, others))])]
    mixed += [widened(score.form, theta) for score, theta in zip(tied[1:], others, strict=True)]
    wide = widened_residuals(chosen.form, chosen.theta[0], data, observed.run)
    fitted = np.log(chosen.form.value_and_slope(chosen.theta[:1], data.features)[0][0])
    return Analysis(
        observed=observed,
        scores=scores,
        tied=tied,
        law=Law(chosen.form, chosen.theta[0], observed.centre),
        own=Law(chosen.form, own, observed.centre),
        ensemble=Law(EVERY, np.concatenate(mixed), observed.centre),
        residuals=data.log_loss - fitted,
        run_effects=np.array([wide[observed.run == run].mean() for run in range(len(observed.runs))]),
        confidence=confidence,
        seed=seed,
    )


def _check_context_matters(scores: list[Score]) -> None:
    constant = scores[0]
    blind, seeing = (
        min((score for score in scores if score.form.sees_context is sees), key=lambda score: score.error)
        for sees in (False, True)
    )
    if min(blind.error, seeing.error) >= constant.error:
        raise DataError(
            f"no law predicts held-out runs better than a constant does (error of ln L {seeing.error:.4f} against "
            f"{constant.error:.4f}): the sweep is too small or too noisy for a plan; add runs or tokens"
        )
    if blind.error <= seeing.error:
        raise DataError(
            f"held-out runs are predicted as well without the training context (error of ln L {blind.error:.4f}) as with it "
            f"({seeing.error:.4f}): the sweep does not show what the context is worth; add contexts, seeds or tokens"
        )
