"""Coordinate check of models of 4 layers: sizes of activations over widths, standard parametrization against µP.

Each width is trained for a few steps on one short text (Yang et al. 2022, arXiv:2203.03466, Appendix D.1): how the sizes of its
activations, and of their change, depend on the width. Under µP they do not.

``python -m benchmarks.coordinates --corpus corpora/stdlib`` checks ContextLM, with AdamW and with Muon in both of torch's
adjustments. It prints the slope of each activation in log-log over the widths, mean of ten steps. The JSON has the slope
after each step and a t-interval over seeds. ``--models``, ``--families``, ``--ways`` and ``--parametrizations`` choose
others; what they do not name is kept.

Legend: W widths, S seeds, T steps.
"""

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.harness import publish
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.intervals import mean_estimate
from contextwise.base.progress import console, progress_bar
from contextwise.base.tables import Column, Table, terminal
from contextwise.data import Corpus
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.families import adapter
from contextwise.training.batches import NOT_FOR_MODELS, collate_step
from contextwise.training.inputs import TrainingInputs, targets_in
from contextwise.training.model import TrainedModel, starting_model
from contextwise.training.optimizer import create_optimizer
from contextwise.training.parametrization import backbones, parameter_scales
from contextwise.training.recipe import Recipe
from contextwise_papers.objectives.multitoken.modeling import MultiTokenForCausalLM
from contextwise_plan.transfer import load_transfer, recipe_at

MODELS: dict[str, dict[str, Any]] = {
    "backbone": {},
    "pm": {"extra_layers": 2},
    "contextlm": {"context_predictor": {}},
    "layer heads": {"multi_token": {"future_tokens": 4, "head": "layer"}},
    "linear heads": {"multi_token": {"future_tokens": 4, "head": "linear"}},
}
FAMILIES = ("gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3")
WAYS: dict[str, dict[str, Any]] = {
    "adamw": {"learning_rate": 4e-3},
    "muon, original": {"optimizer": "muon", "learning_rate": 0.02, "muon_learning_rate": 0.04},
    "muon, match_rms_adamw": {
        "optimizer": "muon",
        "learning_rate": 0.02,
        "muon_learning_rate": 0.01,
        "muon_adjustment": "match_rms_adamw",
    },
}
"""Name -> settings of the training. The rates are those of width 128."""
STEPS = 10


LOSS = "change of loss"
"""Name of the coordinate that is no activation: how far the check has changed the loss on its text."""
CHECK_TOKENS = 64
"""Tokens of the coordinate check's text.

µP keeps sizes in the limit of a large width for a fixed batch. At a finite width, the part of an update that is incoherent over
tokens adds a share that falls as width^-1/2, and it is the larger the more tokens an update sums over."""
CHECK_RATE = 0.1
"""Share of the recipe's rates that the coordinate check reaches, linearly, at its last step.

From the first step at the whole rate, hidden states grow to 200 times their first size within ten steps, and the scatter over
seeds hides any slope."""


@dataclass(frozen=True)
class Coordinate:
    """How an activation, or the loss, depends on the width.

    Attributes:
        name: of the activation, or of its change since before the first step.
        sizes: mean absolute value by width, at the last step.
        slopes: of its logarithm over that of the width, after each step, mean over the seeds.
        slope: their mean over the steps, with its interval over seeds.
    """

    name: str
    sizes: dict[int, float]
    slopes: list[float]
    slope: Estimate


def coordinates(recipes: Mapping[int, Recipe], steps: int, seeds: int) -> list[Coordinate]:
    """Train each width for a few steps on the same short text, and measure its activations on it after each step.

    Sizes are geometric means over the seeds.

    Args:
        recipes: by width.
        seeds: their number: 0, 1, ...
    """
    logs: dict[str, list[list[list[float]]]] = {}
    with progress_bar("coordinates", steps * len(recipes) * seeds, "steps") as advance:
        for recipe in recipes.values():
            by_seed = [_sizes(recipe.model_copy(update={"seed": seed}), steps, advance) for seed in range(seeds)]
            for name in by_seed[0]:
                logs.setdefault(name, []).append([sizes[name] for sizes in by_seed])
    return [_coordinate(name, [*recipes], np.log(np.maximum(sizes_WST, 1e-30))) for name, sizes_WST in logs.items()]


def _coordinate(name: str, widths: Sequence[int], logs_WST: np.ndarray) -> Coordinate:
    """Slopes over the widths, from logarithms of sizes: (widths, seeds, steps)."""
    sizes = dict(zip(widths, np.exp(logs_WST[:, :, -1].mean(axis=1)).tolist(), strict=True))
    seeds, steps = logs_WST.shape[1:]
    slopes_ST = np.polyfit(np.log(widths), logs_WST.reshape(len(widths), -1), 1)[0].reshape(seeds, steps)
    return Coordinate(name, sizes, slopes_ST.mean(axis=0).tolist(), mean_estimate(slopes_ST.mean(axis=1)))


def _sizes(recipe: Recipe, steps: int, advance: Callable[[int], None]) -> dict[str, list[float]]:
    """Mean absolute activations on the check's text after each step, their changes and the loss's since before the first."""
    torch.manual_seed(recipe.seed)
    inputs = TrainingInputs.open(recipe)
    model = starting_model(recipe, inputs.config)
    trained = TrainedModel(model).train()
    scales = parameter_scales(recipe, inputs.config)
    optimizer = create_optimizer(trained, recipe.training, recipe.learning_rate, scales)
    rates = [group["lr"] for group in optimizer.param_groups]
    batch = _first_text(inputs.stream)
    ids, targets = batch["input_ids"], targets_in(batch)
    given = {name: value for name, value in batch.items() if name not in NOT_FOR_MODELS}
    before, result, losses = _activations(model, ids), dict[str, list[float]](), []
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * CHECK_RATE * (step + 1) / steps
        optimizer.zero_grad()
        loss = trained(**given, targets=targets)
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
        for name, now in _activations(model, ids).items():
            result.setdefault(name, []).append(float(now.abs().mean()))
            result.setdefault(f"change of {name}", []).append(float((now - before[name]).abs().mean()))
        advance(1)
    with torch.no_grad():
        losses.append(float(trained(**given, targets=targets)))
    result[LOSS] = [abs(loss - losses[0]) for loss in losses[1:]]
    return result


def _first_text(stream: Any) -> dict[str, torch.Tensor]:
    """The start of the first example, up to :data:`CHECK_TOKENS`; all of it where the start has no targets."""
    whole = collate_step([stream[0]], 1)[0]
    length = whole["input_ids"].shape[1]
    start = {
        name: value[tuple(slice(CHECK_TOKENS) if size == length else slice(None) for size in value.shape)]
        for name, value in whole.items()
    }
    return start if length > CHECK_TOKENS and targets_in(start) else whole


@torch.no_grad()
def _activations(model: Any, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs of the last block, of the predictor, of what its gate adds and of other parts of the model, and all logits."""
    outputs: dict[str, torch.Tensor] = {}
    with contextlib.ExitStack() as stack:
        for name, module in _watched(model):

            def keep(module: nn.Module, arguments: Any, output: Any, name: str = name) -> None:
                outputs[name] = output[0] if isinstance(output, tuple) else output

            stack.callback(module.register_forward_hook(keep).remove)
        if isinstance(model, MultiTokenForCausalLM):
            output = model(input_ids=input_ids, use_cache=False, heads=model.config.future_tokens)
            logits = {"logits": output.logits, "further logits": output.future_logits}
        else:
            logits = {"logits": model(input_ids=input_ids, use_cache=False).logits}
    return outputs | logits


def _watched(model: Any) -> Iterator[tuple[str, nn.Module]]:
    for _, backbone, _ in backbones(model):
        yield "backbone", adapter(backbone.config).blocks(backbone)[-1]  # type: ignore[union-attr]
    pathway = context_pathway(model)
    if pathway is not None:
        yield "predictor", pathway.layers[-1]
        yield "gate", pathway.gate
    if isinstance(model, MultiTokenForCausalLM) and model.config.head == "layer":
        yield "head", model.heads[-1]


def checked(options: argparse.Namespace, model: str, family: str, way: str, parametrization: str) -> dict[str, Any]:
    """The coordinates of one model and way to train, and the seconds that they took."""
    recipe = {
        "name": "coordinates",
        "data": {"corpus": str(options.corpus), "context": 256},
        "model": {"family": family, "size": "nano", **MODELS[model]},
        "training": {"steps": 100, "precision": "fp32", "parametrization": parametrization, **WAYS[way]},
    }
    start = time.process_time()
    settings = load_transfer({"recipe": recipe, "widths": options.widths})
    recipes = {width: recipe_at(settings, width) for width in settings.widths}
    found = coordinates(recipes, STEPS, options.seeds)
    return {
        "settings": {"widths": options.widths, "seeds": options.seeds}
        | {name: recipe[name] for name in ("model", "training")},
        "corpus": Corpus.open(options.corpus).fingerprint,
        "seconds": round(time.process_time() - start, 1),
        "coordinates": as_json(found),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["contextlm"])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=["gpt2"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--parametrizations", nargs="+", choices=("standard", "mup"), default=["standard", "mup"])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    chosen = itertools.product(options.models, options.families, options.ways, options.parametrizations)
    cells = {", ".join(names): checked(options, *names) for names in chosen}
    publish("coordinates", {"cells": cells}, records="cells")
    columns: list[Column | str] = ["activation", Column("slope", form="+.3f"), "95% interval"]
    columns += [Column("least step", form="+.3f"), Column("largest step", form="+.3f")]
    for name, cell in cells.items():
        rows = [
            [each["name"], each["slope"]["value"], interval(each["slope"]), min(each["slopes"]), max(each["slopes"])]
            for each in cell["coordinates"]
        ]
        console.print(terminal(Table(f"{name}: slopes in log-log over the widths, mean of the steps", columns, rows)))


def interval(slope: dict[str, Any]) -> str:
    """The limits of a slope."""
    return f"[{slope['low']:+.3f}, {slope['high']:+.3f}]"


if __name__ == "__main__":
    main()
