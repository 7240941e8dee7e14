"""Sentences scored on their own: against a recomputation by hand, against other batches, and in comparisons."""

import json
import math
import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.estimates import as_json
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import compare
from contextwise.data import Corpus, prepare_corpus
from contextwise.objectives.objective import generator
from contextwise.reports.runs import report_page
from contextwise.training import train
from contextwise_papers.cue.encoding import TextEncoder
from contextwise_papers.cue.sentences.running import Rows, Sentences, dropped, score_rows
from cue_runs import Runs, recipe, write_articles
from measured import evaluate_model, evaluate_sentences
from sentence_models import cue_model, make_corpus, proxy_model, sentence_model, write_text_encoder
from small import save_model, write_rows

LONGEST = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, a text encoder, a sentence model, and CUE models with contexts and without."""
    folder = tmp_path_factory.mktemp("cue_scoring")
    make_corpus(folder)
    encoder = write_text_encoder(folder / "bert")
    save_model(folder / "lm", sentence_model(positions=LONGEST))
    save_model(folder / "cue", cue_model(encoder, positions=LONGEST))
    save_model(folder / "short-cue", cue_model(encoder))
    save_model(folder / "plain-cue", cue_model(None))
    return folder


@pytest.fixture
def corpus(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return Corpus.open(folder / "corpus")


def by_hand(folder):
    """Each sentence's nats under the CUE model and under its sentence encoder, from nothing but transformers and the text."""
    model = AutoModelForCausalLM.from_pretrained(folder / "cue").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "cue")
    bert, pieces = AutoModel.from_pretrained(folder / "bert"), AutoTokenizer.from_pretrained(folder / "bert")

    def vector(text):
        ids = [pieces.cls_token_id, *pieces(text, add_special_tokens=False).input_ids, pieces.sep_token_id]
        ids = [*ids[:63], ids[-1]] if len(ids) > 64 else ids
        return bert(torch.tensor([ids])).last_hidden_state[0].mean(0)

    def losses(logits, targets):
        return [-row.log_softmax(-1)[target].item() for row, target in zip(logits[0], targets, strict=True)]

    end, own, alone = tokenizer.eos_token_id, [], []
    for line in (folder / "articles.jsonl").read_text().splitlines():
        article = json.loads(line)
        day = date.fromisoformat(article["date"])
        fixed = [article["title"], f"{day:%A} {day.day} {day:%B} {day.year}", ", ".join(article["topics"])]
        before = ""
        for sentence in re.findall(r"[^.]+\.\s*", article["text"]):
            ids = tokenizer(sentence, add_special_tokens=False).input_ids
            inputs = torch.tensor([[end, *ids]])
            texts = [text for text in (*fixed, before.strip()) if text]
            contexts = torch.stack([vector(text) for text in texts])[None]
            own.append(losses(model(inputs, contexts=contexts).logits, [*ids, end]))
            alone.append(losses(model.sentence_encoder(inputs).logits, [*ids, end]))
            before = sentence
    return own, alone


@torch.no_grad()
def test_the_perplexity_is_that_of_a_recomputation_by_hand(folder, corpus):
    result = evaluate_sentences("cue", corpus)
    own, alone = by_hand(folder)
    flat = np.array([nats for sentence in own for nats in sentence])
    assert np.allclose(result.tokens()["nats"].to_numpy(), flat, atol=1e-4)
    assert result.summary["tokens"] == len(flat) and result.summary["sentences"]["count"] == len(own)
    assert result.summary["perplexity"]["value"] == pytest.approx(math.exp(flat.mean()), rel=1e-5)
    without = np.concatenate([sentence[:-1] for sentence in own])
    assert result.summary["perplexity_without_ends"]["value"] == pytest.approx(math.exp(without.mean()), rel=1e-5)
    other = np.concatenate(alone)
    about = result.summary["sentence_encoder"]
    assert about["perplexity"]["value"] == pytest.approx(math.exp(other.mean()), rel=1e-5)
    assert about["difference"]["value"] == pytest.approx(flat.mean() - other.mean(), abs=1e-5)
    assert about["relative_perplexity"]["value"] == pytest.approx(math.exp(flat.mean() - other.mean()) - 1, abs=1e-5)


def test_the_files_agree_with_each_other(corpus):
    result = evaluate_sentences("cue", corpus)
    documents, targets = result.documents, result.tokens()
    sums = np.bincount(targets["document"].to_numpy(), weights=targets["nats"].to_numpy())
    assert np.allclose(documents["nats"].to_numpy(), sums)
    assert documents["tokens"].to_pylist() == np.bincount(targets["document"].to_numpy()).tolist()
    # Every token of the corpus is scored once, and every sentence's end.
    assert result.summary["tokens"] == corpus.tokens + result.summary["sentences"]["count"]
    assert documents["sentences"].to_pylist() == [1 + i % 4 for i in range(12)]
    assert targets["visible"].to_pylist() == targets["position"].to_pylist()
    assert result.summary["label"] == "corpus-train"


def test_batches_and_limits_change_nothing(corpus):
    whole = evaluate_sentences("cue", corpus).tokens()["nats"].to_numpy()
    small = evaluate_sentences("cue", corpus, batch_tokens=150).tokens()["nats"].to_numpy()
    assert np.allclose(whole, small, atol=1e-4)
    first = evaluate_sentences("cue", corpus, limit=5)
    nats = first.tokens()["nats"].to_numpy()
    assert first.summary["documents"] == 5 and np.allclose(nats, whole[: len(nats)], atol=1e-4)


def test_sentences_longer_than_the_model_are_scored_whole(corpus):
    result = evaluate_sentences("short-cue", corpus)
    about = result.summary["sentences"]
    assert about["positions"] == 48 < about["longest"] and about["in_windows"] > 0
    assert result.summary["tokens"] == corpus.tokens + about["count"]
    # What precedes a token in its sentence is seen as far as half the positions reach, at least.
    targets = result.tokens()
    visible, position = targets["visible"].to_numpy(), targets["position"].to_numpy()
    assert (visible >= np.minimum(position, 24)).all() and (visible <= 48).all()


def test_a_sentence_model_is_scored_alike(corpus):
    result = evaluate_sentences("lm", corpus)
    sentences = Sentences(corpus)
    model = sentence_model(positions=LONGEST)
    for number in (0, 7, len(sentences) - 1):
        ids = [*sentences.rows.tokens[number].tolist(), 256]
        logits = model(torch.tensor([[256, *ids[:-1]]])).logits[0].log_softmax(-1)
        want = -logits[torch.arange(len(ids)), ids].sum().item()
        first = int(sentences.rows.lengths[:number].sum())
        got = result.tokens()["nats"].to_numpy()[first : first + len(ids)].sum()
        assert got == pytest.approx(want, rel=1e-5)
    assert "contexts" not in result.summary and "cache_effect" not in result.summary


@pytest.mark.long
def test_contexts_are_a_set_and_each_counts(corpus):
    def nats(**options):
        return evaluate_sentences("cue", corpus, **options).tokens()["nats"].to_numpy()

    whole = nats()
    turned = nats(contexts=["previous_sentence", "topics", "date", "title"])
    assert np.array_equal(whole, turned)
    withheld = nats(contexts=[])
    assert np.array_equal(withheld, nats(drop_contexts=1.0))
    for types in (["title"], ["date", "topics"]):
        some = nats(contexts=types)
        assert not np.allclose(some, whole, atol=1e-3) and not np.allclose(some, withheld, atol=1e-3)
    half = evaluate_sentences("cue", corpus, drop_contexts=0.5)
    assert half.summary["condition"] == "0.5 of the contexts dropped"
    assert half.summary["settings"]["drop_contexts"] == 0.5
    assert 0.2 < half.summary["contexts"]["missing"]["date"] < 0.8


def test_what_is_dropped_depends_on_seed_and_number_alone():
    sets = [["a", None, "c"]] * 500
    first, again = dropped(sets, 0.3), dropped(sets[:100], 0.3)
    assert first[:100] == again and first != dropped(sets, 0.3, seed=1)
    kept = [text is not None for texts in first for text in (texts[0], texts[2])]
    assert 0.65 < np.mean(kept) < 0.75 and all(texts[1] is None for texts in first)
    assert dropped(sets, 0.0) == sets


def test_contexts_are_encoded_once(corpus, tmp_path, monkeypatch):
    first = evaluate_sentences("cue", corpus).tokens()["nats"].to_numpy()

    def fails(*_):
        raise AssertionError("a text that is in the cache was encoded again")

    monkeypatch.setattr(TextEncoder, "encode", fails)
    again = evaluate_sentences("cue", corpus, out=tmp_path / "again")
    assert np.array_equal(again.tokens()["nats"].to_numpy(), first)


def test_other_metadata_of_the_same_texts_are_another_question(folder, corpus, tmp_path):
    first = evaluate_sentences("cue", corpus)
    articles = (folder / "articles.jsonl").read_text().splitlines()
    rows = ({**json.loads(line), "title": "another title"} for line in articles)
    prepare_corpus(write_rows(tmp_path / "others.jsonl", rows), "bytes", tmp_path / "corpus", validation=0.0)
    other = Corpus.open(tmp_path / "corpus")
    assert other.fingerprint == corpus.fingerprint
    assert evaluate_sentences("cue", corpus).path == first.path != evaluate_sentences("cue", other).path


def test_a_context_of_no_training_is_said(corpus):
    result = evaluate_sentences("cue", corpus, contexts=["title"])
    assert result.summary["condition"] == "title"
    with pytest.raises(ConfigError, match=r"contexts names 'topcs', which is no context here; did you mean 'topics'\?"):
        evaluate_sentences("cue", corpus, contexts=["topcs"])


def test_another_text_encoder_is_refused(folder, corpus, tmp_path):
    model = cue_model(write_text_encoder(tmp_path / "bert"))
    save_model(tmp_path / "other", model)
    write_text_encoder(tmp_path / "bert", seed=5)
    with pytest.raises(CheckpointError, match=r"is not the one that the context encoder was trained with"):
        evaluate_sentences(tmp_path / "other", corpus)


def test_a_model_without_a_context_encoder_gets_none(corpus):
    result = evaluate_sentences("plain-cue", corpus)
    assert result.summary["contexts"] == {"types": [], "trained": []} and result.summary["condition"] is None
    with pytest.raises(ConfigError, match="the model has no context encoder"):
        evaluate_sentences("plain-cue", corpus, contexts=["title"])
    with pytest.raises(ConfigError, match="is no CUE model and takes no contexts"):
        evaluate_sentences("lm", corpus, contexts=[])


@pytest.mark.long
@torch.no_grad()
def test_proxies_are_scored_when_asked_for(folder, corpus):
    for noise in (0.0, 0.7):
        model = proxy_model(noise)
        save_model(folder / f"proxy-{noise}", model)
        result = evaluate_sentences(f"proxy-{noise}", corpus, contexts=["proxy"])
        assert result.summary["condition"] == "proxies" and result.summary["contexts"]["noise"] == noise
        sentences = Sentences(corpus)
        nats = sentences.rows.sums(result.tokens()["nats"].to_numpy())
        short = next(i for i in range(len(sentences)) if sentences.rows.lengths[i] <= 48)
        ids = torch.from_numpy(sentences.rows.tokens[short])
        inputs, targets = torch.cat([torch.tensor([256]), ids])[None], [*ids.tolist(), 256]
        drawn = generator(0, 0, short, "proxy_noise").standard_normal(4, dtype=np.float32)
        logits = model(inputs, proxy_targets=ids[None], proxy_noise=torch.from_numpy(drawn)[None]).logits[0]
        want = -logits.log_softmax(-1)[torch.arange(len(targets)), targets].sum().item()
        assert nats[short] == pytest.approx(want, rel=1e-4)
        # Without proxies the decoder gets what it has for a sentence of unknown words.
        assert evaluate_sentences(f"proxy-{noise}", corpus).summary["loss"] != result.summary["loss"]


def test_models_are_compared_by_article(corpus):
    result = compare(["lm", "cue"], results=evaluate_all(["lm", "cue"], corpus))
    one, other = (evaluate_sentences(source, corpus).summary["loss"]["value"] for source in ("cue", "lm"))
    difference = result.differences[0]
    assert difference.difference.value == pytest.approx(one - other, abs=1e-6)
    assert difference.difference.low < one - other < difference.difference.high
    relative = as_json(result)["differences"][0]["relative_perplexity"]["value"]
    assert relative == pytest.approx(math.exp(one - other) - 1, abs=1e-6)
    assert "cue and lm are scored sentence by sentence, each on its own, its end included." in [
        note.replace("lm and cue", "cue and lm") for note in result.notes
    ]


def test_one_model_with_and_without_contexts_is_two_members(corpus):
    places = [str(evaluate_sentences("cue", corpus, contexts=types).path) for types in (None, [])]
    result = compare(places)
    assert [group.name for group in result.groups] == ["cue", "cue (no contexts)"]
    assert not any("metadata have changed" in note for note in result.notes)


def test_sentences_and_documents_are_compared_by_the_bits_of_their_bytes_alone(corpus):
    by_document, by_sentence = evaluate_model("lm", corpus, context=32), evaluate_sentences("cue", corpus)
    sources = [str(by_document.path), str(by_sentence.path)]
    with pytest.raises(DataError, match=r"of .* whole documents were scored, and of .* single sentences"):
        compare(sources)
    result = compare(sources, unit="byte")
    bits = [each.documents["nats"].to_numpy().sum() / math.log(2) for each in (by_sentence, by_document)]
    n_bytes = sum(len(json.loads(line)["text"].encode()) for line in Path("articles.jsonl").read_text().splitlines())
    assert result.differences[0].difference.value == pytest.approx((bits[0] - bits[1]) / n_bytes, abs=1e-9)
    assert any(note.startswith("cue is scored sentence by sentence") for note in result.notes)


def test_a_cue_model_reads_no_documents(corpus):
    with pytest.raises(
        ConfigError, match="cue does not read whole documents; score it with contextwise measure sentences"
    ):
        evaluate_model("cue", corpus)


def test_an_evaluation_by_sentence_is_said_to_be_one(tmp_path):
    sources = [
        f"{name}={write_articles(tmp_path / f'{name}.jsonl', 12, i)}" for i, name in enumerate(("train", "test"))
    ]
    corpus = prepare_corpus(sources, "train:300", tmp_path / "corpus").path
    lm = Runs(tmp_path, corpus, "").sentence_models()[0]
    run = train(recipe(lm))
    evaluate_sentences(run.path, Corpus.open(corpus, split="test"))
    report_page([run]).write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "sentences of 12 documents, each on its own; " in page
    assert "windows of" not in page


def test_the_end_of_a_sentence_is_a_target():
    rows = Rows([np.array([5, 6]), np.array([7])], end_of_text=256)
    assert rows.document(0).tolist() == [5, 6, 256] and rows.lengths.tolist() == [3, 2]
    assert rows.ends().tolist() == [False, False, True, False, True]
    assert rows.sums(np.arange(5.0)).tolist() == [3.0, 7.0]
    assert len(score_rows(sentence_model(), rows).nats) == 5
