"""Checkpoints that are complete or absent.

A checkpoint is written under another name, synced and renamed (:func:`contextwise.base.files.atomic_directory`); its manifest
holds the SHA-256 of every file. Weights and optimizer state are whole tensors by name in safetensors, gathered from all
processes, so that a run can resume with another number of processes, sharded or not; all else is JSON. Nothing is pickled.
"""

import contextlib
import math
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from contextwise.base.errors import CheckpointError, one_line
from contextwise.base.files import read_json
from contextwise.base.hashes import damage
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.base.undisturbed import RandomState
from contextwise.models.matrices import ties_of
from contextwise.training.metrics import MetricsState

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe

STATE = "state.json"
WEIGHTS, MOMENTS = "weights.safetensors", "optimizer.safetensors"


STATE_KEYS = {"format", "step", "metrics", "fingerprints", "recipe", "optimizer_groups", "random"}
"""The names in ``state.json``: ``metrics`` is a MetricsState, ``random`` a list of the RandomState of each process."""
_GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)


def gather_weights(model: nn.Module) -> dict[str, Any]:
    """Gather whole weights on the CPU in the first process; every process must call it."""
    return get_model_state_dict(model, options=_GATHER)


def gather_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Gather whole optimizer state, as :func:`gather_weights`, after a step: before one torch takes one itself."""
    return get_optimizer_state_dict(model, optimizer, options=_GATHER)  # type: ignore[return-value]


def write_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write weights to ``folder``; of tensors that share memory (tied weights) only the first is stored."""
    first: dict[int, str] = {}
    for name, tensor in weights.items():
        first.setdefault(tensor.data_ptr(), name)
    save_file({name: weights[name].contiguous() for name in first.values()}, folder / WEIGHTS)


def write_optimizer(folder: Path, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Write optimizer tensors to ``folder``; returns what JSON keeps of the parameter groups: the rest is in the recipe."""
    tensors = {
        f"{parameter}::{name}": value.contiguous()
        for parameter, values in state["state"].items()
        for name, value in values.items()
    }
    save_file(tensors, folder / MOMENTS)
    return [{"lr": group["lr"], "params": group["params"]} for group in state["param_groups"]]


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Load weights and optimizer state of a checkpoint into a (possibly sharded) model; every process must call it.

    A parameter that had no gradient has no optimizer state in a checkpoint, and starts without any.
    """
    weights = load_file(folder / WEIGHTS)
    tied = {unwrapped(name): unwrapped(first) for name, first in ties_of(model).items()}
    with of_this_version(folder):
        for name, twin in tied.items():
            weights.setdefault(name, weights[twin])
        # Torch would leave a parameter that the checkpoint lacks as it is.
        if missing := {unwrapped(name) for name in model.state_dict()} - weights.keys():
            raise ValueError(f"it has no {min(missing)}")
        set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=True))
    state: Any = {}
    for key, value in load_file(folder / MOMENTS).items():
        parameter, name = key.split("::")
        state.setdefault(parameter, {})[name] = value
    with of_this_version(folder):
        whole: Any = [own | group for own, group in zip(optimizer.param_groups, groups, strict=True)]
        options = StateDictOptions(full_state_dict=True, strict=False)
        set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": whole}, options=options)
    known = {tied.get(name, name) for name in state}
    for name, parameter in model.named_parameters():
        if unwrapped(name) not in known:  # torch has given it the state of a step without a gradient
            optimizer.state.pop(parameter, None)


def read_state(folder: Path) -> dict[str, Any]:
    """Read the state of a checkpoint besides weights and moments; a CheckpointError if another version wrote it."""
    state = read_json(folder / STATE, "the checkpoint")
    trainer = read_json(folder / TRAINER_STATE_NAME, "the checkpoint")
    with of_this_version(folder):
        _check_names("it", state, STATE_KEYS)
        _check_names("metrics", state["metrics"], {each.name for each in fields(MetricsState)})
        for each in state["random"]:
            _check_names("random", each, set(RandomState.__annotations__))
        if state["step"] != trainer["global_step"]:
            raise ValueError(f"it is of step {state['step']}, and its trainer of step {trainer['global_step']}")
        TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
    return state


def _check_names(what: str, values: dict[str, Any], known: set[str]) -> None:
    """Raise a ValueError if values have other names than the known ones, or lack some."""
    if lacking := known - values.keys():
        raise ValueError(f"{what} has no {min(lacking)}")
    if unknown := values.keys() - known:
        raise ValueError(f"{what} has {', '.join(sorted(unknown))}")


@contextlib.contextmanager
def of_this_version(folder: Path) -> Iterator[None]:
    """Raise errors of values that do not match as a :class:`CheckpointError`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        why = one_line(error.args[0] if error.args else error, 240).rstrip(".")
        raise CheckpointError(
            f"the checkpoint {folder} is of another version of Contextwise or of its libraries ({why}), and cannot be resumed; "
            "remove its run folder, or choose another one with --out, and train anew"
        ) from error


_WRAPPERS = {"module", "_orig_mod"}  # added to parameter names by DDP and torch.compile


def unwrapped(name: str) -> str:
    """The name of a parameter in a checkpoint."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in ``folder``, oldest first."""
    steps = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(steps, key=step_of)


def damaged(checkpoint: Path) -> str | None:
    """Describe what is wrong with the files of a checkpoint, or that it is the one of another step; None if it is intact."""
    problem = damage(checkpoint)
    if problem is None and (step := read_json(checkpoint / STATE, "the checkpoint").get("step")) != step_of(checkpoint):
        problem = f"it holds the state of step {step}"
    return problem


def latest_intact(folder: Path) -> Path | None:
    """Return the newest intact checkpoint; damaged ones are reported and renamed. All damaged: a CheckpointError."""
    all_checkpoints = list_checkpoints(folder)
    for checkpoint in reversed(all_checkpoints):
        problem = damaged(checkpoint)
        if problem is None:
            return checkpoint
        renamed = checkpoint.with_name(f"damaged-{checkpoint.name}")
        discard(renamed)
        checkpoint.rename(renamed)
        say(f"warning: the checkpoint {checkpoint} is damaged: {problem}; it is now {renamed.name}")
    if all_checkpoints:
        raise CheckpointError(
            f"all checkpoints in {folder} are damaged; restore one from a backup, or run the same "
            "command again to start from the first step"
        )
    return None


def discard(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that a folder of its name is never incomplete."""
    if folder.exists():
        removed = folder.with_name(f".removed-{folder.name}")
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def prune_run(run: RunFolder, recipe: "Recipe") -> None:
    """Remove the older checkpoints of a run, as its recipe says, and those that an interruption added.

    Leftovers of interrupted removals go, too.
    """
    lowest, best = math.inf, []
    for row in run.metrics("validation") if recipe.training.patience is not None else ():
        if row["loss"] < lowest:
            lowest = row["loss"]
            best.append(row["step"])
    for checkpoint in list_checkpoints(run.checkpoints)[:-1]:
        if not recipe.saves_at(step_of(checkpoint)) and step_of(checkpoint) not in best:
            discard(checkpoint)
    # A run that resumes from an older checkpoint than that of the lowest loss may need the one before it.
    kept = {*recipe.branch_steps, *best[-2:]}
    for checkpoint in list_checkpoints(run.checkpoints)[: -recipe.training.keep_checkpoints]:
        if step_of(checkpoint) not in kept:
            discard(checkpoint)
    for leftover in run.checkpoints.glob(".removed-*"):
        shutil.rmtree(leftover, ignore_errors=True)
