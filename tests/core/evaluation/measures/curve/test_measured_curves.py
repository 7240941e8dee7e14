"""A curve measured, written and opened again, of stock models and ContextLM, in all modes and beyond the training context."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Subject, measure
from contextwise.evaluation.measures.curve import Curve, CurveResult
from contextwise.evaluation.scoring.truncated import Targets, choose_targets, truncated_passes
from contextwise.models import ContextLMConfig, ContextLMForCausalLM

TRAINED = 32


@pytest.fixture(scope="module")
def held_out(corpus_folder):
    return Corpus.open(corpus_folder, split="validation")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, held_out):
    """A run of a ContextLM with rotary positions, and a folder with a GPT-2; neither was trained."""
    folder = tmp_path_factory.mktemp("models")
    size = {"vocab_size": held_out.vocab_size, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    llama = LlamaConfig(intermediate_size=32, max_position_embeddings=TRAINED, **size)
    gpt2 = GPT2Config(vocab_size=held_out.vocab_size, n_embd=16, n_head=2, n_layer=1, n_positions=TRAINED)
    torch.manual_seed(0)
    models = {
        folder / "run" / "model": ContextLMForCausalLM(ContextLMConfig(backbone_config=llama, injection="add")),
        folder / "gpt2": GPT2LMHeadModel(gpt2),
    }
    for place, model in models.items():
        model.save_pretrained(place)
        for file in (held_out.path / "tokenizer").iterdir():
            shutil.copy(file, place)
    (folder / "run" / "recipe.yaml").write_text(yaml.safe_dump({"name": "run", "data": {"context": TRAINED}}))
    return folder


@pytest.fixture(autouse=True)
def in_workplace(workplace, monkeypatch):
    monkeypatch.chdir(workplace)


def test_a_run_gets_its_curve_beside_its_evaluations(held_out):
    result = measure("run", Curve(mode="running"), held_out)
    assert result.path.relative_to(Path.cwd()).match("run/evaluation/curve-corpus-validation-*")
    assert sorted(file.name for file in result.path.iterdir()) == [
        "curve.parquet",
        "documents.parquet",
        "manifest.json",
        "summary.json",
    ]
    assert not [file for file in result.path.parent.iterdir() if "unfinished" in file.name]
    opened = CurveResult.open(result.path)
    assert opened.summary == json.loads((result.path / "summary.json").read_text()) == result.summary
    settings = opened.summary["settings"]
    assert (settings["context"], opened.summary["trained_context"], settings["mode"]) == (TRAINED, TRAINED, "running")

    curve, documents = opened.curve, opened.documents
    assert curve["visible"].to_pylist() == list(range(1, TRAINED + 1))
    for k, row in enumerate(opened.bins):
        mine = documents.filter(pc.equal(documents["bin"], k))
        assert pc.sum(mine["targets"]).as_py() == row["targets"]
        assert pc.sum(mine["nats"]).as_py() / row["targets"] == pytest.approx(row["loss"])
        raw = curve["loss"].to_numpy()[row["visible_from"] - 1 : row["visible_to"]]
        assert raw.mean() == pytest.approx(row["loss"]) and row["low"] < row["loss"] < row["high"]
    assert opened.summary["documents"] == len(pc.unique(documents["document"]))
    assert opened.summary["targets"] == pc.sum(curve["targets"]).as_py()


@pytest.mark.parametrize("rope", ["none", "linear", "dynamic", "yarn"])
def test_beyond_the_training_context(held_out, tmp_path, rope):
    settings = Curve(mode="running", context=4 * TRAINED, rope=rope)
    result = measure("run", settings, held_out, out=tmp_path / "c")
    assert result.bins[-1]["visible_to"] == 4 * TRAINED
    assert result.summary["rope_factor"] == (None if rope == "none" else 4)
    tenth = result.measures["best_context_loss"]
    assert (tenth["visible_from"], tenth["visible_to"]) == (30, TRAINED)


def test_truncated_mode_of_rotary_models_goes_beyond_it_too(held_out):
    settings = Curve(mode="truncated", contexts=[64, 8, 16, 8], samples=20, limit=5)
    result = measure("run", settings, held_out)
    assert [row["visible_to"] for row in result.bins] == [8, 16, 64]
    assert {row["targets"] for row in result.bins} == {20}
    assert max(result.documents["document"].to_pylist()) < 5


def test_a_stopped_measurement_resumes_and_ends_the_same(held_out, tmp_path, capsys, stop_at):
    whole = measure("run", Curve(mode="running"), held_out, batch_tokens=64, out=tmp_path / "whole")
    stop_at(3)
    with pytest.raises(Interrupted, match="after 4 of .*; run the same command again to resume"):
        measure("run", Curve(mode="running"), held_out, batch_tokens=64, out=tmp_path / "c")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.unfinished", "whole"]
    with pytest.raises(ConfigError, match="unfinished work of another measurement .context differ"):
        measure("run", Curve(mode="running", context=16), held_out, out=tmp_path / "c")
    stop_at(0)
    resumed = measure("run", Curve(mode="running"), held_out, batch_tokens=64, out=tmp_path / "c")
    assert "resuming a stopped measurement: 4 of" in capsys.readouterr().err
    assert resumed.bins == whole.bins and resumed.measures == whole.measures
    assert resumed.curve == whole.curve
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c", "whole"]


def test_bands_are_the_default_and_hold_the_targets_that_are_alone(held_out, tmp_path):
    """Up to 8 visible tokens both modes are one measurement; a longer context sees a band that ends there."""
    bands = measure("run", Curve(context=128, samples=300), held_out)
    assert bands.summary["settings"]["mode"] == "bands" and bands.measures["best_context_loss"] is None
    ends = [(row["visible_from"], row["visible_to"]) for row in bands.bins]
    assert ends == [(1, 1), (2, 2), (4, 4), (8, 8), (15, 16), (29, 32), (61, 64), (125, 128)]
    assert {row["targets"] for row in bands.bins} == {300}
    assert bands.curve["visible"].to_pylist() == [1, 2, 4, 8, 15.5, 30.5, 62.5, 126.5]
    targets = choose_targets(held_out, 128, 300, 0, block=4)
    alone = measure("run", Curve(mode="truncated", context=128, samples=300), held_out)
    losses = {row["visible_to"]: row for row in alone.bins}
    passes = truncated_passes(Subject("run").model, held_out, Targets(targets.document, targets.position), [1, 2, 4, 8])
    for row, batch in zip(bands.bins, passes, strict=False):
        assert row["loss"] == pytest.approx(batch.nats.mean(), abs=1e-5)
    # Other targets at a model that was not trained: the same loss, within the intervals.
    for row in bands.bins:
        other = losses[row["visible_to"]]
        assert (
            row["low"] - (other["high"] - other["loss"]) < other["loss"] < row["high"] + (other["loss"] - other["low"])
        )


@pytest.mark.parametrize(
    ("lengths", "limit", "context"),
    [
        ([3000] * 6, None, 32),  # the training context
        ([30, 30, 30, 30, 20, 20, 9], None, 16),  # as the longest: six documents with 20 are too short to compare by
        ([3000, 3000, 40, 40, 34, 34, 9], None, 32),
        ([500, 17, 9], None, 32),  # fewer than six documents: as the longest
        ([17, 9], None, 16),
        ([17, 9, 1000], 2, 16),
    ],
)
def test_bands_reach_as_far_as_six_documents(corpus_of, lengths, limit, context):
    assert Curve(limit=limit).resolved(Subject("run"), corpus_of(lengths)).context == context
    given = Curve(context=64, limit=limit)
    if max(lengths[:limit]) > 64:
        assert given.resolved(Subject("run"), corpus_of(lengths)).context == 64
    else:
        with pytest.raises(DataError, match="no document has a token with 64 tokens before it"):
            given.resolved(Subject("run"), corpus_of(lengths))


@pytest.mark.parametrize(
    ("context", "samples", "block"),
    [
        *((16, 1024, 1), (256, 1024, 8), (1024, 8, 1), (1024, 64, 4), (1024, 600, 32)),
        *((1024, 1024, 32), (4096, 1024, 32), (65536, 1024, 32)),
        *((4096, 4096, 128), (65536, 4096, 128), (65536, 65536, 2048)),
    ],
)
def test_long_contexts_have_targets_of_several_documents_too(corpus_of, context, samples, block):
    settings = Curve(context=context).model_copy(update={"samples": samples})
    assert settings.block == block and settings.model_copy(update={"mode": "truncated"}).block == 1
    documents = corpus_of([context + 30_000] * 10)
    for seed in range(4):
        targets = choose_targets(documents, context, samples, seed, None, block)
        assert samples <= len(targets) < samples + block and (samples < 64 or len(np.unique(targets.document)) >= 6)


@pytest.mark.parametrize(
    ("contexts", "context", "expected"),
    [(None, 16, [1, 2, 4, 8, 16]), (None, 1, [1]), (None, 20, [1, 2, 4, 8, 16, 20]), ([9, 3, 9], 9, [3, 9])],
)
def test_contexts_of_the_truncated_mode(contexts, context, expected):
    settings = Curve(mode="truncated", contexts=contexts, context=None if contexts else context)
    assert settings.resolved(Subject("run"), None).contexts == expected


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("gpt2", {"context": 33}, "longer than the 32 positions that gpt2 has learned; give at most 32"),
        ("gpt2", {"context": 33, "rope": "yarn"}, "positions of this gpt2 are not rotary"),
        ("run", {"rope_factor": 2.0}, "a rope factor is given, but no method"),
    ],
)
def test_settings_that_do_not_fit(held_out, model, settings, message):
    with pytest.raises(ConfigError, match=message):
        measure(model, Curve(**settings), held_out)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "running", "contexts": [4]}, "the running mode takes no contexts"),
        ({"mode": "running", "samples": 20}, "the running mode takes no samples; set `mode` to bands, or leave `sam"),
        ({"mode": "truncated", "contexts": [4], "context": 5}, "`context` is given together with `contexts`"),
        ({"mode": "truncated", "contexts": [0, 4]}, "contexts holds 0; each must be at least 1"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ValueError, match=message):
        Curve(**settings)


@pytest.mark.parametrize("mode", ["running", "truncated", "bands"])
def test_documents_that_are_too_short(held_out, mode):
    with pytest.raises(DataError, match=rf"longest of the .* has {held_out.lengths.max():,}"):
        measure("run", Curve(mode=mode, context=4096), held_out)


def test_too_long_a_context_is_refused_with_the_positions_of_the_model_before_it_is_loaded(held_out, monkeypatch):
    monkeypatch.setattr(Subject, "model", None)
    with pytest.raises(DataError, match=r" tokens, and the model has positions for 32; give shorter contexts"):
        measure("gpt2", Curve(context=4096), held_out)


def test_extended_positions_do_not_reach_the_next_measurement(held_out, tmp_path):
    subject = Subject("run")
    before = measure(subject, Curve(mode="running"), held_out, out=tmp_path / "before")
    measure(subject, Curve(mode="running", context=4 * TRAINED, rope="linear"), held_out, out=tmp_path / "extended")
    after = measure(subject, Curve(mode="running"), held_out, out=tmp_path / "after")
    assert after.bins == before.bins
