"""Training: from recipes to finished runs. Reading a recipe imports neither torch nor transformers."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe, load_recipe
    from contextwise.training.run import train
    from contextwise.training.settings import DataSettings, ModelSettings

__all__ = ["DataSettings", "ModelSettings", "Recipe", "load_recipe", "train"]
__getattr__ = lazy_exports(
    __name__, {"recipe": ["Recipe", "load_recipe"], "run": ["train"], "settings": ["DataSettings", "ModelSettings"]}
)
