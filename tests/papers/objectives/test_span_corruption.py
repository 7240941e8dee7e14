"""Span corruption: T5's draw and lengths, sentinels in order, and back."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives import Cut, build_objective
from contextwise_papers.objectives.spans import Denoiser, corrupt, restore
from objective_corpora import CHANCE, vocabulary
from small import Memory

SENTINELS = np.arange(1000, 1100)


def test_worked_example():
    tokens = np.array([10, 11, 12, 13, 14, 15, 16, 17])
    noise = np.array([0, 0, 1, 1, 0, 0, 1, 0], dtype=bool)
    inputs, targets = corrupt(tokens, noise, SENTINELS)
    assert inputs.tolist() == [10, 11, 1000, 14, 15, 1001, 17]
    assert targets.tolist() == [1000, 12, 13, 1001, 16]
    assert restore(inputs, targets, SENTINELS).tolist() == tokens.tolist()


@given(noise=st.lists(st.booleans(), min_size=1, max_size=60))
def test_any_spans_are_put_back(noise):
    tokens = np.arange(len(noise))
    inputs, targets = corrupt(tokens, np.array(noise), SENTINELS)
    assert len(inputs) + len(targets) - 2 * np.isin(inputs, SENTINELS).sum() == len(tokens)
    assert restore(inputs, targets, SENTINELS).tolist() == tokens.tolist()


def test_what_does_not_belong_together_is_not_put_together():
    for inputs, targets in [([1, 1000], [1001, 5]), ([1, 1000], []), ([1], [4]), ([1, 1000], [4, 1000, 5])]:
        with pytest.raises(DataError, match="they must be the same"):
            restore(np.array(inputs), np.array(targets, dtype=np.int64), SENTINELS)


def test_windows_fill_the_context_exactly(corpus, known):
    for context in (16, 100, 512):
        objective = build_objective("spans")
        examples = objective.examples(corpus, Cut(context), 0, known(objective))
        example = examples.example(0, 3)
        assert example["input_ids"].shape == (context,)
        assert examples.windows.context > context
    # T5's own numbers: an input of 512 takes 568 tokens and gives a target of 114.
    assert (examples.windows.context, len(example["labels"])) == (568, 114)


@pytest.mark.long
def test_every_way_of_cutting_is_as_likely():
    # 4 noise tokens in 2 spans, 6 others in 2: C(3,1) * C(5,1) masks
    draw = np.random.default_rng(0)
    masks = [tuple(Denoiser("R", 0.4, 2).mask(10, draw)) for _ in range(6000)]
    counts = np.unique(masks, axis=0, return_counts=True)[1]
    assert len(counts) == comb(3, 1) * comb(5, 1)
    assert chisquare(counts).pvalue > CHANCE


@given(length=st.integers(2, 300), rate=st.floats(0.01, 0.99), mean=st.floats(1, 40), seed=st.integers(0, 100))
def test_masks_have_the_numbers_that_t5_counts(length, rate, mean, seed):
    denoiser = Denoiser("R", rate, mean)
    noise, spans = denoiser.numbers(length)
    mask = denoiser.mask(length, np.random.default_rng(seed))
    assert (len(mask), mask.sum()) == (length, noise)
    assert not mask[0] and mask[-1]
    assert (np.diff(mask.astype(int)) == 1).sum() == spans


@pytest.mark.long
def test_examples_of_real_text(corpus, known):
    objective = build_objective("spans")
    words = known(objective)
    examples = objective.examples(corpus, Cut(128), 0, words)
    sentinels = examples.sentinels
    lengths = []
    for index in range(1000):
        example = examples.example(1, index)
        assert examples.restore(example).tolist() == examples.windows[index]["input_ids"].tolist()
        labels = example["labels"].numpy()
        assert labels[-1] == example["input_ids"][-1] == corpus.end_of_text
        places = np.flatnonzero(np.isin(labels, sentinels))
        assert labels[places].tolist() == sentinels[: len(places)].tolist()
        lengths += np.diff([*places, len(labels) - 1]).tolist()
    assert abs(np.mean(lengths) - 1 - 3) < 0.05


def test_spans_are_drawn_anew_in_each_epoch_and_window(corpus, known):
    objective = build_objective("spans")
    examples = objective.examples(corpus, Cut(128), 0, known(objective))
    noise = [
        np.isin(examples.example(*at)["input_ids"], examples.sentinels).tolist() for at in ((0, 3), (1, 3), (0, 4))
    ]
    assert all(noise.count(one) == 1 for one in noise)
    assert examples.example(1, 3)["labels"].tolist() == examples.example(1, 3)["labels"].tolist()


def test_what_does_not_fit_is_refused(letters, corpus, known):
    def examples(context, **values):
        objective = build_objective("spans", **values)
        return objective.examples(corpus, Cut(context), 0, known(objective))

    with pytest.raises(ConfigError, match="spans of 300 tokens on average, but windows of .* tokens"):
        examples(64, mean_span=300)
    examples(512, sentinels=29, mean_span=2.9)
    with pytest.raises(ConfigError, match="needs 29 sentinels for a window of 567 tokens, but the tokenizer has 28"):
        examples(512, sentinels=28, mean_span=2.9)
    with pytest.raises(ConfigError, match="rate of 0.75, which leaves .* choose spans of 3 tokens or more"):
        examples(64, rate=0.75, mean_span=2)
    with pytest.raises(ConfigError, match="data.context is 2, too short for a window of the objective 'spans'"):
        examples(2)
    with pytest.raises(ConfigError, match="which leaves fewer kept tokens than spans of 3 tokens"):
        examples(512, rate=0.999999999)  # at once: no search for so long a window
    with pytest.raises(ConfigError, match="have 127 tokens or 129, never 128; set data.context to 127"):
        examples(128, rate=0.5, mean_span=1, sentinels=200)
    objective = build_objective("spans")
    with pytest.raises(ConfigError, match="cannot keep its documents apart; set data.cross_documents=false"):
        objective.examples(corpus, Cut(64, separate_documents=True), 0, known(objective))
    with pytest.raises(ConfigError, match="needs an end-of-text token, but the corpus has none"):
        words = vocabulary(objective, letters)
        words.end_of_text = None
        objective.examples(Memory([range(90)], None), Cut(16), 0, words)
