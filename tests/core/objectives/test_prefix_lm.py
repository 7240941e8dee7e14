"""Prefix LM: prefixes uniform, the loss on the suffix only, one prefix a document where documents are separate."""

import numpy as np
import pytest
from scipy.stats import chisquare

from contextwise.objectives import NO_LOSS, Cut, build_objective
from objective_corpora import CHANCE, vocabulary
from small import Memory


@pytest.mark.long
def test_every_length_is_as_likely_and_the_loss_is_on_the_suffix(corpus, known):
    objective = build_objective("prefix")
    examples = objective.examples(corpus, Cut(32), 0, known(objective))
    counts = np.zeros(33)
    for index in range(5000):
        example, plain = examples.example(0, index), examples.windows[index]
        prefix, labels = example["prefix"].numpy(), example["labels"].numpy()
        p = int(prefix.sum())
        counts[p] += 1
        assert prefix[:p].all()
        assert (labels[: p - 1] == NO_LOSS).all()
        assert labels[p - 1 :].tolist() == plain["labels"][p - 1 :].tolist()
        assert example["input_ids"].tolist() == plain["input_ids"].tolist()
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > CHANCE


def test_separate_documents_have_prefixes_of_their_own(letters):
    objective = build_objective("prefix")
    corpus = Memory([[1, 2, 3], [4, 5], [6, 7, 8]], end_of_text=256)
    examples = objective.examples(corpus, Cut(10, separate_documents=True), 0, vocabulary(objective, letters))
    # E 1 2 3 E 4 5 E 6 7 -> 1 2 3 E 4 5 E 6 7 8: pieces of 4, 3 and 3 positions
    assert examples.example(0, 0)["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]
    seen = set()
    for epoch in range(600):
        example = examples.example(epoch, 0)
        drawn = []
        for first, last in [(0, 4), (4, 7), (7, 10)]:
            prefix, labels = example["prefix"][first:last].tolist(), example["labels"][first:last].tolist()
            p = sum(prefix)
            assert prefix == [True] * p + [False] * (last - first - p)
            assert [label == NO_LOSS for label in labels] == [True] * (p - 1) + [False] * (last - first - p + 1)
            drawn.append(p)
        seen.add(tuple(drawn))
    assert seen == {(a, b, c) for a in (1, 2, 3, 4) for b in (1, 2, 3) for c in (1, 2, 3)}
