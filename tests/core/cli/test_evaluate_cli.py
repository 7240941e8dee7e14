"""``contextwise evaluate`` and ``contextwise compare``, as they are typed."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import contextwise as contextwise_python
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import say_once
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.tokenizers import CorpusTokenizer
from contextwise.evaluation.kernel import open_documents, results_of
from contextwise.models import load_model
from small import run_summary, small_gpt2, write_rows, write_run

WORDS = ["a", "corpus", "of", "small", "texts", "that", "are", "scored", "from", "the", "command", "line"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A corpus and two runs in one folder."""
    folder = tmp_path_factory.mktemp("work")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, generator.integers(2, 20))) + f" {i}" for i in range(50)]
    write_rows(folder / "texts.jsonl", ({"text": text} for text in texts))
    corpus = prepare_corpus(folder / "texts.jsonl", "bytes", folder / "corpus", validation=0.4)
    for seed, name in enumerate(("alpha", "beta")):
        recipe = {"name": name, "seed": 0, "data": {"context": 32, "corpus": "corpus"}}
        run = write_run(folder / "runs" / name, small_gpt2(corpus.vocab_size, seed=seed), corpus.tokenizer(), recipe)
        trained_on = {"path": "corpus", "fingerprint": corpus.fingerprint}
        RunFolder(run).write_summary(run_summary(tokens=10, corpus=trained_on))
    return folder


def test_evaluate_prints_a_table(contextwise, workplace):
    words = contextwise.words("evaluate runs/alpha --corpus corpus")
    (result,) = (workplace / "runs/alpha/evaluation").glob("evaluate-corpus-validation-*")
    summary = json.loads((result / "summary.json").read_text())
    for expected in (
        f"{summary['loss']['value']:.4f}",
        f"[{summary['bits_per_byte']['low']:.4f}, {summary['bits_per_byte']['high']:.4f}]",
        "windows of 32, stride 16",
        f"{summary['documents']} documents",
        f"written to runs/alpha/evaluation/{result.name}/",
    ):
        assert expected in words
    files = {"documents.parquet", "manifest.json", "summary.json", "tokens.parquet"}
    assert {file.name for file in result.iterdir()} == files


def test_evaluate_prints_json_alone_to_standard_output(contextwise, workplace):
    options = "--corpus corpus --stride 8 --context 20 --json --out e"
    status, output, _ = contextwise(f"evaluate runs/alpha/model {options}")
    assert status == 0
    assert json.loads(output) == json.loads((workplace / "e" / "summary.json").read_text())
    expected = {"context": 20, "stride": 8, "full_windows": False, "limit": None}
    assert json.loads(output)["settings"] == expected


def test_evaluate_reports_when_the_documents_were_trained_on(contextwise):
    say_once.cache_clear()
    status, _, errors = contextwise("evaluate runs/alpha --corpus corpus --split train")
    assert status == 0 and "trained on these very documents" in errors


def test_texts_that_the_run_was_trained_on_are_noted_each_time(contextwise, workplace):
    """Half of the given texts are those of the training split; the note is part of the result."""
    trained = Corpus.open(workplace / "corpus", "train")
    tokenizer, held_out = trained.tokenizer(), Corpus.open(workplace / "corpus", "validation")
    longest = ((each, i) for each in (trained, held_out) for i in np.argsort(each.lengths)[-4:])
    texts = [tokenizer.decode(each.document(i)) for each, i in longest]
    write_rows(workplace / "mixed.jsonl", ({"text": text} for text in texts))
    for _ in range(2):
        say_once.cache_clear()
        status, _, errors = contextwise("evaluate runs/alpha --corpus mixed.jsonl --out mixed")
        assert (
            status == 0
            and "4 of the 8 documents share half or more of their text with that of the training"
            in " ".join(errors.split())
        )
    assert "too low" in json.loads((workplace / "mixed" / "summary.json").read_text())["seen"]


def test_texts_of_a_corpus_in_another_folder_are_noted(contextwise, workplace):
    """The summary has the last part of its path alone."""
    corpus = shutil.copytree(workplace / "corpus", workplace / "elsewhere" / "below")
    recipe = {"name": "gamma", "seed": 0, "data": {"context": 32, "corpus": "elsewhere/below"}}
    trained = Corpus.open(corpus, "train")
    run = write_run(workplace / "gamma", small_gpt2(trained.vocab_size), trained.tokenizer(), recipe)
    about = {"path": "below", "fingerprint": trained.fingerprint}
    RunFolder(run).write_summary(run_summary(tokens=10, corpus=about))
    texts = [trained.tokenizer().decode(trained.document(i)) for i in np.argsort(trained.lengths)[-4:]]
    write_rows(workplace / "trained.jsonl", ({"text": text} for text in texts))
    say_once.cache_clear()
    status, _, errors = contextwise("evaluate gamma --corpus trained.jsonl")
    assert status == 0 and "4 of the 4 documents share half or more" in " ".join(errors.split())


def test_copies_of_a_document_are_noted_as_no_evidence_of_their_own(contextwise, workplace):
    text = "a sentence of some words, and one more of others"
    write_rows(workplace / "same.jsonl", [{"text": text}] * 7 + [{"text": f"{text} {i}"} for i in range(3)])
    say_once.cache_clear()
    status, _, errors = contextwise("evaluate runs/alpha --corpus same.jsonl")
    assert status == 0 and "6 of the 10 documents have the text of another one" in " ".join(errors.split())


def test_near_copies_between_the_splits_of_the_runs_own_corpus_are_noted(contextwise, workplace):
    """As they are of another model on the same documents: a comparison must not note them of one of two alone."""
    trained = Corpus.open(workplace / "corpus", "train")
    texts = [{"text": trained.tokenizer().decode(trained.document(i))} for i in np.argsort(trained.lengths)[-6:]]
    write_rows(workplace / "first.jsonl", texts)
    write_rows(workplace / "second.jsonl", [{"text": each["text"] + " more"} for each in texts[:3]])
    prepared = "prepare train=first.jsonl validation=second.jsonl --tokenizer runs/alpha/model --out own"
    assert contextwise(prepared)[0] == 0
    corpus = Corpus.open(workplace / "own", "train")
    recipe = {"name": "delta", "seed": 0, "data": {"context": 32, "corpus": str(workplace / "own")}}
    run = write_run(workplace / "delta", small_gpt2(corpus.vocab_size), corpus.tokenizer(), recipe)
    RunFolder(run).write_summary(run_summary(tokens=10, corpus={"path": "own", "fingerprint": corpus.fingerprint}))
    say_once.cache_clear()
    status, _, errors = contextwise("evaluate delta --corpus own")
    assert status == 0 and "3 of the 3 documents share half or more" in " ".join(errors.split())


def test_curves_of_two_modes_have_a_figure_each_on_the_page_of_a_run(contextwise, workplace):
    """One has the same targets at each context, the other has not."""
    for mode in ("bands", "running"):
        assert contextwise(f"curve runs/beta --corpus corpus --split train --mode {mode} --context 32")[0] == 0
    assert contextwise("report runs/beta --out page.html")[0] == 0
    page = (workplace / "page.html").read_text()
    assert "of the same targets (mode bands)" in page and "whose targets differ (mode running)" in page


def test_a_run_whose_recipe_was_cut_is_measured_as_before(contextwise, workplace):
    """What it was trained on is then looked up with the usual split."""
    shutil.copytree(workplace / "runs/beta", workplace / "runs/cut")
    (workplace / "runs/cut/recipe.yaml").write_text("name: beta\n")
    assert contextwise("evaluate runs/cut --corpus corpus --context 32 --out of-cut")[0] == 0


def test_a_warning_on_a_text_that_two_models_read_is_printed_once(workplace, tmp_path, capsys):
    write_rows(tmp_path / "three.jsonl", ({"text": f"{i} corpus of small texts"} for i in range(3)))
    say_once.cache_clear()  # of other tests of this process
    for out in ("one", "two"):
        prepare_corpus(f"validation={tmp_path / 'three.jsonl'}", "bytes", tmp_path / out)
    assert capsys.readouterr().err.count("the split 'validation' of three.jsonl holds 3 documents; a comparison") == 1


def test_a_file_of_texts_is_read_with_the_models_tokenizer(contextwise, workplace, monkeypatch):
    prepare_corpus(f"validation={workplace / 'texts.jsonl'}", "bytes", workplace / "whole")
    expected = json.loads(contextwise("evaluate runs/alpha --corpus whole --json")[1])
    line = "evaluate runs/alpha --corpus texts.jsonl --json"
    found = json.loads(contextwise(line)[1])
    assert found["loss"] == expected["loss"] and found["documents"] == 50
    (corpus,) = (workplace / "corpora").glob("texts-*")
    assert found["corpus"]["path"] == f"corpora/{corpus.name}"
    assert json.loads(contextwise(line)[1]) == found  # found again
    held_out = contextwise("evaluate runs/alpha --corpus texts.jsonl --split test --json")
    assert json.loads(held_out[1])["corpus"]["split"] == "test"
    assert (
        contextwise_python.evaluate(workplace / "runs" / "alpha", workplace / "texts.jsonl").summary["loss"]
        == found["loss"]
    )
    model = load_model(workplace / "runs" / "alpha", device="cpu")
    monkeypatch.chdir(workplace)
    losses = [
        contextwise_python.evaluate(each, "texts.jsonl", context=8).summary["loss"] for each in ("runs/alpha", model)
    ]
    assert losses[0] == losses[1]
    made = type(model)(model.config)
    made.name_or_path = ""
    why = r"from no folder has no tokenizer to read the texts in texts\.jsonl with; .*\.prepare\('texts\.jsonl', TOKENIZER,"
    for ask in (contextwise_python.evaluate, contextwise_python.curve, contextwise_python.compare):
        with pytest.raises(ConfigError, match=why):
            ask([made, made] if ask is contextwise_python.compare else made, "texts.jsonl")
    contextwise.refused("evaluate runs/alpha --corpus no.jsonl", "there is no file no.jsonl")


def test_a_folder_a_pattern_and_a_text_that_is_cut_are_read_like_a_file(contextwise, workplace):
    folder = workplace / "several"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"a corpus of {number}\n\nsmall texts")
    for given, documents in (
        ("several", 3),
        ("'several/[01].txt'", 2),
        ("paragraphs:several/0.txt", 2),
        ("several/0.txt", 1),
    ):
        status, printed, _ = contextwise(f"evaluate runs/alpha --corpus {given} --json")
        assert status == 0 and json.loads(printed)["documents"] == documents, given
    (folder / "3.txt").write_text("one more")
    assert json.loads(contextwise("evaluate runs/alpha --corpus several --json")[1])["documents"] == 4
    assert "paragraphs:FILE is cut at its blank lines" in contextwise.words(
        "evaluate runs/alpha --corpus several/0.txt"
    )
    contextwise.refused("evaluate runs/alpha --corpus 'several/*.md'", "no file matches several/*.md")
    contextwise.refused("evaluate runs/alpha --corpus paragraphs:corpus", "is a corpus that is already prepared")


@pytest.mark.parametrize("template", ["<s> $A", "<s> $A </s>", "$A </s>", "$A"])
def test_texts_begin_with_the_start_token_that_the_tokenizer_puts_before_them(tmp_path, monkeypatch, template):
    """As lm-evaluation-harness prefixes them; a tokenizer that ends texts itself is not that of a decoder."""
    monkeypatch.chdir(tmp_path)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    model = small_gpt2(len(tokenizer)).eval()
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    texts = ["one text of words", "another"]
    write_rows(tmp_path / "texts.jsonl", ({"text": text} for text in texts))
    result = contextwise_python.evaluate("model", corpus="texts.jsonl", context=30, dtype="float32")
    first = 0 if template == "<s> $A" else 1
    for text, nats in zip(texts, result.to_pandas()["nats"], strict=True):
        ids = torch.tensor([[first, *tokenizer(text, add_special_tokens=False).input_ids]])
        expected = model(ids, labels=ids).loss * (ids.shape[1] - 1)
        assert nats == pytest.approx(expected.item(), rel=1e-5)
    ways: dict[str, Any] = {"corpus": "texts.jsonl", "contexts": [3], "mode": "truncated", "dtype": "float32"}
    curve = contextwise_python.curve("model", **ways)
    assert curve.summary["settings"]["bos"] is (template == "<s> $A")
    assert contextwise_python.curve("model", bos=template == "<s> $A", **ways).bins == curve.bins
    rows = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    windows = [[0, *row[end - 3 : end + 1]] for row in rows for end in range(3, len(row))]
    with torch.no_grad():
        log_p = model(torch.tensor(windows)[:, :-1]).logits[:, -1].log_softmax(-1)
    expected = -log_p.gather(1, torch.tensor(windows)[:, -1:]).mean()
    (tmp_path / "long.txt").write_text("some words " * 20)
    with pytest.raises(ConfigError, match="at most 47 behind a start token"):
        contextwise_python.curve("model", corpus="long.txt", context=48, bos=True)
    begun = contextwise_python.curve("model", bos=True, **ways)
    assert begun.bins[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("start", [None, "<s>"])
def test_a_tokenizer_of_few_characters_has_its_start_token(start):
    made = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "C": 2, "G": 3, "T": 4}, []))
    made.add_special_tokens(["<s>", "</s>"])
    if start:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
    assert CorpusTokenizer(tokenizer, "folder", "dna", 1).start == start


def test_a_file_of_texts_is_prepared_for_each_end_of_text_and_as_it_was_hashed(workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, text = tmp_path / "model", tmp_path / "texts.txt"
    shutil.copytree(workplace / "runs" / "alpha" / "model", model)
    text.write_text("one text")
    first = open_documents(model, text, "validation")
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": "a"}))
    second = open_documents(model, text, "validation")
    assert (first.end_of_text, second.end_of_text) == (256, ord("a"))

    def and_another_writes(*arguments, **options):
        text.write_text("another text")
        return prepare_corpus(*arguments, **options)

    text.write_text("a third text")
    monkeypatch.setattr("contextwise.data.prepare_corpus", and_another_writes)
    with pytest.raises(DataError, match="was changed while it was read"):
        open_documents(model, text, "validation")
    assert len(list((tmp_path / "corpora").iterdir())) == 2


def test_compare_evaluates_what_is_missing_and_writes_json(contextwise, workplace):
    words = contextwise.words("compare runs/alpha runs/beta --corpus corpus --reference beta")
    content = json.loads(contextwise("compare runs/alpha runs/beta --corpus corpus --reference beta --json")[1])
    assert [group["name"] for group in content["groups"]] == ["alpha", "beta"]
    (difference,) = content["differences"]
    assert (difference["group"], difference["reference"]) == ("alpha", "beta")
    assert difference["verdict"] in words
    alpha, beta = [
        result.summary["loss"]["value"]
        for name in ("alpha", "beta")
        for result in results_of(workplace / "runs" / name / "evaluation", "evaluate")
        if result.summary["label"] == "corpus-validation"
    ]
    assert difference["difference"]["value"] == pytest.approx(alpha - beta)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "compare runs/alpha runs/beta --corpus corpus --html texts.jsonl",
            "texts.jsonl is no page, and would be lost",
        ),
        ("compare runs/alpha ./runs/alpha --corpus corpus", "is given twice; name each run once"),
        ("evaluate runs/alpha --corpus bodies.jsonl", "Those are options of `contextwise prepare`; give its corpus"),
        (
            "evaluate runs/alpha --corpus corpus --out runs/beta",
            "runs/beta holds no result of a measurement: it is a run; choose another folder for the result",
        ),
    ],
)
def test_what_cannot_be_written_or_compared_is_refused_before_it_is_measured(
    contextwise, workplace, monkeypatch, line, message
):
    monkeypatch.setattr("contextwise.evaluation.measures.loss.Loss.run", lambda *_: pytest.fail("it was measured"))
    write_rows(workplace / "bodies.jsonl", [{"body": "a text"}])
    contextwise.refused(line, message)


def test_compare_without_an_evaluation_names_the_command(contextwise, workplace):
    contextwise.words("evaluate runs/alpha --corpus corpus")
    shutil.copytree(workplace / "runs/beta/model", workplace / "runs/new/model")
    (workplace / "runs/new/recipe.yaml").write_text("name: new\n")
    message = "runs/new has no such evaluation yet; run: contextwise evaluate runs/new --corpus"
    contextwise.refused("compare runs/alpha runs/new --label corpus-validation", message)
    contextwise.refused("compare runs/alpha runs/new --label x --corpus corpus", "give one of them")
