"""Whole runs: exact resume, kills at any instant, several processes, losses that go bad, data that changed."""

import contextlib
import errno
import importlib.util
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch.utils.data import default_collate
from transformers import TrainingArguments

from contextwise.base.errors import CheckpointError, ConfigError, DataError, TrainingError
from contextwise.base.hashes import MANIFEST, seal
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise.models import load_model, token_losses
from contextwise.objectives import Cut, Vocabulary
from contextwise.objectives.causal import Causal
from contextwise.training import Recipe, batches, checkpoints, train
from contextwise.training import run as run_module
from contextwise.training.inputs import TrainingInputs
from contextwise.training.trainer import PretrainingTrainer
from contextwise.training.verify import verify_run
from processes import finish_training, start_training, torchrun, wait_for
from small import EXACT, recipe_values, write_documents
from trained import farthest, half_done, same, trained, trained_by_two, write_recipe


@pytest.fixture(scope="module")
def whole(corpus_folder, tmp_path_factory):
    """A run that was never stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    trained(recipe_values(corpus_folder, run))
    return run


@pytest.fixture(scope="module")
def exact(corpus_folder, tmp_path_factory):
    """The same run in float32."""
    run = tmp_path_factory.mktemp("exact") / "run"
    trained(recipe_values(corpus_folder, run, **EXACT))
    return run


def test_a_finished_run_holds_all_that_it_should(whole, corpus_folder):
    run = RunFolder.open(whole)
    summary = run.summary()
    assert summary["steps"] == 12
    assert summary["tokens"] == 12 * 128
    model = load_model(whole)
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())
    rows = run.metrics("train")
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert [row["step"] for row in run.metrics("validation")] == [6, 12]
    assert rows[2]["tokens"] == 6 * 128
    assert rows[-1]["flops"] == summary["flops"] > 0
    assert {path.name for path in run.checkpoints.iterdir()} == {"step-8", "step-12"}
    assert run.recipe()["training"]["learning_rate"] == 3e-3
    assert json.loads(run.environment_file.read_text())["versions"]["torch"]
    from transformers import AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(run.model), load_model(run.path)
    assert len(tokenizer) == Corpus.open(corpus_folder).vocab_size
    longest = model.config.max_position_embeddings
    text = tokenizer("word " * 400, truncation=True, return_tensors="pt")["input_ids"]
    assert text.shape == (1, longest)
    assert model(text).logits.isfinite().all()


def exported_loss(run, corpus_folder):
    """The loss of the exported model on the run's validation windows, in float32."""
    held_out = Corpus.open(corpus_folder, "validation")
    vocabulary = Vocabulary(held_out.tokenizer(), held_out.end_of_text)
    stream = Causal().stream(held_out, Cut(32), seed=0, vocabulary=vocabulary, length=8)
    chosen = default_collate([stream[i] for i in range(8)])
    return token_losses(load_model(run), chosen["input_ids"], chosen["labels"]).mean().item()


def test_the_validation_loss_is_what_the_exported_model_gives(whole, corpus_folder):
    expected = exported_loss(whole, corpus_folder)
    assert RunFolder(whole).summary()["validation_loss"] == pytest.approx(expected, abs=1e-5)


MIXED = {"name": "mixture", "parts": [{"weight": 0.5, "objective": name} for name in ("causal", "prefix")]}


def test_a_mixture_is_validated_on_each_example_once(corpus_folder, tmp_path):
    """The number of examples in the metrics is true."""
    values = recipe_values(corpus_folder, tmp_path / "many", evaluation_tokens=10**6) | {"objective": MIXED}
    values["model"] = {"family": "llama", "layers": 1, "width": 16, "heads": 2}
    examples = TrainingInputs.open(Recipe.model_validate(values)).validation["loss"]
    scored = {(int(each["objective"]), int(each["window"])) for each in map(examples.__getitem__, range(len(examples)))}
    windows = Cut(32).windows(Corpus.open(corpus_folder, "validation"), 32, Vocabulary(None, 0))
    assert len(windows) < len(examples) == len(scored) <= 2 * len(windows)
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({"text": "word " * 16}))  # two windows
    train_split = write_documents(tmp_path / "text.jsonl", 20)
    prepare_corpus([f"train={train_split}", f"validation={held_out}"], "bytes", tmp_path / "few")
    values["data"]["corpus"], values["output"] = str(tmp_path / "few"), str(tmp_path / "run")
    run = trained(values)
    counted = run.summary()["validation_examples"]
    assert counted < 6 and {row["examples"] for row in run.metrics("validation")} == {counted}


@pytest.mark.long
def test_auto_takes_bf16_where_the_processor_multiplies_it_faster(whole, corpus_folder, tmp_path, monkeypatch):
    """A training in bf16 is another one than in float32; its validation is in float32 too."""
    for fast, precision in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr("contextwise.training.branching.has_fast_bf16", lambda device, fast=fast: fast)
        run = tmp_path / precision
        trained(recipe_values(corpus_folder, run, precision="auto"))
        summary = RunFolder(run).summary()
        assert summary["precision"] == precision
        assert summary["validation_loss"] == pytest.approx(exported_loss(run, corpus_folder), abs=1e-5)
        assert same(whole, run) is fast


def test_a_run_keeps_the_precision_that_it_began_with(corpus_folder, tmp_path, monkeypatch):
    """Resumed on another machine, it would end with other weights; so would its verification there."""

    def on_a_machine(fast):
        monkeypatch.setattr("contextwise.training.branching.has_fast_bf16", lambda device: fast)

    on_a_machine(fast=True)
    values = half_done(corpus_folder, tmp_path / "run", precision="auto")
    on_a_machine(fast=False)
    run = trained(values)
    assert run.environment()["precision"] == run.summary()["precision"] == "bf16"
    assert all(check.passed for check in verify_run(run.path))
    assert same(run.path, trained(recipe_values(corpus_folder, tmp_path / "whole", precision="bf16")).path)


def test_the_same_command_again_does_nothing(whole, corpus_folder):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    trained(recipe_values(corpus_folder, whole))
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before


def test_runs_repeat_and_seeds_matter(whole, corpus_folder, tmp_path):
    trained(recipe_values(corpus_folder, tmp_path / "again"))
    assert same(whole, tmp_path / "again")
    trained(recipe_values(corpus_folder, tmp_path / "other") | {"seed": 1})
    assert not same(whole, tmp_path / "other")


@pytest.mark.parametrize("steps", [pytest.param(6, marks=pytest.mark.slow), 12])
def test_a_validation_loss_that_is_not_finite_is_one_sentence_each_time(corpus_folder, tmp_path, monkeypatch, steps):
    mean = PretrainingTrainer._mean_loss
    recipe = Recipe.model_validate(recipe_values(corpus_folder, tmp_path / "run"))

    def poisoned(self, examples):
        return float("nan") if self.state.global_step == steps else mean(self, examples)

    monkeypatch.setattr(PretrainingTrainer, "_mean_loss", poisoned)
    for _ in range(2):
        with pytest.raises(TrainingError, match=f"the validation loss at step {steps} is not a finite number"):
            train(recipe)
    monkeypatch.undo()
    train(recipe)
    assert RunFolder(recipe.folder).finished


def test_a_model_that_the_machine_cannot_hold_is_refused(corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path / "run")
    values["model"] = {"layers": 20, "width": 2**17, "heads": 1}
    with pytest.raises(
        ConfigError, match=r"parameters, which with gradients and optimizer take .* GB, but this machine has"
    ):
        trained(values)


@pytest.mark.parametrize(
    ("settings", "threads", "distance"),
    [
        pytest.param({"workers": 2}, 0, 0, id="two workers"),
        pytest.param({"workers": 1}, 0, 0, id="one worker", marks=pytest.mark.slow),
        pytest.param({}, 2, 1e-5, id="more threads"),
        pytest.param({"micro_batch_tokens": 64}, 0, 1e-5, id="micro-batches"),
        pytest.param({"compile": True}, 0, 1e-3, id="compiled", marks=pytest.mark.slow),
        pytest.param({"gradient_checkpointing": True}, 0, 1e-3, id="checkpointed", marks=pytest.mark.slow),
    ],
)
def test_how_a_run_executes_changes_the_last_bits_at_most(exact, corpus_folder, tmp_path, settings, threads, distance):
    before = torch.get_num_threads()
    torch.set_num_threads(before + threads)
    try:
        trained(recipe_values(corpus_folder, tmp_path / "run", **EXACT, **settings))
    finally:
        torch.set_num_threads(before)
    assert farthest(exact, tmp_path / "run") <= distance


def test_a_process_that_sees_several_gpus_trains_on_one(exact, corpus_folder, tmp_path, monkeypatch):
    class Several(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self._n_gpu = 2

    monkeypatch.setattr(run_module, "TrainingArguments", Several)
    trained(recipe_values(corpus_folder, tmp_path / "run", **EXACT))
    assert farthest(exact, tmp_path / "run") == 0


@pytest.mark.parametrize(
    ("act", "raised", "message"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGTERM), None, ""),  # as to all processes of a job; the parent decides
        (lambda: (_ for _ in ()).throw(DataError("a is damaged")), DataError, "^a is damaged$"),
    ],
)
def test_a_process_that_loads_examples_ends_or_fails(corpus_folder, tmp_path, monkeypatch, act, raised, message):
    """Their errors held a traceback."""
    collate, parent = batches.collate, os.getpid()
    monkeypatch.setattr(batches, "collate", lambda items: (os.getpid() == parent or act(), collate(items))[1])
    with pytest.raises(raised, match=message) if raised else contextlib.nullcontext():
        trained(recipe_values(corpus_folder, tmp_path / "run", steps=2, save_every=2, workers=1))


@pytest.mark.slow
def test_the_number_of_processes_may_change_at_every_start(exact, corpus_folder, tmp_path):
    recipe = write_recipe(tmp_path, recipe_values(corpus_folder, tmp_path / "run", save_every=3, **EXACT))
    for processes, step in ((1, 3), (2, 6), (4, 9)):
        process = start_training(recipe, 0.5, processes)
        wait_for(lambda step=step: (tmp_path / "run" / "checkpoints" / f"step-{step}").exists(), process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
    code, output = finish_training(recipe)
    assert code == 0, output
    assert farthest(exact, tmp_path / "run") < 1e-4


def test_a_tracker_that_is_not_installed_is_refused_before_training(corpus_folder, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else found(name, *rest)
    )
    with pytest.raises(
        ConfigError, match="training.trackers has wandb, which is not installed; install it with: pip install wandb"
    ):
        trained(recipe_values(corpus_folder, tmp_path / "run", trackers=["wandb"]))


SLOW = pytest.mark.slow
SMALL = {"layers": 2, "width": 32, "heads": 2}
CURVE = {"curve_every": 4, "curve_tokens": 2000}
BRANCH = {"schedule": "wsd", "decay_steps": 0.5}


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "start"),
    [
        pytest.param(CURVE, torchrun, marks=SLOW, id="DDP"),
        pytest.param(CURVE | {"fsdp": True}, finish_training, id="FSDP2"),
        pytest.param({"optimizer": "muon"}, finish_training, marks=SLOW, id="Muon, DDP"),
        pytest.param({"optimizer": "muon", "fsdp": True}, finish_training, marks=SLOW, id="Muon, FSDP2"),
        pytest.param(BRANCH | {"trunk": "trunk"}, finish_training, marks=SLOW, id="a branch"),
    ],
)
def test_two_processes_train_as_one(corpus_folder, tmp_path, settings, start):
    """Weights, losses, curves and norms. Sharded matrices are orthogonalized one by one, which agrees less closely."""
    if "trunk" in settings:
        trained(recipe_values(corpus_folder, tmp_path / "trunk", **EXACT, **BRANCH, branches=[12], steps=20))
        settings = settings | {"trunk": str(tmp_path / "trunk")}
    values = recipe_values(corpus_folder, tmp_path, **EXACT | settings | {"fsdp": False})
    near = 2e-3 if "optimizer" in settings else 1e-4
    trained_by_two(tmp_path, values, near, start, fsdp=settings.get("fsdp", False))


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"model": SMALL | {"context_predictor": {}}}, id="contextlm"),
        pytest.param({"model": SMALL | {"embedding_norm": True}}, id="embedding norm"),
        pytest.param({"model": SMALL | {"multi_token": {"future_tokens": 2}}}, id="multi-token", marks=SLOW),
        pytest.param({"model": SMALL | {"family": "bert"}, "objective": "masked"}, id="bert"),
        pytest.param({"model": SMALL | {"family": "t5"}, "objective": "spans"}, id="t5", marks=SLOW),
    ],
)
@pytest.mark.parametrize(("precision", "near"), [("bf16", 3e-2), pytest.param("fp32", 1e-3, marks=SLOW)])
def test_every_kind_of_model_is_sharded(corpus_folder, tmp_path, kind, precision, near):
    values = recipe_values(corpus_folder, tmp_path, precision=precision) | kind
    trained_by_two(tmp_path, values, near, fsdp=True)


@pytest.mark.slow
def test_a_sharded_run_that_is_stopped_goes_on(exact, corpus_folder, tmp_path):
    recipe = write_recipe(tmp_path, recipe_values(corpus_folder, tmp_path / "two", fsdp=True, **EXACT))
    process = start_training(recipe, 0.3, processes=2)
    wait_for(lambda: (tmp_path / "two" / "checkpoints" / "step-4").exists(), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    code, output = finish_training(recipe, processes=2)
    assert code == 0, output
    assert farthest(exact, tmp_path / "two") < 1e-4


def test_a_loss_that_is_not_finite_stops_before_the_step(corpus_folder, tmp_path, monkeypatch):
    """From step 6 on one window's loss is NaN: the weights saved at step 4 stay the last ones, and the windows are named."""
    recipe = Recipe.model_validate(recipe_values(corpus_folder, tmp_path / "run"))
    sound = PretrainingTrainer.compute_loss
    broken = []

    def poisoned(self, model, inputs, *rest, **more):
        loss = sound(self, model, inputs, *rest, **more)
        if self.state.global_step == 5 and self.is_in_train:
            broken[:] = broken or [int(inputs["window"][-1])]
            if broken[0] in inputs["window"].tolist():
                return loss * float("nan")
        return loss

    monkeypatch.setattr(PretrainingTrainer, "compute_loss", poisoned)
    with pytest.raises(TrainingError) as caught:
        train(recipe)
    message = str(caught.value)
    assert "the loss is nan at step 6" in message
    assert str(broken[0]) in message.partition("(windows ")[2].partition(" of the training data")[0].split(", ")
    assert "step-4" in message
    assert caught.value.exit_status == 1
    assert [row["step"] for row in RunFolder(recipe.folder).metrics("train")] == [2, 4]
    monkeypatch.undo()
    train(recipe)
    assert RunFolder(recipe.folder).finished


@pytest.fixture(scope="module")
def stopped(corpus_folder, tmp_path_factory):
    """The recipe and the folder of a run that was stopped."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    return half_done(corpus_folder, run), run


@pytest.fixture
def halfway(stopped, tmp_path):
    """The recipe of a copy of it."""
    values, run = stopped
    return values | {"output": str(shutil.copytree(run, tmp_path / "run"))}


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda state: state["metrics"].pop("trunk"), "metrics has no trunk"),
        (lambda state: state["metrics"].update(carbon=1), "metrics has carbon"),
        (lambda state: state.update(rate=1, schedule=state.pop("random")), "it has no random"),
        (lambda state: state["random"][0].pop("numpy"), "random has no numpy"),
        (lambda state: state.update(metrics=None), "keys"),
        (None, "it has no model.context.gate.weight"),
    ],
)
def test_a_checkpoint_of_another_version_refuses_to_resume(halfway, tmp_path, harm, why):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-8"
    state = json.loads((checkpoint / "state.json").read_text())
    if harm is None:
        saved = load_file(checkpoint / checkpoints.WEIGHTS)
        saved["model.renamed"] = saved.pop("model.context.gate.weight")
        save_file(saved, checkpoint / checkpoints.WEIGHTS)
    else:
        harm(state)
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / MANIFEST).unlink()
    seal(checkpoint)
    with pytest.raises(CheckpointError, match=rf"another version of Contextwise .*{why}.* train anew"):
        trained(halfway)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_corpus_whose_bytes_changed_is_refused(corpus_folder, tmp_path, split):
    shutil.copytree(corpus_folder, tmp_path / "corpus")
    arrow = next((tmp_path / "corpus" / split).glob("*.arrow"))
    content = bytearray(arrow.read_bytes())
    content[len(content) // 2] ^= 1
    arrow.write_bytes(content)
    with pytest.raises(DataError, match=arrow.name):
        trained(recipe_values(tmp_path / "corpus", tmp_path / "run"))


@pytest.mark.parametrize("harm", ["cut short", "flipped byte", "empty", "of nothing"])
def test_a_damaged_summary_is_written_again(whole, corpus_folder, tmp_path, harm):
    shutil.copytree(whole, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    summary, content = run.summary(), bytearray(run.summary_file.read_bytes())
    content[content.index(b'"steps": 12') + 9] ^= 1
    run.summary_file.write_bytes({"cut short": content[:-9], "flipped byte": content, "empty": b""}.get(harm, b"{}"))
    assert not run.finished
    with pytest.raises(CheckpointError, match="summary.* run the command that started it again"):
        run.summary()
    trained(recipe_values(corpus_folder, run.path))
    assert run.summary() == summary
    assert same(whole, run.path)


def test_a_damaged_model_of_a_finished_run_is_exported_again(whole, corpus_folder, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    recipe = Recipe.model_validate(recipe_values(corpus_folder, run.path))
    for harm, why in (
        (lambda: (run.model / "model.safetensors").write_bytes(b""), "model.safetensors has changed"),
        (lambda: shutil.rmtree(run.model), "it has no config.json"),
    ):
        harm()
        train(recipe)
        assert f"is damaged: {why}" in " ".join(capsys.readouterr().err.split())
        assert same(whole, run.path) and run.summary() == RunFolder(whole).summary()
    (run.model / "model.safetensors").write_bytes(b"")
    shutil.rmtree(run.checkpoints)
    with pytest.raises(CheckpointError, match="damaged: .* there is no checkpoint to export it from"):
        train(recipe)


def test_a_checkpoint_of_another_recipe_is_refused(halfway, tmp_path):
    """As if a process had left its recipe in the folder of another one."""
    run = RunFolder(tmp_path / "run")
    run.recipe_file.write_text(yaml.safe_dump(run.recipe() | {"seed": 11}))
    with pytest.raises(CheckpointError, match="step-8 is not of this run .its recipe differs in seed"):
        trained(halfway | {"seed": 11})


def test_a_folder_that_holds_another_run_is_refused(whole, corpus_folder, tmp_path):
    with pytest.raises(ConfigError, match="contains another run .its recipe differs in training.steps"):
        trained(recipe_values(corpus_folder, whole, steps=13))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not empty and contains no run"):
        trained(recipe_values(corpus_folder, tmp_path / "full"))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_two_processes_cannot_train_one_run(corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path / "run")
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(ConfigError, match="another process is using the run folder"),
    ):
        trained(values)


def test_a_full_disk_keeps_the_checkpoint_before(corpus_folder, tmp_path, monkeypatch):
    """The second checkpoint does not fit; the first stays, nothing half-written does, and the run can go on."""

    from contextwise.training import checkpoints

    values = recipe_values(corpus_folder, tmp_path / "run")
    sound = checkpoints.write_optimizer

    def full(folder, state):
        if "step-8" in folder.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return sound(folder, state)

    monkeypatch.setattr(checkpoints, "write_optimizer", full)
    with pytest.raises(DataError, match="no space left while writing the checkpoint"):
        trained(values)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-4"]
    monkeypatch.undo()
    trained(values)
    assert RunFolder(tmp_path / "run").finished


def test_a_flat_file_of_tokens_trains_when_its_vocabulary_is_given(corpus_folder, tmp_path):
    corpus = Corpus.open(corpus_folder)
    np.concatenate([corpus.document(i) for i in range(20)]).astype("<u2").tofile(tmp_path / "train.bin")
    values = recipe_values(tmp_path / "train.bin", tmp_path / "run", steps=3)
    with pytest.raises(ConfigError, match="model.vocab_size is missing: the corpus has no tokenizer"):
        trained(values)
    values["model"]["vocab_size"] = 100
    with pytest.raises(DataError, match="holds the token id 1.., but the model's vocabulary has 100"):
        trained(values)
    values["model"]["vocab_size"], values["output"] = 256, str(tmp_path / "other")
    assert trained(values).summary()["steps"] == 3


@pytest.mark.slow
def test_windows_that_do_not_share_out_evenly_are_refused(corpus_folder, tmp_path):
    values = recipe_values(corpus_folder, tmp_path / "two", tokens_per_step=96)
    code, output = finish_training(write_recipe(tmp_path, values), processes=2)
    assert code != 0
    assert "cannot be divided evenly among 2 processes" in " ".join(output.split())


@pytest.mark.long
def test_processes_whose_micro_batches_complete_no_chunk_train_as_one(corpus_folder, tmp_path):
    """Such a micro-batch leaves the predictor unused, with which the processes must not wait for each other."""
    training = {"steps": 4, "precision": "fp32", "micro_batch_tokens": 32, "log_every": 1, "evaluate_every": 0}
    values = recipe_values(corpus_folder, tmp_path, **training)
    values["data"]["separate_documents"] = True
    values["model"]["context_predictor"]["chunk_size"] = 32
    trained_by_two(tmp_path, values)


def test_without_clipping_the_gradient_is_measured_and_must_be_finite(corpus_folder, tmp_path, monkeypatch):
    run = trained(recipe_values(corpus_folder, tmp_path / "run", steps=2, clip=0))
    assert all(row["grad_norm"] > 0 for row in run.metrics("train"))
    step = PretrainingTrainer.training_step

    def damaged(self, model, inputs, *args):
        loss = step(self, model, inputs, *args)
        next(p for p in model.parameters() if p.grad is not None).grad.fill_(float("inf"))
        return loss

    monkeypatch.setattr(PretrainingTrainer, "training_step", damaged)
    with pytest.raises(TrainingError, match="the gradient's norm is inf at step 1 .*the step was not taken"):
        trained(recipe_values(corpus_folder, tmp_path / "other", steps=2, clip=0))


def test_events_of_each_run_are_in_its_own_folder(corpus_folder, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs contextwise[tensorboard]")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    for name in ("first", "second"):
        values = recipe_values(corpus_folder, tmp_path / name, steps=2)
        values["training"]["trackers"] = ["tensorboard"]
        trained(values)
        assert list((tmp_path / name / "runs").iterdir())
