"""Runs on the parity task: they learn, stop where they should, and go on bit for bit."""

import math

import numpy as np
import pytest
import yaml
from transformers import AutoModelForSequenceClassification

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder
from contextwise.training import Recipe, train
from contextwise_papers.intrinsic_entropy.synthetic import ParityData
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples
from processes import finish_training

TASK = {"bits": 8, "tasks": 6, "first": 3, "shortest": 2, "validation_samples": 512}


def values(output, family="parity_mlp", synthetic=None, **training):
    model = {"width": 32, "layers": 1} | ({"heads": 2} if family == "parity_transformer" else {})
    steps = {"steps": 40, "examples_per_step": 64, "learning_rate": 5e-3, "weight_decay": 0.0}
    steps |= {"evaluate_every": 10, "save_every": 10, "log_every": 10}
    return {
        "name": "parity",
        "data": {"synthetic": TASK | (synthetic or {})},
        "model": {"family": family, **model},
        "training": {k: v for k, v in (steps | training).items() if v is not None},
        "output": str(output),
    }


def run_of(output, **options):
    return train(validate(Recipe, values(output, **options), "the recipe"))


@pytest.mark.slow
def test_an_mlp_learns_the_task_and_is_exported(tmp_path):
    run = run_of(tmp_path / "run", steps=600, evaluate_every=200, save_every=600)
    assert run.summary()["validation_loss"] < 0.5 * math.log(2)
    assert run.summary()["context"] == 9
    model = AutoModelForSequenceClassification.from_pretrained(run.model).eval()
    batch = Samples(ParityData(**TASK), 0, "validation").batch(np.arange(512))
    loss = model(batch["input_ids"], labels=batch["labels"]).loss.item()
    assert loss == pytest.approx(run.summary()["validation_loss"], abs=1e-5)


@pytest.mark.slow
def test_a_transformer_is_trained_by_the_same_command(tmp_path):
    smaller = {"bits": 4, "tasks": 3}
    run = run_of(tmp_path / "run", family="parity_transformer", synthetic=smaller, steps=200, save_every=200)
    assert run.summary()["validation_loss"] < 0.7 * math.log(2)
    assert run.summary()["flops"] > 0


def overfitted(output, **options):
    return run_of(
        output,
        synthetic={"samples": 64, "masked": 0.0},
        steps=400,
        learning_rate=2e-2,
        patience=3,
        log_every=50,
        **options,
    )


@pytest.mark.long
def test_with_patience_training_stops_and_the_best_weights_are_exported(tmp_path):
    run = overfitted(tmp_path / "run")
    rows = run.metrics("validation")
    best = min(rows, key=lambda row: row["loss"])
    assert rows[-1]["step"] < 400
    assert sum(row["step"] > best["step"] for row in rows) == 3
    model = AutoModelForSequenceClassification.from_pretrained(run.model).eval()
    batch = Samples(ParityData(**TASK), 0, "validation").batch(np.arange(512))
    assert model(batch["input_ids"], labels=batch["labels"]).loss.item() == pytest.approx(best["loss"], abs=1e-5)
    assert (run.checkpoints / f"step-{best['step']}").exists() and len(list(run.checkpoints.iterdir())) <= 4
    assert rows[-1]["loss"] > best["loss"] == run.summary()["validation_loss"]


@pytest.mark.slow
def test_two_processes_stop_where_one_does(tmp_path):
    one, recipe = overfitted(tmp_path / "one", precision="fp32"), tmp_path / "two.yaml"
    recipe.write_text(yaml.safe_dump(one.recipe() | {"output": str(tmp_path / "two")}))
    status, output = finish_training(recipe, processes=2)
    assert status == 0, output[-2000:]
    two = RunFolder.open(tmp_path / "two")
    rows = [[(row["step"], row["loss"]) for row in run.metrics("validation")] for run in (one, two)]
    assert [step for step, _ in rows[0]] == [step for step, _ in rows[1]]
    assert [loss for _, loss in rows[0]] == pytest.approx([loss for _, loss in rows[1]], rel=1e-3)


def test_epochs_and_samples_are_counted_in_steps_and_tokens(tmp_path):
    recipe = validate(Recipe, values(tmp_path / "run", synthetic={"samples": 100}, steps=None, epochs=3), "the recipe")
    assert recipe.total_steps == 5  # 300 samples in steps of 64
    assert recipe.tokens_per_step == 64 * 9
    assert validate(Recipe, recipe.resolved(), "the recipe").resolved() == recipe.resolved()


def test_resuming_with_another_task_is_refused(tmp_path):
    run_of(tmp_path / "run", steps=10)
    with pytest.raises((ConfigError, CheckpointError), match="contains another run"):
        run_of(tmp_path / "run", steps=10, synthetic={"task_seed": 1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["data"].update(corpus="corpora/x"), "data.corpus does not apply to synthetic data"),
        (lambda r: r["data"].update(context=256), "data.context does not apply to synthetic data"),
        (lambda r: r["data"].update(replay={"corpus": "x"}), "data.replay does not apply to synthetic data"),
        (lambda r: r["data"].update(synthetic=3), "synthetic is 3, but must be a mapping of keys to values"),
        (lambda r: r["data"]["synthetic"].update(bit=9), "did you mean 'bits'"),
        (
            lambda r: r["model"].update(family="gpt2"),
            "data.synthetic needs one of its own models, not model.family gpt2",
        ),
        (lambda r: r.update(data={"corpus": "x"}), "tokens_per_step|examples_per_step|is a model for data.synthetic"),
        (
            lambda r: r["model"].update(context_predictor={}),
            "model.context_predictor does not apply to the family parity_mlp",
        ),
        (lambda r: r["model"].update(size="small"), "model.size does not apply to the family parity_mlp"),
        (lambda r: r.update(objective="masked"), "the objective 'masked' is for text"),
        (lambda r: r["training"].update(curve_every=5), "curve_every needs a corpus"),
        (lambda r: r["training"].update(epochs=2, steps=None), "training.epochs needs data.synthetic.samples"),
        (lambda r: r["training"].update(examples_per_step=0), "examples_per_step is 0, but must be at least 1"),
        (lambda r: r["training"].update(patience=2, evaluate_every=0), "patience is 2, but the only validation"),
    ],
)
def test_what_does_not_go_together_gets_one_sentence(change, words, tmp_path):
    recipe = values(tmp_path / "run")
    change(recipe)
    with pytest.raises(ConfigError, match=words):
        validate(Recipe, recipe, "the recipe")


def test_the_run_folder_says_what_was_trained(tmp_path):
    run = RunFolder.open(run_of(tmp_path / "run", steps=10).path)
    assert run.recipe()["data"]["synthetic"]["bits"] == 8
    assert run.recipe()["data"].keys() == {"synthetic"}
    assert run.summary()["corpus"]["path"] == "parity-8-bits-6-tasks"
