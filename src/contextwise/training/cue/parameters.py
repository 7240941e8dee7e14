"""Where a model's parameters are, and which of them are trained when (CUE, Table 1)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, DistilBertConfig, PreTrainedConfig

from contextwise.base.config import read_yaml, validate
from contextwise.base.runs import RunFolder
from contextwise.data.corpus import Corpus
from contextwise.models.building import build_model
from contextwise.models.cue import CueConfig
from contextwise.models.cue.encoding import encoder_config
from contextwise.models.loading import load_config
from contextwise.training.cue.parts import TextFacts, cue_config, freeze, text_choice
from contextwise.training.cue.settings import TRAINED
from contextwise.training.recipe import Recipe, load_recipe

_KNOWN = {"distilbert-base-cased": DistilBertConfig(vocab_size=28_996)}
"""Shapes of text encoders on the Hub: counting them takes no network."""


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
        return f"the recipe {path}", _modules(_Siblings(path).config_of(recipe), recipe)
    if not (path / "recipe.yaml").exists():
        return str(source), _modules(load_config(source), None)
    recipe = validate(Recipe, RunFolder.open(path).recipe(), f"the recipe of {path}")
    return str(source), _modules(load_config(source), recipe)


@dataclass(frozen=True)
class _Siblings:
    """Configurations of the runs that a recipe builds on; of runs that are still to come, by the recipe beside it."""

    path: Path

    def __call__(self, source: str) -> PreTrainedConfig:
        if not Path(source).exists():  # first here: as a name on the Hub it would be looked for in vain
            for recipe in _recipes(self.path.parent):
                if recipe.folder == Path(source):
                    return self.config_of(recipe)
        return load_config(source)

    def config_of(self, recipe: Recipe) -> Any:
        if recipe.model.cue is None:
            known = recipe.model.vocab_size or recipe.model.pretrained or recipe.data.synthetic
            vocabulary = None if known else Corpus.open(recipe.data.corpus, recipe.data.split).vocab_size
            if recipe.data.synthetic is not None:
                vocabulary = recipe.data.synthetic.vocab_size
            return recipe.model_config_for(vocabulary, None)
        text = None
        if recipe.data.contexts is not None:
            about = text_choice(recipe.model.cue, self)
            text = TextFacts(_text_config(about["name"]).get_text_config().hidden_size, about)
        return cue_config(recipe, text, self)


def _recipes(folder: Path) -> Iterator[Recipe]:
    """The training recipes of a folder, in which other files may lie as well."""
    for file in sorted(folder.glob("*.yaml")):
        if {"data", "training"} <= read_yaml(file).keys():
            yield load_recipe(file)


def _text_config(name: str) -> Any:
    return _KNOWN.get(name.removeprefix("random:")) or encoder_config(name)


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
            encoder = AutoModel.from_config(_text_config(name))
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
