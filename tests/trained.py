"""Runs that tests train, stop and compare."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from contextwise.base.runs import RunFolder
from contextwise.training import Recipe, train
from contextwise.training.trainer import PretrainingTrainer
from small import recipe_values


def trained(values: dict[str, Any]) -> RunFolder:
    """Train a recipe that is given as values."""
    return train(Recipe.model_validate(values))


def write_recipe(folder: Path, values: dict[str, Any]) -> Path:
    """Write a recipe into a file, named as the folder of its run."""
    file = folder / f"{Path(values['output']).name}.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def weights(run: Any) -> dict[str, torch.Tensor]:
    """The exported weights of a run or of the folder of one."""
    return load_file(Path(getattr(run, "path", run)) / "model" / "model.safetensors")


def same(a: Any, b: Any) -> bool:
    """Whether two runs have the same weights, bit for bit."""
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def farthest(a: Any, b: Any) -> float:
    """The largest difference of a weight between two runs."""
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def cut_back(run: Any, last: int, copy: Path | None = None) -> Path:
    """Leave a finished run, or a copy of it, as if it had been killed before its last checkpoint, that of step ``last``."""
    folder = Path(getattr(run, "path", run))
    folder = folder if copy is None else Path(shutil.copytree(folder, copy))
    for gone in ("model", f"checkpoints/step-{last}"):
        shutil.rmtree(folder / gone)
    (folder / "summary.json").unlink()
    return folder


def timeless(run: Any) -> list[dict[str, Any]]:
    """The rows of a run's metrics without what the clock says."""
    rows = RunFolder(getattr(run, "path", run)).metrics()
    return [{name: value for name, value in row.items() if "second" not in name and name != "mfu"} for row in rows]


def stopped_after(step: int, recipe: Recipe) -> None:
    """Train a recipe in a process that is killed after a step, before its rows and its checkpoint are written."""

    class Stopped(Exception):
        pass

    sound = PretrainingTrainer.end_step

    def stopping(self: PretrainingTrainer) -> None:
        sound(self)
        if self.state.global_step == step:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(PretrainingTrainer, "end_step", stopping)
        train(recipe)


def half_done(corpus: Path, run: Path, data: Any = None, model: Any = None, **training: Any) -> dict[str, Any]:
    """Stop a run after step 10, behind its first checkpoints; gives its recipe as values."""
    values = recipe_values(corpus, run, **training)
    values["data"] |= data or {}
    values["model"] |= model or {}
    stopped_after(10, Recipe.model_validate(values))
    return values
