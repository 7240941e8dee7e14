"""Mixtures: shares, each objective's own way through the corpus, examples of one shape."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from contextwise.base.errors import ConfigError
from contextwise.objectives import NO_LOSS, Cut, build_objective
from objective_corpora import CHANCE, same


def mixture(**weights):
    return build_objective("mixture", parts=[{"weight": w, "objective": name} for name, w in weights.items()])


def stream_of(objective, corpus, known, cut=None, seed=0, length=9000):
    return objective.stream(corpus, cut or Cut(64), seed, known(objective), length)


@pytest.mark.long
def test_shares_and_each_objective_in_its_own_order(corpus, known):
    stream = stream_of(mixture(causal=0.5, prefix=0.2, infilling=0.3), corpus, known)
    places = [stream.place(index) for index in range(9000)]
    counts = np.bincount([part for part, _ in places])
    assert chisquare(counts, 9000 * np.array([0.5, 0.2, 0.3])).pvalue > CHANCE
    for part in range(3):
        assert [item for which, item in places if which == part] == list(range(counts[part]))
    # Whatever was asked for before.
    again = stream_of(mixture(causal=0.5, prefix=0.2, infilling=0.3), corpus, known)
    assert [again.place(index) for index in (8999, 0, 5000)] == [places[index] for index in (8999, 0, 5000)]
    other = stream_of(mixture(causal=0.5, prefix=0.2, infilling=0.3), corpus, known, seed=1)
    assert [other.place(index) for index in range(50)] != places[:50]


@pytest.mark.parametrize("weights", [{"causal": 0.5, "prefix": 0.5}, {"causal": 0.9, "infilling": 0.1}])
def test_distinct_items_end_before_the_first_that_repeats(weights, corpus, known):
    """They are the first ones of a longer stream, so their shares are those of the weights."""
    stream = stream_of(mixture(**weights), corpus, known, length=20_000)
    counts = [part.examples.count(0) for part in stream.streams]
    places = [stream.place(index) for index in range(stream.distinct + 1)]
    assert all(item < counts[part] for part, item in places[:-1])
    assert places[-1] in list(enumerate(counts))  # the first item of a second epoch
    assert stream_of(mixture(**weights), corpus, known, length=20).distinct == 20


def test_objectives_do_not_go_through_the_corpus_side_by_side(corpus, known):
    stream = stream_of(mixture(causal=0.5, prefix=0.5), corpus, known)
    causal, prefix = ([part.place(k)[1] for k in range(50)] for part in stream.streams)
    assert causal != prefix


def test_examples_stack_and_what_is_missing_is_neutral(corpus, known):
    stream = stream_of(mixture(causal=0.5, prefix=0.5), corpus, known)
    examples = [stream[index] for index in range(64)]
    assert all(example.keys() == examples[0].keys() for example in examples)
    batch = {key: torch.stack([example[key] for example in examples]) for key in examples[0]}
    parts = batch["objective"]
    assert not batch["prefix"][parts == 0].any() and batch["prefix"][parts == 1].any()
    causal = int(torch.nonzero(parts == 0)[0])
    plain = stream.streams[0][stream.place(causal)[1]]
    assert examples[causal]["labels"].tolist() == plain["labels"].tolist()


def test_labels_of_encoder_decoders_are_filled_up(corpus, known):
    stream = stream_of(mixture(spans=0.5, ul2=0.5), corpus, known, Cut(128))
    lengths = [len(part.examples.example(0, 0)["labels"]) for part in stream.streams]
    assert lengths[0] < lengths[1]
    for index in range(40):
        example, (part, item) = stream[index], stream.place(index)
        plain = stream.streams[part][item]
        assert example["labels"].shape == (lengths[1],)
        assert example["labels"][: lengths[part]].tolist() == plain["labels"].tolist()
        assert (example["labels"][lengths[part] :] == NO_LOSS).all()


def test_encoders_with_and_without_pairs(corpus, known):
    pytest.importorskip("sentencex", reason="needs contextwise[sentences]")
    stream = stream_of(mixture(masked=0.5, sentence_order=0.5), corpus, known)
    for index in range(40):
        example = stream[index]
        assert sorted(example) == [
            "attention_mask", "input_ids", "labels", "objective", "pair_label", "token_type_ids", "window",
        ]  # fmt: skip
        if example["objective"] == 0:
            assert example["pair_label"] == NO_LOSS
            assert example["attention_mask"].all() and not example["token_type_ids"].any()


def test_positions_of_separate_documents_go_with_plain_ones(corpus, known):
    cut = Cut(64, separate_documents=True)
    stream = stream_of(mixture(causal=0.5, prefix=0.5), corpus, known, cut)
    assert "position_ids" in stream[0]
    assert same(stream[3], stream_of(mixture(causal=0.5, prefix=0.5), corpus, known, cut)[3])


def test_special_tokens_are_those_of_all_parts():
    objective = mixture(masked=0.5, sentence_order=0.5)
    assert [token.text for token in objective.special_tokens] == ["[MASK]", "[CLS]", "[SEP]", "[PAD]"]
    assert objective.kind == "encoder"


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({"causal": 0.5, "infilling": 0.7}, "weights of the mixture add up to 1.2, not to 1; 0.4167, 0.5833 would"),
        ({"causal": 0.5, "masked": 0.5}, "different kinds of model, 'masked' .encoder. and 'causal' .decoder.; choose"),
        ({"causal": -0.5, "prefix": 1.0}, "parts.0.weight is -0.5, but must be greater than 0"),
        ({"causal": 0.0, "prefix": 1.0}, "parts.0.weight is 0.0, but must be greater than 0"),
        ({"causal": float("nan"), "prefix": 1.0}, "parts.0.weight is nan, but must be a finite number"),
        ({"causal": 0.5, "sentence": 0.5}, "the objective 'sentence', whose examples are not trained with others"),
        ({"causal": 1.0}, "parts is .* at least 2 values"),
        ({"causal": 0.5, "mixture": 0.5}, "parts.1.objective: the objective is 'mixture', but must be one of causal"),
    ],
)
def test_weights_that_make_no_sense(weights, problem):
    with pytest.raises(ConfigError, match=problem):
        mixture(**weights)
