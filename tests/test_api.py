"""The functions of the package: they take names, paths, dictionaries and objects, and give results that a notebook shows."""

import copy
import inspect
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
import yaml
from accelerate import dispatch_model
from torch import nn
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import contextwise
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError, DataError
from contextwise.base.estimates import Estimate
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Column, Table
from contextwise.comparison import compared_runs
from contextwise.comparison.comparison import compare
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.kernel import Measure, Subject, measure, measures, results_of
from contextwise.evaluation.measures.curve import DEFAULT_SAMPLES, Curve
from contextwise.evaluation.measures.loss import Loss
from contextwise.experiments.trial.settings import TrialSettings
from contextwise.models.rope import extend_positions
from contextwise.reports.page import powers_of_two
from long_questions import define_long, long_line, needs_longbench
from small import recipe_values, small_gpt2, write_rows

RESULTS = ["run", "evaluation", "curve", "comparison"]


@pytest.fixture(scope="module")
def results(corpus_folder, tmp_path_factory):
    """Two runs by a recipe as a dictionary, measured and compared."""
    folder, corpus = tmp_path_factory.mktemp("api"), Corpus.open(corpus_folder)
    recipe = recipe_values(corpus_folder, folder / "unused")
    runs = [
        contextwise.train(recipe, {"data.corpus": corpus, "seed": seed, "name": f"s{seed}"}, folder / f"s{seed}")
        for seed in (0, 1)
    ]
    return {
        "run": runs[0],
        "other": runs[1],
        "evaluation": contextwise.evaluate(runs[0], corpus, limit=8),
        "curve": contextwise.curve(str(runs[0].path), corpus_folder, limit=8),
        "comparison": contextwise.compare(runs, corpus),
    }


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_result(results, name, tmp_path):
    result = results[name]
    assert "<table" in result._repr_html_() and isinstance(result.plot(), go.Figure)
    assert len(result.plot().data) > 0
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame) and len(frame) > 0
    assert "</html>" in result.page(tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_one_line_in_a_console(results, name):
    line = repr(results[name])
    assert "\n" not in line and len(line) <= 160 and line.startswith(type(results[name]).__name__)
    assert re.search(r"loss \d\.\d{4} |[+−]\d\.\d{4} \[|\d\.\d\d nats", line), line


def test_what_a_relative_path_opened_stays_when_the_process_goes_elsewhere(
    results, corpus_folder, tmp_path, monkeypatch
):
    curve = results["curve"]
    monkeypatch.chdir(results["run"].path.parent)
    run, corpus = RunFolder(results["run"].path.name), Corpus.open(os.path.relpath(corpus_folder))
    result, loaded = type(curve).open(os.path.relpath(curve.path)), contextwise.load(run.path)
    before = run.metrics()
    monkeypatch.chdir(tmp_path)
    assert len(before) and run.metrics() == before and run.environment() and run.answer == results["run"].answer
    assert result.documents == curve.documents
    corpus.verify()
    corpus.first(50).verify()
    assert contextwise.evaluate(run, corpus, limit=1).summary["digest"] == Subject(run.path).digest
    assert corpus.tokenizer().get_vocab() == Subject(loaded).tokenizer.get_vocab()
    assert Subject(loaded).digest == Subject(contextwise.load(results["run"])).digest
    assert run.path == results["run"].path.absolute()


def test_the_model_of_a_run_is_another_source_than_the_run(results, corpus_folder, tmp_path):
    """The run says with which context it was trained; its model's folder does not."""
    run = RunFolder(shutil.copytree(results["run"].path, tmp_path / "run"))
    recipe = yaml.safe_load(run.recipe_file.read_text())
    recipe["data"]["context"] //= 2
    run.recipe_file.write_text(yaml.safe_dump(recipe))
    ours = contextwise.evaluate(run, corpus_folder, limit=2, out=tmp_path / "out")
    assert ours.summary["settings"]["context"] == recipe["data"]["context"]
    with pytest.raises(ConfigError, match="holds another result"):
        contextwise.evaluate(run.model, corpus_folder, limit=2, out=tmp_path / "out")


@pytest.mark.parametrize("name", ["evaluation", "curve", "comparison"])
def test_a_printed_result_is_what_its_verb_prints(results, name):
    result, text = results[name], str(results[name])
    losses = {
        "evaluation": lambda: [result.summary["loss"]["value"]],
        "curve": lambda: [each["loss"] for each in result.bins],
        "comparison": lambda: [group.loss.value for group in result.groups],
    }[name]()
    assert max(map(len, text.splitlines())) <= 80 and all(f"{loss:.4f}" in text for loss in losses)
    assert str(results["run"]) == repr(results["run"])


@pytest.mark.parametrize("name", ["evaluation", "curve", "comparison"])
def test_a_notebook_shows_the_answer_and_the_picture_before_the_table(results, name):
    shown = results[name]._repr_html_()
    answer, picture, table = shown.index("<p>"), shown.index("<svg"), shown.index("<table")
    assert answer < picture < table
    ElementTree.fromstring(shown[picture : shown.index("</svg>") + 6])
    assert ("One seed of" in shown) is (name == "comparison")


def test_a_comparison_has_one_number_a_column(results):
    comparison = results["comparison"]
    frame = comparison.to_pandas()
    row, found = frame.iloc[0], comparison.differences[0]
    assert (row["difference"], row["low"], row["high"]) == (found.difference.value, *found.difference.limits)
    assert (row["model"], row["reference"]) == (found.group, found.reference)
    assert row["decision"] in ("lower", "higher", "undecided") and row["seeds"] == 1
    assert row["documents"] == comparison.documents and row["loss"] == comparison.groups[1].loss.value
    texts = {name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])}
    assert texts == {"model", "reference", "unit", "decision"}
    assert row["training_tokens"] == results["run"].summary()["tokens"]


def test_loaded_models_are_compared_under_their_names(results, corpus_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = Corpus.open(corpus_folder)
    one, other = (contextwise.load(results[name]) for name in ("run", "other"))
    found = results["comparison"].differences[0].difference.value
    for models, names in (
        ([one, other], [f"{type(one).__name__}-1", f"{type(one).__name__}-2"]),
        ({"a": one, "b": other}, ["a", "b"]),
        ({"a": results["run"], "b": other}, ["a", "b"]),
    ):
        comparison = contextwise.compare(models, corpus)
        assert [group.name for group in comparison.groups] == names
        assert comparison.differences[0].difference.value == pytest.approx(found, abs=1e-6)
    evaluations = [contextwise.evaluate(each, corpus) for each in (one, other)]  # both are of a "model"
    assert contextwise.compare(evaluations).differences[0].difference.value == pytest.approx(found, abs=1e-6)
    with pytest.raises(ConfigError, match="is an evaluation already; give its model"):
        contextwise.compare(evaluations, corpus)
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="models holds 1 model; give a list of two"):
        patch.setattr(compared_runs, "measure", lambda *_: pytest.fail("it was measured"))
        contextwise.compare({"a": one}, corpus)
    with pytest.raises(ConfigError, match=r"a loaded model \(.*\) was not evaluated yet; give the corpus"):
        contextwise.compare([one, other])


def test_the_page_of_a_run_begins_with_its_answer_and_its_context_curve(results, tmp_path):
    text = results["run"].page(tmp_path / "page.html").read_text()
    assert text.index('class="verdict"') < text.index('id="context-0"') < text.index('id="training"')
    ticks = json.loads(re.search(r'id="figures">(.*?)</script>', text)[1])["context-0"]["layout"]["xaxis"]
    assert ticks["tickvals"][:3] == [1, 2, 4] and ticks["ticktext"][:3] == ["1", "2", "4"]


def test_two_curves_of_a_run_have_a_colour_each(results, tmp_path):
    run = RunFolder(shutil.copytree(results["run"].path, tmp_path / "run"))
    (first,) = results_of(run.evaluation, "curve")
    shutil.copytree(first.path, first.path.with_name(f"{first.path.name}-again"))
    text = run.page(tmp_path / "page.html").read_text()
    traces = json.loads(re.search(r'id="figures">(.*?)</script>', text)[1])["context-0"]["data"]
    assert len({trace["name"] for trace in traces}) == len({trace["meta"]["series"] for trace in traces}) == 2


def test_ticks_are_powers_of_two_that_a_reader_knows():
    for most, texts in ((7, ["1", "2", "4", "8"]), (131_072, ["1", "8", "64", "512", "4k", "32k", "256k"])):
        assert powers_of_two("visible tokens", most)["ticktext"] == texts


def test_frames_hold_the_numbers_of_the_results(results):
    assert results["evaluation"].summary["corpus"]["split"] == "validation"  # where no split is chosen
    documents = results["evaluation"].to_pandas()
    loss = documents["nats"].sum() / documents["tokens"].sum()
    assert loss == pytest.approx(results["evaluation"].summary["loss"]["value"])
    assert list(results["curve"].to_pandas()["loss"]) == [each["loss"] for each in results["curve"].bins]
    validation = results["run"].to_pandas().query("kind == 'validation'")["loss"]
    assert validation.iloc[-1] == results["run"].summary()["validation_loss"]
    assert "validation loss" in repr(results["run"]) and "not finished" not in repr(results["run"])


def test_a_table_has_the_limits_of_its_estimates():
    table = Table("", ["name", Column("loss", "estimate")], [["a", Estimate(2.0, 1.0, 3.0)], ["b", None]])
    frame = table.to_pandas()
    assert list(frame.columns) == ["name", "loss", "loss low", "loss high"]
    assert frame.iloc[0].tolist() == ["a", 2.0, 1.0, 3.0] and frame.iloc[1].isna().tolist() == [False, True, True, True]
    assert "<table>" in table._repr_html_()


@pytest.mark.long
@pytest.mark.parametrize("measure", ["evaluate", "curve", "compare"])
def test_a_corpus_is_measured_as_it_was_opened(results, corpus_folder, tmp_path, measure):
    def corpus_of(corpus, **given):
        if measure == "compare":
            return contextwise.compare([results["run"], results["other"]], corpus, **given).corpus
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        return getattr(contextwise, measure)(results["run"], corpus, out=out, limit=4, **given).summary["corpus"]

    cases = {
        "train": (Corpus.open(corpus_folder, split="train"), {}),
        "validation": (Corpus.open(corpus_folder, split="validation"), {}),
        "the first tokens": (Corpus.open(corpus_folder).first(3000), {}),
        "a copy": (pickle.loads(pickle.dumps(Corpus.open(corpus_folder, split="train"))), {}),
        "another split that is given": (Corpus.open(corpus_folder, split="train"), {"split": "validation"}),
        "none chosen": (Corpus.open(corpus_folder), {}),
        "a copy of none": (pickle.loads(pickle.dumps(Corpus.open(corpus_folder))), {}),
        "the default that is given": (Corpus.open(corpus_folder), {"split": "train"}),
    }
    held_out = ("validation", "another split that is given", "none chosen", "a copy of none")
    for name, (corpus, given) in cases.items():
        split = "validation" if name in held_out else "train"
        part = corpus if name == "the first tokens" else Corpus.open(corpus_folder, split=split)
        about = corpus_of(corpus, **given)
        assert (about["split"], about["fingerprint"]) == (split, part.fingerprint), name
    with pytest.raises(ConfigError, match="cut to its first tokens; leave split out"):
        corpus_of(cases["the first tokens"][0], split="validation")


def test_a_corpus_that_was_prepared_is_measured_on_what_it_holds_out(results, corpus_folder, tmp_path):
    corpus = contextwise.prepare(corpus_folder.parent / "text.jsonl", "bytes", tmp_path / "corpus", validation=0.2)
    result = contextwise.evaluate(results["run"], corpus, limit=4, out=tmp_path / "result")
    assert (corpus.split, result.summary["corpus"]["split"]) == ("train", "validation")
    assert result.measures["perplexity"]["value"] == pytest.approx(math.exp(result.measures["loss"]["value"]))


def test_a_loaded_model_is_known_by_the_tokenizer_where_it_was_loaded_from(results, corpus_folder, tmp_path):
    other = contextwise.prepare(corpus_folder.parent / "text.jsonl", "train:300", tmp_path / "other")
    loaded = contextwise.load(results["run"])
    assert contextwise.evaluate(loaded, corpus_folder, limit=2, out=tmp_path / "result").measures["loss"]
    for call in (
        lambda: contextwise.evaluate(loaded, other, limit=2),
        lambda: contextwise.compare({"one": loaded, "two": loaded}, other, limit=2),
        lambda: contextwise.evaluate(Subject(small_gpt2(), tokenizer=byte_tokenizer().tokenizer), other, limit=2),
    ):
        with pytest.raises(DataError, match="prepared with another tokenizer than (that in|the one that was given)"):
            call()
    config = copy.deepcopy(loaded.config)
    config.vocab_size = 300  # a configuration keeps the path that it was read from
    assert contextwise.evaluate(type(loaded)(config), other, limit=2, out=tmp_path / "built").measures
    moved = tmp_path / "my models" / "one"
    shutil.copytree(results["run"].path / "model", moved)
    elsewhere = contextwise.load(moved)
    digest = Subject(elsewhere).digest
    shutil.rmtree(moved)
    assert contextwise.evaluate(elsewhere, corpus_folder, limit=2, out=tmp_path / "moved").measures
    assert Subject(elsewhere).digest == digest
    assert contextwise.evaluate(small_gpt2(vocab_size=300), other, limit=2, out=tmp_path / "unknown").measures
    assert Subject(loaded).tokenizer("ab").input_ids == Subject(str(results["run"].path)).tokenizer("ab").input_ids
    with pytest.raises(CheckpointError, match="was loaded from no folder or name that has a tokenizer"):
        contextwise.measure("ruler", small_gpt2(), length=200, samples=1, tasks=["fwe"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: contextwise.measure(Measure, run), "name is <class .*>, but must be the name of a measure"),
        (lambda run: contextwise.decide([{"a": 3.0}], "a"), "none of the columns arm, .*; it has a$"),
        (lambda run: contextwise.measure(None, run), "name is None, but must be the name of a measure"),
        (lambda run: contextwise.load(run, dtype="bf16"), "dtype is 'bf16', but must be a data type of torch"),
        (lambda run: contextwise.load(run, dtype=float), "dtype is <class 'float'>, but must be a data type of torch"),
        (lambda run: contextwise.load(run, device=999), "device is 999, which this machine does not have"),
        (lambda run: contextwise.decide({"a": [3.0], "b": [2.0]}, "a"), "none of the columns arm, .*; it has a and b"),
        (lambda run: contextwise.evaluate(run, small_gpt2()), "corpus is GPT2LMHeadModel\\( "),
    ],
)
def test_arguments_of_other_kinds_are_refused_in_one_line(results, call, message):
    with pytest.raises(ContextwiseError, match=message) as raised:
        call(results["run"])
    assert "\n" not in str(raised.value)


def test_a_class_of_a_measure_is_taken_for_its_name(results, corpus_folder, tmp_path):
    result = contextwise.measure(Loss, results["run"], corpus_folder, limit=2, out=tmp_path / "result")
    assert result.measure == "evaluate"


def test_a_recipe_reads_a_corpus_as_it_was_opened(corpus_folder, tmp_path):
    recipe, path = recipe_values(corpus_folder, tmp_path / "run", steps=2, evaluate_every=0), str(corpus_folder)

    def data_of(corpus, name, **further):
        run = contextwise.train(recipe, {"data.corpus": corpus, **further}, tmp_path / name)
        return {key: run.recipe()["data"][key] for key in ("corpus", "split", "tokens")}

    whole = {"corpus": path, "split": "train", "tokens": None}
    assert data_of(Corpus.open(corpus_folder), "whole") == whole
    held_out = Corpus.open(corpus_folder, split="validation")
    assert data_of(held_out, "held-out") == whole | {"split": "validation"}
    assert data_of(Corpus.open(corpus_folder).first(3000), "first") == whole | {"tokens": 3000}
    assert data_of(Corpus.open(corpus_folder).first(3000), "given", **{"data.tokens": 2000}) == whole | {"tokens": 2000}
    with pytest.raises(
        ConfigError, match=r"data\.replay\.corpus is Corpus\(.*'validation'.*a corpus is given whole there"
    ):
        contextwise.train(recipe, {"data.replay.corpus": held_out}, tmp_path / "replay")
    with pytest.raises(ConfigError, match=r"one arm \(gpt2\) has nothing to be compared to; give two arms"):
        contextwise.trial("gpt2", corpus_folder)
    with pytest.raises(ConfigError, match=r"corpus is Corpus\(.*a corpus is given whole there"):
        contextwise.trial(["gpt2", "pm"], held_out, out=tmp_path / "trial")


def test_a_loaded_model_keeps_its_own_form(corpus_folder, tmp_path):
    model = small_gpt2(resid_pdrop=0.5).to(torch.bfloat16).train()
    first, again = (contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / name) for name in "ab")
    assert first.summary["dtype"] == "bfloat16" and first.summary["loss"] == again.summary["loss"]
    assert all(module.training for module in model.modules())
    asked = contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / "c", dtype="bfloat16", device="cpu")
    assert asked.summary["key"] == first.summary["key"]
    needles = {"length": 160, "masked": [0, 8], "samples": 2}
    long = small_gpt2(positions=320, resid_pdrop=0.5)
    means = []
    for mode in (True, False):
        subject = Subject(long.train(mode), tokenizer=byte_tokenizer().tokenizer)
        means.append(
            contextwise.measure("needles", subject, out=tmp_path / f"needles-{mode}", **needles).summary["rows"]
        )
    assert means[0] == means[1]
    whole = contextwise.evaluate(model.float(), corpus_folder, limit=2, out=tmp_path / "d")
    assert whole.summary["key"] != first.summary["key"]
    with pytest.raises(ConfigError, match="dtype is 'bfloat16', but the model is given loaded, with float32"):
        contextwise.evaluate(model, corpus_folder, dtype="bfloat16")
    with pytest.raises(ConfigError, match="device is 'cuda', but the model is given loaded, with cpu"):
        contextwise.curve(model, corpus_folder, device="cuda")
    offloaded = dispatch_model(
        small_gpt2(), {"transformer": "disk", "lm_head": "cpu"}, "cpu", offload_dir=tmp_path / "w"
    )
    with pytest.raises(ConfigError, match="or weights that accelerate keeps elsewhere; load it whole onto one device"):
        contextwise.evaluate(offloaded, corpus_folder)
    with pytest.raises(ConfigError, match="a Subject has its own dtype"):
        measure(Subject(model), Loss(), Corpus.open(corpus_folder), dtype="float16")
    with pytest.raises(ConfigError, match="tokenizer is given, but .* has its own"):
        Subject(str(tmp_path), tokenizer=byte_tokenizer().tokenizer)


def state_of(model):
    """What a caller sees of a model: configurations, modules with their modes, trained weights and buffers, and logits."""
    modules = list(model.named_modules())
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(input_ids=torch.arange(40)[None]).logits
    return {
        "modules": [(name, id(module), type(module), module.training) for name, module in modules],
        "configurations": [module.config.to_dict() for _, module in modules if hasattr(module, "config")],
        "weights": [(name, id(weight), weight.requires_grad) for name, weight in model.named_parameters()],
        "buffers": [(name, buffer.tolist()) for name, buffer in model.named_buffers()],
        "logits": logits.tolist(),
    }


SHAPE = {"vocab_size": 257, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "max_position_embeddings": 640, "attention_dropout": 0.5}
EXTENDED = {"context": 704, "samples": 8}
MEASURED = {
    "evaluate": {"limit": 2},
    **{f"curve {rope}": EXTENDED | {"rope": rope} for rope in ("none", "linear", "dynamic", "yarn")},
    "causality": {},
    "entropy": {"contexts": [4, 8], "samples": 64},
    "evaluate-metadata": {"metadata": ["title"], "limit": 2},
    "needles": {"length": 160, "masked": [0, 8], "samples": 2},
    "rescore": {},
    "ruler": {"tasks": ["vt"], "length": 600, "visible": [100], "samples": 2, "example": False},
    "sentences": {"limit": 2},
    "tasks": {"tasks": ["keys"], "context": [704], "rope": "dynamic"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_longbench) if name == "tasks" else name for name in MEASURED]
)
def test_a_measure_leaves_a_loaded_model_as_it_was(corpus_folder, tmp_path, name):
    """Positions that a measure extends, modes and frozen weights are put back, also where the measure fails."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).train()
    model.model.layers[0].eval().requires_grad_(False)
    before = state_of(model)
    verb, files = name.split(" ")[0], {}
    if verb == "tasks":
        files = {"include_path": define_long(tmp_path / "sets", "keys", [long_line(context="So it is. " * 80)], 2)}
    elif verb == "rescore":
        files = {"file": write_rows(tmp_path / "lists.jsonl", [{"candidates": ["a b", "a c"]}])}
    settings = measures()[verb](**MEASURED[name], **files)
    corpus = Corpus.open(corpus_folder) if settings.on_corpus else None
    subject = Subject(model, tokenizer=byte_tokenizer().tokenizer)
    summary = measure(subject, settings, corpus, out=tmp_path / "result").summary
    assert state_of(model) == before and summary.get("trained_context", 640) == 640
    with pytest.raises(RuntimeError), subject.evaluating():
        model.requires_grad_(True)
        extend_positions(model, 704, "linear")
        raise RuntimeError
    assert state_of(model) == before


@pytest.mark.parametrize("settings", [{}, {"context": 704, "samples": 8, "rope": "linear"}])
def test_a_loaded_model_whose_forward_was_replaced_is_measured_as_any_other(corpus_folder, tmp_path, settings):
    """A function, as of ``torch.compile(model.forward)``, reaches the model that it was made of alone."""
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).train()
    expected = contextwise.curve(model, corpus_folder, out=tmp_path / "a", **settings).bins
    forward = model.model.forward
    model.model.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    model.model.register_forward_hook(partial(lambda lock, *given: None, threading.Lock()))
    assert contextwise.curve(model, corpus_folder, out=tmp_path / "b", **settings).bins == expected
    assert all(module.training for module in model.modules())


class Unscaled(nn.LayerNorm):
    """A norm of the caller's, with the parameters of the one that it replaces."""


def _replaced_norm(model: GPT2LMHeadModel) -> None:
    model.transformer.ln_f.__class__ = Unscaled


def _replaced_activation(model: GPT2LMHeadModel) -> None:
    model.transformer.h[0].mlp.act = nn.ReLU()


def _replaced_function(model: GPT2LMHeadModel) -> None:
    model.transformer.h[0].mlp.act = nn.functional.relu


def _replaced_forward(model: GPT2LMHeadModel) -> None:
    model.forward = partial(GPT2LMHeadModel.forward, model)


def _both_directions(model: GPT2LMHeadModel) -> None:
    model.transformer.h[0].attn.is_causal = False


@pytest.mark.parametrize(
    "change", [_replaced_norm, _replaced_activation, _replaced_function, _replaced_forward, _both_directions]
)
def test_a_loaded_model_that_the_caller_has_changed_is_measured_again(change):
    """Its weights and its configuration are those of before."""
    model = small_gpt2()
    before = Subject(model).digest
    assert Subject(copy.deepcopy(model)).digest == Subject(model.train()).digest == before
    if change is _replaced_function:
        del model.transformer.h[0].mlp.act
    change(model)
    assert Subject(model).digest != before


@pytest.mark.parametrize("installed", [True, False])
def test_layers_of_an_installed_library_are_no_code_of_the_caller(monkeypatch, installed):
    """Such as one for quantization: results of the same model are found again."""
    place = "site-packages/quantizer" if installed else "my_project"
    monkeypatch.setitem(sys.modules, "quantizer", SimpleNamespace(__file__=f"/usr/lib/{place}/layers.py"))
    model = small_gpt2()
    model.transformer.ln_f.__class__ = type("Quantized", (nn.LayerNorm,), {"__module__": "quantizer"})
    assert (Subject(model).digest == Subject(model).digest) is installed


def test_rotary_frequencies_are_a_part_of_a_loaded_model_unless_its_inputs_set_them():
    ids = torch.arange(60)[None] % 97
    stock = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    before = Subject(stock).digest
    stock.model.rotary_emb.inv_freq.mul_(0.5)
    assert Subject(stock).digest != before
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    follows = LlamaForCausalLM(
        LlamaConfig(**SHAPE | {"max_position_embeddings": 16, "rope_parameters": scaling})
    ).eval()
    before = Subject(follows).digest
    follows(ids)
    assert Subject(follows).digest == before


def test_loaded_models_and_names_are_taken(results, corpus_folder, tmp_path):
    model = contextwise.load(results["run"])
    assert model.config.model_type == "contextlm" and not model.training
    small = contextwise.evaluate(small_gpt2(), corpus_folder, limit=2, out=tmp_path / "result")
    assert small.summary["documents"] == 2
    with pytest.raises(ValueError, match=r"there is no measure 'evaluat'; did you mean 'evaluate'\?"):
        contextwise.measure("evaluat", model, corpus_folder)
    with pytest.raises(ValueError, match="'attention' is a command only; type contextwise measure attention"):
        contextwise.measure("attention", model)
    with pytest.raises(ValueError, match=r"models is '.*'; give a list"):
        contextwise.compare(results["run"], corpus_folder)
    with pytest.raises(ValueError, match="a Subject has its own dtype"):
        contextwise.evaluate(Subject(model), corpus_folder, dtype="bfloat16")
    with pytest.raises(
        TypeError, match=r"^trial\(\) got an unexpected keyword argument 'seed'; did you mean 'seeds'\?$"
    ):
        contextwise.trial(["gpt2", "contextlm"], corpus_folder, seed=3)
    with pytest.raises(
        TypeError, match=r"^curve\(\) got an unexpected keyword argument 'contxet'; did you mean 'context'"
    ):
        contextwise.curve(model, corpus_folder, contxet=3)
    for given, words in (
        ({"overwrite": "no"}, "overwrite is 'no', but must be True or False"),
        ({"out": 5}, "out is 5, but must be a text or path"),
        ({"split": 5}, "split is 5, but must be a text or path"),
    ):
        with pytest.raises(ConfigError, match=words):
            contextwise.evaluate(model, corpus_folder, **given)
    with pytest.raises(ConfigError, match="model is None, but must be a run, a model's folder"):
        contextwise.load(None)
    with pytest.raises(DataError, match=r"there is no corpus at .*, or give one that is there \(--corpus PATH\)$"):
        contextwise.curve(model, tmp_path / "empty" / "corpus")
    with pytest.raises(ValueError, match="'limt' is an unknown key|limt is an unknown key"):
        contextwise.measure("evaluate", model, corpus_folder, limt=3)


def test_nothing_is_printed_unless_asked(corpus_folder, tmp_path, capfd):
    recipe = recipe_values(Path("elsewhere"), tmp_path / "run", steps=2)
    recipe["data"]["corpus"] = ""
    changes = {"data.corpus": Path(corpus_folder)}
    contextwise.train(recipe, changes)
    contextwise.prepare(corpus_folder.parent / "text.jsonl", "bytes", tmp_path / "corpus", limit=20)
    assert capfd.readouterr() == ("", "")
    contextwise.train(recipe, changes, verbose=True)
    assert "finished already" in capfd.readouterr().err


def test_the_package_lists_its_functions_and_no_internals():
    assert {"train", "evaluate", "curve", "compare", "trial", "prepare", "load"} <= set(dir(contextwise))
    assert not {"base", "cli", "metadata", "TYPE_CHECKING"} & set(dir(contextwise))
    for name in dir(contextwise):
        assert getattr(contextwise, name) is not None


LOAD = "from transformers import AutoModelForCausalLM as Auto"


@pytest.mark.long
@pytest.mark.parametrize(
    "imports", [f"import contextwise; {LOAD}", pytest.param(f"{LOAD}; import contextwise", marks=pytest.mark.slow)]
)
def test_models_load_by_the_auto_classes_in_any_order_of_imports(results, imports):
    folder = results["run"].path / "model"
    code = f"{imports}; print(type(Auto.from_pretrained({str(folder)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ContextLMForCausalLM\n", done.stderr


def test_importing_imports_nothing_heavy():
    code = "import contextwise, sys; print([name for name in ('torch', 'transformers', 'pydantic') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    assert Path(contextwise.__file__).is_file()


@pytest.mark.long
def test_a_configuration_makes_its_model_known_wherever_its_class_came_from():
    code = (
        "from contextwise_papers.objectives.multitoken.config import MultiTokenConfig\n"
        "from transformers import AutoModelForCausalLM\n"
        "print(type(AutoModelForCausalLM.from_config(MultiTokenConfig())).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "MultiTokenForCausalLM\n", done.stderr


REFUSALS = """
import contextlib, io, sys
from contextwise import cli
from contextwise.cli.commands import _command, verbs

for typed in verbs():
    if typed == "demo":
        continue
    words = ["contextwise", *typed.split()]
    for each in _command(typed).make_context(None, [], resilient_parsing=True).command.params:
        if each.param_type_name == "argument" or each.required:
            options = [] if each.param_type_name == "argument" else [each.opts[0]]
            words += [*options, "/nowhere/x.yaml" if each.metavar == "RECIPE" else "/nowhere/x"]
    sys.argv = words
    status = 0
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            cli.main()
        except SystemExit as end:
            status = end.code
    if status != 2 or not errors.getvalue().startswith("error: ") or "torch" in sys.modules:
        sys.exit(f"{words} ended with {status}, torch imported: {'torch' in sys.modules}\\n{errors.getvalue()}")
"""


@pytest.mark.long
def test_a_path_where_nothing_is_is_refused_by_every_verb_before_torch_is_imported():
    done = subprocess.run([sys.executable, "-c", REFUSALS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MISSPELT = """
import sys
from contextwise import cli

sys.argv = ["contextwise", "train", "gpt2-nano", "--set", "model.variant=" + sys.argv[1]]
try:
    cli.main()
finally:
    print(sorted({"torch", "pandas"} & set(sys.modules)))
"""


def test_a_misspelt_class_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\n\n\nclass Right:\n    pass\n")
    command = [sys.executable, "-c", MISSPELT, f"{tmp_path}/mine.py:Rihgt"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert "has no class and no function 'Rihgt'; did you mean 'Right'?" in done.stderr


def test_the_functions_have_the_options_of_what_they_call():
    """Signatures are written out, for notebooks and editors; the options and their defaults are those of one other place."""
    own = {name: each.default for name, each in inspect.signature(contextwise.measure).parameters.items()}
    own = {name: own[name] for name in ("split", "out", "overwrite", "dtype", "device", "batch_tokens", "verbose")}
    for function, settings in ((contextwise.evaluate, Loss), (contextwise.curve, Curve)):
        fields = {name: field.default for name, field in settings.model_fields.items()}
        assert keywords(function) == fields | own
    assert keywords(contextwise.prepare) == keywords(prepare_corpus) | {"verbose": False}
    assert keywords(contextwise.compare) == {"split": None, "limit": None} | (
        keywords(compare, "results", "names") | {"curves": False, "verbose": False}
    )
    fields = {name: None for name in TrialSettings.model_fields if name not in ("arms", "corpus", "output")}
    assert keywords(contextwise.trial) == fields | {"verbose": False}
    for function, names in (
        (contextwise.trial, fields),
        (contextwise.curve, Curve.model_fields),
        (contextwise.evaluate, Loss.model_fields),
    ):
        unsaid = [name for name in names if not re.search(rf"^ {{8}}.*\b{name}\b.*: ", function.__doc__, re.MULTILINE)]
        assert unsaid == [], function
    assert f"{DEFAULT_SAMPLES:,}" in contextwise.curve.__doc__


def keywords(function, *left_out):
    """Name -> default of the parameters that are given by name alone."""
    parameters = inspect.signature(function).parameters.items()
    return {name: each.default for name, each in parameters if each.kind == each.KEYWORD_ONLY and name not in left_out}


def test_the_caption_of_a_curve_names_bars_where_there_are_some(results):
    from contextwise.reports.runs import curve_plot

    curve = results["curve"]
    alone = [each | {"minus_longest_low": None, "minus_longest_high": None} for each in curve.bins]  # one document
    summaries = [{"bins": bins, "documents": curve.summary["documents"]} for bins in (curve.bins, alone)]
    shown = [curve_plot("c", {"": (SimpleNamespace(summary=summary), 0)}, "") for summary in summaries]
    assert ["paired by document" in plot.caption for plot in shown] == [True, False]
    assert ["error_y" in plot.figure["data"][0] for plot in shown] == [True, False]


def test_a_run_with_a_damaged_measurement_is_shown_with_the_reason(results, tmp_path):
    run = RunFolder(shutil.copytree(results["run"].path, tmp_path / "run"))
    (first, *_) = results_of(run.evaluation)
    (first.path / "summary.json").write_text("{")
    shown = run._repr_html_()
    assert "its page cannot be shown" in shown and "is damaged" in shown and "validation loss" in shown


def test_the_package_is_imported_from_a_zip_file(tmp_path):
    sources = Path(contextwise.__file__).parent
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        for file in sources.rglob("*.py"):
            packed.write(file, file.relative_to(sources.parent))
    path = os.pathsep.join([str(tmp_path / "packed.zip"), sysconfig.get_path("purelib")])
    code = "import contextwise; print(contextwise.__file__, contextwise.decide.__name__, 'trial' in dir(contextwise))"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path)
    assert "packed.zip" in done.stdout and done.stdout.endswith("decide True\n"), done.stderr
