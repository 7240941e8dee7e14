"""Runs that branch off a trunk: they start from one of its checkpoints and train only their decay.

The trunk trains at a constant learning rate. With ``schedule: wsd``, runs of several lengths differ only in their decay, so
that they share the part before it: a branch ends with the weights of an uninterrupted run of its length.
"""

from pathlib import Path

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder, comparable, differing_keys
from contextwise.training import checkpoints
from contextwise.training.optimizer import learning_rate_share
from contextwise.training.recipe import Recipe

SCHEDULE = {"schedule", "warmup_steps", "decay_steps", "minimum_learning_rate", "rampup_batch_size", "rampup_tokens"}
"""Settings of ``training`` that may differ from the trunk's as long as rates and batches are the same up to the decay."""
MAY_DIFFER = {
    "name",
    *(f"training.{name}" for name in (*SCHEDULE, "steps", "tokens", "log_every", "evaluate_every", "curve_every")),
}


def may_branch(trunk: Path, recipe: Recipe) -> bool:
    """Whether the trunk has or will have the checkpoint where this run begins to decay: it has not gone beyond without it."""
    run, step = RunFolder(trunk), recipe.decay_start()
    if not run.exists or (run.checkpoints / f"step-{step}").exists():
        return True
    kept = [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(run.checkpoints)]
    return not run.finished and max(kept, default=0) < step


def trunk_checkpoint(recipe: Recipe, run: RunFolder) -> Path | None:
    """The trunk's checkpoint where ``run`` begins to decay; None for a run without a trunk, or with a checkpoint of its own.

    Raises:
        ConfigError: the trunk has another recipe, or other batches or learning rates before that step.
        CheckpointError: there is no trunk, or it has no checkpoint of that step.
    """
    source, folder = recipe.training.trunk, recipe.trunk_checkpoint
    if source is None or folder is None or run.finished or checkpoints.list_checkpoints(run.checkpoints):
        return None
    step = recipe.decay_start()
    trunk = RunFolder.open(source)
    other = validate(Recipe, trunk.recipe(), f"the recipe of {source}")
    different = differing_keys(comparable(other.resolved()), comparable(recipe.resolved())) - MAY_DIFFER
    if different:
        raise ConfigError(
            f"training.trunk is {source}, whose recipe differs in {', '.join(sorted(different)[:5])}; a run and its trunk may "
            "differ in name, length, schedule and measurements only"
        )
    _check_same_steps(recipe, other, step)
    if not folder.exists():
        steps = [str(checkpoints.step_of(path)) for path in checkpoints.list_checkpoints(trunk.checkpoints)]
        raise CheckpointError(
            f"training.trunk is {source}, which has no checkpoint of step {step}, where this run begins to decay; it has "
            f"{'those of the steps ' + ', '.join(steps) if steps else 'none'}; choose training.decay_steps so that the decay "
            "begins at one of these, or train the trunk with "
            f"training.branches=[{recipe.training.tokens or recipe.training.steps}]"
        )
    return folder


def _check_same_steps(recipe: Recipe, trunk: Recipe, steps: int) -> None:
    """Raise a ConfigError if the first ``steps`` steps of a run and its trunk differ in learning rate or batch size."""
    sizes, others = recipe.batch_sizes, trunk.batch_sizes
    rate, other_rate = (learning_rate_share(each.training, each.full_steps) for each in (recipe, trunk))
    for step in range(steps):
        if sizes.before(step + 1) != others.before(step + 1):
            what, fix = "batch size", "give both the same training.rampup_tokens, as a number of tokens"
        elif rate(sizes.before(step) / sizes.full) != other_rate(others.before(step) / others.full):
            warmup = trunk.training.warmup(trunk.full_steps)
            what, fix = "learning rate", f"set training.warmup_steps={warmup}, as in the trunk"
            if step >= warmup or warmup == recipe.training.warmup(recipe.full_steps):
                fix = "the trunk's schedule must be wsd or constant until that step"
        else:
            continue
        raise ConfigError(
            f"training.trunk is {recipe.training.trunk}, whose {what} differs from this run's at step {step + 1}, before the "
            f"decay begins; {fix}"
        )
