"""``contextwise curve`` and ``contextwise compare --curves``, as they are typed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from command_line import in_terminal
from contextwise.base.estimates import Estimate, written
from contextwise.data import Corpus
from contextwise.evaluation.kernel import results_of
from contextwise.evaluation.measures.curve import Curve, CurveResult, measures_table
from small import write_run

COMMAND = "curve runs/alpha --corpus corpus --mode running"
BANDS = "curve runs/alpha --corpus corpus"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, corpus_folder):
    """A corpus and a run (a few thousand parameters, never trained) in one folder."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(corpus_folder, folder / "corpus")
    corpus, run = Corpus.open(corpus_folder), folder / "runs" / "alpha"
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=corpus.vocab_size, max_position_embeddings=32, **size))
    write_run(run, model, corpus.tokenizer(), {"name": "alpha", "data": {"context": 32}})
    return folder


def test_the_tables_agree_with_the_summary(contextwise, workplace):
    printed = contextwise.words(f"{COMMAND} --context 128")
    (result,) = results_of(workplace / "runs/alpha/evaluation", "curve")
    summary = result.summary
    best, effective = (summary["measures"][name] for name in ("lowest_bin", "effective_context"))
    *others, _ = summary["bins"]
    for row in others:
        difference, low, high = (row[name] for name in ("minus_longest", "minus_longest_low", "minus_longest_high"))
        loss = f"{row['loss']:.4f} [{row['low']:.4f}, {row['high']:.4f}]"
        assert f"{loss} {Estimate(difference, low, high):+.4f} {row['targets']:,}" in printed
    for wanted in (
        f"windows of 128 tokens in {summary['documents']} documents; it was trained with 32 tokens.",
        "beyond the training context of 32",
        f"lowest bin {best['value']:.4f}",
        f"effective context {effective['value']:,.0f}" if effective["value"] else "effective context >",
        f"average loss {summary['measures']['average_loss']['value']:.4f}",
        "mean of 30–32",
        f"written to runs/alpha/evaluation/{result.path.name}/",
    ):
        assert wanted in printed
    words = in_terminal(Curve.table(summary | {"run": False}))
    assert "the model has positions for 32 tokens." in " ".join(words.split())
    assert printed.count("*") > 2  # bins beyond the training context are marked


def test_an_effective_context_beyond_the_last_doubling_says_what_that_gains():
    loss = {"value": 2.5, "low": None, "high": None, "visible_from": 9, "visible_to": 9}
    reach = {"low": None, "high": None, "measured_from": 1.0, "measured_to": 496.4, "worth": 0.01}
    measures = {"lowest_bin": loss, "best_context_loss": None, "average_loss": None}
    rows = [
        measures_table({"measures": measures | {"effective_context": reach | {"value": value}}}).rows[1]
        for value in (None, 41.2)
    ]
    assert rows[0] == ["effective context", "> 496", "–", "from 496 a doubling may gain ≥ 0.01"]
    assert rows[1] == ["effective context", "41", "–", "from there a doubling gains < 0.01"]
    unknown = dict.fromkeys(("value", "low", "high", "measured_from", "measured_to")) | {"worth": 0.01}
    (_, row) = measures_table({"measures": measures | {"effective_context": unknown}}).rows
    assert row == ["effective context", "–", "–", "needs a context and its double"]
    bins = [loss | {"loss": 3.5, "visible_from": 1, "visible_to": 1}, loss | {"loss": 2.5}]
    beyond = reach | {"value": None, "method": "t", "documents": 25}  # the whole interval
    table = measures_table({"measures": measures | {"effective_context": beyond}})
    assert table.rows[1] == ["effective context", "> 496", "> 496", "from 496 a doubling gains ≥ 0.01"]
    summary = {"model": "runs/a", "bins": bins, "measures": measures | {"effective_context": beyond}}
    answer = (
        "a: 3.50 nats per token with 1 visible token, 2.50 with 9; effective context > 496: twice that still gains 0.01"
    )
    assert CurveResult(Path("c"), summary).answer == f"{answer} nats or more"
    summary["measures"]["effective_context"] = beyond | {"low": 439.0}  # which may be enough
    assert CurveResult(Path("c"), summary).answer.endswith("effective context > 496 [439, > 496]")
    summary["measures"]["effective_context"] = beyond | {"low": 1.0}  # as may any context
    assert CurveResult(Path("c"), summary).answer.endswith("effective context not determined [1, > 496]")


@pytest.mark.parametrize(
    ("low", "high", "hint"), [(9.0, 79.0, True), (9.0, None, True), (9.0, 36.0, False), (None, None, False)]
)
def test_a_wide_interval_of_the_effective_context_asks_for_more_targets(contextwise, low, high, hint):
    """One that is wholly beyond what was measured (no limits) is not made better by more of them."""
    contextwise.words(f"{BANDS} --samples 40 --out wide")
    summary = json.loads((contextwise.folder / "wide" / "summary.json").read_text()) | {"documents": 26}
    summary["measures"]["effective_context"] |= {"value": 20.0, "low": low, "high": high}
    words = " ".join(str(Curve.table(summary).renderables[0]).split())
    assert ("More targets (--samples) narrow the interval of the effective context." in words) is hint


def test_bands_say_what_they_are(contextwise):
    words = contextwise.words(f"{BANDS} --samples 40 --out bands")
    assert (
        "the same 40 targets at 6 contexts, in" in words
        and "documents (bands); it was trained with 32 tokens." in words
    )
    assert "29–32" not in words and "32" in words and "average loss" not in words and "last tenth" not in words


def test_one_document_has_no_interval_and_the_output_says_so(contextwise):
    words = contextwise.words(f"{COMMAND} --limit 1 --out one")
    assert (
        "in 1 document; it was trained with 32 tokens. One document allows no interval: a text as --corpus "
        "paragraphs:FILE is cut" in words
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rope ntk", "--rope is 'ntk', but must be one of none, linear, dynamic, yarn"),
        ("--rope linear --rope-factor 0.5", "--rope-factor is 0.5, but must be at least 1"),
        ("--mode bands --contexts 4,8,…", "--contexts is '…', but must be a whole number"),
        (f"--context {10**14}", "no document is long enough for a context of 100,000,000,000,000"),
    ],
)
def test_bad_input_is_refused(contextwise, arguments, message):
    contextwise.refused(f"{COMMAND} {arguments}", message)


def test_curves_side_by_side(contextwise, workplace):
    outputs = [contextwise(f"{COMMAND} --context {n} --out curve-{n} --json")[1] for n in (8, 64)]
    words = contextwise.words("compare curve-8 curve-64")  # folders of curves say what they are
    rows = json.loads(contextwise("compare --curves curve-8 curve-64 --json")[1])
    for row, text in zip(rows, outputs, strict=True):
        # Documents shorter than 64 tokens count in neither; the curves alone have all that are long enough for them.
        assert row["context"] == json.loads(text)["settings"]["context"]
    average = json.loads(outputs[1])["measures"]["average_loss"]["value"]
    assert rows[1]["average"]["value"] == pytest.approx(average)
    difference = rows[1]["lowest"]["value"] - rows[0]["lowest"]["value"]
    assert rows[1]["lowest_difference"]["value"] == pytest.approx(difference)
    assert written(difference, "+.4f") in words
    contextwise.refused("compare --curves a b", "there is no run and no model at a")
    contextwise.refused("compare --curves runs/alpha", "a comparison needs two runs or more")
    assert "page: page.html" in contextwise.words("compare curve-8 curve-64 --html page.html")
    assert "Loss at each number of visible tokens" in (workplace / "page.html").read_text()
    contextwise.refused("compare curve-8 runs/alpha --unit byte", "--unit chooses among losses of documents")
