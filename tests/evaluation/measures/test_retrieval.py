"""Retrieval: ranks and ties by hand, an ordering by hand, the verb on real runs' tokenizers, and what is refused."""

import json

import numpy as np
import pytest

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.retrieval import Retrieval, _Texts, ordering, ranks
from embedding_models import bert, gpt2, tokenizer
from small import save_model


def test_ranks_by_hand():
    """Cosines of the queries (1, 0) and (0, 2) with the documents: 1, 0, 0.6 and 0, 1, 0.8."""
    documents = np.array([[3.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    queries = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert ranks(queries, documents, np.array([0, 1])).tolist() == [1, 1]
    assert ranks(queries, documents, np.array([2, 2])).tolist() == [2, 2]
    assert ranks(queries, documents, np.array([1, 0])).tolist() == [3, 3]


def test_equal_documents_share_the_mean_of_their_ranks():
    queries, same = np.array([[1.0, 0.0]]), np.ones((5, 2))
    assert ranks(queries, same, np.array([3])).tolist() == [3]
    assert ranks(queries, np.array([[1.0, 0], [1, 0], [0, 1]]), np.array([1])).tolist() == [1.5]


def test_an_ordering_by_hand():
    """Each row: cosines 1, 0.8 and 0 in the order of the columns, or the other way round."""
    vectors = {0: np.array([1.0, 0]), 1: np.array([2.0, 0]), 2: np.array([0.8, 0.6]), 3: np.array([0, 1.0])}
    right = np.array([[0, 1, 2, 3]] * 8)
    assert ordering(vectors, right).value == pytest.approx(1)
    assert ordering(vectors, right[:, [0, 3, 2, 1]]).value == pytest.approx(-1)
    assert ordering(dict.fromkeys(range(4), np.ones(2)), right).value == 0
    mixed = ordering(vectors, np.concatenate([right, right[:, [0, 2, 1, 3]]]))
    assert mixed.low < mixed.value < mixed.high < 1


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    rows = [
        {"text": f"{w * 3} stands here. It is {w} of {i}.", "title": w * 3, "topics": [f"t{i % 2}"], "one": str(i)}
        for i, w in enumerate(["aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh", "ii", "jj"])
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare_corpus([f"validation={folder / 'texts.jsonl'}"], "bytes", folder / "corpus")
    return folder / "corpus"


def made(folder, model=bert, encoder=True):
    return str(save_model(folder, model(), tokenizer(encoder)))


def test_the_verb_measures_and_the_same_model_gives_the_same(contextwise, corpus, tmp_path):
    folder = made(tmp_path / "model")
    options = f"--corpus {corpus} --query title --topic topics --components 4"
    status, _, errors = contextwise(f"retrieval {folder} {options} --out a")
    assert status == 0, errors
    summaries = []
    for out in ("a", "b"):
        contextwise(f"retrieval {folder} {options} --out {out}")
        summaries.append(json.loads((tmp_path / out / "summary.json").read_text()))
    assert summaries[0]["forms"] == summaries[1]["forms"]
    assert (summaries[0]["queries"], summaries[0]["documents"], summaries[0]["components"]) == (10, 10, 4)
    assert set(summaries[0]["forms"]) == {"plain", "whitened"}
    assert summaries[0]["forms"]["plain"]["recall_10"]["value"] == 1  # of ten documents


@pytest.mark.parametrize(("model", "encoder"), [(bert, True), (gpt2, False)])
def test_first_sentences_are_queries_and_few_documents_are_not_whitened(corpus, tmp_path, capsys, model, encoder):
    result = measure(
        made(tmp_path / "m", model, encoder), Retrieval(), Corpus.open(corpus, split="validation"), out=tmp_path / "out"
    )
    assert result.summary["queries"] == 10 and set(result.summary["forms"]) == {"plain"}
    assert "note: vectors are not whitened: 10 texts are too few" in capsys.readouterr().err
    rank = result.table_of("queries")["plain_rank"].to_numpy()
    assert result.summary["forms"]["plain"]["mrr"]["value"] == pytest.approx((1 / rank).mean())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"query": "titel"}, DataError, "no metadata column 'titel'; did you mean 'title'"),
        (
            {"query": "title", "topic": "one"},
            DataError,
            "the ordering needs several documents, with and without a common",
        ),
        ({"query": "title", "components": 10}, DataError, "10 texts are too few to whiten 10 numbers"),
        ({"query": "title", "layer": 3}, ConfigError, "the layer is 3"),
    ],
)
def test_what_cannot_be_measured_is_refused(corpus, tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        measure(
            made(tmp_path / "m"), Retrieval(**settings), Corpus.open(corpus, split="validation"), out=tmp_path / "o"
        )


def test_topics_inside_an_object_order_like_those_of_a_column(tmp_path, monkeypatch):
    rows = [{"text": f"One {i}. Two {i}.", "tags": [f"t{i % 2}", f"u{i % 3}"]} for i in range(12)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row | {"meta": row}) + "\n" for row in rows))
    prepare_corpus([f"validation={tmp_path / 't.jsonl'}"], "bytes", tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c", split="validation")
    pairs = [_Texts(corpus, each).pairs(each) for each in (Retrieval(topic="tags"), Retrieval(topic="meta.tags"))]
    assert pairs[0].tolist() == pairs[1].tolist()
    monkeypatch.setattr("contextwise.evaluation.measures.retrieval._embed", None)  # refused before anything is embedded
    with pytest.raises(DataError, match="with and without a common value in 'meta.text'"):
        measure(made(tmp_path / "m"), Retrieval(topic="meta.text"), corpus, out=tmp_path / "o")


def test_too_few_documents_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        json.dumps({"text": "One sentence alone."}) + "\n" + json.dumps({"text": "A b. C d."})
    )
    prepare_corpus([f"validation={tmp_path / 't.jsonl'}"], "bytes", tmp_path / "c")
    with pytest.raises(DataError, match="needs two documents with a second sentence or more, but .* has [01];"):
        measure(made(tmp_path / "m"), Retrieval(), Corpus.open(tmp_path / "c", split="validation"), out=tmp_path / "o")


def test_a_character_of_several_tokens_is_not_cut(tmp_path):
    """The middle of the bytes is inside a character; both halves hold whole ones, and together the text."""
    rows = [{"text": f"{'短い文' * n}。次の{'文' * n}。", "meta": {"title": f"題 {n}"}} for n in range(2, 9)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare_corpus([f"validation={tmp_path / 't.jsonl'}"], "bytes", tmp_path / "c")
    texts = _Texts(Corpus.open(tmp_path / "c", split="validation"), Retrieval(query="meta.title"))
    assert [first + second for first, second in texts._halves] == texts.documents == [row["text"] for row in rows]
    assert all(first and second for first, second in texts._halves)
    # A column inside an object is named with a dot, as in data.contexts.
    result = measure(
        made(tmp_path / "m"),
        Retrieval(query="meta.title"),
        Corpus.open(tmp_path / "c", split="validation"),
        out=tmp_path / "o",
    )
    assert result.summary["queries"] == len(rows)
