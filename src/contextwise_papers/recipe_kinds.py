"""The recipe files of the documents, as entry points of the group ``contextwise.recipes``."""

from contextwise.base.recipes import RecipeKind

ITEM = RecipeKind("reproduce", "scales")
