"""The recipe files of the core, as entry points of the group ``contextwise.recipe_kinds``."""

from contextwise.base.recipes import RecipeKind

TRAINING = RecipeKind("train", "training", "contextwise.training.recipe:Recipe", resolved="recipe.yaml")
TRIAL = RecipeKind("trial", "arms", "contextwise.experiments.trial.settings:TrialSettings", resolved="trial.yaml")
