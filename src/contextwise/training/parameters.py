"""Count the parameters of each part of a model, and list the stages that train it.

Recipes may build on runs that do not exist yet; their configurations are then derived from the recipes of those runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from contextwise.base.config import read_yaml, validate
from contextwise.base.recipes import recipe_path, shipped_recipe
from contextwise.base.runs import RunFolder
from contextwise.models.loading import load_config
from contextwise.models.spec import build_model, spec_of, without_weights
from contextwise.training.recipe import Recipe, load_recipe
from contextwise.training.settings import CorpusData


@dataclass(frozen=True)
class Upstream:
    """Configurations of the runs that a recipe builds on: of existing runs, and of others from their recipes."""

    find: Callable[[str], Recipe | None]  # returns the recipe that writes its run to a folder
    vocab_size: int | None = None  # of a corpus that does not exist yet

    def __call__(self, source: str) -> PreTrainedConfig:
        """The configuration of a run (of an existing one, or of a recipe's), of a folder or of a model on the Hub."""
        if (
            not Path(source).exists() and (recipe := self.find(source)) is not None
        ):  # first, since the Hub has no such name
            return self.config_of(recipe)
        return load_config(source)

    def config_of(self, recipe: Recipe) -> Any:
        """The configuration of a recipe's model."""
        return recipe.model.planned(recipe, self, self._vocabulary(recipe))

    def _vocabulary(self, recipe: Recipe) -> int | None:
        given = getattr(recipe.model, "vocab_size", None) or recipe.model.starts
        if given:
            return None
        if (
            self.vocab_size is not None
            and isinstance(recipe.data, CorpusData)
            and not Path(recipe.data.corpus).exists()
        ):
            return self.vocab_size
        return recipe.data.vocabulary_size()


@dataclass(frozen=True)
class Module:
    """One part of a model."""

    name: str
    parameters: int  # tied weights are counted in the first part that has them
    trained: int  # number of them that the recipe or run trains
    stages: list[str] = field(default_factory=list)  # of training that train this part


def modules_of(source: str) -> tuple[str, list[Module]]:
    """Return a description of the model of a recipe, of a run, or of any language model, and its parts."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or (not path.exists() and shipped_recipe(source)):
        return f"the recipe {source}", recipe_modules(load_recipe(source), recipe_path(source).parent)
    if not (path / "recipe.yaml").exists():
        return str(source), _modules(load_config(source), None)
    recipe = validate(Recipe, RunFolder.open(path).recipe(), f"the recipe of {path}")
    return str(source), _modules(load_config(source), recipe)


def recipe_modules(recipe: Recipe, folder: Path) -> list[Module]:
    """The parts of the model of a recipe in ``folder``, which may build on the runs of the other recipes there."""

    def find(output: str) -> Recipe | None:
        files = (file for file in sorted(folder.glob("*.yaml")) if {"data", "training"} <= read_yaml(file).keys())
        return next((beside for beside in map(load_recipe, files) if beside.folder == Path(output)), None)

    return _modules(Upstream(find).config_of(recipe), recipe)


def _modules(config: PreTrainedConfig, recipe: Recipe | None) -> list[Module]:
    spec = spec_of(config)
    with without_weights():
        model = build_model(config)
    if recipe is not None:
        recipe.model.freeze(model)
    seen: set[int] = set()
    modules = []
    for name, part in [*spec.parts(model).items(), ("", model)]:  # finally the parameters outside of all parts
        own = [parameter for parameter in part.parameters() if id(parameter) not in seen]
        seen |= {id(parameter) for parameter in own}
        if own:
            counts = (sum(p.numel() for p in own), sum(p.numel() for p in own if p.requires_grad))
            modules.append(Module(name.replace("_", " ") or "others", *counts, spec.stages(name)))
    modules[1:1] = [Module(name, count, 0) for name, count in spec.beside(config).items()]
    return modules
