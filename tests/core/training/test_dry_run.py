"""A dry run: what it measures is what the run takes, and nothing of it is left."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, Interrupted
from contextwise.base.machine import Memory
from contextwise.base.progress import interruption
from contextwise.experiments.cost import step_rounds
from contextwise.training import Recipe, dry_run
from contextwise.training.inputs import TrainingInputs
from contextwise.training.run import train
from small import EXACT, recipe_values
from trained import half_done

TRAIN = """
import sys
from pathlib import Path
from contextwise.base.machine import peak_memory
from contextwise.training import load_recipe, train
train(load_recipe(Path(sys.argv[1])))
print(peak_memory())
"""


def recipe(corpus, output, **training):
    return validate(Recipe, recipe_values(corpus, output, **training), "a recipe")


@pytest.mark.long
def test_steps_are_measured_and_nothing_is_left(corpus_folder, tmp_path):
    tiny = recipe(corpus_folder, tmp_path / "runs" / "tiny", micro_batch_tokens=32, tokens_per_step=96)
    taken = dry_run.dry_run(tiny)
    assert list(tmp_path.iterdir()) == []
    assert (taken.micro_batches, taken.micro_batch_tokens, taken.precision) == (3, 32, "bf16")
    assert taken.timed_steps == 11 and taken.step_seconds > 0  # of 12, without the first
    assert taken.training_seconds == 12 * taken.step_seconds
    # Two validations of 8 windows of 32 tokens, each token at a third of a training token's time.
    assert taken.validation_seconds == pytest.approx(2 * 256 / 96 / 3 * taken.step_seconds)
    assert taken.start_bytes <= taken.peak_bytes
    train(tiny)
    with pytest.raises(ConfigError, match="contains another run"):
        dry_run.dry_run(recipe(corpus_folder, tiny.folder, steps=13))


@pytest.mark.long
def test_the_time_of_a_step_takes_no_checkpoint(corpus_folder, tmp_path, monkeypatch):
    """Which takes gigabytes for a large model, in each round of a trial."""
    tiny = recipe(corpus_folder, tmp_path / "tiny", steps=100)
    monkeypatch.setattr(dry_run, "export_model", lambda *_: pytest.fail("it was exported"))
    monkeypatch.setattr(dry_run.PretrainingTrainer, "_save_checkpoint", lambda *_: pytest.fail("it was saved"))
    assert all(seconds > 0 for seconds in step_rounds({"tiny": tiny}, 2)["tiny"])
    with pytest.raises(pytest.fail.Exception, match="it was saved"):
        dry_run.dry_run(tiny)


def test_a_run_of_one_step_is_measured_on_two(corpus_folder, tmp_path):
    one = recipe(corpus_folder, tmp_path / "one", steps=None, tokens=8, tokens_per_step=64, warmup_steps=0)
    assert one.total_steps == 1
    taken = dry_run.dry_run(one)
    assert taken.timed_steps == 1 and taken.training_seconds == taken.step_seconds


@pytest.mark.parametrize(
    ("objective", "context"), [("causal", 4000), ("prefix", 4001), ("infilling", 4002), ("mixture", 4003)]
)  # each sentence is said once in a process
def test_a_context_longer_than_every_document_is_said_once(corpus_folder, tmp_path, capsys, objective, context):
    values = recipe_values(corpus_folder, tmp_path / objective, tokens_per_step=2 * context)
    values["data"]["context"] = context
    values["model"].pop("context_predictor")
    parts = [{"objective": "causal", "weight": 0.5}, {"objective": "prefix", "weight": 0.5}]
    values["objective"] = {"name": "mixture", "parts": parts} if objective == "mixture" else objective
    TrainingInputs.open(validate(Recipe, values, "a recipe"))
    said = " ".join(capsys.readouterr().err.split())
    assert said.count(f"data.context is {context:,} tokens, but no document of") == 1


@pytest.mark.parametrize("passes", [1, 2])
def test_a_request_to_stop_is_no_lack_of_memory(passes, corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(type(interruption), "requested", True)
    with pytest.raises(Interrupted, match="stopped while the first steps were timed; run the same command again"):
        dry_run.dry_run(recipe(corpus_folder, tmp_path / "run", micro_batch_tokens=32, tokens_per_step=32 * passes))
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_estimated_and_not_run(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "memory", lambda: Memory(2**40, 2**20, 0))
    monkeypatch.setattr(dry_run, "build_trainer", None)
    values = recipe_values(corpus_folder, tmp_path / "run", **EXACT)  # 34 bytes of activations are those of float32
    values["model"] = {"layers": 3, "width": 64, "heads": 2, "vocab_size": 5000}
    taken = dry_run.dry_run(validate(Recipe, values, "a recipe"))
    assert taken.timed_steps == 0 and taken.step_seconds is None and taken.training_seconds is None
    parameters = 5000 * 64 + 32 * 64 + 3 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert taken.peak_bytes - taken.start_bytes == 16 * parameters + 2 * 34 * 3 * 64 * 128


def test_a_step_of_many_passes_is_timed_by_two(monkeypatch):
    # A step of 8 passes and the optimizer: 8 x 3 s + 1 s. Its two passes here take 6 s.
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(dry_run.time, "perf_counter", lambda: now.seconds)
    costs = SimpleNamespace(example_flops=[(1, 1.0)], example_tokens=1, flops_per_target=0.0, examples_per_step=1)
    steps = dry_run._Steps(SimpleNamespace(metrics=costs), total=100, passes=8, flops=100.0)
    control = SimpleNamespace(should_training_stop=False)
    for step in range(3):
        now.seconds += 60 if step == 0 else 6  # the first is slow
        steps.on_pre_optimizer_step(None, SimpleNamespace(global_step=step), control)
        now.seconds += 1
        steps.on_optimizer_step(None, None, control)
    assert steps.seconds == [25, 25]


SHAPES = {
    "contextlm": {"model": {"size": "nano", "context_predictor": {}}, "tokens_per_step": 16384},
    "weights": {"model": {"layers": 6, "width": 512, "heads": 8, "vocab_size": 50304}, "save_every": 2},
    "llama": {
        "model": {"family": "llama", "size": "nano", "vocab_size": 30000, "multi_token": {"future_tokens": 2}},
        "optimizer": "muon",
        "tokens_per_step": 2048,
    },
    "masked": {"model": {"family": "bert", "size": "nano"}, "objective": "masked", "tokens_per_step": 8192},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_is_that_of_the_run(shape, corpus_folder, tmp_path):
    settings = dict(SHAPES[shape])
    values = recipe_values(corpus_folder, tmp_path / "run")
    values |= {name: settings.pop(name) for name in ("model", "objective") if name in settings}
    values["data"]["context"] = 128
    values["training"] |= {"tokens_per_step": 512, "steps": 6, "learning_rate": 1e-3, **settings}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "contextwise", "train", str(file), "--dry-run", "--json"]
    planned = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    command = [sys.executable, "-c", TRAIN, str(file)]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    assert planned["peak_bytes"] == pytest.approx(peak, rel=0.15)


def test_a_run_that_has_begun_is_timed_in_its_precision(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("contextwise.training.branching.has_fast_bf16", lambda device: True)
    values = half_done(corpus_folder, tmp_path / "run", precision="auto")
    monkeypatch.setattr("contextwise.training.branching.has_fast_bf16", lambda device: False)
    timed, build = [], dry_run.build_trainer
    monkeypatch.setattr(dry_run, "build_trainer", lambda *given: timed.append(build(*given)) or timed[0])
    assert dry_run.dry_run(Recipe.model_validate(values)).precision == "bf16" and timed[0].args.bf16
