"""``contextwise evaluate`` and ``contextwise compare``, as they are typed."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.data import prepare_corpus
from contextwise.evaluation.kernel import results_of

WORDS = ["a", "corpus", "of", "small", "texts", "that", "are", "scored", "from", "the", "command", "line"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A corpus and two runs (a few thousand parameters, never trained) in one folder."""
    folder = tmp_path_factory.mktemp("work")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, generator.integers(2, 20))) + f" {i}" for i in range(50)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = prepare_corpus(folder / "texts.jsonl", "bytes", folder / "corpus", validation=0.4)
    for name, seed in (("alpha", 0), ("beta", 1)):
        run = folder / "runs" / name
        run.mkdir(parents=True)
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=corpus.vocab_size, n_positions=48, n_embd=16, n_layer=1, n_head=2)
        GPT2LMHeadModel(config).save_pretrained(run / "model")
        for file in (corpus.path / "tokenizer").iterdir():
            shutil.copy(file, run / "model")
        (run / "recipe.yaml").write_text(yaml.safe_dump({"name": name, "seed": 0, "data": {"context": 32}}))
        trained_on = {"path": "corpus", "fingerprint": corpus.fingerprint}
        (run / "summary.json").write_text(json.dumps({"tokens": 10, "seconds": 1.0, "corpus": trained_on}))
    return folder


def test_evaluate_prints_a_table_that_fits_80_columns(contextwise, workplace):
    status, output, _ = contextwise("evaluate", "runs/alpha", "--corpus", "corpus")
    (place,) = (workplace / "runs/alpha/evaluation").glob("evaluate-corpus-validation-*")
    summary = json.loads((place / "summary.json").read_text())
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    for wanted in (
        f"{summary['loss']['value']:.4f}",
        f"[{summary['bits_per_byte']['low']:.4f}, {summary['bits_per_byte']['high']:.4f}]",
        "windows of 32, stride 16",
        f"{summary['documents']} documents",
        f"written to runs/alpha/evaluation/{place.name}/",
    ):
        assert wanted in " ".join(output.split())
    assert sorted(file.name for file in place.iterdir()) == [
        "documents.parquet",
        "summary.json",
        "tokens.parquet",
    ]


def test_evaluate_prints_json_alone_to_standard_output(contextwise, workplace):
    status, output, _ = contextwise(
        "evaluate",
        "runs/alpha/model",
        "--corpus",
        "corpus",
        "--stride",
        8,
        "--context",
        20,
        "--json",
        "--out",
        "e",
    )
    assert status == 0
    assert json.loads(output) == json.loads((workplace / "e" / "summary.json").read_text())
    assert json.loads(output)["settings"] == {"context": 20, "stride": 8, "limit": None}


def test_evaluate_says_when_the_documents_were_trained_on(contextwise):
    status, _, errors = contextwise("evaluate", "runs/alpha", "--corpus", "corpus", "--split", "train")
    assert status == 0 and "trained on these very documents" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/no/such", "--corpus", "corpus"], "no model at runs/no/such"),
        (["runs/alpha", "--corpus", "nowhere"], "there is no corpus at nowhere"),
        (["runs/alpha", "--corpus", "corpus", "--split", "dev"], "no split 'dev'; it has"),
        (["runs/alpha", "--corpus", "corpus", "--context", "49"], "--context is 49"),
        (
            ["runs/alpha", "--corpus", "corpus", "--stride", "33"],
            "--stride is 33; it must be between 1 and the context, 32",
        ),
    ],
)
def test_bad_input_is_one_message_and_status_2(contextwise, arguments, message):
    status, output, errors = contextwise("evaluate", *arguments)
    assert status == 2 and message in " ".join(errors.split())
    assert output == "" and "Traceback" not in errors


def test_compare_evaluates_what_is_missing_and_writes_json(contextwise, workplace):
    status, output, _ = contextwise(
        "compare", "runs/alpha", "runs/beta", "--corpus", "corpus", "--reference", "beta", "--out", "c.json"
    )
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    content = json.loads((workplace / "c.json").read_text())
    assert [group["name"] for group in content["groups"]] == ["alpha", "beta"]
    (difference,) = content["differences"]
    assert (difference["group"], difference["reference"]) == ("alpha", "beta")
    assert difference["verdict"] in " ".join(output.split())
    losses = [
        result.summary["loss"]
        for name in ("alpha", "beta")
        for result in results_of(workplace / "runs" / name / "evaluation", "evaluate")
        if result.summary["label"] == "corpus-validation"
    ]
    assert difference["difference"]["value"] == pytest.approx(losses[0]["value"] - losses[1]["value"])


def test_compare_without_an_evaluation_names_the_command(contextwise, workplace):
    shutil.copytree(workplace / "runs/beta/model", workplace / "runs/new/model")
    (workplace / "runs/new/recipe.yaml").write_text("name: new\n")
    status, _, errors = contextwise("compare", "runs/alpha", "runs/new", "--label", "corpus-validation")
    assert status == 2
    assert "runs/new has no such evaluation yet; run: contextwise evaluate runs/new --corpus" in " ".join(
        errors.split()
    )
    status, _, errors = contextwise("compare", "runs/alpha", "runs/new", "--label", "x", "--corpus", "corpus")
    assert status == 2 and "give one of them" in errors
