"""The contextwise loss curve along a run."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.windows import LastTenthWindows, last_tenth_length, log_bins
from contextwise.models import load_model
from contextwise.training import Recipe, train
from contextwise_plan.sweeps.points import run_points
from small import recipe_values
from trained import stopped_after, timeless


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Documents of some hundred bytes."""
    folder = tmp_path_factory.mktemp("books")
    lines = [
        json.dumps({"text": " ".join(f"chapter {i} line {j * i % 17};" for j in range(10 + i))}) for i in range(60)
    ]
    (folder / "text.jsonl").write_text("\n".join(lines))
    return prepare_corpus(folder / "text.jsonl", "bytes", folder / "corpus", validation=0.2).path


def values(corpus, output, context=32, **training):
    settings = {"curve_every": 4, "curve_longest": 96, "curve_tokens": 2000, "steps": 8}
    result = recipe_values(corpus, output, **settings | training)
    result["data"]["context"] = context
    return result


def recipe(*arguments, **options):
    return validate(Recipe, values(*arguments, **options), "the recipe")


@pytest.fixture(scope="module")
def run(books, tmp_path_factory):
    return train(recipe(books, tmp_path_factory.mktemp("runs") / "run"))


def test_the_curve_is_the_mean_loss_at_each_number_of_visible_tokens(run, books):
    rows = run.metrics("curve")
    assert [row["step"] for row in rows] == [4, 8]
    row = rows[-1]
    # Again, window by window and position by position, with the exported model and torch's own cross entropy.
    model = load_model(run.path, device="cpu")
    windows = LastTenthWindows(Corpus.open(books, split="validation"), 32, 96, 2000)
    assert len(windows) > 20
    nats = np.zeros((len(windows), 32))
    with torch.no_grad():
        for i in range(len(windows)):
            logits = model(input_ids=windows[i]["input_ids"][None]).logits[0]
            nats[i] = torch.nn.functional.cross_entropy(logits, windows[i]["labels"], reduction="none")
    edges = log_bins(32)
    assert row["visible"] == edges[:-1].tolist()
    for (low, high), loss in zip(pairwise(edges), row["loss"], strict=True):
        assert loss == pytest.approx(nats[:, low - 1 : high - 1].mean(), abs=1e-4)
    ends = nats[:, -last_tenth_length(32) :]
    assert row["best_context_loss"] == pytest.approx(ends.mean(), abs=1e-4)
    assert row["targets"] == ends.size
    documents = np.unique(windows.documents)
    assert row["documents"] == len(documents) > 1 and row["document_ids"] == documents.tolist()
    # The error of a ratio: documents drawn again and again.
    draw = np.random.default_rng(0)
    sums = np.array([ends[windows.documents == d].sum() for d in documents])
    counts = np.array([ends[windows.documents == d].size for d in documents])
    again = draw.integers(len(documents), size=(20_000, len(documents)))
    spread = (sums[again].sum(1) / counts[again].sum(1)).std()
    assert row["standard_error"] == pytest.approx(spread, rel=0.25)


@pytest.mark.long
def test_measuring_does_not_change_the_run(run, books, tmp_path):
    plain = train(recipe(books, tmp_path / "plain", curve_every=0))
    assert not plain.metrics("curve")
    a, b = (load_model(one.path, device="cpu").state_dict() for one in (run, plain))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.long
def test_a_resumed_run_has_each_row_once(run, books, tmp_path):
    """Stopped after the curve of step 4 and resumed from the checkpoint of step 3: the row is written once."""
    again = recipe(books, tmp_path / "again", save_every=3)
    stopped_after(5, again)
    assert [row["step"] for row in RunFolder(again.folder).metrics("curve")] == [4]
    train(again)
    curves = [[row for row in timeless(each) if row["kind"] == "curve"] for each in (again.folder, run)]
    assert curves[0] == curves[1]


def test_points_say_what_was_spent_and_reached(run):
    points = run_points(run.path)
    rows = run.metrics("curve")
    assert [point.tokens for point in points] == [4 * 128, 8 * 128]
    assert [point.loss for point in points] == [row["best_context_loss"] for row in rows]
    assert {(point.run, point.size, point.context, point.seed) for point in points} == {
        ("run", "nano-layers2-width32-heads2", 32, 0)
    }
    assert points[0].parameters == run.summary()["parameters"]
    assert points[1].flops == pytest.approx(run.summary()["flops"])
    assert math.isfinite(points[0].standard_error)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_shortest_contexts_have_a_curve(context, books, tmp_path):
    result = values(books, tmp_path / "run", steps=2, warmup_steps=0, tokens_per_step=12)
    result["data"]["context"], result["model"]["context_predictor"] = context, None
    (row,) = [each for each in train(validate(Recipe, result, "the recipe")).metrics("curve") if each["step"] == 2]
    assert row["visible"] == list(range(1, context + 1)) and all(map(math.isfinite, row["loss"]))


def test_what_cannot_be_measured_is_refused_before_training(books, tmp_path):
    with pytest.raises(DataError, match="no document of the split 'validation' .* is longer than 9000 tokens"):
        train(recipe(books, tmp_path / "long", curve_longest=9000))
    with pytest.raises(ConfigError, match="longest context to compare is 16, shorter than the training context 32"):
        train(recipe(books, tmp_path / "short", curve_longest=16))
    encoder = values(books, tmp_path / "encoder")
    encoder["model"] = {"family": "bert", "layers": 1, "width": 16, "heads": 2}
    encoder["objective"] = "masked"
    with pytest.raises(ConfigError, match="does not apply to a model of this kind .encoder."):
        train(validate(Recipe, encoder, "the recipe"))
    assert not any((tmp_path / name).exists() for name in ("long", "short", "encoder"))
