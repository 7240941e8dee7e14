"""Training: from recipes to finished runs. Reading a recipe imports neither torch nor transformers."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.training.inputs import VALIDATION_SEED, TrainingInputs
    from contextwise.training.kinds import NewModel, SizedModel
    from contextwise.training.recipe import Recipe, load_recipe
    from contextwise.training.run import train
    from contextwise.training.settings import (
        Addition,
        CorpusData,
        DataSection,
        DataSettings,
        HeldOut,
        ModelSection,
        ModelSettings,
        Width,
    )

__all__ = ["VALIDATION_SEED", "Addition", "CorpusData", "DataSection", "DataSettings", "HeldOut"]
__all__ += ["ModelSection", "ModelSettings", "NewModel", "Recipe", "SizedModel", "TrainingInputs", "Width"]
__all__ += ["load_recipe", "train"]
__getattr__, __dir__ = lazy_exports(__name__)
