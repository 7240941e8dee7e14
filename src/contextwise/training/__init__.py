"""Training: from recipes to finished runs. Reading a recipe imports neither torch nor transformers."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe, load_recipe
    from contextwise.training.run import train
    from contextwise.training.settings import DataSection, DataSettings, ModelSettings

__all__ = ["DataSection", "DataSettings", "ModelSettings", "Recipe", "load_recipe", "train"]
_SETTINGS = ["DataSection", "DataSettings", "ModelSettings"]
__getattr__ = lazy_exports(__name__, {"recipe": ["Recipe", "load_recipe"], "run": ["train"], "settings": _SETTINGS})
