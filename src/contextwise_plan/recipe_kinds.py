"""The recipe files of planning, as entry points of the group ``contextwise.recipe_kinds``."""

from contextwise.settings import RecipeKind

SWEEP = RecipeKind(
    "plan sweep",
    "grid",
    "contextwise_plan.sweeps.recipe:SweepRecipe",
    resolved="sweep.yaml",
    page="contextwise_plan.sweeps.page:write_sweep_page",
)
