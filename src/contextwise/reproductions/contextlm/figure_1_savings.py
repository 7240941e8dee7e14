"""Savings of a better model at equal loss: parameters, training tokens and operations (ContextLM, Figure 1).

- Parameters: the baselines of several sizes give loss against log parameters; the equivalent size of a model is interpolated
  between the two baselines around its loss. Without two such baselines it is not reported.
- Tokens: where the model's validation loss along training first reaches that of its own baseline's end. The rate of learning is
  constant in these runs: along a decaying one every point but the last would look worse than a run that ends there.
- Operations: those tokens times the model's operations for a token, against the baseline's.

Each seed gives one value; the intervals are t-intervals over seeds.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.intervals import estimate_over_seeds
from contextwise.base.runs import RunFolder
from contextwise.reproductions.claims import Claim, above, all_agree, check_names, undecided
from contextwise.reproductions.item import Item, Outcome, registered
from contextwise.reproductions.models import TrainedModels
from contextwise.reproductions.tables import Plot, point, table_of

DIMENSIONS = ("parameters", "tokens", "FLOPs")


class Pair(Settings):
    """A model and its baseline of the same size."""

    model: str
    baseline: str


@registered("savings")
class Savings(TrainedModels):
    """Models of several sizes and their baselines."""

    pairs: list[Pair] = Field(min_length=2, description="the smallest first")
    printed_savings: dict[str, float] = Field({}, description="the document's own, by dimension")

    @model_validator(mode="after")
    def _pairs_known(self) -> "Savings":
        names = [name for pair in self.pairs for name in (pair.model, pair.baseline)]
        check_names({"pairs": names}, self.models)
        if self.recipe.get("training", {}).get("schedule") != "constant":
            raise ConfigError("savings in tokens need training.schedule: constant; set it in the item's recipe")
        return self

    def measure(self, item: Item, folder: Path) -> Outcome:
        outcome = super().measure(item, folder)
        runs = self.trained(folder)
        savings = {pair.model: self._of_pair(pair, runs) for pair in self.pairs}
        unknown = dict.fromkeys(DIMENSIONS, "cannot be read off")
        rows = [[model, *(unknown | saved).values()] for model, saved in savings.items()]
        title = "Saved at the loss of the baseline, 95% intervals over seeds"
        outcome.tables.append(table_of(title, ["", *((name, ".0%") for name in DIMENSIONS)], rows))
        outcome.figures["savings"] = as_json(savings)
        outcome.claims += [self._claim(name, savings) for name in DIMENSIONS]
        outcome.plots = self._plots(runs)
        return outcome

    def _of_pair(self, pair: Pair, runs: dict[str, list[RunFolder]]) -> dict[str, Estimate]:
        values: dict[str, list[float]] = {name: [] for name in DIMENSIONS}
        for seed, run in enumerate(runs[pair.model]):
            baselines = [runs[other.baseline][seed] for other in self.pairs]
            sizes = [float(base.summary()["parameters"]) for base in baselines]
            equal = parameters_at(sizes, [_last(base) for base in baselines], _last(run))
            if equal is not None:
                values["parameters"].append(1 - run.summary()["parameters"] / equal)
            base = runs[pair.baseline][seed]
            for name, key in (("tokens", "tokens"), ("FLOPs", "flops")):
                curve = [(row[key], row["loss"]) for row in run.metrics("validation")]
                if (reached := reached_at(curve, _last(base))) is not None:
                    values[name].append(1 - reached / base.metrics("validation")[-1][key])
        return {
            name: estimate_over_seeds(np.array(saved), np.zeros(len(saved)), paired=True)
            for name, saved in values.items()
            if len(saved) == len(runs[pair.model])
        }

    def _claim(self, name: str, savings: dict[str, dict[str, Estimate]]) -> Claim:
        known = {model: saved[name] for model, saved in savings.items() if name in saved}
        text = f"at equal loss the model needs fewer {name} than its baseline"
        printed = f"the document has {self.printed_savings[name]:.0%}" if name in self.printed_savings else ""
        if not known:
            reason = "no model reached a loss that can be read off the baselines'"
            return Claim.of(text, undecided(reason), printed)
        evidence = "; ".join([*(f"{model}: {saved.value:.0%}" for model, saved in known.items()), printed])
        verdict = all_agree((above(saved) for saved in known.values()), "models")
        return Claim.of(text, verdict, evidence.removesuffix("; "))

    def _plots(self, runs: dict[str, list[RunFolder]]) -> list[Plot]:
        """Loss against parameters; and along training, of the largest pair's first seeds."""

        def at_end(name: str) -> dict[str, Any]:
            loss = float(np.mean([_last(run) for run in runs[name]]))
            return point(runs[name][0].summary()["parameters"], loss) | {"text": name}

        sizes = {kind: [at_end(getattr(pair, kind)) for pair in self.pairs] for kind in ("model", "baseline")}
        plots = [("parameters", sizes)]
        for words, key in (("training tokens", "tokens"), ("training FLOPs", "flops")):
            series = {
                name: [point(row[key], row["loss"]) for row in runs[name][0].metrics("validation")]
                for name in (self.pairs[-1].model, self.pairs[-1].baseline)
            }
            plots.append((words, series))
        return [
            Plot(f"Loss against {words}", words, "validation loss, nats per token", series, logarithmic="x")
            for words, series in plots
        ]


def parameters_at(sizes: list[float], losses: list[float], loss: float) -> float | None:
    """Parameters at which baselines have a loss, between two of them on a line over log parameters; None outside of all."""
    for (n, a), (m, b) in pairwise(zip(sizes, losses, strict=True)):
        if b <= loss <= a and a > b:
            share = (a - loss) / (a - b)
            return float(np.exp(np.log(n) + share * (np.log(m) - np.log(n))))
    return None


def reached_at(curve: list[tuple[float, float]], loss: float) -> float | None:
    """The x at which a curve of points (x, loss) first reaches a loss, by linear interpolation; None if it never does."""
    for (x, a), (y, b) in pairwise(curve):
        if b <= loss:
            return x if a <= loss else x + (a - loss) / (a - b) * (y - x)
    return None


def _last(run: RunFolder) -> float:
    return run.metrics("validation")[-1]["loss"]
