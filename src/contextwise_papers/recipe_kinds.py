"""The recipe files of the documents, as entry points of the group ``contextwise.recipe_kinds``."""

from contextwise.base.recipes import RecipeKind

ITEM = RecipeKind("reproduce", "scales")
