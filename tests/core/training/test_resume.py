"""Runs that are stopped where there is little to resume from: in the first step, in a validation, without gradients."""

import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from contextwise.base.errors import CheckpointError, DataError, Interrupted
from contextwise.base.files import write_sealed_json
from contextwise.base.progress import interruption
from contextwise.base.runs import RunFolder
from contextwise.data import prepare_corpus
from contextwise.training import Recipe, checkpoints, train
from contextwise.training.checkpoints import gather_weights, restore, write_weights
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.optimizer import create_optimizer
from contextwise.training.trainer import PretrainingTrainer
from contextwise.training.verify import verify_run
from small import EXACT, recipe_values, save_model, small_gpt2, write_documents
from trained import half_done, same, stopped_after, timeless, trained, trained_by_two

UNUSED = """
from torch import nn
from transformers import GPT2LMHeadModel

class Unused(GPT2LMHeadModel):
    def __init__(self, config):
        super().__init__(config)
        self.spare = nn.Linear(config.n_embd, config.n_embd)
        self.frozen = nn.Linear(config.n_embd, config.n_embd).requires_grad_(False)
"""


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    for seed, name in enumerate(("new", "old")):
        prepare_corpus(write_documents(folder / f"{name}.jsonl", 40, seed), "bytes", folder / name, validation=0.2)
    return folder / "new"


def test_the_last_validation_is_made_where_a_kill_prevented_it(corpora, tmp_path):
    """The checkpoint of the last step is there already: no step is left."""
    values = recipe_values(corpora, tmp_path / "run", evaluate_every=0, save_every=5, steps=10)
    run = trained(values)
    loss, rows = run.summary()["validation_loss"], run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join(row for row in rows if '"validation"' not in row))
    shutil.rmtree(run.model)
    run.summary_file.unlink()
    assert run.metrics("validation") == [] and (run.checkpoints / "step-10").is_dir()
    assert trained(values).summary()["validation_loss"] == loss


def test_a_checkpoint_without_a_parameter_of_the_model_is_refused(tmp_path):
    """Its class was changed after it was written; torch would leave the new parameter at its random values."""
    model = nn.Sequential(nn.Linear(3, 3))
    write_weights(tmp_path, gather_weights(model))
    larger = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(CheckpointError, match=r"it has no 1\.bias"):
        restore(tmp_path, larger, torch.optim.AdamW(larger.parameters()), [])


# ---- parameters without a gradient ----


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_variant_with_layers_that_are_not_used_resumes(optimizer, corpus_folder, tmp_path):
    (tmp_path / "unused.py").write_text(UNUSED)

    def recipe(name):
        values = recipe_values(corpus_folder, tmp_path / name, optimizer=optimizer, evaluate_every=0)
        values["model"] = {"layers": 1, "width": 32, "heads": 2, "variant": f"{tmp_path}/unused.py:Unused"}
        return Recipe.model_validate(values)

    train(recipe("whole"))
    stopped_after(10, recipe("run"))
    train(recipe("run"))
    assert same(tmp_path / "whole", tmp_path / "run")
    assert [row["loss"] for row in timeless(tmp_path / "whole")] == [row["loss"] for row in timeless(tmp_path / "run")]


@pytest.mark.slow
def test_a_variant_with_layers_that_are_not_used_trains_in_two_processes(corpus_folder, tmp_path):
    (tmp_path / "unused.py").write_text(UNUSED)
    values = recipe_values(corpus_folder, tmp_path, **EXACT)
    values["model"] = {"layers": 1, "width": 32, "heads": 2, "variant": f"{tmp_path}/unused.py:Unused"}
    trained_by_two(tmp_path, values)


class Branches(nn.Module):
    """Two layers, of which the second is used in some steps only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, both):
        return self.second(self.first(x)) if both else self.first(x)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("after", [1, 3])
def test_a_parameter_without_optimizer_state_starts_without_it(optimizer, after, tmp_path):
    """As in a run that was never stopped: its first gradient comes later, and its counter begins with it."""
    settings = TrainingSettings(steps=1, optimizer=optimizer)

    def steps(model, made, first, last):
        for step in range(first, last):
            model(torch.full((2, 4), step + 1.0), both=step >= 4).square().sum().backward()
            made.step()
            made.zero_grad()

    whole = Branches()
    made = create_optimizer(whole, settings, 0.01)
    steps(whole, made, 0, after)
    checkpoints.write_weights(tmp_path, checkpoints.gather_weights(whole))
    groups = checkpoints.write_optimizer(tmp_path, checkpoints.gather_optimizer(whole, made))
    again = Branches()
    restored = create_optimizer(again, settings, 0.01)
    checkpoints.restore(tmp_path, again, restored, groups)
    assert len(restored.state) == 2
    for model, optimizer_of in ((whole, made), (again, restored)):
        steps(model, optimizer_of, after, 7)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


# ---- in the first step ----

SHORT = {"steps": 3, "warmup_steps": 0, "log_every": 1, "evaluate_every": 0, "micro_batch_tokens": 32}


@pytest.mark.long
def test_a_run_that_is_stopped_in_its_first_step_ends_it(corpus_folder, tmp_path, stop_at):
    def recipe(name):
        return Recipe.model_validate(recipe_values(corpus_folder, tmp_path / name, **SHORT))

    train(recipe("whole"))
    stop_at(1)
    with pytest.raises(Interrupted, match="at step 1 of 3"):
        train(recipe("run"))
    stop_at(0)
    train(recipe("run"))
    assert same(tmp_path / "whole", tmp_path / "run") and timeless(tmp_path / "whole") == timeless(tmp_path / "run")
    moments = load_file(tmp_path / "run" / "checkpoints" / "step-3" / checkpoints.MOMENTS)
    assert {int(value) for name, value in moments.items() if name.endswith("::step")} == {3}
    assert all(check.passed for check in verify_run(tmp_path / "run"))


def test_a_run_that_starts_again_has_the_recipe_and_the_environment_of_the_new_start(corpora, tmp_path):
    """No checkpoint is there that says what the first start was trained on."""

    def recipe(name, **training):
        return Recipe.model_validate(recipe_values(corpora.parent / name, tmp_path / "run", **SHORT, **training))

    stopped_after(1, recipe("old"))
    run = RunFolder(tmp_path / "run")
    write_sealed_json(run.environment_file, {"processor": "another"}, "the environment")
    train(recipe("new"))
    assert run.recipe() == recipe("new").resolved()
    assert run.environment()["processor"] != "another"
    assert all(check.passed for check in verify_run(run.path))


def test_a_recipe_names_the_corpus_that_was_read_where_it_was_moved(corpora, tmp_path):
    run = RunFolder(tmp_path / "run")
    values = half_done(corpora, run.path)
    for name in ("moved", "moved again"):  # in the middle of the run, and when it has finished
        values["data"]["corpus"] = str(shutil.copytree(corpora, tmp_path / name))
        values["training"]["keep_checkpoints"] = 9
        trained(values)
        assert run.recipe()["data"]["corpus"] == str(tmp_path / name)
        assert run.recipe()["training"]["keep_checkpoints"] == 2  # how the first steps were executed
    values["data"]["corpus"] = str(corpora.parent / "old")
    with pytest.raises(DataError, match="is not what it was trained on"):
        trained(values)
    assert run.recipe()["data"]["corpus"] == str(tmp_path / "moved again")


# ---- with random numbers, and with patience ----


@pytest.mark.long
def test_dropout_goes_on_where_it_was(corpus_folder, tmp_path):
    model = save_model(tmp_path / "model", small_gpt2(resid_pdrop=0.3))
    runs = []
    for name, last in (("whole", None), ("run", 10)):
        values = recipe_values(corpus_folder, tmp_path / name) | {"model": {"pretrained": str(model)}}
        if last is not None:
            stopped_after(last, Recipe.model_validate(values))
        runs.append(trained(values))
    assert same(*runs) and timeless(runs[0]) == timeless(runs[1])


@pytest.mark.long
def test_a_run_with_patience_stops_where_it_would_have_and_exports_the_same(corpus_folder, tmp_path):
    """It is stopped in its last step; and its model is exported again after it was damaged."""
    options = {"patience": 2, "learning_rate": 3.0, "evaluate_every": 1, "save_every": 3}
    whole = trained(recipe_values(corpus_folder, tmp_path / "whole", **options))
    losses = [row["loss"] for row in whole.metrics("validation")]
    best, last = 1 + losses.index(min(losses)), len(losses)
    assert last == best + 2 < 12
    assert [each.name for each in checkpoints.list_checkpoints(whole.checkpoints)] == sorted(
        {f"step-{step}" for step in (*range(3, last, 3), best)}
    )[-2:]
    values = recipe_values(corpus_folder, tmp_path / "run", **options)
    stopped_after(last, Recipe.model_validate(values))
    run = trained(values)
    assert same(whole, run) and timeless(whole) == timeless(run)
    (run.model / "model.safetensors").unlink()
    assert same(whole, trained(values)) and timeless(whole) == timeless(run)


@pytest.mark.long
def test_a_loss_as_low_as_before_is_no_gain(corpus_folder, tmp_path):
    options = {"patience": 2, "learning_rate": 1e-20, "evaluate_every": 1, "precision": "fp32"}
    run = trained(recipe_values(corpus_folder, tmp_path / "run", **options))
    assert len({row["loss"] for row in run.metrics("validation")}) == 1
    assert [row["step"] for row in run.metrics("validation")] == [1, 2, 3]


def test_a_run_that_was_killed_while_it_pruned_for_the_last_time_ends_with_what_it_keeps(corpora, tmp_path):
    values = recipe_values(corpora, tmp_path / "run", **SHORT | {"save_every": 1, "keep_checkpoints": 1})
    run = trained(values)
    run.summary_file.unlink()
    for name in ("step-2", ".removed-step-1"):
        shutil.copytree(run.checkpoints / "step-3", run.checkpoints / name)
    trained(values)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-3"]


# ---- in a validation ----

EVALUATED = {"steps": 12, "evaluate_every": 4, "save_every": 3, "log_every": 1, "curve_every": 4}


@pytest.mark.long
def test_a_signal_in_a_validation_waits_for_its_end(corpora, tmp_path, monkeypatch):
    """The validation is complete, and the run stops behind the next step."""
    sound = PretrainingTrainer._mean_loss

    def signalled(self, examples):
        if self.state.global_step == 4 and not interruption.requested:
            os.kill(os.getpid(), signal.SIGTERM)
        return sound(self, examples)

    whole, run = (
        Recipe.model_validate(recipe_values(corpora, tmp_path / name, **EVALUATED)) for name in ("whole", "run")
    )
    train(whole)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="by SIGTERM at step 5 of 12"):
        patch.setattr(PretrainingTrainer, "_mean_loss", signalled)
        train(run)
    train(run)
    assert timeless(run.folder) == timeless(whole.folder)
    assert same(run.folder, whole.folder)


# ---- checkpoints that stay ----

FALLING = {1: 4.0, 2: 3.0, 3: 3.5, 4: 3.2, 5: 3.0, 6: 3.3, 7: 3.1}
"""Validation losses, of which the third was as low before."""


@pytest.mark.parametrize(
    ("settings", "losses", "kept"),
    [
        ({}, {}, [6, 7]),
        ({}, FALLING, [6, 7]),
        ({"patience": 9}, FALLING, [1, 2, 6, 7]),  # what a resumed run may find damaged, and the one before it
        ({"patience": 9}, FALLING | {3: 2.5}, [2, 3, 6, 7]),
        ({"patience": 9, "keep_checkpoints": 1}, {7: 3.0}, [7]),
        ({"schedule": "wsd", "decay_steps": 4, "branches": [8]}, {}, [4, 6, 7]),
    ],
)
def test_pruning_keeps_the_newest_the_lowest_loss_and_where_branches_begin(tmp_path, settings, losses, kept):
    """Of checkpoints of all steps from 1 to 7, of which the run saves every third, and a stop the last."""
    options = {"save_every": 3, "keep_checkpoints": 2, "evaluate_every": 1} | settings
    recipe = Recipe.model_validate(recipe_values(tmp_path / "corpus", tmp_path, **options))
    run = RunFolder(tmp_path)
    for step, loss in losses.items():
        run.append_metrics({"kind": "validation", "step": step, "tokens": 128 * step, "seconds": 1.0, "loss": loss})
    for name in (*(f"step-{step}" for step in range(1, 8)), ".removed-step-2"):
        (run.checkpoints / name / "inner").mkdir(parents=True)
    checkpoints.prune_run(run, recipe)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step-{step}" for step in kept]
