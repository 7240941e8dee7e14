"""Masking: the published rates, nothing special masked or drawn."""

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from contextwise.objectives import NO_LOSS, Cut, build_objective
from contextwise_papers.objectives.masked import Masking
from objective_corpora import CHANCE, of_texts, same, vocabulary
from small import Memory

WINDOWS = 2000


class Scripted:
    """A generator that gives numbers that a test wrote down."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self, size):
        numbers = np.array(self.numbers.pop(0))
        assert len(numbers) == size
        return numbers

    integers = lambda self, high, size: np.full(size, 7)  # noqa: E731


def pair(settings, corpus, known, context=130, seed=0):
    """Examples, and the ids of [MASK], [CLS], [SEP]."""
    words = known(settings)
    examples = settings.examples(corpus, Cut(context), seed, words)
    return examples, words, words.ids(settings.special_tokens, "masked")


def test_worked_example(letters):
    settings = build_objective("masked")
    words = vocabulary(settings, letters)
    mask, cls, sep = words.ids(settings.special_tokens, "masked")
    draw = Scripted([0.1, 0.14, 0.15, 0.0, 0.149, 0.1, 0.9], [0.5, 0.79, 0.0, 0.8, 0.9, 0.0, 0.0])
    ids = np.array([cls, 65, 66, 67, 68, sep, 69])
    inputs, labels = Masking(settings, words).apply(ids, draw)
    # [CLS] and [SEP] would be chosen and are not; 66 and 69 are not chosen; 65: mask; 67: random; 68: kept.
    assert inputs.tolist() == [cls, mask, 66, 7, 68, sep, 69]
    assert labels.tolist() == [NO_LOSS, 65, NO_LOSS, 67, 68, NO_LOSS, NO_LOSS]


@pytest.mark.long
def test_the_rates_are_those_published(corpus, known):
    settings = build_objective("masked")
    examples, words, (mask, cls, sep) = pair(settings, corpus, known)
    assert examples.count(0) > WINDOWS
    free = chosen = hidden = other = 0
    drawn = np.zeros(words.size)
    for index in range(WINDOWS):
        plain = examples.windows[index]["input_ids"].numpy()
        example = examples.example(0, index)
        inputs, labels = example["input_ids"].numpy(), example["labels"].numpy()
        assert (inputs[0], inputs[-1], len(inputs)) == (cls, sep, 130)
        target = labels != NO_LOSS
        assert (labels[1:-1] == plain)[target[1:-1]].all()
        assert (inputs[1:-1] == plain)[~target[1:-1]].all()
        assert not target[np.isin([cls, *plain, sep], [cls, sep, corpus.end_of_text])].any()
        free += (plain != corpus.end_of_text).sum()
        chosen += target.sum()
        hidden += (inputs == mask).sum()
        replaced = target & (inputs != mask) & (inputs != labels)
        other += replaced.sum()
        drawn[inputs[replaced]] += 1
    ordinary = len(words.ordinary)
    assert binomtest(int(chosen), int(free), 0.15).pvalue > CHANCE
    assert binomtest(int(hidden), int(chosen), 0.8).pvalue > CHANCE
    # One in |V| of the random tokens is the token itself.
    assert binomtest(int(other), int(chosen), 0.1 * (1 - 1 / ordinary)).pvalue > CHANCE
    assert set(np.flatnonzero(drawn)) <= set(words.ordinary)
    assert not {mask, cls, sep, corpus.end_of_text} & set(words.ordinary)


def test_random_tokens_are_drawn_evenly(letters):
    settings = build_objective("masked", rate=0.5, mask_share=0.0, random_share=1.0)
    words = vocabulary(settings, letters)
    masking = Masking(settings, words)
    inputs, labels = masking.apply(np.full(60_000, 256), np.random.default_rng(0))
    assert (inputs == 256).all() and (labels == NO_LOSS).all()  # end-of-text alone
    inputs, labels = masking.apply(np.full(60_000, 65), np.random.default_rng(0))
    assert chisquare(np.bincount(inputs[labels == 65], minlength=256)).pvalue > CHANCE


def test_masks_are_drawn_anew(corpus, known):
    examples, _, _ = pair(build_objective("masked"), corpus, known)
    assert not same(examples.example(0, 5), examples.example(3, 5))
    assert not same(examples.example(0, 5), pair(build_objective("masked"), corpus, known, seed=1)[0].example(0, 5))


def test_positions_begin_anew_at_documents(letters):
    settings = build_objective("masked")
    corpus = Memory([[1, 2, 3], [4], [5, 6, 7, 8]], end_of_text=256)
    examples = settings.examples(corpus, Cut(7, separate_documents=True), 0, vocabulary(settings, letters))
    # [CLS] E 1 2 3 E [SEP] and [CLS] 4 E 5 6 7 [SEP], E being end-of-text
    assert examples.example(0, 0)["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert examples.example(0, 1)["position_ids"].tolist() == [0, 1, 0, 1, 2, 3, 4]


def test_too_short_windows_and_shares_are_refused(letters):
    settings = build_objective("masked")
    corpus = of_texts(["some text"], letters)
    with pytest.raises(ValueError, match="data.context is 2, but the objective 'masked' needs at least 3"):
        settings.examples(corpus, Cut(2), 0, vocabulary(settings, letters))
    with pytest.raises(ValueError, match="mask_share is 0.95 and random_share 0.1, more than 1"):
        build_objective("masked", mask_share=0.95)
