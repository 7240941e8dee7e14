"""The recipe files of the documents, as entry points of the group ``contextwise.recipe_kinds``."""

from contextwise.settings import RecipeKind

ITEM = RecipeKind("reproduce", "scales")
