"""Recipes: the sections ``data``, ``model`` and ``training``, an objective, and how a file of them is read and checked.

``data`` is a corpus or a synthetic task; ``model`` has a size, or starts from a pretrained model, or is a CUE model or one of
the small models of a task. Each is a class of its own, so that a setting that does not apply to it does not exist. Checking a
recipe imports neither torch nor transformers.
"""

from contextwise.training.recipe.data import CorpusData, ReplaySettings, SyntheticData
from contextwise.training.recipe.model import (
    AutoencoderModel,
    ContextPredictorSettings,
    CueModel,
    MultiTokenSettings,
    ParityMLPModel,
    ParityTransformerModel,
    PretrainedModel,
    SizedModel,
)
from contextwise.training.recipe.recipe import Recipe, load_recipe, with_newer_settings
from contextwise.training.recipe.training import TrainingSettings

__all__ = [
    "AutoencoderModel",
    "ContextPredictorSettings",
    "CorpusData",
    "CueModel",
    "MultiTokenSettings",
    "ParityMLPModel",
    "ParityTransformerModel",
    "PretrainedModel",
    "Recipe",
    "ReplaySettings",
    "SizedModel",
    "SyntheticData",
    "TrainingSettings",
    "load_recipe",
    "with_newer_settings",
]
