"""Verification of a run: its files are those that it wrote, and its first steps and those after a checkpoint repeat."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.files import is_held
from contextwise.base.hashes import damage
from contextwise.base.machine import describe_environment
from contextwise.base.runs import RunFolder
from contextwise.base.undisturbed import without_launch_settings
from contextwise.training import checkpoints
from contextwise.training.branching import check_origin
from contextwise.training.inputs import TrainingInputs
from contextwise.training.recipe import Recipe
from contextwise.training.run import build_trainer, fast_steps, processes_of

COMPARED = ("loss", "objective", "parts", "grad_norm", "learning_rate", "tokens", "input_tokens", "target_tokens")
"""Values of a training row that do not depend on the time."""
BITS = ("python", "processor", "gpus", "cuda", "versions")
"""Keys of a run's environment on which the last bits of a sum depend."""
TOLERANCE = 0.01
"""Relative difference of losses and gradient norms that counts as equal in another environment."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    what: str  # a file or folder of the run, a corpus, or the steps that were taken again
    found: str  # the outcome in words
    passed: bool = True


def verify_run(path: str | Path) -> Iterator[Check]:
    """Compare a run's files with their hashes, and take again its first steps and those after the newest checkpoint with a row.

    Checkpoints, exported models, ``summary.json`` and corpora have hashes. The rows of ``metrics.jsonl`` must equal those of
    the steps that are taken again: bit for bit in the environment of the run, and to 1% in another one. The first steps of a
    run with a trunk are the trunk's, and are not taken again. The run is not written to.
    """
    run = RunFolder.open(path)
    if is_held(run.path, inside=True):
        raise ConfigError(f"another process is training {path}; wait for it to end")
    recipe = validate(Recipe, run.recipe() | {"output": str(path)}, f"the recipe of {path}")
    inputs = TrainingInputs.open(recipe)
    intact: list[Path] = []
    for folder in _sealed_folders(run):
        problem = checkpoints.damaged(folder) if folder.name.startswith("step-") else damage(folder)
        yield Check(folder.relative_to(run.path).as_posix(), problem or "intact", problem is None)
        if problem is None and folder.parent == run.checkpoints:
            intact.append(folder)
    if run.summary_file.exists():
        yield _checked("summary.json", run.summary)
    for name, corpus in inputs.corpora.items():
        yield _checked(f"corpus {corpus.path} ({name})", corpus.verify)
    for checkpoint in intact:
        what = f"origin of {checkpoint.relative_to(run.path)}"
        yield _checked(what, lambda folder=checkpoint: check_origin(folder, run, recipe, inputs))
    yield from _next_steps(run, recipe, inputs, intact)


def _sealed_folders(run: RunFolder) -> list[Path]:
    """The folders of a run that have a manifest."""
    folders = checkpoints.list_checkpoints(run.checkpoints)
    if run.summary_file.exists() or run.model.exists():
        folders.append(run.model)
    return folders + sorted(path for path in (run.path / "parts").glob("*") if path.is_dir())


def _checked(what: str, check: Any) -> Check:
    """The outcome of a function that raises an error for what is wrong."""
    try:
        check()
    except ContextwiseError as error:
        return Check(what, str(error), False)
    return Check(what, "intact")


def _next_steps(run: RunFolder, recipe: Recipe, inputs: TrainingInputs, intact: list[Path]) -> Iterator[Check]:
    """Take the first steps, and those after the newest checkpoint with later steps in the metrics, up to one of a row."""
    rows = [row for row in run.metrics("train") if "grad_norm" in row]
    last = rows[-1]["step"] if rows else 0
    newest = next((each for each in reversed(intact) if checkpoints.step_of(each) < last), None)
    if rows and recipe.training.trunk is None:
        yield _repeated(run, recipe, inputs, None, rows, *intact[:1])
    if newest is not None:
        yield _repeated(run, recipe, inputs, newest, rows, newest)
    else:
        yield Check(
            "steps", "none was taken after a checkpoint: no intact checkpoint has a later step in metrics.jsonl"
        )


def _repeated(
    run: RunFolder,
    recipe: Recipe,
    inputs: TrainingInputs,
    checkpoint: Path | None,
    rows: list[dict[str, Any]],
    known: Path | None = None,
) -> Check:
    """Take steps again after ``checkpoint`` (None: from the start); ``known`` is one that tells the number of processes."""
    start = checkpoints.step_of(checkpoint) if checkpoint else 0
    later = [row for row in rows if row["step"] > start]
    # The first step depends on the weights alone, the second one on the optimizer's state too.
    row = next((row for row in later if row["step"] > start + 1), later[0])
    then, now = run.environment(), describe_environment()
    different = [name for name in BITS if then.get(name) != now.get(name)]
    if known is not None and (processes := len(checkpoints.read_state(known)["random"])) > 1:
        different.append(f"{processes} processes")
    threads = torch.get_num_threads()
    torch.set_num_threads(then.get("threads") or threads)
    try:
        precise = recipe.with_training(precision=then.get("precision", recipe.training.precision))
        again = _continued(precise, inputs, checkpoint, row["step"])
    finally:
        torch.set_num_threads(threads)
    return _compared(f"steps {start + 1} to {row['step']}", row, again, ", ".join(different))


@without_launch_settings()
def _continued(recipe: Recipe, inputs: TrainingInputs, checkpoint: Path | None, last: int) -> dict[str, Any]:
    """The training row of step ``last`` of a run that resumes from ``checkpoint``, or starts, in a temporary folder."""
    # The run may have been moved to a machine without a GPU.
    device = "auto" if recipe.training.device == "cuda" else recipe.training.device
    recipe = recipe.with_training(evaluate_every=0, branches=[], trackers=[], device=device)
    processes = processes_of(recipe)
    with tempfile.TemporaryDirectory(prefix="verify-") as folder, fast_steps(processes.device.type):
        copy = RunFolder(folder)
        copy.checkpoints.mkdir()
        resumed = None
        if checkpoint is not None:
            resumed = copy.checkpoints / checkpoint.name
            resumed.symlink_to(checkpoint.resolve())
        trainer = build_trainer(recipe, copy, inputs, processes)
        trainer.validation = {}
        trainer.add_callback(_StopAfter(last))
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        return copy.metrics("train")[-1]


class _StopAfter(TrainerCallback):
    """Stops the training after a step, without saving."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = False
        control.should_training_stop = control.should_training_stop or state.global_step >= self.last


def _compared(what: str, row: dict[str, Any], again: dict[str, Any], other: str) -> Check:
    """Compare two training rows; ``other`` says how the environments differ."""
    values = f"loss {row['loss']:.6f}, gradient norm {row['grad_norm']:.6f}"
    different = [name for name in COMPARED if row.get(name) != again.get(name)]
    if not different:
        return Check(what, f"equal bit for bit: {values}")
    distance = max(abs(row[name] - again[name]) / abs(row[name] or 1.0) for name in ("loss", "grad_norm"))
    now = f"loss {again['loss']:.6f}, gradient norm {again['grad_norm']:.6f}"
    if other and distance <= TOLERANCE and row["tokens"] == again["tokens"]:
        return Check(what, f"equal to {distance:.1e} ({values}); the environment differs in {other}")
    why = f"; the environment differs in {other}" if other else ""
    return Check(what, f"{', '.join(different)} differ: {values}, but now {now}{why}", False)
