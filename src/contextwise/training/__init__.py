"""Training: from recipes to finished runs. Reading a recipe imports neither torch nor transformers."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe, load_recipe
    from contextwise.training.run import train
    from contextwise.training.settings import Addition, DataSection, DataSettings, ModelSection, ModelSettings

__all__ = ["Addition", "DataSection", "DataSettings", "ModelSection", "ModelSettings", "Recipe", "load_recipe", "train"]
_MODULES = {
    "recipe": ["Recipe", "load_recipe"],
    "run": ["train"],
    "settings": ["Addition", "DataSection", "DataSettings", "ModelSection", "ModelSettings"],
}
__getattr__ = lazy_exports(__name__, _MODULES)
