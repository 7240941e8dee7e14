"""What a better model saves at equal loss: parameters, training tokens and operations (ContextLM, Figure 1).

- Parameters: the baselines of several sizes give loss against log parameters; a model is as good as a baseline of so many, read
  off between the two baselines around its loss. Without two such baselines nothing is said.
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
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import estimate_over_seeds
from contextwise.base.runs import RunFolder
from contextwise.reproductions.item import Claim, Item, Outcome, Plot, Table, registered
from contextwise.reproductions.trained_models import TrainedModels

DIMENSIONS = ("parameters", "tokens", "FLOPs")


class Pair(Settings):
    """A model and its baseline of the same size."""

    model: str
    baseline: str


@registered("savings")
class Savings(TrainedModels):
    """Models of several sizes and their baselines."""

    pairs: list[Pair] = Field(min_length=2, description="the smallest first")
    printed_savings: dict[str, float] = Field(
        default_factory=dict, description="the document's own, by dimension"
    )

    @model_validator(mode="after")
    def _pairs_known(self) -> "Savings":
        for name in [name for pair in self.pairs for name in (pair.model, pair.baseline)]:
            if name not in self.models:
                raise ConfigError(f"pairs name {name!r}, which is none of {', '.join(self.models)}")
        if self.recipe.get("training", {}).get("schedule") != "constant":
            raise ConfigError(
                "savings in tokens need training.schedule: constant; set it in the item's recipe"
            )
        return self

    def measure(self, item: Item, folder: Path) -> Outcome:
        outcome = super().measure(item, folder)
        runs: dict[str, list[RunFolder]] = {}
        for path in outcome.runs:
            run = RunFolder(path)
            runs.setdefault(run.summary()["name"], []).append(run)
        rows, found = [], {}
        for pair in self.pairs:
            values = self._of_pair(pair, runs)
            found[pair.model] = {name: one.to_dict() for name, one in values.items()}
            rows.append([pair.model, *(_percent(values.get(name)) for name in DIMENSIONS)])
        outcome.tables.append(
            Table("Saved at the loss of the baseline, 95% intervals over seeds", ["", *DIMENSIONS], rows)
        )
        outcome.figures["savings"] = found
        outcome.claims += [self._claim(name, found) for name in DIMENSIONS]
        outcome.plots = [
            self._against_parameters(runs),
            self._along(runs, "tokens"),
            self._along(runs, "flops"),
        ]
        return outcome

    def _of_pair(self, pair: Pair, runs: dict[str, list[RunFolder]]) -> dict[str, Estimate]:
        values: dict[str, list[float]] = {name: [] for name in DIMENSIONS}
        for seed, run in enumerate(runs[pair.model]):
            curve = [(runs[one.baseline][seed], _last(runs[one.baseline][seed])) for one in self.pairs]
            sizes = [float(base.summary()["parameters"]) for base, _ in curve]
            equal = parameters_at(sizes, [loss for _, loss in curve], _last(run))
            if equal is not None:
                values["parameters"].append(1 - run.summary()["parameters"] / equal)
            base = runs[pair.baseline][seed]
            for name, key in (("tokens", "tokens"), ("FLOPs", "flops")):
                reached = reached_at(
                    [(row[key], row["loss"]) for row in run.metrics("validation")], _last(base)
                )
                if reached is not None:
                    values[name].append(1 - reached / base.metrics("validation")[-1][key])
        whole = {name: found for name, found in values.items() if len(found) == len(runs[pair.model])}
        return {name: _over_seeds(found) for name, found in whole.items()}

    def _claim(self, name: str, found: dict[str, dict[str, dict[str, Any]]]) -> Claim:
        told = {model: values[name] for model, values in found.items() if name in values}
        text = f"at equal loss the model needs fewer {name} than its baseline"
        theirs = (
            f"; the document has {self.printed_savings[name]:.0%}" if name in self.printed_savings else ""
        )
        if not told:
            return Claim(text, None, f"no model reached a loss that can be read off the baselines'{theirs}")
        lows, highs = ([one[end] for one in told.values()] for end in ("low", "high"))
        holds = None
        if None not in lows:
            holds = True if min(lows) > 0 else False if max(highs) < 0 else None
        evidence = "; ".join(f"{model}: {one['value']:.0%}" for model, one in told.items())
        return Claim(text, holds, evidence + theirs)

    def _against_parameters(self, runs: dict[str, list[RunFolder]]) -> Plot:
        series = {}
        for name, names in (
            ("model", [p.model for p in self.pairs]),
            ("baseline", [p.baseline for p in self.pairs]),
        ):
            series[name] = [
                {
                    "x": runs[one][0].summary()["parameters"],
                    "y": float(np.mean([_last(run) for run in runs[one]])),
                    "text": one,
                }
                for one in names
            ]
        return Plot(
            "Loss against parameters",
            "parameters",
            "validation loss, nats per token",
            series,
            logarithmic="x",
        )

    def _along(self, runs: dict[str, list[RunFolder]], key: str) -> Plot:
        """The curves of the largest pair's first seeds."""
        pair = self.pairs[-1]
        series = {
            name: [{"x": row[key], "y": row["loss"]} for row in runs[name][0].metrics("validation")]
            for name in (pair.model, pair.baseline)
        }
        words = {"tokens": "training tokens", "flops": "training FLOPs"}[key]
        return Plot(
            f"Loss against {words}", words, "validation loss, nats per token", series, logarithmic="x"
        )


def parameters_at(sizes: list[float], losses: list[float], loss: float) -> float | None:
    """Parameters at which baselines have a loss, between two of them on a line over log parameters; None outside of all."""
    for (n, a), (m, b) in zip(
        zip(sizes, losses, strict=True), zip(sizes[1:], losses[1:], strict=True), strict=False
    ):
        if b <= loss <= a and a > b:
            share = (a - loss) / (a - b)
            return float(np.exp(np.log(n) + share * (np.log(m) - np.log(n))))
    return None


def reached_at(curve: list[tuple[float, float]], loss: float) -> float | None:
    """Where a curve (place, loss) first comes down to a loss, on lines between its points; None where it never does."""
    for (x, a), (y, b) in pairwise(curve):
        if b <= loss:
            return x if a <= loss else x + (a - loss) / (a - b) * (y - x)
    return None


def _last(run: RunFolder) -> float:
    return run.metrics("validation")[-1]["loss"]


def _over_seeds(values: list[float]) -> Estimate:
    found = np.array(values)
    return estimate_over_seeds(found, np.zeros_like(found), paired=True)


def _percent(found: Estimate | None) -> str:
    if found is None:
        return "cannot be read off"
    ends = "" if found.low is None else f" [{found.low:.0%}, {found.high:.0%}]"
    return f"{found.value:.0%}{ends}"
