"""The start of a run: its newest checkpoint, one of the trunk that it branches off, or its first step.

The trunk trains at a constant learning rate. With ``schedule: wsd``, runs of several lengths differ only in their decay, so
that they share the part before it and train only their decay: a branch ends with the weights of an uninterrupted run of its
length.
"""

from pathlib import Path

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import write_sealed_json
from contextwise.base.machine import describe_environment, has_fast_bf16
from contextwise.base.runs import RunFolder, differing_settings
from contextwise.training import checkpoints
from contextwise.training.identity import changed_input
from contextwise.training.inputs import TrainingInputs
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


def precision_of(recipe: Recipe, run: RunFolder | None, device_type: str) -> str:
    """``bf16`` or ``fp32``: as the recipe says; ``auto``: as the run was begun, else what is faster on the device."""
    if recipe.training.precision != "auto":
        return recipe.training.precision
    begun = run.environment().get("precision") if run is not None else None
    return begun or ("bf16" if has_fast_bf16(device_type) else "fp32")


def write_environment(run: RunFolder, recipe: Recipe, device_type: str, source: RunFolder | None = None) -> None:
    """Write where a run begins, and its precision: that of the run whose checkpoint it begins with, if any."""
    begun = {"precision": precision_of(recipe, source, device_type)}
    write_sealed_json(run.environment_file, describe_environment() | begun, "the environment")


def find_checkpoint(
    run: RunFolder, recipe: Recipe, inputs: TrainingInputs, trunk: Path | None, device_type: str
) -> Path | None:
    """Find the newest intact checkpoint, or else the trunk's, and remove the metrics after it.

    Recipe and environment of an earlier start that wrote no checkpoint are replaced: its inputs may have been others.
    """
    for corpus in inputs.corpora.values() if getattr(recipe.data, "verify", True) else ():
        corpus.verify()
    checkpoint = checkpoints.latest_intact(run.checkpoints)
    source = run
    if checkpoint is None and trunk is not None:
        checkpoint, source = trunk, RunFolder(trunk.parent.parent)
    if checkpoint is not None:
        check_origin(checkpoint, source, recipe, inputs)
    anew = checkpoint is None or source is not run
    run.renew_recipe(recipe.resolved(), anew)
    if anew:
        write_environment(run, recipe, device_type, source if checkpoint is not None else None)
    run.rewind_metrics(checkpoints.step_of(checkpoint) if checkpoint is not None else 0, source)
    if not anew:  # what a process that was killed while it pruned has left
        checkpoints.prune_run(run, recipe)
    return checkpoint


def check_origin(checkpoint: Path, source: RunFolder, recipe: Recipe, inputs: TrainingInputs) -> None:
    """Raise a CheckpointError if a checkpoint, of the run or its trunk ``source``, is of another recipe, corpus or version."""
    state = checkpoints.read_state(checkpoint)
    own = source.path == recipe.folder
    different = differing_settings(state["recipe"], recipe.resolved()) - (set() if own else MAY_DIFFER)
    if different:
        raise CheckpointError(
            f"the checkpoint {checkpoint} is not of this run (its recipe differs in {', '.join(sorted(different)[:5])}); "
            "remove it, or choose another run folder"
        )
    if (changed := changed_input(recipe, state["fingerprints"], inputs.fingerprints)) is not None:
        raise CheckpointError(
            f"{changed} is not what {source.path} was trained on so far (the content hash differs); restore it, or choose "
            "another run folder"
        )
