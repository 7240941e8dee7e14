"""``contextwise measure entropy`` as a user types it."""

import json
import re

import pytest
import torch
from transformers import GPT2LMHeadModel

from contextwise.data import Corpus
from small import save_model, small_gpt2

SMALL = "--contexts 2,4,8,16 --samples 100 --density-samples 60"
COMMAND = f"measure entropy gpt2 --corpus corpus {SMALL}"


@pytest.fixture(scope="module")
def workplace(corpus_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "corpus").symlink_to(corpus_folder)
    corpus = Corpus.open(corpus_folder)
    save_model(folder / "gpt2", small_gpt2(corpus.vocab_size, 32, initializer_range=0.2), corpus.tokenizer())
    return folder


def test_a_measurement_prints_its_tables_and_writes_its_page(contextwise, workplace):
    status, output, errors = contextwise(f"{COMMAND}")
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
    changed = (folder / "spectra.parquet").stat().st_mtime_ns
    status, output, errors = contextwise(f"{COMMAND} --json")
    result = json.loads(output)
    assert (folder / "spectra.parquet").stat().st_mtime_ns == changed  # nothing is measured a second time
    assert status == 0 and result["losses"] == summary["losses"] and result["measurement"]["samples"] > 0
    assert set(result["entropies"][str(min(map(int, result["entropies"])))]) == {"2", "4", "8", "16"}
    assert result["fits"]["by_entropy"] and "page:" in errors


def test_notes_are_printed(contextwise):
    words = contextwise.words("measure entropy gpt2 --corpus corpus --contexts 4,8 --samples 60 --out two")
    assert "Note: A power law has three parameters and needs four contexts or more" in words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--contexts 16,x", "--contexts is 'x', but must be a whole number"),
        ("--layer first", "--layer: must be last, or the number of a hidden state, from 0"),
        ("--seed -1", "--seed is '-1', but must be at least 0"),
    ],
)
def test_bad_input_is_refused(contextwise, options, message):
    contextwise.refused(f"{COMMAND} --out refused {options}", message)


def test_features_with_nan_are_named(contextwise, workplace):
    model = GPT2LMHeadModel.from_pretrained(workplace / "gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[3] = float("nan")
    save_model(workplace / "broken", model, Corpus.open(workplace / "corpus").tokenizer())
    status, _, errors = contextwise(f"measure entropy broken --corpus corpus {SMALL}")
    assert status == 2
    assert "wpe.weight of broken hold numbers that are not finite" in " ".join(errors.split())
    assert not [*(workplace / "evaluation" / "broken").glob("**/*")]  # nor is a state left behind
