"""``contextwise model verify``: what is sound passes, and any changed byte or number of a run is named."""

import json
import shutil

import pytest
import yaml

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import exclusive
from contextwise.base.hashes import MANIFEST, seal
from contextwise.base.runs import RunFolder
from contextwise.training.trainer import PretrainingTrainer
from contextwise.training.verify import verify_run
from small import recipe_values, write_rows
from trained import half_done, trained


@pytest.fixture(scope="module")
def runs(corpus_folder, tmp_path_factory):
    """A finished run, and one that was stopped after step 10, with a checkpoint of step 8."""
    folder = tmp_path_factory.mktemp("runs")
    trained(recipe_values(corpus_folder, folder / "finished"))
    half_done(corpus_folder, folder / "stopped")
    return folder


def files(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "steps"), [("finished", ["steps 1 to 2", "steps 9 to 10"]), ("stopped", ["steps 1 to 2", "steps 5 to 6"])]
)
def test_a_sound_run_passes(runs, name, steps):
    before = files(runs)
    checks = list(verify_run(runs / name))
    assert [check for check in checks if not check.passed] == []
    taken = {check.what: check.found for check in checks if check.what.startswith("steps ")}
    assert list(taken) == steps
    assert all(found.startswith("equal bit for bit: loss ") for found in taken.values())
    assert {"checkpoints/step-8", "origin of checkpoints/step-8"} <= {check.what for check in checks}
    assert ("model" in {check.what for check in checks}) is (name == "finished")
    assert files(runs) == before


def test_a_run_that_started_from_other_weights_is_found_out(corpus_folder, tmp_path, monkeypatch):
    """Its checkpoints and its later steps are those of the weights that it has."""
    ended = PretrainingTrainer.end_step

    def another_start(self):
        ended(self)
        if self.state.global_step == 1:
            next(self.model.parameters()).data.add_(0.01)

    monkeypatch.setattr(PretrainingTrainer, "end_step", another_start)
    trained(recipe_values(corpus_folder, tmp_path / "run", steps=3))
    monkeypatch.undo()
    failed = [check.what for check in verify_run(tmp_path / "run") if not check.passed]
    assert failed == ["steps 1 to 2"]


def test_a_run_whose_only_checkpoint_is_its_last_says_that_no_step_was_taken_again(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "run")
    for step in (4, 8):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step}", ignore_errors=True)
    checks = {check.what: check for check in verify_run(tmp_path / "run")}
    assert checks["steps"].found.startswith("none was taken after a checkpoint") and checks["steps"].passed
    assert all(check.passed for check in checks.values())


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def another_loss(run):
    rows = [row | {"loss": row["loss"] + 1e-9 * (row["step"] == 10)} for row in run.metrics()]
    write_rows(run.metrics_file, rows)


def another_number_of_steps(run):
    text = run.summary_file.read_text()
    run.summary_file.write_text(text.replace('"steps": 12', '"steps": 13'))


def another_weight(run):
    """A checkpoint whose hashes are right, but which is not what the run continued from."""
    from safetensors.torch import load_file, save_file

    folder = run.checkpoints / "step-8"
    weights = load_file(folder / "weights.safetensors")
    for tensor in weights.values():
        tensor += 1e-4
    save_file(weights, folder / "weights.safetensors")
    seal(folder)


def another_seed(run):
    recipe = run.recipe() | {"seed": 7}
    run.recipe_file.write_text(yaml.safe_dump(recipe))


@pytest.mark.parametrize(
    ("harm", "what", "found"),
    [
        (lambda run: flip(run.model / "model.safetensors"), "model", "model.safetensors has changed"),
        (lambda run: flip(run.model / "tokenizer.json"), "model", "tokenizer.json has changed"),
        (lambda run: (run.model / MANIFEST).unlink(), "model", "it has no manifest.json"),
        (another_number_of_steps, "summary.json", "it has changed since it was written"),
        (
            lambda run: (run.checkpoints / "step-12" / MANIFEST).write_text('{"files":{}}'),
            "checkpoints/step-12",
            "no hash",
        ),
        (lambda run: (run.checkpoints / "step-8" / "state.json").unlink(), "checkpoints/step-8", "is missing"),
        (another_loss, "steps 9 to 10", "loss differ"),
        (another_weight, "steps 9 to 10", "differ"),
        (another_seed, "origin of checkpoints/step-8", "its recipe differs in seed"),
    ],
)
def test_what_has_changed_is_named(runs, tmp_path, harm, what, found):
    shutil.copytree(runs / "finished", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    harm(run)
    failed = {check.what: check.found for check in verify_run(run.path) if not check.passed}
    assert found in failed[what]


@pytest.mark.long
def test_the_command(contextwise, workplace, runs):
    shutil.copytree(runs / "finished", workplace / "run")
    status, output, _ = contextwise("model verify run")
    assert status == 0 and output.count("passed ") == 10 and "equal bit for bit" in output
    status, output, _ = contextwise("model verify run --json")
    assert status == 0 and all(check["passed"] for check in json.loads(output))
    flip(workplace / "run" / "model" / "config.json")
    status, output, errors = contextwise("model verify run")
    assert status == 2 and "FAILED model: config.json has changed since it was written" in " ".join(output.split())
    assert "1 of 10 checks of run failed" in " ".join(errors.split())


def test_what_is_no_run_or_in_use(runs, tmp_path):
    with pytest.raises(CheckpointError, match="is not a run"):
        list(verify_run(tmp_path))
    with (
        exclusive(runs / "stopped", "the run folder", inside=True),
        pytest.raises(ConfigError, match="another process is training"),
    ):
        list(verify_run(runs / "stopped"))
