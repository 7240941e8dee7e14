"""Training: recipes in, finished runs out."""

from contextwise.training.recipe import Recipe, load_recipe
from contextwise.training.run import train

__all__ = ["Recipe", "load_recipe", "train"]
