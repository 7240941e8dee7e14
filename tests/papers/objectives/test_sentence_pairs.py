"""Sentence pairs: true borders, half true, published layout, masked."""

import itertools
import sys

import numpy as np
import pytest
from scipy.stats import binomtest, chi2_contingency, chisquare, mannwhitneyu
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GroupKFold, cross_val_predict

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives import NO_LOSS, Cut, build_objective
from contextwise_papers.objectives.masked import PairExamples, two_segments
from contextwise_papers.objectives.text import TokenText, sentence_borders, splitter
from objective_corpora import CHANCE, of_texts, vocabulary

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


def pairs(examples, epoch=0):
    """Every pair of an epoch, with its chunk: (a, b, label, (document, first, middle, last, wanted))."""
    return [
        (*examples.pair(index, np.random.default_rng([epoch, index])), examples.chunks[index].tolist())
        for index in range(examples.count(epoch))
    ]


def test_segments_of_next_sentences_meet_at_a_sentence_border(corpus, known):
    examples = examples_of("next_sentence", corpus, known, context=96)
    for a, b, label, (document, first, middle, last, _) in pairs(examples):
        borders, ids = examples.sentences.of(document).tolist(), corpus.document(document)
        assert {first, middle, last} <= set(borders) and first < middle < last
        assert len(a) + len(b) <= 93 and len(a) and len(b)
        assert ids[first:middle].tolist()[-len(a) :] == a.tolist()
        if not label:
            assert ids[middle : middle + len(b)].tolist() == b.tolist()


@pytest.mark.parametrize("context", [40, 96])
def test_most_pairs_fill_the_window(corpus, known, context):
    examples = examples_of("sentence_order", corpus, known, context=context)
    full = [len(a) + len(b) == context - 3 for a, b, *_ in pairs(examples)]
    assert 0.75 < np.mean(full) < 0.95  # one chunk in ten is shorter, and so are ends of documents
    wanted = examples.chunks[:, 4]
    half = (context - 2) // 2
    assert binomtest(int((wanted < half).sum()), len(wanted), 0.1 * (1 - 1 / (half - 1))).pvalue > CHANCE


@pytest.mark.parametrize("name", ["next_sentence", "sentence_order"])
def test_no_function_of_the_lengths_knows_the_label(corpus, known, name):
    """Both labels have the same lengths: a pair's lengths are fixed before its label is drawn."""
    examples = examples_of(name, corpus, known, context=64)
    rows = [(len(a), len(b), label) for epoch in range(2) for a, b, label, _ in pairs(examples, epoch)]
    length_a, length_b, labels = np.array(rows).T
    assert len(rows) > 2500 and (np.abs(length_a - length_b) <= 1).all()
    by_length = [labels[length_a == n] for n in np.unique(length_a)]
    for each in by_length:
        assert binomtest(int(each.sum()), len(each), 0.5).pvalue > CHANCE / len(by_length)
    assert binomtest(int(labels.sum()), len(labels), 0.5).pvalue > CHANCE
    longer = labels[length_a != length_b] == (length_a > length_b)[length_a != length_b]
    assert binomtest(int(longer.sum()), len(longer), 0.5).pvalue > CHANCE


def test_both_orders_have_the_same_tokens_and_both_segments_are_cut(corpus, known):
    examples = examples_of("sentence_order", corpus, known, context=65)  # an even room: no odd token
    orders = {}
    for index in range(400):
        document, first, middle, last, _ = examples.chunks[index].tolist()
        ids = corpus.document(document).tolist()
        for seed in range(6):
            # The same draws but for the label: the tokens are those of the other order.
            a, b, label = examples.pair(index, np.random.default_rng([index, seed]))
            one, two = (b, a) if label else (a, b)
            assert ids[first : first + len(one)] == one.tolist() and ids[middle : middle + len(two)] == two.tolist()
            whole = (len(one) == middle - first) + (len(two) == last - middle)
            orders.setdefault(label, []).append((len(one) == len(two), whole))
    assert all(equal for rows in orders.values() for equal, _ in rows)
    # Hardly a segment is a whole number of sentences: its end says nothing.
    assert np.mean([whole for rows in orders.values() for _, whole in rows]) < 0.15


def made_up(count, sentences, draw):
    """Short documents whose sentences are drawn alike and independently, with the white space between them."""
    words = ["rain", "the", "a", "sun", "left", "town", "slowly", "came", "to", "of", "house", "red", "never", "and"]
    texts = []
    for _ in range(count):
        text = ""
        for _ in range(int(draw.integers(sentences[0], sentences[1] + 1))):
            chosen = draw.choice(words, size=int(draw.geometric(0.12)) + 1)
            text += " ".join(chosen).capitalize() + "." + draw.choice([" ", "\n", "\n\n", "\n\n    "])
        texts.append(text.rstrip())
    return texts


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "sentences", "context"),
    [
        ("next_sentence", (3, 9), 48),
        pytest.param("sentence_order", (4, 4), 128, marks=pytest.mark.slow),
        pytest.param("next_sentence", (3, 3), 128, marks=pytest.mark.slow),
        pytest.param("sentence_order", (3, 9), 48, marks=pytest.mark.slow),
    ],
)
def test_nothing_but_meaning_knows_the_label(bpe, known, name, sentences, context):
    """In documents without meaning no feature of 5,000 pairs does: spaces, first tokens, sentence ends, lengths."""
    corpus = of_texts(made_up(2000, sentences, np.random.default_rng(1)), bpe)
    examples = examples_of(name, corpus, known, context=context)
    pieces = [bpe.tokenizer.decode([i]) for i in range(len(bpe.tokenizer))]
    blank = np.array([piece.isspace() for piece in pieces])
    spaced = np.array([piece[:1].isspace() for piece in pieces])
    stop = np.array(["." in piece for piece in pieces])
    features, joints, labels, documents = [], [], [], []
    for epoch in range(5):
        for a, b, label, chunk in pairs(examples, epoch):
            each = [(len(x), stop[x].sum(), blank[x].sum(), spaced[x[0]], blank[x[-1]], stop[x[-1]]) for x in (a, b)]
            features.append([*each[0], *each[1], *np.subtract(*np.array(each, dtype=int))])
            joints.append((a[0] if not spaced[a[0]] else -1, blank[a[-1]], spaced[b[0]], blank[b].any()))
            labels.append(label)
            documents.append(chunk[0])
    rows, label = np.array(features[:5000]), np.array(labels[:5000])
    assert len(label) == 5000
    for column in rows.T:
        assert mannwhitneyu(column[label == 0], column[label == 1]).pvalue > CHANCE
    for values in ([joint[0] for joint in joints[:5000]], [str(joint[1:]) for joint in joints[:5000]]):
        table = np.zeros((len(set(values)), 2))
        np.add.at(table, (np.unique(values, return_inverse=True)[1], label), 1)
        common = table[table.sum(axis=1) >= 20]
        assert len(common) < 2 or chi2_contingency(common).pvalue > CHANCE
    classifier = HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0)
    guess = cross_val_predict(classifier, rows, label, groups=documents[:5000], cv=GroupKFold(3))
    assert binomtest(int((guess == label).sum()), len(label), 0.5, alternative="greater").pvalue > CHANCE


@pytest.mark.parametrize(
    ("lengths", "middle", "wanted", "stays"),
    [
        ([2, 3, 9], 2, 6, True),
        ([6, 7, 6], 1, 7, False),  # swapped: 7 tokens, then 12
        ([6, 7, 6], 2, 7, False),  # swapped: 12 tokens, then 7
    ],
)
def test_a_rest_is_one_in_both_orders(lengths, middle, wanted, stays):
    """Else the order of two segments could be told from how they are cut."""
    borders = np.cumsum([0, *lengths])
    assert two_segments(borders.tolist(), borders.tolist(), 0, wanted) is None
    assert PairExamples._stays_rest(borders, borders, 0, middle, wanted) == stays


def test_a_language_is_a_code():
    assert build_objective("next_sentence", language="zh-hant").language == "zh-hant"
    for language in ("", "English"):
        with pytest.raises(ConfigError, match="language"):
            build_objective("next_sentence", language=language)


def test_other_documents_are_drawn_evenly(letters):
    names = ["Ada", "Bob", "Cid", "Dan"]
    texts = [f"{name} one. {name} two. {name} three. {name} four." for name in names]
    examples = examples_of("next_sentence", of_texts(texts, letters), letters_of(letters), context=80)
    others = [examples.others[2] for epoch in range(500) if examples.count(epoch) == 4]
    given, counts = np.unique(others, return_counts=True)
    assert given.tolist() == [0, 1, 3]  # never the document itself
    assert chisquare(counts).pvalue > CHANCE
    for index, other in enumerate(examples.others):
        pairs = [examples.pair(index, np.random.default_rng(seed)) for seed in range(20)]
        begins = {(label, bytes(b[:3].tolist()).decode()) for _, b, label in pairs}
        label = examples.labels[index]
        assert begins == {(label, names[examples.chunks[other if label else index, 0]])}


@pytest.mark.parametrize("lengths", [(9, 4, 4, 2), (200, 60, 60, 90, 5), (12, 12), (150, 149)])
def test_each_second_segment_is_the_b_of_one_pair(letters, lengths):
    """Whatever is seen in B alone, such as the document that it is from, says nothing about the label."""
    draw = np.random.default_rng(0)
    texts = [
        "".join(f"{name} has {'so ' * draw.integers(1, 9)}many.{draw.choice([' ', chr(10)])}" for _ in range(length))
        for name, length in zip("ABCDE", lengths, strict=False)
    ]
    corpus, words = of_texts(texts, letters), letters_of(letters)
    examples, later = (examples_of("next_sentence", corpus, words, context=40) for _ in range(2))
    for epoch in range(4):
        count, documents = examples.count(epoch), examples.chunks[:, 0]
        assert (documents[examples.others] != documents).all()
        seen = np.where(examples.labels, examples.others, np.arange(count))
        false = documents[examples.labels == 1]
        lent = max(0, 2 * int(np.bincount(false).max()) - len(false))  # to a document with most of the false pairs
        assert len(set(seen.tolist())) == count - lent
    assert later.count(3) == count and later.others.tolist() == examples.others.tolist()  # after a restart


def test_pairs_of_a_document_that_has_most_of_them_are_left_out(letters, capsys):
    texts = ["A has this. " * 60, "B has that. " * 6, "C is here. " * 4]
    examples = examples_of("next_sentence", of_texts(texts, letters), letters_of(letters), context=32)
    assert "note: one document of memory (train) has more than half of the sentence pairs; " in capsys.readouterr().err
    for epoch in range(3):
        counts = np.bincount(examples.chunks[: examples.count(epoch), 0])
        assert counts[0] == counts[1] + counts[2] and counts[1] > 0


def test_layout_and_masks(corpus, known):
    objective = build_objective("next_sentence")
    words = known(objective)
    _mask, cls, sep, pad = words.ids(objective.special_tokens, "x")
    examples = objective.examples(corpus, Cut(64), 0, words)
    chosen = free = 0
    for index in range(400):
        example = {key: value.numpy() for key, value in examples.example(0, index).items()}
        ids, labels = example["input_ids"], example["labels"]
        plain = np.where(labels != NO_LOSS, labels, ids)
        n = int(example["attention_mask"].sum())
        assert (plain[0], plain[n - 1]) == (cls, sep) and (plain[n:] == pad).all()
        first, second = np.flatnonzero(plain == sep)
        assert example["attention_mask"].tolist() == [1] * n + [0] * (64 - n)
        assert example["token_type_ids"].tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (64 - n)
        special = np.isin(plain, [cls, sep, pad])
        assert not (labels[special] != NO_LOSS).any()
        chosen, free = chosen + (labels != NO_LOSS).sum(), free + (~special).sum()
    assert binomtest(int(chosen), int(free), 0.15).pvalue > CHANCE


def test_a_worked_example(letters):
    """Ten tokens of room: two segments of a sentence each, cut to five tokens; the first and the last one are left over."""
    text = "Oh. It rained a lot. We left. They came here."
    examples = examples_of("sentence_order", of_texts([text], letters), letters_of(letters), context=13)
    epoch = next(epoch for epoch in range(9) if examples.count(epoch) and examples.chunks[0, 4] == 5)
    assert examples.count(epoch) == 1 and examples.chunks.tolist() == [[0, 4, 21, 30, 5]]
    seen = set()
    for seed in range(20):
        a, b, label = examples.pair(0, np.random.default_rng(seed))
        seen.add((bytes(a.tolist()).decode(), bytes(b.tolist()).decode(), label))
    assert seen == {("It ra", "We le", 0), ("We le", "It ra", 1)}


def test_documents_of_one_sentence_are_left_out_or_refused(letters):
    one, two, three = "A single sentence.", "The first. The second.", "The first. The second. The third."
    four = f"{three} The fourth."
    examples = examples_of("sentence_order", of_texts([one, four, two, "", three, four], letters), letters_of(letters))
    assert examples.chunks[:, 0].tolist() == [1, 5]
    examples = examples_of("sentence_order", of_texts([four, four + " The fifth."], letters), letters_of(letters))
    for epoch in range(4):  # neither the first sentence nor the last
        assert examples.count(epoch) == 2
        assert examples.chunks[:, 1].tolist() == [11, 11] and examples.chunks[:, 3].max() <= len(four) + 1
        assert examples.chunks[0, 3] <= len(three) + 1
    examples = examples_of("next_sentence", of_texts([one, three, two, "", three], letters), letters_of(letters))
    assert examples.count(0) == 3
    with pytest.raises(DataError, match="needs documents of at least four sentences, but all 3 .*choose.*'masked'"):
        examples_of("sentence_order", of_texts([one, two, three], letters), letters_of(letters))
    with pytest.raises(DataError, match="needs documents of at least two sentences, but all 2 .*choose.*'masked'"):
        examples_of("next_sentence", of_texts([one, one], letters), letters_of(letters))
    with pytest.raises(DataError, match="takes sentences of other documents.*choose 'sentence_order'"):
        examples_of("next_sentence", of_texts([two], letters), letters_of(letters))
    with pytest.raises(ConfigError, match="data.context is 7, but the objective 'sentence_order' needs at least 8"):
        examples_of("sentence_order", of_texts([two], letters), letters_of(letters), context=7)


def test_the_missing_package_is_named(letters, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ConfigError, match=r"pip install sentencex"):
        examples_of("sentence_order", of_texts(["A. B."], letters), letters_of(letters))
