"""Before the first run starts: every run is checked against the corpus, and what it costs is counted."""

from collections.abc import Iterable
from pathlib import Path

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.models.building import parameter_count
from contextwise.models.flops import training_flops_per_example, training_flops_per_target
from contextwise.sweeps.folder import PlannedRun, Sweep
from contextwise.sweeps.grid import SweepRecipe, run_id, size_name
from contextwise.training.recipe import Recipe
from contextwise.training.task import Task


def planned(settings: SweepRecipe) -> tuple[Sweep, dict[str, Recipe]]:
    """The runs of a sweep with what each costs; nothing is written.

    Returns:
        The sweep as it is to be, and each run's recipe by its id, with the path of the corpus made absolute.

    Raises:
        ConfigError: runs that do not fit the corpus or each other, all in one message.
        DataError: there is no such corpus.
    """
    recipes = {run_id(recipe): _with_absolute_corpus(recipe) for recipe in settings.recipes().values()}
    problems: dict[str, None] = {}
    plan, fingerprint = [], ""
    for name, recipe in recipes.items():
        try:
            task = Task.of(recipe)
        except ContextwiseError as error:
            problems[str(error)] = None
            continue
        fingerprint = task.corpus.fingerprint
        plan.append(_planned_run(name, recipe, task))
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(
            next(iter(problems))
            if len(problems) == 1
            else f"the sweep has {len(problems)} problems: {listed}"
        )
    sweep = Sweep(settings.folder, plan, fingerprint)
    sweep.refuse_other(settings)
    return sweep, recipes


def _with_absolute_corpus(recipe: Recipe) -> Recipe:
    """Runs may start on another machine, in another folder."""
    data = recipe.data.model_copy(update={"corpus": str(Path(recipe.data.corpus).absolute())})
    return recipe.model_copy(update={"data": data})


def _planned_run(name: str, recipe: Recipe, task: Task) -> PlannedRun:
    config, (inputs, outputs) = task.config, task.lengths
    tokens = recipe.training.total_steps * recipe.training.tokens_per_step
    per_token = training_flops_per_example(config, inputs, outputs) / inputs + training_flops_per_target(
        config
    )
    return PlannedRun(
        id=name,
        size=size_name(recipe.model.model_dump()),
        parameters=parameter_count(config),
        context=recipe.data.context,
        tokens=tokens,
        steps=recipe.training.total_steps,
        seed=recipe.seed,
        learning_rate=recipe.learning_rate,
        flops=tokens * per_token,
    )


def notes(plan: Iterable[PlannedRun]) -> list[str]:
    """What a sweep of these runs will not be able to say."""
    runs = list(plan)
    found = []
    axes: list[tuple[str, list[object]]] = [
        ("training context", [run.context for run in runs]),
        ("model size", [run.size for run in runs]),
    ]
    for what, values in axes:
        if len(set(values)) == 1:
            found.append(f"all runs have one {what} ({values[0]}): nothing can be compared along it")
    return found
