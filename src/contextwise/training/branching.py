"""Runs that branch off a trunk: they start from one of its checkpoints and train only their decay.

The trunk trains at a constant learning rate. With ``schedule: wsd``, runs of several lengths differ only in their decay, so
that they share the part before it: a branch ends with the weights of an uninterrupted run of its length.
"""

from pathlib import Path

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder, differing_settings
from contextwise.training import checkpoints
from contextwise.training.recipe import Recipe

SCHEDULE = ("schedule", "warmup_steps", "decay_steps", "minimum_learning_rate")  # with the same rates up to the decay
FURTHER = ("steps", "tokens", "log_every", "evaluate_every", "curve_every")
MAY_DIFFER = {"name", *(f"training.{name}" for name in (*SCHEDULE, *FURTHER))}
"""Settings that may differ from the trunk's."""


def may_branch(trunk: Path, recipe: Recipe) -> bool:
    """Whether the trunk has or will have the checkpoint where this run begins to decay: it has not gone beyond without it."""
    run, step = RunFolder(trunk), recipe.decay_start()
    if not run.exists or (run.checkpoints / f"step-{step}").exists():
        return True
    kept = [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(run.checkpoints)]
    return not run.finished and max(kept, default=0) < step


def trunk_checkpoint(recipe: Recipe, run: RunFolder) -> Path | None:
    """The trunk's checkpoint where ``run`` begins to decay; None for a run without a trunk, or with a checkpoint of its own.

    A ConfigError or CheckpointError if the trunk has another recipe or other rates, does not exist, or has no such checkpoint
    that is intact.
    """
    source, folder = recipe.training.trunk, recipe.trunk_checkpoint
    if source is None or folder is None or run.finished or checkpoints.list_checkpoints(run.checkpoints):
        return None
    step = recipe.decay_start()
    trunk = RunFolder.open(source)
    other = validate(Recipe, trunk.recipe(), f"the recipe of {source}")
    different = differing_settings(other.resolved(), recipe.resolved()) - MAY_DIFFER
    if different:
        raise ConfigError(
            f"training.trunk is {source}, whose recipe differs in {', '.join(sorted(different)[:5])}; a run and its trunk may "
            "differ in name, length, schedule and measurements only"
        )
    warmup, schedule, fix = other.training.warmup(other.total_steps), other.training.schedule, ""
    if warmup != recipe.training.warmup(recipe.total_steps):
        fix = f"set training.warmup_steps={warmup}, as in the trunk"
    elif schedule != "constant" and (schedule != "wsd" or step > other.decay_start()):
        fix = "the trunk's schedule must be wsd or constant until that step"
    if fix:
        raise ConfigError(
            f"training.trunk is {source}, whose learning rate differs from this run's before step {step}, where the decay "
            f"begins; {fix}"
        )
    if not folder.exists():
        raise CheckpointError(
            f"training.trunk is {source}, which has no checkpoint of step {step}, where this run begins to decay; train the "
            f"trunk with training.branches=[{recipe.training.tokens or recipe.training.steps}], or this run without it"
        )
    if (problem := checkpoints.damaged(folder)) is not None:
        raise CheckpointError(
            f"the checkpoint {folder} is damaged: {problem}; remove the run folder {trunk.path} and train it again, or "
            "train this run whole, without training.trunk"
        )
    return folder
