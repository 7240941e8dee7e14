"""From the points of a sweep to one law with its ensemble: forms compared, one chosen, its uncertainty measured."""

from dataclasses import dataclass

import numpy as np

from contextwise.analysis.scaling.bootstrap import RESAMPLES, ensemble, widened_residuals
from contextwise.analysis.scaling.comparison import Score, compare_forms, data_of, not_told_apart
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
        found: the points.
        scores: of all forms, the simplest first.
        tied: those that held-out runs do not tell apart from the best; the first of them, the simplest, is chosen.
        law: the fit of the chosen form.
        own: its fits to the resamples.
        ensemble: R laws of the tied forms, as many of each: what intervals of predictions come from.
        residuals: (n,) ln of measured over fitted loss.
        luck: (G,) how far each run as a whole lies off the law, widened by its leverage.
        confidence: of all intervals.
        seed: of the bootstrap.
    """

    found: Observations
    scores: list[Score]
    tied: list[Score]
    law: Law
    own: Law
    ensemble: Law
    residuals: Array
    luck: Array
    confidence: float
    seed: int

    @property
    def chosen(self) -> Score:
        """The form that was chosen."""
        return self.tied[0]

    def parameters(self) -> dict[str, Estimate]:
        """The law's numbers, in the formula's own units."""
        values, samples = self.law.printed(), self.own.printed()
        return {
            name: ensemble_estimate(float(values[name]), samples[name], self.confidence) for name in values
        }

    @property
    def at_bounds(self) -> set[str]:
        """Numbers that the fit left at a bound of where it looked: the points do not say what they are."""
        low, high = self.chosen.form.bounds
        held = (self.law.theta <= low) | (self.law.theta >= high)
        return {one.name for one, at in zip(self.chosen.form.parameters, held, strict=True) if at}

    def one_run(self, log_losses: Array) -> Array:
        """(R, ...) ln losses of the ensemble with the luck of one new run each: for comparing with a measurement."""
        draw = np.random.default_rng(self.seed + 1)
        count = len(log_losses)
        luck = self.luck[draw.integers(len(self.luck), size=count)] * draw.choice([-1.0, 1.0], size=count)
        return log_losses + luck.reshape(-1, *[1] * (log_losses.ndim - 1))


def analyse(
    found: Observations, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Analysis:
    """Compare the forms, choose one, and fit it with its ensemble.

    Args:
        found: the points.
        resamples: laws of the ensemble.
        confidence: of all intervals.
        seed: of the bootstrap.

    Raises:
        DataError: the points cannot carry a law of the context.
    """
    check_enough(found)
    scores = compare_forms(found)
    tied = not_told_apart(scores)
    _check_context_matters(scores)
    data, chosen = data_of(found), tied[0]
    own, *others = (
        ensemble(score.form, score.theta, data, found.run, count, seed)
        for score, count in zip(tied, [resamples] + [resamples // len(tied)] * len(tied), strict=False)
    )
    mixed = [widened(chosen.form, own[: resamples - sum(map(len, others))])]
    mixed += [widened(score.form, theta) for score, theta in zip(tied[1:], others, strict=True)]
    wide = widened_residuals(chosen.form, chosen.theta[0], data, found.run)
    fitted = np.log(chosen.form.value_and_slope(chosen.theta[:1], data.features)[0][0])
    return Analysis(
        found=found,
        scores=scores,
        tied=tied,
        law=Law(chosen.form, chosen.theta[0], found.centre),
        own=Law(chosen.form, own, found.centre),
        ensemble=Law(EVERY, np.concatenate(mixed), found.centre),
        residuals=data.log_loss - fitted,
        luck=np.array([wide[found.run == run].mean() for run in range(len(found.runs))]),
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
