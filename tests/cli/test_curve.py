"""``contextwise curve`` and ``contextwise compare-curves``, as they are typed."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from contextwise.data import Corpus
from contextwise.evaluation.kernel import results_of, work
from contextwise.evaluation.measures.curve import passes

COMMAND = ("curve", "runs/alpha", "--corpus", "corpus")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, corpus_folder):
    """A corpus and a run (a few thousand parameters, never trained) in one folder."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(corpus_folder, folder / "corpus")
    corpus, run = Corpus.open(corpus_folder), folder / "runs" / "alpha"
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(vocab_size=corpus.vocab_size, max_position_embeddings=32, **size)
    ).save_pretrained(run / "model")
    for file in (corpus.path / "tokenizer").iterdir():
        shutil.copy(file, run / "model")
    (run / "recipe.yaml").write_text(yaml.safe_dump({"name": "alpha", "data": {"context": 32}}))
    return folder


def test_tables_fit_80_columns_and_say_what_the_summary_says(contextwise, workplace):
    status, output, _ = contextwise(*COMMAND, "--context", 128)
    (result,) = results_of(workplace / "runs/alpha/evaluation", "curve")
    summary = result.summary
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    best, effective = (summary["measures"][name] for name in ("best_context_loss", "effective_context"))
    printed = " ".join(output.split())
    for row in summary["bins"]:
        assert f"{row['loss']:.4f} [{row['low']:.4f}, {row['high']:.4f}] {row['targets']:,}" in printed
    for wanted in (
        f"windows of 128 tokens in {summary['documents']} documents; trained with 32.",
        "beyond the training context of 32",
        f"best-context loss {best['value']:.4f}",
        f"effective context {effective['value']:,.0f}" if effective["value"] else "effective context >",
        f"average loss {summary['measures']['average_loss']['value']:.4f}",
        "mean of 30–32",
        f"written to runs/alpha/evaluation/{result.path.name}/",
    ):
        assert wanted in printed
    assert output.count("*") > 2  # bins beyond the training context are marked


def test_json_alone_on_standard_output(contextwise, workplace):
    options = (
        "--mode",
        "truncated",
        "--contexts",
        "4,16,32",
        "--samples",
        50,
        "--seed",
        3,
        "--json",
        "--out",
        "t",
    )
    status, output, _ = contextwise(*COMMAND, *options, "--worth", 0.5)
    assert status == 0
    summary = json.loads(output)
    assert summary == json.loads((workplace / "t" / "summary.json").read_text())
    settings = summary["settings"]
    assert (settings["contexts"], settings["samples"], settings["seed"], settings["worth"]) == (
        [4, 16, 32],
        50,
        3,
        0.5,
    )


def test_a_lowest_bin_of_few_targets_is_no_finding(contextwise):
    few = ("--limit", 2, "--context", 64, "--out", "few")
    status, output, _ = contextwise(*COMMAND, *few)
    said = " ".join(output.split())
    assert status == 0 and "targets only, and each bin has others: it may be the lowest by chance" in said
    _, output, _ = contextwise(*COMMAND, *few[:4], "--mode", "truncated", "--samples", 20, "--out", "same")
    assert "by chance" not in " ".join(output.split())


def test_of_a_damaged_model_nothing_is_left_behind(contextwise, workplace, monkeypatch):
    model = LlamaForCausalLM.from_pretrained(workplace / "runs" / "alpha" / "model")
    with torch.no_grad():
        model.lm_head.weight[7] = float("nan")
    model.save_pretrained(workplace / "broken")
    for file in (workplace / "corpus" / "tokenizer").iterdir():
        shutil.copy(file, workplace / "broken")
    real, calls = passes.window_losses, []

    def at_first_whole(trained, *arguments):
        calls.append(1)
        return np.ones((2, 32), np.float32) if len(calls) < 3 else real(trained, *arguments)

    monkeypatch.setattr(passes, "window_losses", at_first_whole)
    monkeypatch.setattr(work, "SECONDS_BETWEEN_SAVES", -1.0)
    arguments = ("--corpus", "corpus", "--context", 32, "--batch-tokens", 64, "--out", "b/c")
    status, _, errors = contextwise("curve", "broken", *arguments)
    assert status == 2 and len(calls) == 3 and "loss is not finite" in " ".join(errors.split())
    assert not [*(workplace / "b").glob("*")]


def test_contexts_continue_by_the_same_factor(contextwise, workplace):
    options = ("--mode", "truncated", "--contexts", "4,8,…,32", "--samples", 20, "--json", "--out", "factor")
    status, output, _ = contextwise(*COMMAND, *options)
    assert status == 0 and json.loads(output)["settings"]["contexts"] == [4, 8, 16, 32]


def test_one_document_has_no_interval_and_the_output_says_so(contextwise):
    status, output, _ = contextwise(*COMMAND, "--limit", 1, "--out", "one")
    assert status == 0 and "in 1 document; trained with 32. One document allows no interval." in " ".join(
        output.split()
    )


def test_after_a_signal_the_same_command_resumes(contextwise, workplace, monkeypatch):
    real, calls = passes.window_losses, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(passes, "window_losses", interrupted)
    options = ("--batch-tokens", 64, "--out", "resumed")
    status, output, errors = contextwise(*COMMAND, *options)
    assert status == 1 and "run the same command again to resume" in " ".join(errors.split())
    assert output == "" and not (workplace / "resumed").exists()
    status, output, errors = contextwise(*COMMAND, *options)
    assert status == 0 and "resuming a stopped measurement: 4 of" in " ".join(errors.split())
    status, _, _ = contextwise(*COMMAND, "--batch-tokens", 64, "--out", "whole")
    summaries = [json.loads((workplace / name / "summary.json").read_text()) for name in ("resumed", "whole")]
    assert status == 0 and summaries[0]["bins"] == summaries[1]["bins"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "sliding"], "--mode is 'sliding', but input should be 'running' or 'truncated'"),
        (["--rope", "ntk"], "--rope is 'ntk', but input should be 'none', 'linear', 'dynamic' or 'yarn'"),
        (["--rope-factor", 2], "a rope factor is given, but no method"),
        (
            ["--rope", "linear", "--rope-factor", 0.5],
            "--rope-factor is '0.5', but input should be greater than or",
        ),
        (["--worth", 0], "--worth is '0', but input should be greater than 0"),
        (["--contexts", "4,8"], "contexts belong to the truncated mode"),
        (
            ["--mode", "truncated", "--contexts", "4;8"],
            "--contexts is '4;8', but input should be a valid integer",
        ),
        (
            ["--mode", "truncated", "--contexts", "4,8,…"],
            "--contexts is '…', but input should be a valid integer",
        ),
        (["--context", 10**20], "no document is long enough for a context of 100,000,000,000,000,000,000"),
        (
            ["--mode", "truncated", "--context", 10**20],
            "no document has a token with 100,000,000,000,000,000,000",
        ),
        (["--context", 5000], "no document is long enough for a context of 5,000 tokens: the longest of the"),
        (["--batch-tokens", 0], "--batch-tokens is 0; it must be at least 1"),
        (["--split", "dev"], "no split 'dev'; it has"),
    ],
)
def test_bad_input_is_one_message_and_status_2(contextwise, arguments, message):
    status, output, errors = contextwise(*COMMAND, *arguments)
    assert status == 2 and message in " ".join(errors.split())
    assert output == "" and "Traceback" not in errors


def test_curves_side_by_side(contextwise, workplace):
    short, long = (contextwise(*COMMAND, "--context", n, "--out", f"curve-{n}", "--json") for n in (8, 64))
    status, output, _ = contextwise("compare-curves", "curve-8", "curve-64", "--out", "both.json")
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    rows = json.loads((workplace / "both.json").read_text())
    for row, (_, text, _) in zip(rows, (short, long), strict=True):
        # Documents shorter than 64 tokens count in neither; the curves alone have all that are long enough for them.
        assert row["context"] == json.loads(text)["settings"]["context"]
    assert rows[1]["average"]["value"] == pytest.approx(
        json.loads(long[1])["measures"]["average_loss"]["value"]
    )
    difference = rows[1]["best"]["value"] - rows[0]["best"]["value"]
    assert rows[1]["best_difference"]["value"] == pytest.approx(difference)
    assert f"{difference:+.4f}" in output


def test_a_missing_curve_is_one_message(contextwise):
    status, _, errors = contextwise("compare-curves", "a", "b")
    assert status == 2 and "there is no run and no model at a" in errors and errors.count("\n") == 1
