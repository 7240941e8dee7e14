"""Training: from recipes to finished runs. Reading a recipe imports neither torch nor transformers."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports
from contextwise.training.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from contextwise.training.run import train

__all__ = ["Recipe", "load_recipe", "train"]
__getattr__ = lazy_exports(__name__, {"run": ["train"]})
