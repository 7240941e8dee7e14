"""Sentence pairs: true borders, half true, published layout, masked."""

import itertools
import sys

import numpy as np
import pytest
from objective_corpora import CHANCE, of_texts, same, vocabulary
from scipy.stats import binomtest, chisquare

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives import NO_LOSS, Cut, build_objective
from contextwise.objectives.text import TokenText, sentence_borders, splitter

pytest.importorskip("sentencex", reason="needs contextwise[sentences]")

STORY = "Dr. Ames came at 3.5 p.m. and left. She slept!  \n\n  “Why?” he asked.\u2028Nobody knew. The end"


def sentences_of(text, tokenizer):
    """The text of each sentence, joined from its tokens."""
    (ids,) = tokenizer.encode([text])
    borders = sentence_borders(TokenText(tokenizer.tokenizer), splitter("en"), ids)
    decode = tokenizer.tokenizer.decode
    return [decode(ids[a:b]) for a, b in itertools.pairwise(borders)]


def examples_of(name, corpus, words, context=64, seed=0, **values):
    objective = build_objective(name, **values)
    return objective.examples(corpus, Cut(context), seed, words(objective))


def letters_of(letters):
    return lambda objective: vocabulary(objective, letters)


def test_sentences_keep_every_token_and_begin_where_they_begin(bpe, letters):
    for tokenizer in (bpe, letters):
        parts = sentences_of(STORY, tokenizer)
        assert "".join(parts) == STORY
        assert [part.strip() for part in parts] == [
            "Dr. Ames came at 3.5 p.m. and left.", "She slept!", "“Why?” he asked.", "Nobody knew.", "The end",
        ]  # fmt: skip
    assert sentences_of("  \n no end", letters) == ["  \n no end"]
    assert sentences_of(" \n ", letters) == []
    assert sentences_of("", letters) == []
    # White space of more than a byte, which sentencex alone stumbles over.
    for space in "\u2028\u00a0\u3000":
        text = f"x A{space}. Then it rained. End."
        assert "".join(sentences_of(text, letters)) == text
        assert sentences_of(text, letters)[1:] == ["Then it rained. ", "End."]


def test_pairs_of_real_text_lie_at_sentence_borders(corpus, known):
    examples = examples_of("next_sentence", corpus, known, context=96)
    sentences = examples.sentences
    whole = 0
    for index in range(1500):
        a, b, false = examples.pair(index, np.random.default_rng(index))
        document, first, last = sentences.chunks[index].tolist()
        borders, ids = sentences.of(document).tolist(), corpus.document(document)
        assert len(a) + len(b) <= 93 and len(a) and len(b)
        ends = [
            end for end in borders[first + 1 : last] if ids[max(0, end - len(a)) : end].tolist() == a.tolist()
        ]
        assert ends  # A ends where a sentence of the chunk does
        if not false:
            assert any(ids[end : end + len(b)].tolist() == b.tolist() for end in ends)
        whole += borders[last] - borders[first] <= 93
    assert whole > 1000


@pytest.mark.parametrize("name", ["next_sentence", "sentence_order"])
def test_half_the_pairs_are_true(corpus, known, name):
    examples = examples_of(name, corpus, known)
    labels = [int(examples.example(epoch, i)["pair_label"]) for epoch in (0, 1) for i in range(1500)]
    assert binomtest(sum(labels), len(labels), 0.5).pvalue > CHANCE
    assert labels[:1500] != labels[1500:]


def test_swapped_pairs_are_the_true_ones_swapped(corpus, known):
    examples = examples_of("sentence_order", corpus, known)
    for index in range(300):
        a, b, false = examples.pair(index, np.random.default_rng(index))
        document, _first, _last = examples.sentences.chunks[index].tolist()
        text = corpus.document(document).tolist()
        one, two = (b, a) if false else (a, b)
        joined = [*one.tolist(), *two.tolist()]
        assert any(text[i : i + len(joined)] == joined for i in range(len(text)))


def test_borders_and_other_documents_are_drawn_evenly(letters):
    texts = [f"{name} one. {name} two. {name} three. {name} four." for name in ("Ada", "Bob", "Cid", "Dan")]
    examples = examples_of("next_sentence", of_texts(texts, letters), letters_of(letters), context=80)
    assert examples.count(0) == 4
    borders, others = [], []
    for seed in range(4000):
        a, b, false = examples.pair(2, np.random.default_rng(seed))
        borders.append(bytes(a.tolist()).count(b"."))
        if false:
            others.append(bytes(b.tolist()).decode().split()[0])
    assert chisquare(np.bincount(borders)[1:]).pvalue > CHANCE and len(set(borders)) == 3
    names, counts = np.unique(others, return_counts=True)
    assert names.tolist() == ["Ada", "Bob", "Dan"]  # never the document itself
    assert chisquare(counts).pvalue > CHANCE


def test_layout_and_masks(corpus, known):
    objective = build_objective("next_sentence")
    words = known(objective)
    _mask, cls, sep, pad = words.ids(objective.special_tokens, "x")
    examples = objective.examples(corpus, Cut(64), 0, words)
    chosen = free = 0
    for index in range(1000):
        example = {key: value.numpy() for key, value in examples.example(0, index).items()}
        ids, labels = example["input_ids"], example["labels"]
        plain = np.where(labels != NO_LOSS, labels, ids)
        n = int(example["attention_mask"].sum())
        assert (plain[0], plain[n - 1]) == (cls, sep) and (plain[n:] == pad).all()
        first, second = np.flatnonzero(plain == sep)
        assert example["attention_mask"].tolist() == [1] * n + [0] * (64 - n)
        assert example["token_type_ids"].tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (
            64 - n
        )
        special = np.isin(plain, [cls, sep, pad])
        assert not (labels[special] != NO_LOSS).any()
        chosen, free = chosen + (labels != NO_LOSS).sum(), free + (~special).sum()
    assert binomtest(int(chosen), int(free), 0.15).pvalue > CHANCE


def test_long_sentences_are_cut_away_from_the_border(letters):
    text = "A" * 60 + "xyz. " + "B" * 80 + "."
    examples = examples_of("sentence_order", of_texts([text], letters), letters_of(letters), context=23)
    a, b, false = examples.pair(0, np.random.default_rng(0))
    a, b = (bytes(part.tolist()).decode() for part in ((b, a) if false else (a, b)))
    assert (a, b) == ("A" * 5 + "xyz. ", "B" * 10)


def test_documents_of_one_sentence_are_left_out_or_refused(letters):
    one, two = "A single sentence.", "The first. The second."
    examples = examples_of("sentence_order", of_texts([one, two, one, "", two], letters), letters_of(letters))
    assert (examples.count(0), examples.sentences.skipped) == (2, 3)
    with pytest.raises(
        DataError, match="needs documents of at least two sentences, but all 2 .*choose.*'masked'"
    ):
        examples_of("sentence_order", of_texts([one, one], letters), letters_of(letters))
    with pytest.raises(DataError, match="takes sentences of other documents.*choose 'sentence_order'"):
        examples_of("next_sentence", of_texts([two], letters), letters_of(letters))
    with pytest.raises(
        ConfigError, match="data.context is 7, but the objective 'sentence_order' needs at least 8"
    ):
        examples_of("sentence_order", of_texts([two], letters), letters_of(letters), context=7)


def test_static_pairs_stay(corpus, known):
    static = examples_of("next_sentence", corpus, known, static=True)
    assert same(static.example(0, 4), static.example(2, 4))


def test_the_missing_package_is_named(letters, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ConfigError, match=r"pip install contextwise\[sentences\]"):
        examples_of("sentence_order", of_texts(["A. B."], letters), letters_of(letters))
