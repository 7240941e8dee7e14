"""``contextwise train``, as it is typed."""

import json

import pytest
import torch
import yaml

from contextwise.base.runs import RunFolder
from contextwise.data import prepare_corpus
from small import write_rows


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A corpus and a recipe for a run of a second."""
    folder = tmp_path_factory.mktemp("work")
    write_rows(folder / "texts.jsonl", ({"text": f"document {i} of a corpus of small texts"} for i in range(40)))
    prepare_corpus(folder / "texts.jsonl", "bytes", folder / "corpus", validation=0.2)
    recipe = {
        "name": "small",
        "data": {"corpus": "corpus", "context": 16},
        "model": {"layers": 1, "width": 16, "heads": 2},
        "training": {"steps": 2, "tokens_per_step": 32, "learning_rate": 1e-3},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def test_the_run_is_named_on_standard_output(workplace, contextwise):
    command = "train recipe.yaml --set training.steps=3 --set seed=5 --out 'my run'"
    status, output, errors = contextwise(command)
    assert (status, output) == (0, "my run\n") and "small" in errors
    run = RunFolder.open(workplace / "my run")
    assert run.summary()["steps"] == 3 and run.summary()["seed"] == 5
    before = run.summary_file.stat().st_mtime_ns
    status, output, errors = contextwise(command)
    assert (status, output) == (0, "my run\n")  # finished: nothing is done again
    assert run.summary_file.stat().st_mtime_ns == before
    assert contextwise("train 'my run/recipe.yaml'")[:2] == (0, "my run\n")  # the run of which it is the recipe
    assert contextwise("train 'my run'")[:2] == (0, "my run\n")
    status, output, _ = contextwise("train 'my run/recipe.yaml' --set training.steps=4")
    assert (status, output) == (2, "") and run.summary()["steps"] == 3
    assert contextwise("train 'my run/recipe.yaml' --set training.steps=4 --out longer")[:2] == (0, "longer\n")
    contextwise.refused(f"{command} --set output=other", "given twice, as --out and as --set output; give one of them")
    status, shown, _ = contextwise(f"{command} --json")
    assert status == 0 and json.loads(shown) == {"folder": "my run", **run.summary()}
    trained, validated, following = errors.splitlines()[-3:]
    assert trained.startswith("small: 96 tokens in ") and trained.endswith(" of training")
    loss, examples = f"{run.summary()['validation_loss']:.4f}", run.summary()["validation_examples"]
    assert validated == f"  validation loss {loss} nats per token on {examples} windows of 16 tokens"
    assert "note: Fewer than 100 optimizer steps (3) in a run." in errors
    assert following == "next: contextwise curve 'my run' --corpus corpus"
    status, output, _ = contextwise(f"{following.removeprefix('next: contextwise ')} --limit 4")
    assert status == 0 and "written to my run/evaluation/curve-corpus-validation" in output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "train recipe.yaml --corpus a --set data.corpus=b",
            "data.corpus is given twice, as a and as --set data.corpus=b;",
        ),
        ("train recipe.yaml --device cpu --set training.device=cuda", "training.device is given twice, as cpu and as"),
        ("trial gpt2 pm --corpus a --set corpus=b", "corpus is given twice, as a and as --set corpus=b; give one"),
        (
            "trial gpt2 pm --corpus a --tokens 9,8 --set tokens=[9,7]",
            "tokens is given twice, as 9,8 and as --set tokens=9,7",
        ),
        ("trial gpt2 pm --corpus a --seeds 3 --set seeds=4", "seeds is given twice, as 3 and as --set seeds=4"),
        (
            "trial gpt2 pm --corpus a --jobs 3 --set executor.jobs=2",
            "jobs is given twice, as 3 and as --set executor.jobs=2",
        ),
    ],
)
def test_an_option_and_its_setting_with_another_value_are_refused(workplace, contextwise, command, message):
    contextwise.refused(command, message)


def test_the_corpus_and_the_device_have_options_of_their_own(workplace, contextwise):
    prepare_corpus(workplace / "texts.jsonl", "bytes", workplace / "other: corpus", validation=0.2)
    assert contextwise("train recipe.yaml --corpus 'other: corpus' --device cpu --out chosen")[0] == 0
    recipe = RunFolder.open(workplace / "chosen").recipe()
    assert (recipe["data"]["corpus"], recipe["training"]["device"]) == ("other: corpus", "cpu")
    # The device is no part of the run's identity.
    again = contextwise("train recipe.yaml --corpus 'other: corpus' --set 'data.corpus=\"other: corpus\"' --out chosen")
    assert again[:2] == (0, "chosen\n")
    contextwise.refused("train recipe.yaml --device gpu --out c", "training.device is 'gpu', but")
    if not torch.cuda.is_available():
        contextwise.refused(
            "train recipe.yaml --device cuda --out c", "training.device is 'cuda', but torch finds no GPU"
        )


def test_after_training_on_all_documents_the_next_step_needs_none_held_out(workplace, contextwise):
    prepare_corpus(workplace / "texts.jsonl", "bytes", workplace / "whole", validation=0.0)
    status, _, errors = contextwise("train recipe.yaml --set data.corpus=whole --out whole-run")
    assert status == 0 and "small: 64 tokens" in errors and "\n  no validation\n" in errors
    assert errors.splitlines()[-1] == "next: contextwise report whole-run"
    assert contextwise("report whole-run")[0] == 0


def test_a_run_may_have_no_validation_or_one_of_a_window(workplace, contextwise):
    for tokens, words in ((0, "\n  no validation\n"), (1, "nats per token on 1 window of 16 tokens\n")):
        out = f"validated-{tokens}"
        status, _, errors = contextwise(f"train recipe.yaml --set training.evaluation_tokens={tokens} --out {out}")
        assert status == 0 and words in errors and ("validation loss" in errors) == bool(tokens)
        run = RunFolder.open(workplace / out)
        assert len(run.metrics("validation")) == tokens and run.summary()["validation_examples"] == (tokens or None)
    patience = "--set training.patience=1 --set training.evaluate_every=1"
    contextwise.refused(
        f"train recipe.yaml {patience} --set training.evaluation_tokens=0", "but there is no validation"
    )


def test_a_dry_run_says_what_the_run_takes_and_writes_nothing(workplace, contextwise):
    before = sorted(workplace.rglob("*"))
    command = "train recipe.yaml --dry-run --out planned"
    status, shown, errors = contextwise(f"{command} --json")
    assert status == 0, errors
    plan = json.loads(shown)
    assert (plan["folder"], plan["steps"], plan["tokens"]) == ("planned", 2, 64)
    assert plan["parameters"] == sum(plan["parts"].values()) and plan["flops"] > 0
    assert (plan["micro_batches"], plan["micro_batch_tokens"], plan["optimizer"]) == (1, 32, "adamw")
    assert plan["step_seconds"] > 0 and plan["peak_bytes"] > 1e8
    status, shown, _ = contextwise(command)
    assert f"parameters   {plan['parameters']:,}" in shown and "64: 2 steps of 32" in shown
    assert sorted(workplace.rglob("*")) == before
