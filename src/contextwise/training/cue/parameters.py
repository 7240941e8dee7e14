"""Where a model's parameters are, and which of them are trained when (CUE, Table 1)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig

from contextwise.base.config import read_yaml, validate
from contextwise.base.runs import RunFolder
from contextwise.models.building import build_model
from contextwise.models.cue import CueConfig
from contextwise.models.loading import load_config
from contextwise.training.cue.parts import freeze
from contextwise.training.cue.settings import TRAINED
from contextwise.training.cue.upstream import Upstream, text_config
from contextwise.training.recipe import Recipe, load_recipe


@dataclass(frozen=True)
class Module:
    """One part of a model.

    Attributes:
        parameters: tied weights count where they come first.
        trained: how many of them the recipe's, or the run's, training changes.
        stages: of a CUE model's life, in which it is trained.
    """

    name: str
    parameters: int
    trained: int
    stages: list[str] = field(default_factory=list)


def modules_of(source: str) -> tuple[str, list[Module]]:
    """The parts of a recipe's model, of a run's, or of any causal language model, a masked one or an encoder-decoder.

    Returns:
        What it is, in words; its modules.

    Raises:
        ConfigError, CheckpointError, DataError: it cannot be read, or builds on a run that is not there.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        recipe = load_recipe(path)
        return f"the recipe {path}", _modules(Upstream(_beside(path)).config_of(recipe), recipe)
    if not (path / "recipe.yaml").exists():
        return str(source), _modules(load_config(source), None)
    recipe = validate(Recipe, RunFolder.open(path).recipe(), f"the recipe of {path}")
    return str(source), _modules(load_config(source), recipe)


def _beside(path: Path) -> Callable[[str], Recipe | None]:
    """Finds the recipe, among those beside one, whose run would lie in a folder."""

    def find(source: str) -> Recipe | None:
        return next((recipe for recipe in _recipes(path.parent) if recipe.folder == Path(source)), None)

    return find


def _recipes(folder: Path) -> Iterator[Recipe]:
    """The training recipes of a folder, in which other files may lie as well."""
    for file in sorted(folder.glob("*.yaml")):
        if {"data", "training"} <= read_yaml(file).keys():
            yield load_recipe(file)


def _modules(config: PreTrainedConfig, recipe: Recipe | None) -> list[Module]:
    with torch.device("meta"):
        model = build_model(config)
    if not isinstance(config, CueConfig):
        if recipe is not None and recipe.model.freeze_backbone:
            model.requires_grad_(False)
            model.context.requires_grad_(True)
        return _counted(dict(model.named_children()), model)
    if recipe is not None and recipe.model.cue is not None:
        freeze(model, recipe.model.cue.stage)
    found = _counted(model.parts, model)
    if config.context_encoder is not None:
        name = config.context_encoder.text_encoder["name"]
        with torch.device("meta"):
            encoder = AutoModel.from_config(text_config(name))
        count = sum(parameter.numel() for parameter in encoder.parameters())
        found.insert(1, Module("text encoder", count, 0))
    return found


def _counted(parts: dict[str, nn.Module], model: nn.Module) -> list[Module]:
    seen: set[int] = set()
    found = []
    for name, part in [*parts.items(), ("", model)]:  # at last what lies in none of the parts
        own = {id(parameter): parameter for parameter in part.parameters() if id(parameter) not in seen}
        seen |= set(own)
        counts = [(p.numel(), p.numel() * p.requires_grad) for p in own.values()]
        if counts:
            stages = [stage for stage, trained in TRAINED.items() if name in trained]
            total, trained = (sum(column) for column in zip(*counts, strict=True))
            found.append(Module(name.replace("_", " ") or "others", total, trained, stages))
    return found
