"""Cost of training and generation beside what the complexity of attention says (ContextLM, Section 7.5, Table 10).

With w tokens in a chunk, the predictor attends over T/w positions: its attention costs 1/w² of that of as many layers of the
token decoder in training, and 1/w for a generated token. Training steps are timed by dry runs and generation with the trained
models, both in alternation; a time of generation has one value for each seed.
"""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.base.estimates import Estimate
from contextwise.base.files import read_json
from contextwise.base.intervals import estimate_over_seeds
from contextwise.base.runs import RunFolder
from contextwise.evaluation.generation import time_runs
from contextwise.experiments.cost import seconds_per_step
from contextwise.reproductions.claims import below
from contextwise.reproductions.item import Item, Outcome, registered
from contextwise.reproductions.models import TrainedModels, paths_of
from contextwise.reproductions.tables import table_of
from contextwise.training.recipe import Recipe


@registered("training_and_generation_cost")
class Costs(TrainedModels):
    """Tokens a second in training and milliseconds for a generated token."""

    rounds: int = Field(default=3, ge=1, description="timed training steps, and texts, of each model")
    new_tokens: int = Field(default=128, ge=8, description="tokens of a timed text")

    def measure(self, item: Item, folder: Path) -> Outcome:
        trained = self.train(folder)
        runs = {name: trained.folders(name) for name in self.models}
        recipes = {name: trained.of_arm(name)[0].recipe() for name in self.models}
        seconds = seconds_per_step(recipes, self.rounds)
        time_runs([run for each in runs.values() for run in each], new_tokens=self.new_tokens, repeats=self.rounds)
        times = {name: np.array([_ms_per_token(run) for run in each]) for name, each in runs.items()}
        rates = {name: recipe.tokens_per_step / seconds[name] for name, recipe in recipes.items()}
        planned = {run.arm: plan.flops / plan.tokens for run, plan in zip(trained.runs, trained.plan, strict=True)}
        rows = [
            [name, planned[name], *attention_cost(recipes[name]), rates[name], over_seeds(times[name])]
            for name in self.models
        ]
        columns = ["model", ("FLOPs/token", ".3g"), ("attention, training", ".3f"), ("attention, a token", ".3f")]
        table = table_of(
            f"Attention as a multiple of the plain model's layers; times in alternation, {self.with_seeds}",
            [*columns, ("train tok/s", ",.0f"), ("ms/token", ".2f")],
            rows,
        )
        claims = []
        for claim in self.claims:
            slower = estimate_over_seeds(times[claim.better], times[claim.than], paired=True)
            claims.append(claim.decided(below(slower), f": {slower:+.3f} ms for a generated token"))
        figures = {"tokens_per_second": rates, "ms_per_token": times, "flops_per_token": planned}
        return Outcome([table], claims, figures, paths_of(runs))


def attention_cost(recipe: Recipe) -> tuple[float, float]:
    """Cost of attention over a full window and for one generated token, as multiples of those of the layers of the size."""
    model: Any = recipe.model
    layers, extra, predictor = model.shape.layers, model.extra_layers, model.context_predictor
    plain = 1 + extra / layers
    if predictor is None:
        return plain, plain
    added, w = predictor.predictor_layers / layers, predictor.chunk_size
    return plain + added / w**2, plain + added / w


def over_seeds(values: np.ndarray) -> Estimate:
    """The mean over seeds with its interval."""
    return estimate_over_seeds(values, np.zeros_like(values), paired=True)


def _ms_per_token(run: RunFolder) -> float:
    return float(read_json(run.evaluation / "generation.json", "the timing of generation")["ms_per_token"])
