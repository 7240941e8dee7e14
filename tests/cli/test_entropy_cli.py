"""``contextwise entropy`` as a user types it."""

import csv
import json
import re

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.data import Corpus

SMALL = ["--contexts", "2,4,8,16", "--samples", "100", "--density-samples", "60"]


@pytest.fixture(scope="module")
def workplace(corpus_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "corpus").symlink_to(corpus_folder)
    corpus = Corpus.open(corpus_folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=corpus.vocab_size, n_positions=32, n_embd=16, n_layer=1, n_head=2, initializer_range=0.2
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    corpus.tokenizer().save_pretrained(folder / "gpt2")
    return folder


def test_a_measurement_prints_its_tables_and_writes_page_and_csv(contextwise, workplace):
    status, output, errors = contextwise("entropy", "gpt2", "--corpus", "corpus", *SMALL, "--csv", "numbers")
    assert status == 0, errors
    assert max(map(len, output.split("\n"))) <= 80
    (folder,) = (workplace / "evaluation" / "gpt2").glob("entropy-corpus-validation-*")
    summary = json.loads((folder / "summary.json").read_text())
    for context in (2, 4, 8, 16):
        loss = summary["losses"][str(context)]["value"]
        assert re.search(rf"^ +{context} +{loss:.4f} ", output, re.MULTILINE)
    for file in ("spectra.parquet", "losses.parquet", "entropy.html"):
        assert (folder / file).is_file()
    assert not list(folder.parent.glob(".*"))  # nothing of the state is left
    assert (workplace / "numbers" / "fits.csv").is_file()
    # Asked again with other things to work out, nothing is measured a second time.
    changed = (folder / "spectra.parquet").stat().st_mtime_ns
    status, _, errors = contextwise("entropy", "gpt2", "--corpus", "corpus", *SMALL, "--bandwidth", "0.5")
    assert status == 0
    assert (folder / "spectra.parquet").stat().st_mtime_ns == changed
    with (workplace / "numbers" / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["context"]) for row in rows] == [2, 4, 8, 16]
    assert float(rows[0]["loss"]) == summary["losses"]["2"]["value"]
    status, output, errors = contextwise("entropy", "gpt2", "--corpus", "corpus", *SMALL, "--json")
    result = json.loads(output)
    assert status == 0 and result["losses"] == summary["losses"] and result["measurement"]["samples"] > 0
    assert set(result["entropies"][str(min(map(int, result["entropies"])))]) == {"2", "4", "8", "16"}
    assert result["fits"]["by_entropy"] and "page:" in errors


def test_too_few_contexts_for_a_fit_are_said(contextwise):
    status, output, errors = contextwise(
        "entropy", "gpt2", "--corpus", "corpus", "--contexts", "4,8", "--samples", "60", "--out", "two"
    )
    assert status == 0, errors
    said = " ".join(output.split())
    assert (
        "Note: A power law has three parameters and needs four contexts or more to be fitted, and there are 2."
        in said
    )
    assert (
        "Note: A straight line has two parameters and needs three contexts or more to be fitted, and there are 2."
        in said
    )
    assert "Correlations need three contexts or more, and there are 2." in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--contexts", "16,x"], "--contexts is 'x', but input should be"),
        (["--contexts", "4,64"], "a context of 64 tokens does not fit the model, which has 32 positions"),
        (["--contexts", "4,9000"], "no document has a token with 9,000 tokens before it"),
        (
            [*SMALL, "--layer", "first"],
            "--layer: must be last, or the number of a hidden state, from 0",
        ),
        ([*SMALL, "--layer", "9"], "the layer is 9, but the model has hidden states 0 (the embeddings) to 1"),
        ([*SMALL, "--samples", "10"], "10 samples are too few for a spectrum"),
        ([*SMALL, "--bandwidth", "0"], "bandwidth of the kernel density is 0.0, but must be above 0"),
        ([*SMALL, "--bandwidth", "inf"], "bandwidth of the kernel density is inf"),
        ([*SMALL, "--seed", "-1"], "--seed is '-1', but input should be greater than or equal to 0"),
        (["--contexts", f"4,{10**20}"], "no document has a token with 100,000,000,000,000,000,000 tokens"),
        ([*SMALL, "--split", "test"], "has no split 'test'"),
        ([*SMALL, "--html", "."], "Invalid value for '--html': file '.' is a directory"),
        ([*SMALL, "--csv", "gpt2/config.json"], "Invalid value for '--csv'"),
    ],
)
def test_bad_input_is_one_sentence(contextwise, workplace, options, message):
    status, output, errors = contextwise(
        "entropy", "gpt2", "--corpus", "corpus", "--out", "refused", *options
    )
    assert status == 2 and not output
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors and not (workplace / "refused").exists()


def test_features_with_nan_are_named(contextwise, workplace):
    model = GPT2LMHeadModel.from_pretrained(workplace / "gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[3] = float("nan")
    model.save_pretrained(workplace / "broken")
    Corpus.open(workplace / "corpus").tokenizer().save_pretrained(workplace / "broken")
    status, _, errors = contextwise("entropy", "broken", "--corpus", "corpus", *SMALL)
    assert status == 2
    said = " ".join(errors.split())
    assert "not finite at token" in said and "with 4 tokens visible" in said
    assert not [*(workplace / "evaluation" / "broken").glob("**/*")]  # nor is a state left behind
