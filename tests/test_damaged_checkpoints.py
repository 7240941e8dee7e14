"""A newest checkpoint damaged in any way: the run resumes from the one before it, to the same weights; never to other ones."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from contextwise.base.runs import RunFolder
from contextwise.training.checkpoints import list_checkpoints
from golden import TIMES, recipes, weights_hash, write_inputs

STEPS = 8
"""Of each run; checkpoints are of the steps 2, 4, 6 and 8."""
KINDS = (*recipes(Path("inputs")), "patience")
OWN: dict[str, dict[str, Any]] = {
    "patience": {"patience": 6, "learning_rate": 0.2, "evaluate_every": 1},  # its best step is the second
    "trunk": {"branches": [6], "decay_steps": 3},
    "branch": {"steps": 6, "decay_steps": 3, "save_every": 1},
    "parity": {"evaluate_every": STEPS},
    "parity-mlp": {"evaluate_every": STEPS},
}
"""Settings of the training of one kind."""
ALONE = ("contextlm", "patience", "mup", "spans")
"""Kinds that start from no other run, of which every run of the tests draws some damage."""


def _flipped(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


CONTENTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "shorter": lambda content, draw: content[: draw.randrange(len(content))],
    "longer": lambda content, draw: content + draw.randbytes(9),
    "empty": lambda content, draw: b"",
    "a bit": _flipped,
}
"""Content of a file of a checkpoint -> damaged content."""
FILES = ("manifest.json", "optimizer.safetensors", "state.json", "trainer_state.json", "weights.safetensors")
WHOLES = ("emptied", "a file", "a link to nowhere", "the older one")
"""What may be in the place of the whole checkpoint."""
DAMAGES = [(file, how) for file in FILES for how in (*CONTENTS, "gone", "a folder", "the older one")]
DAMAGES += [("", how) for how in WHOLES]


def damage(checkpoint: Path, file: str, how: str, older: Path, draw: random.Random) -> None:
    """Damage a file of a checkpoint, or all of it; ``older`` is the checkpoint before it."""
    path, source = checkpoint / file, older / file
    content = path.read_bytes() if file else b""
    path.unlink() if file else shutil.rmtree(path)
    if how in CONTENTS:
        path.write_bytes(CONTENTS[how](content, draw))
    elif how == "the older one":
        shutil.copyfile(source, path) if file else shutil.copytree(source, path)
    elif how in ("emptied", "a folder"):
        path.mkdir()
    elif how == "a file":
        path.write_text("no checkpoint")
    elif how == "a link to nowhere":
        path.symlink_to("nowhere")


def outcome(run: Path) -> tuple[str, list[Any], dict[str, Any]]:
    """Weights, metrics and summary of a finished run, without times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    return (
        weights_hash(run / "model"),
        rows,
        {name: value for name, value in summary.items() if name not in {*TIMES, "sha256"}},
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora, a text encoder, and the recipe of each kind."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    schedule = {"steps": STEPS, "save_every": 2, "keep_checkpoints": 9, "log_every": 1, "evaluate_every": 2}
    kinds = recipes(folder)
    kinds["patience"] = {**kinds["causal"], "output": str(folder / "patience")}
    kinds["patience"]["training"] = dict(kinds["causal"]["training"])
    for name, values in kinds.items():
        values["training"] |= schedule
        values["training"] |= OWN.get(name, {})
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return folder


@pytest.fixture
def workplace(inputs: Path) -> Path:
    return inputs


def strings(value: Any) -> list[str]:
    """All texts in a recipe."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, str) else [text for each in inner for text in strings(each)]


@pytest.fixture
def whole(inputs: Path, contextwise: Callable, kind: str) -> Path:
    """The undisturbed run of a kind, trained once; those that it starts from are trained before it."""
    torch.set_num_threads(1)
    kinds = {file: yaml.safe_load(file.read_text()) for file in inputs.glob("*.yaml")}

    def trained(file: Path) -> Path:
        run = Path(kinds[file]["output"])
        if not run.exists():
            for parent in kinds:
                if parent != file and kinds[parent]["output"] in strings(kinds[file]):
                    trained(parent)
            status, _, errors = contextwise(f"train {file.name}")
            assert status == 0, errors
        return run

    return trained(inputs / f"{kind}.yaml")


def stopped(whole: Path, folder: Path) -> tuple[Path, Path, Path]:
    """A copy of a run that was stopped behind its newest checkpoint; that one, and the one before it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder, symlinks=True)
    shutil.rmtree(folder / "model")
    (folder / "summary.json").unlink()
    *_, older, newest, last = list_checkpoints(folder / "checkpoints")
    shutil.rmtree(last)
    return folder, newest, older


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", [kind if kind in ALONE else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_damaged_checkpoint_gives_the_same_run(
    contextwise: Callable, inputs: Path, whole: Path, tmp_path: Path, kind: str, every: bool
) -> None:
    draw, expected = random.Random(kind), outcome(whole)
    for file, how in DAMAGES if every else draw.sample(DAMAGES, 3):
        run, newest, older = stopped(whole, tmp_path / "run")
        damage(newest, file, how, older, draw)
        status, _, errors = contextwise(f"model verify {run}")
        assert status == 2 and f"checks of {run} failed, the first: checkpoints/{newest.name}: " in errors, (
            file,
            how,
            errors,
        )
        status, _, errors = contextwise(f"train {kind}.yaml --out {run}")
        assert status == 0 and f"it is now damaged-{newest.name}" in errors, (file, how, errors)
        assert how not in CONTENTS or file.endswith("manifest.json") or f"damaged: {file}" in errors, (
            file,
            how,
            errors,
        )
        assert outcome(run) == expected, (file, how)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["contextlm"])
def test_a_run_whose_checkpoints_are_all_damaged_starts_again(contextwise, inputs, whole, tmp_path, kind) -> None:
    run, *_ = stopped(whole, tmp_path / "run")
    for checkpoint in list_checkpoints(run / "checkpoints"):
        (checkpoint / "state.json").unlink()
    contextwise.refused(
        f"train {kind}.yaml --out {run}", "damaged; restore one from a backup, or run the same command again"
    )
    status, _, errors = contextwise(f"train {kind}.yaml --out {run}")
    assert status == 0 and "from the start" in errors, errors
    assert outcome(run) == outcome(whole)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["patience"])
@pytest.mark.parametrize("how", ["gone", "the older one", "a bit"])
def test_damaged_best_weights_are_not_exported(contextwise, inputs, whole, tmp_path, kind, how) -> None:
    """Nor are the last ones in their place."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "model")
    losses = {row["step"]: row["loss"] for row in RunFolder(run).metrics("validation")}
    best = run / "checkpoints" / f"step-{min(losses, key=losses.__getitem__)}"
    older = best.with_name("step-1")
    if how == "gone":
        shutil.rmtree(best)
    else:
        damage(best, "" if how == "the older one" else "weights.safetensors", how, older, random.Random(0))
    contextwise.refused(f"train {kind}.yaml --out {run}", f"the best weights {best} are damaged: ")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["branch"])
def test_the_damaged_checkpoint_of_a_trunk(contextwise, inputs, whole, tmp_path, kind) -> None:
    """The branch is refused, and trained once the trunk was trained again, as the sentence says."""
    trunk = tmp_path / "trunk"
    shutil.copytree(inputs / "trunk", trunk)
    for checkpoint in list_checkpoints(trunk / "checkpoints"):
        (checkpoint / "weights.safetensors").write_bytes(b"")
    branch = f"train branch.yaml --set training.trunk={trunk} --out {tmp_path / 'branch'}"
    for command in (branch, f"{branch} --dry-run"):
        contextwise.refused(command, f"remove the run folder {trunk} and train it again")
    shutil.rmtree(trunk)
    for command in (f"train trunk.yaml --out {trunk}", branch):
        status, _, errors = contextwise(command)
        assert status == 0, errors
    (weights, rows, _), (expected, expected_rows, _) = map(outcome, (tmp_path / "branch", whole))
    assert (weights, rows) == (expected, expected_rows)
