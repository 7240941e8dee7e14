"""Transfer of learning rates between widths: a coordinate check, and a search for the best rate at each width.

1. *Coordinates* (Yang et al. 2022, arXiv:2203.03466, Appendix D.1): each width is trained for a few steps on the same windows;
   how the sizes of its activations, and of their change, depend on the width. Under µP they do not.
2. *Search*: widths × factors of the recipe's rates × seeds, each a finished run. The best factor of a width and seed is the
   minimum of the parabola through the lowest loss and its neighbours.
3. *Rate*: seed by seed, a line through the logarithms of the best factors over those of the widths. Its slope is zero if one
   rate suits every width; the rate of a larger width is their mean then, and the line's value there otherwise.
"""

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import nn

from contextwise.base.config import Settings, validate, with_overrides
from contextwise.base.errors import ConfigError, TrainingError
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.intervals import mean_estimate
from contextwise.base.progress import progress_bar
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Column, Table
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.run_set import Arm, RunSet, RunSetSettings
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.families import adapter
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import TrainedModel, parameter_scales, starting_model
from contextwise.training.optimizer import create_optimizer
from contextwise.training.recipe import Recipe
from contextwise.training.settings import SizedModel
from contextwise.training.trainer import NOT_FOR_MODELS, collate

RATES = ("learning_rate", "muon_learning_rate")
FLAT = 0.05
"""Slope in log-log below which activations do not depend on the width."""


class TransferSettings(Settings):
    """Widths, factors of the recipe's rates, and seeds."""

    recipe: dict[str, Any]
    widths: list[int] = Field([64, 128, 256], min_length=1, description="channels")
    factors: list[float] = Field(
        [0.25, 0.5, 1.0, 2.0, 4.0], min_length=3, description="of the recipe's rates, ascending"
    )
    seeds: list[int] = Field([0, 1], min_length=2, description="intervals are over seeds")
    to: int | None = Field(
        None, ge=1, description="the width whose rate is asked for; by default twice the largest"
    )
    steps: int = Field(10, ge=1, description="of the coordinate check")
    executor: ExecutorSettings = ExecutorSettings()
    output: str = Field("", description="folder of the runs; transfer/NAME if not given")

    @field_validator("widths", "factors", "seeds")
    @classmethod
    def _ascending(cls, values: list[Any]) -> list[Any]:
        if sorted(set(values)) != values:
            raise ConfigError("must be ascending, without repetitions")
        return values

    @field_validator("factors")
    @classmethod
    def _positive(cls, factors: list[float]) -> list[float]:
        if factors[0] <= 0:
            raise ConfigError("must be above 0")
        return factors


@dataclass(frozen=True)
class Coordinate:
    """How an activation depends on the width.

    Attributes:
        name: of the activation, or of its change since the first step.
        sizes: mean absolute value by width, at the last step.
        slopes: of its logarithm over that of the width, after each step.
    """

    name: str
    sizes: dict[int, float]
    slopes: list[float]


@dataclass(frozen=True)
class WidthRow:
    """The search at one width.

    Attributes:
        losses: factor -> mean loss over seeds, nats per token; None where a run diverged.
        best: the best factor, with its interval over seeds; None where the lowest loss is at an edge of the factors.
        cost: loss at the factor that all widths share, minus the lowest of this width.
    """

    width: int
    losses: dict[float, float | None]
    best: Estimate | None
    cost: float | None


@dataclass(frozen=True)
class Transfer:
    """The result.

    Attributes:
        rates: the rates of the recipe, which factors multiply.
        slope: of log2 of the best factor over log2 of the width; 0: one rate suits every width.
        factor: of the rates at the width ``to``, with its interval over seeds.
    """

    name: str
    parametrization: str
    rates: dict[str, float]
    coordinates: list[Coordinate]
    rows: list[WidthRow]
    seeds: int
    slope: Estimate | None
    to: int
    factor: Estimate | None

    @property
    def sentences(self) -> list[str]:
        """What was found."""
        worst = max(self.coordinates, key=lambda each: abs(each.slopes[-1]))
        flat = all(abs(each.slopes[-1]) < FLAT for each in self.coordinates)
        first = (
            f"Activations {'do not depend' if flat else 'depend'} on the width: after {len(worst.slopes)} steps the largest "
            f"slope in log-log is {worst.slopes[-1]:+.3f} ({worst.name})."
        )
        edges = [str(row.width) for row in self.rows if row.best is None]
        if self.slope is None or self.factor is None:
            why = (
                f"the lowest loss is at an edge of the factors at width {', '.join(edges)}; give more factors"
            )
            return [first, f"No rate follows: {why if edges else 'one width has no slope; give another'}."]
        line = f"With each doubling of the width the best rate is multiplied by {_powers(self.slope)}."
        rates = " and ".join(f"{name} {rate * self.factor.value:.3g}" for name, rate in self.rates.items())
        return [first, line, f"At width {self.to}: {rates} (the recipe's × {self.factor:.3g})."]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return as_json(self)


def _powers(exponent: Estimate) -> Estimate:
    low, high = (None if limit is None else 2**limit for limit in (exponent.low, exponent.high))
    return Estimate(2**exponent.value, low, high, seeds=exponent.n)


def load_transfer(values: dict[str, Any], overrides: list[str] | None = None) -> TransferSettings:
    """Check the settings and the recipe of a transfer at all of its widths; ConfigError names what is wrong."""
    recipe = with_overrides(copy.deepcopy(values["recipe"]), overrides or [])
    settings = validate(TransferSettings, {**values, "recipe": recipe}, "the transfer")
    for width in settings.widths:
        recipe_at(settings, width)
    return settings


def recipe_at(settings: TransferSettings, width: int) -> Recipe:
    """The recipe with a model of another width; heads keep theirs.

    Raises:
        ConfigError: heads do not divide the width, or the recipe has no model of a size.
    """
    recipe = validate(Recipe, settings.recipe, "the recipe")
    if not isinstance(recipe.model, SizedModel):
        raise ConfigError("a transfer needs a model of a named size (model.size), whose width can be changed")
    head = recipe.model.shape.width // recipe.model.shape.heads
    if width % head:
        raise ConfigError(
            f"widths: {width} cannot be divided into heads of {head} channels, which all widths share; choose multiples "
            f"of {head}"
        )
    values = with_overrides(copy.deepcopy(settings.recipe), _shape(recipe.model, width))
    return validate(Recipe, values, f"the recipe at width {width}")


def _shape(model: SizedModel, width: int) -> list[str]:
    other = model.at_width(width)
    inner = [] if other.feed_forward is None else [f"model.feed_forward={other.feed_forward}"]
    return [f"model.width={other.width}", f"model.heads={other.heads}", *inner]


# ---- the coordinate check ----


def coordinates(settings: TransferSettings) -> list[Coordinate]:
    """Train each width for a few steps on the same windows, and measure its activations on the first batch after each step.

    Sizes are geometric means over the seeds.
    """
    logs: dict[str, dict[int, np.ndarray]] = {}
    count = settings.steps * len(settings.widths) * len(settings.seeds)
    with progress_bar("coordinates", count, "steps") as advance:
        for width in settings.widths:
            recipe = recipe_at(settings, width)
            by_seed = [
                _sizes(recipe.model_copy(update={"seed": seed}), settings.steps, advance)
                for seed in settings.seeds
            ]
            for name in by_seed[0]:
                logs.setdefault(name, {})[width] = np.log(
                    np.maximum([sizes[name] for sizes in by_seed], 1e-30)
                ).mean(axis=0)
    return [
        Coordinate(
            name,
            {width: float(np.exp(along[-1])) for width, along in by_width.items()},
            [
                _slope(settings.widths, [along[step] for along in by_width.values()])
                for step in range(settings.steps)
            ],
        )
        for name, by_width in logs.items()
    ]


def _slope(widths: Sequence[int], logs: Sequence[float]) -> float:
    """Slope of a line through the logarithms of sizes over those of the widths; 0 for one width."""
    return float(np.polyfit(np.log(widths), logs, 1)[0]) if len(widths) > 1 else 0.0


def _sizes(recipe: Recipe, steps: int, advance: Any) -> dict[str, list[float]]:
    """Mean absolute activations after each step, and of their changes since before the first."""
    torch.manual_seed(recipe.seed)
    inputs = TrainingInputs.open(recipe)
    stream: Any = inputs.stream
    model = starting_model(recipe, inputs.config)
    trained = TrainedModel(model).train()
    scales = parameter_scales(recipe, inputs.config)
    optimizer = create_optimizer(trained, recipe.training, recipe.learning_rate, scales)
    count = recipe.examples_per_step
    batches = [
        {
            name: value
            for name, value in collate(
                [stream[i % len(stream)] for i in range(step * count, (step + 1) * count)]
            ).items()
            if name not in NOT_FOR_MODELS
        }
        for step in range(steps)
    ]
    start = _activations(model, batches[0]["input_ids"])
    result: dict[str, list[float]] = {}
    for batch in batches:
        optimizer.zero_grad()
        trained(**batch).backward()
        optimizer.step()
        for name, now in _activations(model, batches[0]["input_ids"]).items():
            result.setdefault(name, []).append(float(now.abs().mean()))
            result.setdefault(f"change of {name}", []).append(float((now - start[name]).abs().mean()))
        advance(1)
    return result


@torch.no_grad()
def _activations(model: Any, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs of the last block, of the predictor and of what its gate adds, and the logits."""
    found: dict[str, torch.Tensor] = {}
    with contextlib.ExitStack() as stack:
        for name, module in _watched(model):

            def keep(module: nn.Module, arguments: Any, output: Any, name: str = name) -> None:
                found[name] = output[0] if isinstance(output, tuple) else output

            stack.callback(module.register_forward_hook(keep).remove)
        found["logits"] = model(input_ids=input_ids, use_cache=False).logits
    return found


def _watched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for part in model.modules():
        family = adapter(part.config) if hasattr(part, "config") else None
        if family is not None and hasattr(part, family.norm_name):
            yield "backbone", family.blocks(part)[-1]
    pathway = context_pathway(model)
    if pathway is not None:
        yield "predictor", pathway.layers[-1]
        yield "gate", pathway.gate


# ---- the search ----


def run_set(settings: TransferSettings) -> tuple[RunSet, dict[tuple[int, float], str]]:
    """The runs of the search, and the name of each width's and factor's arm."""
    recipe = validate(Recipe, settings.recipe, "the recipe")
    assert isinstance(recipe.model, SizedModel)
    arms, names = {}, {}
    for width in settings.widths:
        for factor in settings.factors:
            name = f"w{width}-x{factor:g}"
            rates = {
                "learning_rate": recipe.learning_rate,
                "muon_learning_rate": recipe.training.muon_learning_rate,
            }
            chosen = [
                f"training.{key}={value * factor!r}" for key, value in rates.items() if key in _used(recipe)
            ]
            arms[name] = Arm(settings=[*_shape(recipe.model, width), *chosen])
            names[width, factor] = name
    path = Path(settings.output or f"transfer/{recipe.name}")
    values = RunSetSettings(recipe=settings.recipe, arms=arms, seeds=settings.seeds)
    return RunSet.of(values, path), names


def _used(recipe: Recipe) -> tuple[str, ...]:
    return RATES if recipe.training.optimizer == "muon" else RATES[:1]


def search(settings: TransferSettings) -> np.ndarray:
    """Losses of finished runs: (widths, factors, seeds), infinite where a run diverged; what is missing is trained."""
    runs, names = run_set(settings)
    runs.train_missing(settings.executor.processes, may_diverge=True)

    def loss(run: RunFolder) -> float:
        return float(run.summary()["validation_loss"]) if run.finished else math.inf

    return np.array(
        [
            [[loss(run) for run in runs.folders(names[width, factor])] for factor in settings.factors]
            for width in settings.widths
        ]
    )


def best_factor(factors: Sequence[float], losses: Sequence[float]) -> float | None:
    """The minimum of the parabola through the lowest loss and its two neighbours, in the logarithm of the factor.

    None if the lowest loss is at an edge, or a neighbour diverged on the lower side.
    """
    lowest = int(np.argmin(losses))
    if not 0 < lowest < len(factors) - 1:
        return None
    x, y = np.log2(factors[lowest - 1 : lowest + 2]), np.array(losses[lowest - 1 : lowest + 2])
    if not np.isfinite(y).all():
        return float(factors[lowest])
    curvature, slope, _ = np.polyfit(x - x[1], y, 2)
    return float(2 ** (x[1] - slope / (2 * curvature))) if curvature > 0 else float(factors[lowest])


def run_transfer(settings: TransferSettings) -> Transfer:
    """Check the coordinates, search the rates of all widths, and derive that of a larger one.

    Raises:
        ConfigError, DataError, CheckpointError: the input is at fault.
        TrainingError: every run diverged.
    """
    recipe = validate(Recipe, settings.recipe, "the recipe")
    found = coordinates(settings)
    losses_WFS = search(settings)
    if not np.isfinite(losses_WFS).any():
        raise TrainingError("every run diverged; give lower factors")
    rates = {name: getattr(recipe if name == RATES[0] else recipe.training, name) for name in _used(recipe)}
    to = settings.to or 2 * settings.widths[-1]
    return Transfer(
        recipe.name, recipe.training.parametrization, rates, found, *_fitted(settings, losses_WFS, to)
    )


def _fitted(
    settings: TransferSettings, losses_WFS: np.ndarray, to: int
) -> tuple[list[WidthRow], int, Estimate | None, int, Estimate | None]:
    """The rows, the number of seeds, the slope, the width that is asked for and its factor."""
    best_WS = [
        [best_factor(settings.factors, losses_FS[:, seed]) for seed in range(losses_FS.shape[1])]
        for losses_FS in losses_WFS
    ]
    known = all(each is not None for row in best_WS for each in row)
    slope, factor = None, None
    if known and len(settings.widths) > 1:
        logs_WS = np.log2(np.array(best_WS, dtype=float))
        widths = np.log2(settings.widths)
        lines = [np.polyfit(widths, logs_S, 1) for logs_S in logs_WS.T]
        slope = mean_estimate(np.array([line[0] for line in lines]))
        excluded = slope.low is not None and slope.high is not None and not slope.low <= 0 <= slope.high
        at_S = [np.polyval(line, math.log2(to)) for line in lines] if excluded else logs_WS.mean(axis=0)
        factor = _powers(mean_estimate(np.array(at_S)))
    mean_WF = losses_WFS.mean(axis=2)
    shared = int(np.argmin(mean_WF.mean(axis=0))) if np.isfinite(mean_WF.mean(axis=0)).any() else None
    rows = []
    for width, best_S, mean_F in zip(settings.widths, best_WS, mean_WF, strict=True):
        values = [each for each in best_S if each is not None]
        whole = _powers(mean_estimate(np.log2(values))) if len(values) == len(best_S) else None
        losses = {
            f: float(loss) if math.isfinite(loss) else None
            for f, loss in zip(settings.factors, mean_F, strict=True)
        }
        cost = None if shared is None else float(mean_F[shared] - mean_F.min())
        rows.append(WidthRow(width, losses, whole, cost))
    return rows, losses_WFS.shape[2], slope, to, factor


def transfer_tables(result: Transfer) -> list[Any]:
    """Tables for the terminal: the coordinates, and the losses of all widths and factors."""
    steps = len(result.coordinates[0].slopes)
    widths = [row.width for row in result.rows]
    coordinate = Table(
        f"Mean size of activations after {steps} steps, by width",
        ["activation", *[Column(str(width), form=".3g") for width in widths], Column("slope", form="+.3f")],
        [[each.name, *each.sizes.values(), each.slopes[-1]] for each in result.coordinates],
    )
    factors = list(result.rows[0].losses)
    losses = Table(
        f"Loss by factor of the rates, mean of {result.seeds} seed{'s' * (result.seeds > 1)} (nats per token)",
        [
            "width",
            *[Column(f"× {factor:g}", form=".4f", missing="diverged") for factor in factors],
            Column("best factor", "estimate", form=".3g", interval="below", missing="at an edge"),
            Column("shared − best", form=".4f"),
        ],
        [[str(row.width), *row.losses.values(), row.best, row.cost] for row in result.rows],
    )
    return [coordinate, losses]
