"""Cost of training and generation beside what the complexity of attention says (ContextLM, Section 7.5, Table 10).

Times are measured in rounds: a dry run of every model, or a text with every trained model, in turning order. Models are
compared by their ratio within a round, which a slow round leaves as it is; intervals are over rounds. The time of a model does
not depend on its weights, so a round's is the mean over the seeds.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from transformers import PreTrainedModel

from contextwise.experiments.cost import step_rounds
from contextwise.measures import Sampling, positions
from contextwise.models import load_model
from contextwise.models.decoding import generate
from contextwise.report import Table, progress_bar
from contextwise.stats import Estimate, mean_estimate
from contextwise.training import Recipe
from contextwise_papers.claims import Better, Claim, Verdict, above, below, check_names
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import TrainedModels, paths_of
from contextwise_papers.tables import table_of

PLAIN = ("O(T²d)", "O(Td)")
COMPONENTS = {"token decoder": PLAIN, "context predictor": ("O((T/w)²d)", "O((T/w)d)")}
WITH_PREDICTOR = ("≈ O((1 + 1/w²) T²d)", "≈ O((1 + 1/w) Td)")
"""Complexity of attention in training and for a generated token, as Table 10 prints it: T tokens, d channels, w to a chunk."""

TIME, THROUGHPUT = "time for a generated token, {:+.3f} ms", "training throughput, {:+,.0f} tok/s"
PROMPT_TOKENS, WARM_UP_TOKENS = 32, 8
Rounds = dict[str, np.ndarray]
"""Model -> (R,) its time, or its tokens a second, in each round."""


class Costs(TrainedModels, name="training_and_generation_cost"):
    """Tokens a second in training and milliseconds for a generated token; ``claims`` are about the latter."""

    throughput_claims: list[Better] = Field(default=[], description="about tokens a second in training")
    rounds: int = Field(default=20, ge=1, description="timed training steps, and texts, of each model")
    new_tokens: int = Field(default=128, ge=8, description="tokens of a timed text")

    @model_validator(mode="after")
    def _known_throughput(self) -> "Costs":
        names = [name for claim in self.throughput_claims for name in claim.names]
        check_names({"throughput_claims": names}, self.models)
        return self

    def measure(self, item: Item, folder: Path) -> Outcome:
        trained = self.train(folder)
        runs = {name: trained.folders(name) for name in self.models}
        recipes = {name: trained.of_arm(name)[0].recipe() for name in self.models}
        seconds = step_rounds(recipes, self.rounds)
        rates = {name: recipe.tokens_per_step / np.array(seconds[name]) for name, recipe in recipes.items()}
        models = {str(path): load_model(path) for path in paths_of(runs)}
        timed = generation_rounds(models, self.new_tokens, self.rounds)
        times = {name: np.mean([timed[str(run.path)] for run in each], axis=0) for name, each in runs.items()}
        planned = {run.arm: plan.flops / plan.tokens for run, plan in zip(trained.runs, trained.plan, strict=True)}
        shares = [[name, planned[name], *attention_cost(recipes[name])] for name in self.models]
        columns = ["model", ("FLOPs/token", ".3g"), ("in training", ".3f"), ("for a token", ".3f")]
        table = table_of("Cost by count: attention is a multiple of the plain model's layers'", columns, shares)
        tables = [self.measured_table(recipes, rates, times), self.ratio_table(recipes, rates, times), table]
        claims = [decided(claim, times, below, TIME) for claim in self.claims]
        claims += [decided(claim, rates, above, THROUGHPUT) for claim in self.throughput_claims]
        figures = {"tokens_per_second": rates, "ms_per_token": times, "flops_per_token": planned}
        return Outcome(tables, claims, figures, paths_of(runs))

    def measured_table(self, recipes: dict[str, Recipe], rates: Rounds, times: Rounds) -> Table:
        """The document's table: theoretical complexity, and our measurements."""
        rows: list[list[Any]] = [[name, *theory, None, None] for name, theory in COMPONENTS.items()]
        for name, recipe in recipes.items():
            theory = PLAIN if _predictor(recipe) is None else WITH_PREDICTOR
            rows.append([name, *theory, mean_estimate(rates[name]), mean_estimate(times[name])])
        return table_of(
            f"Theoretical complexity of attention, and measurements over {self.rounds} rounds, {self.with_seeds}",
            ["component or model", "training", "a token", ("train tok/s", ",.0f"), ("ms/token", ".2f")],
            rows,
        )

    def ratio_table(self, recipes: dict[str, Recipe], rates: Rounds, times: Rounds) -> Table:
        """Each model with a predictor over each without one."""
        plain = [name for name, recipe in recipes.items() if _predictor(recipe) is None]
        rows = [
            [name, than, *(log_ratio(values[name], values[than]).map(math.exp) for values in (rates, times))]
            for name in recipes
            for than in plain
            if name not in plain
        ]
        columns = ["model", "over", ("train tok/s", ".3f"), ("ms/token", ".3f")]
        return table_of(f"Ratios within a round, geometric mean of {self.rounds} rounds", columns, rows)


def generation_rounds(models: Mapping[str, PreTrainedModel], new_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds for a token of a text that each model generates, cached and greedily, in each round, in turning order.

    The time does not depend on the content: the prompt is random ids, and end-of-text does not stop generation. Models with few
    positions get a shorter prompt and text. A short warm-up is not counted.
    """
    limits = [limit for model in models.values() if (limit := positions(model.config)) is not None]
    room = min([PROMPT_TOKENS + new_tokens, *limits])
    new = min(new_tokens, max(1, room - min(PROMPT_TOKENS, room // 2)))
    times: dict[str, list[float]] = {name: [] for name in models}
    with progress_bar("time generation", rounds * len(models)) as advance:
        for model in models.values():
            _generation_seconds(model, room - new, min(new, WARM_UP_TOKENS))
        names = list(models)
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(1000 * _generation_seconds(models[name], room - new, new) / new)
                advance(note=name)
    return times


@torch.no_grad()
def _generation_seconds(model: PreTrainedModel, prompt_tokens: int, new_tokens: int) -> float:
    vocabulary = model.config.get_text_config().vocab_size
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (1, prompt_tokens), generator=draw).to(model.device)
    greedy = Sampling(greedy=True).arguments()
    length = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    _wait(model.device)
    started = time.perf_counter()
    generate(model, ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **greedy, **length)
    _wait(model.device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type != "cpu":  # an accelerator runs asynchronously
        torch.accelerator.synchronize(device)


def log_ratio(a_R: np.ndarray, b_R: np.ndarray) -> Estimate:
    """Mean of ln(a / b), paired by round, with its t-interval over rounds; none for one round."""
    return mean_estimate(np.log(np.asarray(a_R) / np.asarray(b_R)))


def decided(claim: Better, rounds: Rounds, side: Callable[[Estimate], Verdict], what: str) -> Claim:
    """A claim that one model is below or above another in every round; ``what`` is measured, with the form of a difference."""
    better, than = rounds[claim.better], rounds[claim.than]
    ratio, difference = log_ratio(better, than), mean_estimate(better - than)
    times = "1 round" if ratio.n is None else f"{ratio.n} rounds"
    return claim.decided(side(ratio), f": {ratio.map(math.expm1):change} {what.format(difference)}, over {times}")


def attention_cost(recipe: Recipe) -> tuple[float, float]:
    """Cost of attention over a full window and for one generated token, as multiples of those of the layers of the size."""
    model: Any = recipe.model
    layers, extra, predictor = model.shape.layers, model.extra_layers, _predictor(recipe)
    plain = 1 + extra / layers
    if predictor is None:
        return plain, plain
    added, w = predictor.predictor_layers / layers, predictor.chunk_size
    return plain + added / w**2, plain + added / w


def _predictor(recipe: Recipe) -> Any:
    model: Any = recipe.model
    return model.context_predictor
