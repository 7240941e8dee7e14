"""Recipes: the sections ``data``, ``model`` and ``training`` and an objective, read from a file and validated.

``data`` is a corpus or a synthetic task; ``model`` has a size, or starts from a pretrained model, or is a CUE model or a
small model of a synthetic task. Each variant is a separate class that has only the settings that apply to it. Checking a
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
