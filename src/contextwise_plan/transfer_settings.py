"""The settings of a transfer of learning rates between widths, and its recipe at each width; imports no torch."""

import copy
import itertools
import math
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from contextwise.base.config import Seeds, Settings, validate, with_overrides
from contextwise.base.errors import ConfigError, DataError, Problem
from contextwise.base.files import expanded
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.grid import learning_rates
from contextwise.experiments.launchers import AnyExecutor
from contextwise.training.kinds import NewModel, SizedModel
from contextwise.training.recipe import Recipe

FARTHEST = 4.0  # neighbouring factors may be this many times apart: on wider steps the losses are no parabola


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
    from contextwise.training.inputs import TrainingInputs  # imports torch, which what was refused above does not need

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
