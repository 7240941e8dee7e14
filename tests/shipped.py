"""The items and recipes that come with the package, read once for all tests."""

from contextwise.base.config import read_yaml
from contextwise.base.recipes import recipe_folders
from contextwise_papers.item import RECIPES, Item, list_items

ALL_ITEMS = list_items(RECIPES)
"""Name -> item of a reproduction."""
ALL_FILES = {path: read_yaml(path) for folder in recipe_folders() for path in sorted(folder.rglob("*.yaml"))}
"""Path -> values of each YAML file."""
RUNS = [path for path, values in ALL_FILES.items() if "training" in values]
"""Recipes of single runs."""


def an_item(**printed):
    """An item for a measure that a test calls itself."""
    return Item(title="t", source="s", measure="m", printed=printed, scales={})
