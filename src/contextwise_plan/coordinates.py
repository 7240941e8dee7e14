"""The coordinate check of a parametrization (Yang et al. 2022, arXiv:2203.03466, Appendix D.1).

Each width is trained for a few steps on one short text: how the sizes of its activations, and of their change, depend on the
width. Under µP they do not.

Legend: W widths, S seeds, T steps.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import mean_estimate
from contextwise.base.progress import progress_bar
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.families import adapter
from contextwise.models.spec import spec_of
from contextwise.training.batches import NOT_FOR_MODELS, collate_step
from contextwise.training.inputs import TrainingInputs, targets_in
from contextwise.training.model import TrainedModel, parameter_scales, starting_model
from contextwise.training.optimizer import create_optimizer
from contextwise.training.parametrization import backbones
from contextwise.training.recipe import Recipe

FLAT = 0.05
"""Slope in log-log below which activations do not depend on the width."""
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
        slopes: of its logarithm over that of the width, after each step, mean over the seeds; empty for one width.
        slope: their mean over the steps, with its interval over seeds; None for one width.
    """

    name: str
    sizes: dict[int, float]
    slopes: list[float]
    slope: Estimate | None

    @property
    def excess(self) -> float:
        """The size of the slope; 0 for logits that do not grow.

        Under µP the random logits of a new model fall as width^-1/2, which leaves what is learnt alone.
        """
        value = 0.0 if self.slope is None else self.slope.value
        return max(value, 0.0) if self.name.endswith("logits") else abs(value)

    @property
    def depends(self) -> bool:
        """Whether the interval of the slope shows one beyond :data:`FLAT`."""
        slope = self.slope
        shown = slope is not None and slope.above(math.copysign(FLAT, slope.value)) is (slope.value > 0)
        return shown and self.excess >= FLAT

    @property
    def flat(self) -> bool:
        """Whether the slope is within :data:`FLAT`, and its interval within twice that."""
        if self.slope is None or self.excess >= FLAT:
            return False
        low, high = self.slope.limits
        return high <= 2 * FLAT and (low >= -2 * FLAT or self.name.endswith("logits"))


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
    if len(widths) == 1:
        return Coordinate(name, sizes, [], None)
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
        logits = spec_of(model.config).logits(model, input_ids)
    return outputs | logits


def _watched(model: Any) -> Iterator[tuple[str, nn.Module]]:
    for _, backbone, _ in backbones(model):
        yield "backbone", adapter(backbone.config).blocks(backbone)[-1]  # type: ignore[union-attr]
    pathway = context_pathway(model)
    if pathway is not None:
        yield "predictor", pathway.layers[-1]
        yield "gate", pathway.gate
    yield from spec_of(model.config).watched(model).items()
