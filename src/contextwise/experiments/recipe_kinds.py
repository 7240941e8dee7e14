"""The recipe files of the core, as entry points of the group ``contextwise.recipe_kinds``."""

from pathlib import Path

from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError, misspelt
from contextwise.base.recipes import RecipeKind, recipe_path, shipped_recipe, shipped_recipes

TRAINING = RecipeKind("train", "training", "contextwise.training.recipe:Recipe", resolved="recipe.yaml")
TRIAL = RecipeKind("trial", "arms", "contextwise.experiments.trial.settings:TrialSettings", resolved="trial.yaml")


def check_trial(trial: str | Path) -> None:
    """Refuse one arm in place of a trial, and a file that cannot be read, before anything slow is imported."""
    name = str(trial)
    if not (name.endswith((".yaml", ".yml")) or Path(name).exists() or shipped_recipe(name, "trial")):
        if "/" in name:
            raise ConfigError(f"there is no trial at {name}; give its folder, a YAML file, or two arms{misspelt(name)}")
        meant = misspelt(name, [each.path.stem for each in shipped_recipes("trials")])
        raise ConfigError(
            f"one arm ({name}) has nothing to be compared to; give two arms, or a trial (a YAML file, its name or its "
            f"folder){meant}"
        )
    read_yaml(recipe_path(name, "trial"))
