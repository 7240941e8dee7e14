"""Savings of a better model at equal loss, read off fitted laws: parameters, training tokens and operations (Figure 1).

1. Every size of the baseline and of the model is trained on several budgets; the shorter runs branch off the longest.
2. The law L(N, D) = E + B/N^β + A/D^α is fitted to each of the two families, with an ensemble of R laws, the fit first, by the
   wild bootstrap over sizes and seeds (:mod:`contextwise_plan.scaling.fitting`), whose random signs both families share.
3. The loss is that of the baseline's law at a size and the largest budget. Saved are parameters: where the model's law has that
   loss at the same tokens; tokens: where it has that loss at the model's own size; FLOPs: those tokens times the model's
   operations for a token, against the baseline's. Nothing is read off a term of the model's law at a bound of its search.

The ensemble gives the standard error of the logarithm of the ratio of the two needs: the farther of its 2.5% and 97.5%
quantiles from the fit, in units of the normal distribution's. The interval is Student's t with the freedom of the seeds within
sizes; percentiles of the ensemble are too narrow with few runs (83% instead of 95% in simulations).
"""

import math
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from contextwise.base.runs import RunFolder
from contextwise.comparison.speedup import BEYOND
from contextwise.report import as_json, count
from contextwise.runset import RunSet
from contextwise.settings import ConfigError, DataError, Settings
from contextwise.stats import CONFIDENCE, NORMAL, Estimate, plus_minus, student_t
from contextwise_papers.claims import Claim, above, all_agree, check_names, undecided
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import GATE, TrainedModels
from contextwise_papers.tables import Plot, point, table_of
from contextwise_plan.scaling.analysis import Score, data_of, ensemble_estimate
from contextwise_plan.scaling.fitting import RESAMPLES, ensemble
from contextwise_plan.scaling.forms import DATA_AND_SIZE, Array, Law
from contextwise_plan.scaling.observations import Observations, observations
from contextwise_plan.sweeps.points import SweepPoint

DIMENSIONS = ("parameters", "tokens", "FLOPs")
FEWEST = 3
"""Sizes, and budgets: fewer do not determine the law."""
UNBOUNDED = 700.0
"""Logarithm of a need without bound."""


class Pair(Settings):
    """A model and its baseline of the same size."""

    model: str
    baseline: str


class Savings(TrainedModels, name="savings"):
    """Models of several sizes and their baselines, each trained on several budgets."""

    pairs: list[Pair] = Field(description="one for each size, the smallest first")
    tokens: list[int] = Field(min_length=FEWEST, description="budgets of every model; the largest is trained whole")
    printed_savings: dict[str, float] = Field(default={}, description="the document's own, by dimension")

    @field_validator("tokens")
    @classmethod
    def _distinct(cls, tokens: list[int]) -> list[int]:
        if len(set(tokens)) < FEWEST:
            raise ConfigError(f"a law of size and data needs {FEWEST} different budgets or more; give more tokens")
        return sorted(set(tokens))

    @model_validator(mode="after")
    def _determined(self) -> "Savings":
        names = [name for pair in self.pairs for name in (pair.model, pair.baseline)]
        check_names({"pairs": names}, self.models)
        fewest = min((len(pairs) for pairs in self.forms.values()), default=0)
        if fewest < FEWEST:
            raise ConfigError(f"a law of size and data needs {FEWEST} sizes or more, and pairs have {fewest}; add some")
        if self.recipe.get("training", {}).get("schedule") != "wsd":
            raise ConfigError(
                "the budgets are branches of one run, which need training.schedule: wsd; set it in the item's recipe"
            )
        return self

    @property
    def forms(self) -> dict[str, list[Pair]]:
        """The pairs of each form of the model: the document's, and with the gate where it was added."""
        ordered = sorted(self.pairs, key=lambda pair: pair.model.endswith(GATE))
        groups = groupby(ordered, key=lambda pair: pair.model.endswith(GATE))
        return {"with the gate" if gate else "as in the document": list(pairs) for gate, pairs in groups}

    def run_set(self, folder: Path) -> RunSet:
        """Each model at its largest budget, under its own name, and its branches."""
        *shorter, longest = self.tokens
        arms = {}
        for name, own in self.models.items():
            arms[name] = [*own, f"training.tokens={longest}", f"training.branches={shorter}"]
            for tokens in shorter:
                arms[_branch(name, tokens)] = [*own, f"training.tokens={tokens}", f"training.trunk=@{name}"]
        return self.runs_of(arms, folder)

    def measure(self, item: Item, folder: Path) -> Outcome:
        outcome = super().measure(item, folder)
        runs = self.run_set(folder)
        outcome.runs = runs.paths
        families: dict[str, Family] = {}
        savings: dict[str, dict[str, Estimate]] = {}
        for form, pairs in self.forms.items():
            base, model = self._family([p.baseline for p in pairs], runs), self._family([p.model for p in pairs], runs)
            families |= {f"baseline, {len(pairs)} sizes": base, f"ContextLM {form}": model}
            of_form = {pair.model: self._saved(model, base, size) for size, pair in enumerate(pairs)}
            outcome.claims += [self._claim(name, form, of_form) for name in DIMENSIONS]
            savings |= of_form
        rows = [[model, *map(saved_text, saved.values())] for model, saved in savings.items()]
        title = f"Saved at the loss of the baseline's law at {count(self.tokens[-1])} tokens, 95% intervals"
        outcome.tables += [table_of(title, ["", *DIMENSIONS], rows), _laws(families)]
        outcome.figures["savings"] = as_json(savings)
        outcome.figures["laws"] = as_json({name: family.parameters() for name, family in families.items()})
        outcome.plots = self._plots(families)
        return outcome

    def _family(self, names: list[str], runs: RunSet) -> "Family":
        """The law of the models of several sizes, the smallest first."""
        ends = [
            _end(run.folder, f"{size:02}", run.seed)
            for size, name in enumerate(names)
            for arm in [*(_branch(name, tokens) for tokens in self.tokens[:-1]), name]
            for run in runs.of_arm(arm)
        ]
        return Family(observations(ends))

    def _saved(self, model: "Family", base: "Family", size: int) -> dict[str, Estimate]:
        """What a model of one size saves, by dimension."""
        longest = float(self.tokens[-1])
        n_base, n_model = base.observed.size_parameters[size], model.observed.size_parameters[size]
        loss = base.loss(n_base, longest)
        tokens = model.reached(loss, parameters=n_model)
        dearer = model.flops_per_token(size) / base.flops_per_token(size)
        ratios = {
            "parameters": model.reached(loss, tokens=longest) / n_base,
            "tokens": tokens / longest,
            "FLOPs": dearer * tokens / longest,
        }
        for name, ratio in ratios.items():
            ratio[:] = ratio if model.determines("size" if name == "parameters" else "data") else math.nan
        sizes = len(model.observed.sizes)
        freedom = sizes * (len(self.seeds) - 1)
        return {name: saved_share(ratio, freedom, len(self.seeds)) for name, ratio in ratios.items()}

    def _claim(self, name: str, form: str, savings: dict[str, dict[str, Estimate]]) -> Claim:
        known = {model: saved[name] for model, saved in savings.items()}
        text = f"at equal loss ContextLM, {form}, needs fewer {name} than its baseline"
        printed = [f"the document has {self.printed_savings[name]:.0%}"] if name in self.printed_savings else []
        evidence = "; ".join([*(f"{model}: {saved_text(saved)}" for model, saved in known.items()), *printed])
        if any(math.isnan(saved.value) for saved in known.values()):
            verdict = undecided("the runs do not determine this term of the law: it is at a bound of its search")
        else:
            verdict = all_agree((above(saved) for saved in known.values()), "models")
        return Claim.of(text, verdict, evidence).over_seeds(len(self.seeds))

    def _plots(self, families: dict[str, "Family"]) -> list[Plot]:
        """Measured ends, and the law through them: over sizes at the largest budget, and along budgets of the largest size."""
        longest = float(self.tokens[-1])
        plots = []
        for words in DIMENSIONS:
            series: dict[str, list[dict[str, Any]]] = {}
            for name, family in families.items():
                observed, of_largest = family.observed, family.observed.size == len(family.observed.sizes) - 1
                chosen = observed.tokens == longest if words == "parameters" else of_largest
                x = {"parameters": observed.parameters, "tokens": observed.tokens, "FLOPs": observed.flops}[words]
                ends = sorted(set(x[chosen].tolist()))
                series[f"{name}, measured"] = [
                    point(end, float(observed.loss[chosen & (x == end)].mean())) for end in ends
                ]
                grid = np.geomspace(ends[0], ends[-1], 25)
                largest = observed.size_parameters[-1]
                per_token = family.flops_per_token(len(observed.sizes) - 1)
                tokens = {"parameters": np.full_like(grid, longest), "tokens": grid, "FLOPs": grid / per_token}[words]
                sizes = grid if words == "parameters" else np.full_like(grid, largest)
                curve = [family.loss(n, d)[0] for n, d in zip(sizes, tokens, strict=True)]
                series[f"{name}, law"] = [point(at, float(y)) for at, y in zip(grid.tolist(), curve, strict=True)]
            axis = "parameters" if words == "parameters" else f"training {words}"
            title = f"Loss against {axis}"
            plots.append(Plot(title, axis, "validation loss, nats per token", series, logarithmic="x"))
        return plots


def saved_share(ratio: Array, freedom: int, seeds: int) -> Estimate:
    """The share that is saved at a ratio of two needs (R,), the fit's first; no interval without several seeds.

    Ratios beyond :data:`~contextwise.comparison.speedup.BEYOND` count as that: so far the laws do not reach.
    """
    most = math.log(BEYOND)
    with np.errstate(divide="ignore"):
        value, *draws = np.clip(np.log(ratio), -most, most).tolist()
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    error = float(max(high - value, value - low)) / NORMAL
    half = student_t(freedom) * error if freedom else math.nan
    need = plus_minus(value, half, method="t, wild bootstrap", seeds=seeds, freedom=freedom)
    return -need.map(lambda x: math.exp(min(max(x, -most), most)) - 1)


def saved_text(saved: Estimate) -> str:
    """A saving as a percentage with its interval; in words where even its interval is at the bound of :func:`saved_share`."""
    if math.isnan(saved.value):
        return "not determined"
    limits = saved.limits if saved.has_interval else (saved.value, saved.value)
    for bound, words in (
        (1 - BEYOND, f"needs more than {BEYOND:g}×"),
        (1 - 1 / BEYOND, f"needs less than 1/{BEYOND:g}"),
    ):
        if all(math.isclose(each, bound, abs_tol=1e-9) for each in (saved.value, *limits)):
            return words
    return f"{saved:.0%}"


class Family:
    """Finished runs of several sizes, budgets and seeds, and the laws fitted to them, ``theta`` (R, P).

    ``error``: root mean square of ln L of runs that were left out in turn; geometric mean over runs.
    """

    def __init__(self, observed: Observations, resamples: int = RESAMPLES, seed: int = 0) -> None:
        data = data_of(observed)
        score = Score(DATA_AND_SIZE, data, observed)
        fits = ensemble(DATA_AND_SIZE, score.theta, data, observed.run, resamples, seed)
        self.observed, self.error = observed, score.error
        self.theta: Array = np.concatenate([score.theta[:1], fits])

    def loss(self, parameters: float, tokens: float) -> Array:
        """(R,) nats per token."""
        law = Law(DATA_AND_SIZE, self.theta, self.observed.centre)
        return law.loss(np.exp(self.observed.centre[0]), parameters, tokens)

    def reached(self, loss: Array, *, parameters: float | None = None, tokens: float | None = None) -> Array:
        """(R,) parameters at given tokens, or tokens at given parameters, where the laws have a loss (R,); inf if nowhere."""
        floor, *terms = self.theta[:, 0], self.theta[:, 1:3].T, self.theta[:, 3:5].T
        given, wanted = (terms[1], terms[0]) if parameters is None else (terms[0], terms[1])
        at, middle = (tokens, 2) if parameters is None else (parameters, 1)
        assert at is not None
        centre = self.observed.centre
        left = loss - np.exp(floor) - np.exp(given[0] + given[1] * (np.log(at) - centre[middle]))
        positive = np.where(left > 0, left, 1.0)
        log_x = centre[3 - middle] + (np.log(positive) - wanted[0]) / wanted[1]
        return np.asarray(np.where(left > 0, np.exp(np.minimum(log_x, UNBOUNDED)), np.inf))

    def determines(self, term: Literal["size", "data"]) -> bool:
        """Whether the scale and the exponent of a term of the fit are inside the bounds of their search."""
        chosen = {"size": slice(1, 3), "data": slice(3, 5)}[term]
        low, high = (bound[chosen] for bound in DATA_AND_SIZE.bounds)
        fit = self.theta[0, chosen]
        return not bool(np.any(np.isclose(fit, low) | np.isclose(fit, high)))

    def flops_per_token(self, size: int) -> float:
        """Operations of training for each token."""
        mine = self.observed.size == size
        return float((self.observed.flops[mine] / self.observed.tokens[mine]).mean())

    def parameters(self) -> dict[str, Any]:
        """The law's parameters with their intervals, and the error on runs that were left out."""
        values = Law(DATA_AND_SIZE, self.theta, self.observed.centre).printed()
        estimates = {name: ensemble_estimate(each[0], each[1:], CONFIDENCE) for name, each in values.items()}
        return {**estimates, "error of ln L": self.error}


def _laws(families: dict[str, Family]) -> Any:
    rows = [[name, *family.parameters().values()] for name, family in families.items()]
    names = next(iter(families.values())).parameters()
    title = f"L(N, D) = {DATA_AND_SIZE.formula}, nats per token, 95% intervals; error of runs that were left out"
    return table_of(title, ["", *((name, ".3g") for name in names)], rows)


def _branch(name: str, tokens: int) -> str:
    """The arm of a model's run of fewer tokens."""
    return f"{name}, {tokens:,} tokens"


def _end(path: Path, size: str, seed: int) -> SweepPoint:
    """The end of a finished run; ``run`` names size and seed only, which a model and its baseline share."""
    folder = RunFolder(path)
    row, context = folder.metrics("validation")[-1], folder.recipe()["data"]["context"]
    if not math.isfinite(row["loss"]):
        raise DataError(
            f"the validation loss at the end of {path} is not a number, so no law can be fitted to it; remove the run, and "
            "set a lower training.learning_rate"
        )
    spent = {name: row[name] for name in ("step", "tokens", "flops", "seconds", "loss")}
    parameters = folder.summary()["parameters"]
    return SweepPoint(f"{size}-s{seed}", size, parameters, context, seed, standard_error=None, **spent)
