"""Selection of the form of the law by its error on held-out runs.

R² does not distinguish forms: the fall of the loss in training is most of its variance, and every form has that. Each form is
fitted without one run in turn and predicts that run. The error of a run is the root mean square of ln L over its points; that
of a form is the geometric mean over runs, so that a run at the edge of the grid, which has to be extrapolated, does not decide
alone.
Forms whose errors are at most two standard errors above the least (of ln of the ratio, paired over runs) have no significant
difference to it: the simplest of them is chosen, and all of them take part in the intervals.

The error on held-out budgets is reported too: all runs are fitted on the first third of their tokens. It decides nothing, since
the points of a run are correlated: a form that overfits a run in its first third looks better there.
"""

from dataclasses import dataclass

import numpy as np

from contextwise.analysis.scaling.fitting import Data, refit, search
from contextwise.analysis.scaling.forms import ONE_SIZE, SEVERAL_SIZES, Array, Form, features_of
from contextwise.analysis.scaling.observations import Observations

LATE = 1 / 3
"""Points behind this share of a run's tokens are held out as the largest budgets."""
APART = 2.0
"""Standard errors of a difference from which on two forms differ significantly."""
SAME = 1e-6
"""Errors of ln L below this are equal."""


@dataclass(frozen=True)
class Score:
    """Errors of a form.

    Attributes:
        form: the form.
        theta: (S, P) its fit to all points first, then other minima.
        fitted: error on the points it was fitted to.
        held_out_budgets: on budgets it had not seen.
        errors: (G,) of each run when it is held out.
    """

    form: Form
    theta: Array
    fitted: float
    held_out_budgets: float
    errors: Array

    @property
    def error(self) -> float:
        """Geometric mean over runs."""
        return float(np.exp(self.logs.mean()))

    @property
    def logs(self) -> Array:
        """(G,) ln of the errors; smaller ones count as :data:`SAME`."""
        return np.asarray(np.log(np.maximum(self.errors, SAME)))


def data_of(observed: Observations) -> Data:
    """Points as a fit takes them, around their own middle."""
    features = features_of(observed.centre, observed.context, observed.parameters, observed.tokens)
    return Data(features, np.log(observed.loss))


def compare_forms(observed: Observations) -> list[Score]:
    """Every form that the sweep allows, with its errors; the simplest first."""
    forms = ONE_SIZE if len(observed.sizes) == 1 else SEVERAL_SIZES
    data = data_of(observed)
    return [_score(form, data, observed) for form in forms if len(form.parameters) < len(observed.runs) + 2]


def not_significantly_worse(scores: list[Score]) -> list[Score]:
    """The best of the forms that see the context, and those that are not significantly worse; the simplest first."""
    seeing = [score for score in scores if score.form.sees_context]
    best = min(seeing, key=lambda score: score.error)

    def significantly_worse(score: Score) -> bool:
        excess = score.logs - best.logs
        return bool(excess.mean() > APART * excess.std(ddof=1) / np.sqrt(len(excess)))

    return sorted(
        (score for score in seeing if not significantly_worse(score)),
        key=lambda score: len(score.form.parameters),
    )


def _score(form: Form, data: Data, observed: Observations) -> Score:
    theta = search(form, data)
    runs = np.arange(len(observed.runs))
    inside = (observed.run[None] == runs[:, None]).astype(np.float64)  # (G, n)
    last = np.array([observed.tokens[observed.run == run].max() for run in runs])
    late = (observed.tokens > LATE * last[observed.run]).astype(np.float64)
    if (inside * (1 - late)).sum(1).min() == 0:
        late = (observed.tokens == last[observed.run]).astype(np.float64)
    without = refit(form, data, np.concatenate([1 - inside, 1 - late[None]]), theta[:2])
    residuals = _residuals(form, data, without)
    unseen = np.sqrt(_per_run(residuals[:-1], inside))
    unseen_late = np.sqrt(_per_run(residuals[-1:], inside * late))
    fitted = np.sqrt(_per_run(_residuals(form, data, theta[:1]), inside))
    return Score(form, theta, _mean(fitted), _mean(unseen_late), unseen)


def _mean(errors: Array) -> float:
    return float(np.exp(np.log(np.maximum(errors, 1e-12)).mean()))


def _residuals(form: Form, data: Data, theta: Array) -> Array:
    return np.log(form.value_and_slope(theta, data.features)[0]) - data.log_loss


def _per_run(residuals: Array, inside: Array) -> Array:
    """Mean square over the points that ``inside`` (G, n) marks in each run."""
    return (residuals**2 * inside).sum(1) / inside.sum(1)
