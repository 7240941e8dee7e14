"""The same stream for any number of workers, after a restart, from a pickle: for every objective."""

import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from contextwise.data.windows import Windows
from contextwise.objectives import Cut, build_objective
from objective_corpora import same

SENTENCES = pytest.mark.skipif(find_spec("sentencex") is None, reason="needs contextwise[sentences]")
PARTS = [{"weight": 0.5, "objective": name} for name in ("causal", "infilling")]
OBJECTIVES = [
    pytest.param("causal", {}, id="causal"),
    pytest.param("masked", {}, id="masked"),
    pytest.param("next_sentence", {}, id="next_sentence", marks=SENTENCES),
    pytest.param("sentence_order", {}, id="sentence_order", marks=SENTENCES),
    pytest.param("spans", {}, id="spans"),
    pytest.param("ul2", {}, id="ul2", marks=pytest.mark.slow),
    pytest.param("prefix", {}, id="prefix"),
    pytest.param("infilling", {}, id="infilling"),
    pytest.param("infilling", {"split": "token"}, id="infilling token", marks=pytest.mark.slow),
    pytest.param("mixture", {"parts": PARTS}, id="mixture"),
]


class Part:
    """The first documents of a corpus; opens it anew in a pickle."""

    def __init__(self, corpus, count):
        self.corpus, self.lengths = corpus, corpus.lengths[:count]

    def __len__(self):
        return len(self.lengths)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["corpus"], name)


def stream_of(name, values, corpus, known, length):
    objective = build_objective(name, **values)
    return objective.stream(Part(corpus, 8), Cut(96), 3, known(objective), length)


@pytest.mark.parametrize(("name", "values"), OBJECTIVES)
def test_the_same_stream_whatever_reads_it(corpus, known, name, values):
    whole = stream_of(name, values, corpus, known, 10**6)
    first = whole.streams[0].examples.count(0) if name == "mixture" else whole.examples.count(0)
    # A stretch of the stream about the end of the first epoch.
    start = first * (2 if name == "mixture" else 1) - 8
    stretch = range(start, start + 16)
    expected = [whole[index] for index in stretch]
    assert not all(same(expected[0], example) for example in expected[1:])
    # Begun anew in the middle, and read backwards.
    again = stream_of(name, values, corpus, known, 10**6)
    assert all(same(again[index], example) for index, example in reversed(list(zip(stretch, expected, strict=True))))
    assert same(pickle.loads(pickle.dumps(again))[start + 3], expected[3])
    batches = default_collate([default_collate(expected[i : i + 4]) for i in range(0, 16, 4)])
    for workers in (0, 2):
        fresh = stream_of(name, values, corpus, known, 10**6)
        loader = DataLoader(Subset(fresh, stretch), batch_size=4, num_workers=workers)
        assert same(default_collate(list(loader)), batches), workers


@pytest.mark.parametrize(("name", "values"), OBJECTIVES[:-1])
def test_every_example_once_an_epoch_and_another_draw_in_the_next(corpus, known, name, values):
    stream = stream_of(name, values, corpus, known, 10**6)
    counts = [stream.examples.count(epoch) for epoch in range(3)]
    places = [stream.place(index) for index in range(sum(counts))]
    for epoch in range(3):
        numbers = [number for which, number in places if which == epoch]
        assert sorted(numbers) == list(range(counts[epoch])) != numbers
    shapes = {key: value.shape for key, value in stream[0].items()}
    drawn_anew = False
    for index in range(6):
        one, two = stream.examples.example(0, index), stream.examples.example(1, index)
        assert {key: value.shape for key, value in one.items()} == shapes
        assert {value.dtype for value in one.values()} <= {torch.int64, torch.bool}
        drawn_anew |= not same(one, two)
    assert drawn_anew == (name != "causal")


def test_causal_examples_are_the_windows(corpus, known):
    windows = Windows(corpus, 96, separate_documents=True)
    objective = build_objective("causal")
    new = objective.stream(corpus, Cut(96, separate_documents=True), 5, known(objective), 3 * len(windows))
    for k in np.random.default_rng(0).integers(len(new), size=100).tolist():
        assert same(new[k], windows[new.place(k)[1]])
    with pytest.raises(IndexError):
        new[len(new)]
