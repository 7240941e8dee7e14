"""Transfer of learning rates between widths (docs/plan.md).

The search trains widths × factors of the recipe's rates × seeds. Seed by seed, a line through the logarithms of the best
factors over those of the widths gives the rate at a larger width.
"""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from contextwise.base.errors import TrainingError
from contextwise.base.files import expanded
from contextwise.base.runs import RunFolder, comparable, differing_keys
from contextwise.experiments.grid import learning_rates, rate_settings
from contextwise.report import Column, Table, counted
from contextwise.runset import AnyExecutor, Arm, ExecutorSettings, Question, RunSet, RunSetSettings
from contextwise.settings import ConfigError, DataError, Problem, Seeds, Settings, validate, with_overrides
from contextwise.stats import Estimate, mean_estimate
from contextwise.training import NewModel, Recipe, SizedModel

FARTHEST = 4.0  # neighbouring factors may be this many times apart: on wider steps the losses are no parabola
SAME_RATE = 0.25
"""Slope in log-log below which one rate suits all widths: a doubling changes the best rate by less than a factor of 1.19."""


class TransferSettings(Settings):
    """Widths, factors of the recipe's rates, and seeds."""

    recipe: dict[str, Any]
    widths: list[int] = Field(default=[64, 128, 256], min_length=2, description="channels")
    factors: list[float] = Field(
        default=[0.25, 0.5, 1.0, 2.0, 4.0],
        description=f"of the recipe's rates, ascending: three or more, neighbours at most {FARTHEST:g} times apart",
    )
    seeds: Seeds = Field(default=[0, 1], min_length=2, description="intervals are over seeds")
    to: int | None = Field(
        default=None, ge=1, description="the width whose rate is asked for; by default twice the largest"
    )
    executor: AnyExecutor = ExecutorSettings()
    output: str = Field(default="", description="folder of the runs; transfer/NAME if not given")

    @field_validator("widths", "factors", "seeds")
    @classmethod
    def _ascending(cls, values: list[Any]) -> list[Any]:
        if sorted(set(values)) != values:
            raise ConfigError("must be ascending, without repetitions")
        return values

    @field_validator("factors")
    @classmethod
    def _close(cls, factors: list[float]) -> list[float]:
        if len(factors) < 3:
            raise ConfigError("must be three or more: a parabola through three of them locates the best one")
        if not (factors[0] > 0 and math.isfinite(sum(factors))):
            raise ConfigError("must be above 0, and finite")
        for lower, upper in itertools.pairwise(factors):
            if upper > FARTHEST * lower:
                raise ConfigError(
                    f"must be at most {FARTHEST:g} times apart, and {lower:g} and {upper:g} are {upper / lower:.5g} times: a "
                    "parabola does not locate a best rate between such neighbours"
                )
        return factors

    @property
    def own_recipe(self) -> Recipe:
        """The recipe as it is given, at its own width."""
        return validate(Recipe, self.recipe, "the recipe")

    @property
    def folder(self) -> Path:
        """Folder of the runs and the result."""
        return expanded(self.output or f"transfer/{self.own_recipe.name}")


def load_transfer(values: dict[str, Any], overrides: list[str] | None = None) -> TransferSettings:
    """Check the settings and the recipe of a transfer at all of its widths, and that its corpus can compare rates."""
    recipe = with_overrides(copy.deepcopy(values["recipe"]), overrides or [])
    settings = validate(TransferSettings, {**values, "recipe": recipe}, "the transfer")
    recipes = [recipe_at(settings, width) for width in settings.widths]
    if settings.to is not None:
        recipe_at(settings, settings.to, "to")
    if recipes[0].training.evaluation_tokens == 0:
        raise ConfigError(Problem("but rates are compared by the validation loss", "training.evaluation_tokens", 0))
    from contextwise.training import TrainingInputs

    if not TrainingInputs.open(recipes[0]).validation:
        raise DataError(
            f"{getattr(recipes[0].data, 'corpus', 'the corpus')} has no validation split, on whose loss rates are compared; "
            "prepare it again with --validation"
        )
    # Written into the recipe, they hold at each width; without them each width would have the default rate of its own size.
    own_rates = {f"training.{name}": rate for name, rate in learning_rates(settings.own_recipe).items()}
    return settings.model_copy(update={"recipe": with_overrides(recipe, own_rates)})


def recipe_at(settings: TransferSettings, width: int, name: str = "widths") -> Recipe:
    """The recipe with a model of another width; heads keep theirs."""
    recipe = settings.own_recipe
    if isinstance(recipe.model, NewModel) and recipe.model.kind != "decoder":
        raise ConfigError(f"a transfer needs a causal language model, and model.family is {recipe.model.family}")
    if not isinstance(recipe.model, SizedModel):
        raise ConfigError("a transfer needs a model of a named size (model.size), whose width can be changed")
    head = recipe.model.shape.width // recipe.model.shape.heads
    if width % head:
        raise ConfigError(
            f"{name}: {width} cannot be divided into heads of {head} channels, which all widths share; choose multiples "
            f"of {head}"
        )
    values = with_overrides(copy.deepcopy(settings.recipe), shape_at(recipe.model, width))
    return validate(Recipe, values, f"the recipe at width {width}")


def shape_at(model: SizedModel, width: int) -> list[str]:
    other = model.at_width(width)
    inner = [] if other.feed_forward is None else [f"model.feed_forward={other.feed_forward}"]
    return [f"model.width={other.width}", f"model.heads={other.heads}", *inner]


@dataclass(frozen=True)
class WidthRow:
    """The search at one width."""

    width: int
    losses: dict[float, float | None]  # factor -> mean loss over seeds, nats per token; None where a run diverged
    best: Estimate | None  # factor, over seeds; None where a seed's lowest loss is at an edge of the factors
    cost: float | None  # loss at the factor that all widths share, minus the lowest of this width


@dataclass(frozen=True)
class Transfer:
    """The result; intervals are over seeds, and without a best factor at every width there is no slope."""

    name: str
    parametrization: str
    rates: dict[str, float]  # of the recipe, which factors multiply
    rows: list[WidthRow]
    seeds: int
    slope: Estimate | None  # of log2 of the best factor over log2 of the width; 0: one rate suits every width
    to: int
    factor: Estimate | None  # of the rates at the width ``to``: the line's value there

    IN_JSON: ClassVar = ("sentences",)

    @property
    def sentences(self) -> list[str]:
        """The result in words."""
        diverged = [str(row.width) for row in self.rows if set(row.losses.values()) == {None}]
        edges = [str(row.width) for row in self.rows if row.best is None]
        if self.slope is None or self.factor is None:
            why = "the lowest loss of at least one seed is at an edge of the factors at width "
            why += f"{', '.join(edges)}; give more factors"
            if diverged:
                why = f"at width {', '.join(diverged)} no factor has finite losses of all seeds; give lower factors"
            return [f"No rate follows: {why}."]
        rates = " and ".join(f"{name} {rate * self.factor.value:.3g}" for name, rate in self.rates.items())
        doubling = self.slope.map(math.exp2)
        return [
            f"{self._constancy}: with each doubling of the width the best rate is multiplied by {doubling:.3g}.",
            f"At width {self.to}: {rates} (the recipe's × {self.factor:.3g}).",
        ]

    @property
    def _constancy(self) -> str:
        """Whether one rate suits all widths, by the slope's interval over seeds."""
        assert self.slope is not None
        low, high = self.slope.limits
        if max(-low, high) < SAME_RATE:
            return "One rate suits all widths"
        if self.slope.decided:
            return "The best rate changes with the width"
        why = f"the slopes of the {self.seeds} seeds are equal, so there is no interval"
        why = why if math.isnan(low) else f"{self.seeds} seeds do not tell"
        return f"Whether one rate suits all widths is open ({why})"


def search_runs(settings: TransferSettings) -> RunSet:
    """The runs of the search: an arm for each width and factor, as :func:`arm_of` names it."""
    recipe = settings.own_recipe
    assert isinstance(recipe.model, SizedModel)
    arms = {
        arm_of(width, factor): Arm(settings=[*shape_at(recipe.model, width), *rate_settings(recipe, factor)])
        for width in settings.widths
        for factor in settings.factors
    }
    values = RunSetSettings(recipe=settings.recipe, arms=arms, seeds=settings.seeds)
    return RunSet.of(values, settings.folder)


def arm_of(width: int, factor: float) -> str:
    """Name of the arm with this width and this factor of the rates."""
    return f"w{width}-x{factor:g}"


def search(settings: TransferSettings) -> np.ndarray:
    """Losses of finished runs: (widths, factors, seeds), infinite where a run diverged; what is missing is trained."""
    runs = search_runs(settings)
    runs.train_missing(settings.executor, may_diverge=True)

    def loss(run: RunFolder) -> float:
        return float(run.summary()["validation_loss"]) if run.finished else math.inf

    return np.array(
        [
            [[loss(run) for run in runs.folders(arm_of(width, factor))] for factor in settings.factors]
            for width in settings.widths
        ]
    )


def best_factor(factors: Sequence[float], losses: Sequence[float]) -> float | None:
    """The minimum of the parabola through the lowest loss and its two neighbours, in the logarithm of the factor.

    The lowest factor itself where a neighbour diverged; None if the lowest loss is at an edge.
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
    """Search the rates of all widths, and derive that of a larger one; a TrainingError if every run diverged."""
    runs = planned_runs(settings)
    values, inputs = settings.model_dump(mode="json", exclude={"output"}), dict(runs.runs[0].inputs)
    Question(settings.folder, "transfer").write(values, {"inputs": inputs})
    losses_WFS = search(settings)
    if not np.isfinite(losses_WFS).any():
        raise TrainingError("every run diverged; give lower factors")
    return fitted(settings, losses_WFS)


def planned_runs(settings: TransferSettings) -> RunSet:
    """The runs of the search, with notes; a ConfigError if the folder has other files, or a transfer of another recipe."""
    folder, runs = Question(settings.folder, "transfer"), search_runs(settings)
    inputs = dict(runs.runs[0].inputs)
    if folder.exists:
        kept, now = (comparable(each.own_recipe.resolved()) for each in (folder.settings(TransferSettings), settings))
        different = differing_keys(kept, now)
        different |= {f"the content of {name}" for name in differing_keys(folder.plan()["inputs"], inputs)}
        if different:
            raise ConfigError(
                f"{folder.path} holds the transfer of another recipe (it differs in {', '.join(sorted(different)[:6])}); "
                "choose another folder with --out"
            )
    runs.warn_of_few_steps()
    return runs


def fitted(settings: TransferSettings, losses_WFS: np.ndarray) -> Transfer:
    """The result, from losses of the search: (widths, factors, seeds), infinite where a run diverged."""
    recipe, to = settings.own_recipe, settings.to or 2 * settings.widths[-1]
    # NaN where the lowest loss is at an edge
    best_WS = np.array(
        [[best_factor(settings.factors, loss_F) or math.nan for loss_F in loss_FS.T] for loss_FS in losses_WFS]
    )
    slope, factor = None, None
    if np.isfinite(best_WS).all():
        lines_2S = np.polyfit(np.log2(settings.widths), np.log2(best_WS), 1)
        slope = mean_estimate(lines_2S[0])
        factor = mean_estimate(np.polyval(lines_2S, math.log2(to))).map(math.exp2)
    mean_WF = losses_WFS.mean(axis=2)
    shared_F = mean_WF.mean(axis=0)
    shared = int(np.argmin(shared_F)) if np.isfinite(shared_F).any() else None
    rows = [
        WidthRow(
            width,
            {x: float(loss) if math.isfinite(loss) else None for x, loss in zip(settings.factors, mean_F, strict=True)},
            mean_estimate(np.log2(best_S)).map(math.exp2) if np.isfinite(best_S).all() else None,
            None if shared is None else float(mean_F[shared] - mean_F.min()),
        )
        for width, best_S, mean_F in zip(settings.widths, best_WS, mean_WF, strict=True)
    ]
    return Transfer(
        name=recipe.name,
        parametrization=recipe.training.parametrization,
        rates=learning_rates(recipe),
        rows=rows,
        seeds=losses_WFS.shape[2],
        slope=slope,
        to=to,
        factor=factor,
    )


def transfer_table(result: Transfer) -> Table:
    """The losses of all widths and factors."""
    factors = list(result.rows[0].losses)
    return Table(
        f"Loss by factor of the rates, mean of {counted(result.seeds, 'seed')} (nats per token)",
        [
            "width",
            *[Column(f"× {factor:g}", form=".4f", missing="diverged") for factor in factors],
            Column("best factor", "estimate", form=".3g", interval="below", missing="at an edge"),
            Column("shared − best", form=".4f"),
        ],
        [[str(row.width), *row.losses.values(), row.best, row.cost] for row in result.rows],
    )
