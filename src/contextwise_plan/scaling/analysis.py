"""From the points of a sweep to one law with its ensemble: forms compared, one chosen, its uncertainty measured (docs/plan.md).

Each form is fitted without one run in turn and predicts that run. The error of a run is the root mean square of ln L over its
points; that of a form is the geometric mean over runs, so that a run at the edge of the grid does not decide alone.

Legend: R laws, G runs, S minima, P parameters, n points.
"""

from typing import Any

import numpy as np
from scipy.special import ndtri

from contextwise.base.intervals import percentile_interval
from contextwise.report import as_json
from contextwise.settings import DataError
from contextwise.stats import Estimate
from contextwise_plan.scaling.fitting import RESAMPLES, Data, ensemble, refit, search
from contextwise_plan.scaling.forms import EVERY, ONE_SIZE, SEVERAL_SIZES, Array, Form, Law, features_of, widened
from contextwise_plan.scaling.observations import Observations, check_enough

CONFIDENCE = 0.9
APART = 2.0  # standard errors of a difference from which on two forms differ significantly
SAME = 1e-6  # errors of ln L below this are equal
LAW_ERROR = 0.012
"""Standard deviation of ln L that a law is off at e times the largest FLOPs of its sweep, beside what its ensemble varies by.

On six sweeps like those of ``benchmarks/results/sweeps``, of which the smaller budgets were fitted, the most likely value was
0.011."""


class Score:
    """A form fitted to the data, and its errors.

    ``theta`` (S, P) is the fit to all points first, then other minima. ``fitted`` is the error on the points it was fitted to,
    ``errors`` (G,) that of each run when it is held out, ``logs`` their ln, where smaller ones count as :data:`SAME`, and
    ``error`` their geometric mean. A fit whose terms of the context vanish does not ``sees_context``.
    """

    def __init__(self, form: Form, data: Data, observed: Observations) -> None:
        theta = search(form, data)
        runs = np.arange(len(observed.runs))
        inside = (observed.run[None] == runs[:, None]).astype(np.float64)  # (G, n)
        without = refit(form, data, 1 - inside, theta[:2])

        def squares(theta: Array) -> Array:
            return (np.log(form.value_and_slope(theta, data.features)[0]) - data.log_loss) ** 2

        def errors(squares: Array) -> Array:
            """Root mean square over the points of each run."""
            return np.asarray(np.sqrt((squares * inside).sum(1) / inside.sum(1)))

        self.form, self.theta, self.errors = form, theta, errors(squares(without))
        self.logs: Array = np.log(np.maximum(self.errors, SAME))
        self.error = float(np.exp(self.logs.mean()))
        self.fitted = float(np.exp(np.log(np.maximum(errors(squares(theta[:1])), 1e-12)).mean()))
        middle = {name: np.zeros_like(x) if "l" in name else x for name, x in data.features.items()}
        anywhere, there = (np.log(form.value_and_slope(theta[:1], x)[0]) for x in (data.features, middle))
        self.sees_context = bool(np.abs(anywhere - there).max() > SAME)


def data_of(observed: Observations) -> Data:
    """Convert points to the data of a fit, centred on the middle of the points."""
    features = features_of(observed.centre, observed.context, observed.parameters, observed.tokens)
    return Data(features, np.log(observed.loss))


def compare_forms(observed: Observations) -> list[Score]:
    """Every form that the sweep allows, with its errors, the simplest first; a DataError if none sees the context."""
    forms = ONE_SIZE if len(observed.sizes) == 1 else SEVERAL_SIZES
    data, runs = data_of(observed), len(observed.runs)
    least = min(len(form.parameters) for form in forms if form.sees_context) - 1
    if runs < least:
        raise DataError(
            f"the sweep has {runs} runs of different size, context and seed, but a law of the training context needs at least "
            f"{least}: add contexts or seeds{observed.findings()}"
        )
    return [Score(form, data, observed) for form in forms if len(form.parameters) < runs + 2]


def that_see_context(scores: list[Score]) -> list[Score]:
    """Those whose fit depends on the training context; where none does, those whose form might."""
    return [score for score in scores if score.sees_context] or [score for score in scores if score.form.sees_context]


def not_significantly_worse(scores: list[Score]) -> list[Score]:
    """The best of the forms that see the context, and those that are not significantly worse; the simplest first."""
    seeing = that_see_context(scores)
    best = min(seeing, key=lambda score: score.error)

    def worse(score: Score) -> bool:
        excess = score.logs - best.logs
        return bool(excess.mean() > APART * excess.std(ddof=1) / np.sqrt(len(excess)))

    kept = (score for score in seeing if not worse(score))
    return sorted(kept, key=lambda score: (len(score.form.parameters), score.error))


def ensemble_estimate(
    value: float | Array, samples: Array, confidence: float, method: str = "wild bootstrap over runs"
) -> Estimate:
    """A value with the percentile interval of an ensemble's values; the interval holds the value itself."""
    low, high = percentile_interval(samples, confidence)
    limits = float(min(low, value)), float(max(high, value))
    return Estimate(float(value), *limits, n=len(samples), method=method, confidence=confidence)


class Analysis:
    """A sweep's law: the forms are compared, one is chosen and fitted with an ensemble of ``resamples`` laws.

    Attributes:
        scores: of all forms, the simplest first.
        tied: forms without a significant difference to the best on held-out runs; the first, the simplest, is ``chosen``.
        law: the fit of the chosen form; ``own``: its fits to the resamples.
        ensemble: R laws of the tied forms, as many of each: what intervals of predictions come from.
        residuals: (n,) ln of measured over fitted loss.

    Raises:
        DataError: the points do not determine a law of the context.
    """

    def __init__(
        self, observed: Observations, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
    ) -> None:
        check_enough(observed)
        self.observed, self.confidence, self.seed = observed, confidence, seed
        self.scores = compare_forms(observed)
        self.tied = not_significantly_worse(self.scores)
        self.chosen = self.tied[0]
        _check_context_matters(self.scores, observed)
        data, chosen, forms = data_of(observed), self.chosen, len(self.tied)
        own, *others = (
            ensemble(score.form, score.theta, data, observed.run, count, seed)
            for score, count in zip(self.tied, [resamples] + [resamples // forms] * forms, strict=False)
        )
        mixed = [widened(chosen.form, own[: resamples - sum(map(len, others))])]
        mixed += [widened(score.form, theta) for score, theta in zip(self.tied[1:], others, strict=True)]
        self.law, self.own = (Law(chosen.form, theta, observed.centre) for theta in (chosen.theta[0], own))
        self.ensemble = Law(EVERY, np.concatenate(mixed), observed.centre)
        fitted = np.log(chosen.form.value_and_slope(chosen.theta[:1], data.features)[0][0])
        self.residuals: Array = data.log_loss - fitted

    def parameters(self) -> dict[str, Estimate]:
        """The law's parameters, in the formula's own units."""
        values, samples = self.law.printed(), self.own.printed()
        return {name: ensemble_estimate(values[name], samples[name], self.confidence) for name in values}

    @property
    def at_bounds(self) -> set[str]:
        """Parameters that the fit left at a bound of its search: the points do not determine them."""
        low, high = self.chosen.form.bounds
        held = (self.law.theta <= low) | (self.law.theta >= high)
        return {parameter.name for parameter, at in zip(self.chosen.form.parameters, held, strict=True) if at}

    def to_dict(self) -> dict[str, Any]:
        """The forms that were compared, the parameters of the chosen one and every residual, for JSON."""
        observed, names = self.observed, ("context", "parameters", "tokens", "flops", "loss")
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
            "parameters": as_json(self.parameters()),
            "at_bounds": sorted(self.at_bounds),
            "forms": [
                {
                    "form": score.form.name,
                    "formula": score.form.formula,
                    "numbers": len(score.form.parameters),
                    "seen": score.fitted,
                    "unseen_runs": score.error,
                    "in_intervals": any(score is tied for tied in self.tied),
                }
                for score in self.scores
            ],
            "residuals": as_json(
                [
                    {"run": observed.runs[observed.run[i]], "size": observed.sizes[observed.size[i]]}
                    | {name: getattr(observed, name)[i] for name in names}
                    | {"residual": self.residuals[i]}
                    for i in range(len(observed))
                ]
            ),
        }

    def beyond(self, log_losses: Array, reach: float) -> Array:
        """(R, ...) ln losses of the ensemble with the error of a law at ``reach`` times the sweep's largest budget.

        The ensemble varies as laws do that are fitted to other runs. That no form is the true one shows beyond the points:
        :data:`LAW_ERROR` times ln of the reach, and nothing within the sweep.
        """
        count = len(log_losses)
        normal = ndtri((np.random.default_rng(self.seed + 2).permutation(count) + 0.5) / count)
        error = LAW_ERROR * np.log(max(reach, 1.0)) * normal
        return np.asarray(log_losses + error.reshape(-1, *[1] * (log_losses.ndim - 1)))


def _check_context_matters(scores: list[Score], observed: Observations) -> None:
    constant = scores[0]
    blind = min((score for score in scores if not score.sees_context), key=lambda score: score.error)
    seeing = min(that_see_context(scores), key=lambda score: score.error)
    if min(blind.error, seeing.error) >= constant.error:
        raise DataError(
            f"no law predicts held-out runs better than a constant does (error of ln L {seeing.error:.4f} against "
            f"{constant.error:.4f}): the sweep is too small or too noisy for a plan; add runs or tokens{observed.findings()}"
        )
    if blind.error <= seeing.error:
        raise DataError(
            "the sweep does not show what a longer training context is worth: a law that leaves it out predicts held-out runs "
            f"as well (error of ln L {blind.error:.3g} against {seeing.error:.3g}); add contexts, seeds or "
            f"tokens{observed.findings()}"
        )
