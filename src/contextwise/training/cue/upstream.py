"""Configurations of models that build on runs which are still to come."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import DistilBertConfig, PreTrainedConfig

from contextwise.data.corpus import Corpus
from contextwise.models.cue.encoding import encoder_config
from contextwise.models.loading import load_config
from contextwise.training.cue.parts import TextFacts, cue_config, text_choice
from contextwise.training.recipe import Recipe

_KNOWN = {"distilbert-base-cased": DistilBertConfig(vocab_size=28_996)}
"""Shapes of text encoders on the Hub: counting them takes no network."""


@dataclass(frozen=True)
class Upstream:
    """Configurations of the runs that a recipe builds on: of those that are there, and of others by their recipes.

    Attributes:
        find: gives the recipe whose run would lie in a folder, if there is one.
        vocab_size: tokens of a corpus that is not there yet.
    """

    find: Callable[[str], Recipe | None]
    vocab_size: int | None = None

    def __call__(self, source: str) -> PreTrainedConfig:
        """The configuration of a run, of a folder or of a model on the Hub.

        Raises:
            CheckpointError: it is none of these, and no recipe makes it.
        """
        if not Path(source).exists():  # first here: as a name on the Hub it would be looked for in vain
            recipe = self.find(source)
            if recipe is not None:
                return self.config_of(recipe)
        return load_config(source)

    def config_of(self, recipe: Recipe) -> Any:
        """The configuration of a recipe's model.

        Raises:
            ConfigError, CheckpointError, DataError: parts do not fit each other, or the vocabulary is not known.
        """
        if recipe.model.cue is None:
            return recipe.model_config_for(self._vocabulary(recipe), None)
        text = None
        if recipe.data.contexts is not None:
            about = text_choice(recipe.model.cue, self)
            text = TextFacts(text_config(about["name"]).get_text_config().hidden_size, about)
        return cue_config(recipe, text, self)

    def _vocabulary(self, recipe: Recipe) -> int | None:
        if recipe.data.synthetic is not None:
            return recipe.data.synthetic.vocab_size
        if recipe.model.vocab_size or recipe.model.pretrained:
            return None
        if self.vocab_size is not None and not Path(recipe.data.corpus).exists():
            return self.vocab_size
        return Corpus.open(recipe.data.corpus, recipe.data.split).vocab_size


def text_config(name: str) -> Any:
    """The configuration of a text encoder, without its weights."""
    return _KNOWN.get(name.removeprefix("random:")) or encoder_config(name)
