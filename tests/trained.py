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
from processes import finish_training
from small import recipe_values

COMPARED = {"loss", "replay_loss", "best_context_loss", "standard_error", "input_tokens", "target_tokens"}
"""Columns of the metrics in which runs of one and of two processes agree."""


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


def trained_by_two(
    folder: Path, values: dict[str, Any], near: float = 1e-4, start: Any = finish_training, **training: Any
) -> tuple[RunFolder, RunFolder]:
    """The runs of a recipe in one process and in two, these with further settings: the same weights, losses and counts."""
    one = trained(values | {"output": str(folder / "one")})
    values = values | {"output": str(folder / "two"), "training": values["training"] | training}
    code, output = start(write_recipe(folder, values), processes=2)
    assert code == 0, output[-3000:]
    two = RunFolder(folder / "two")
    assert near > 1e-3 or farthest(one, two) < near
    for a, b in zip(one.metrics(), two.metrics(), strict=True):
        assert (a["kind"], a["step"]) == (b["kind"], b["step"])
        for name in COMPARED & a.keys():
            assert b[name] == pytest.approx(a[name], abs=near)
        assert b.get("grad_norm", 0) == pytest.approx(a.get("grad_norm", 0), rel=10 * near)
    return one, two


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
