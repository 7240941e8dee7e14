"""UL2: seven denoisers in equal shares, each with its published numbers, and back."""

import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives import NO_LOSS, Cut, Vocabulary, build_objective
from contextwise_papers.objectives.spans import PUBLISHED
from objective_corpora import CHANCE


class FirstDocuments:
    """The first documents of a corpus."""

    def __init__(self, corpus, count):
        self.path, self.split, self.end_of_text = corpus.path, corpus.split, corpus.end_of_text
        self.lengths, self.document = corpus.lengths[:count], corpus.document

    def __len__(self):
        return len(self.lengths)


def made(corpus, known, context=128, cut=None, **values):
    objective = build_objective("ul2", **values)
    words = known(objective)
    return objective.examples(corpus, cut or Cut(context), 0, words), words


def test_the_published_mixture():
    assert [(d.mode, d.rate, d.mean_span) for d in PUBLISHED] == [
        ("R", 0.15, 3), ("R", 0.15, 8), ("S", 0.25, None),
        ("X", 0.5, 3), ("X", 0.5, 8), ("X", 0.15, 64), ("X", 0.5, 64),
    ]  # fmt: skip


def test_all_denoisers_are_mixed_evenly(corpus, known):
    examples, _ = made(corpus, known)
    counts = np.zeros(7)
    for epoch in range(4):
        for index in range(examples.count(epoch)):
            counts[examples.denoiser(epoch, index)] += 1
    assert counts.sum() > 5000
    assert chisquare(counts).pvalue > CHANCE


def test_each_epoch_and_each_seed_cuts_anew(corpus, known):
    def denoisers(seed, epoch):
        objective = build_objective("ul2")
        examples = objective.examples(corpus, Cut(128), seed, known(objective))
        return [examples.denoiser(epoch, index) for index in range(100)]

    drawn = [denoisers(0, 0), denoisers(0, 1), denoisers(1, 0)]
    assert all(drawn.count(one) == 1 for one in drawn)
    assert denoisers(0, 1) == drawn[1]


def test_noise_is_drawn_anew_for_each_window(corpus, known):
    """Of one denoiser, whose windows have the same numbers of noise tokens and spans."""
    examples, _ = made(corpus, known)
    for which in (0, 3):
        alike = [index for index in range(100) if examples.denoiser(0, index) == which][:5]
        noise = {tuple(np.isin(examples.example(0, index)["input_ids"], examples.sentinels)) for index in alike}
        assert len(noise) == len(alike) == 5


@pytest.mark.long
def test_the_windows_come_back_and_lie_in_the_stream(corpus, known):
    corpus = FirstDocuments(corpus, 40)
    examples, _ = made(corpus, known)
    stream = np.concatenate(
        [[corpus.end_of_text, *corpus.document(i)] for i in range(len(corpus))] + [[corpus.end_of_text]]
    )
    places = []
    for index in range(examples.count(2)):
        tokens = examples.restore(examples.example(2, index))
        start = int(examples._starts[index])
        assert tokens.tolist() == stream[start : start + len(tokens)].tolist()
        places.append((start, start + len(tokens)))
    # No token is in two windows, or in none but the last few.
    assert all(a[1] == b[0] for a, b in itertools.pairwise(places))
    assert len(stream) - places[-1][1] < max(examples.lengths)


def test_each_example_has_its_mode_and_the_noise_of_its_denoiser(corpus, known):
    examples, words = made(corpus, known)
    mode = dict(zip("RSX", words.tokenizer.convert_tokens_to_ids(["[NLU]", "[S2S]", "[NLG]"]), strict=True))
    seen = set()
    for index in range(200):
        which = examples.denoiser(0, index)
        denoiser, length = PUBLISHED[which], int(examples.lengths[which])
        noise, spans = denoiser.numbers(length)
        example = examples.example(0, index)
        inputs, labels = example["input_ids"].numpy(), example["labels"].numpy()
        assert (len(inputs), len(labels)) == (128, examples.target)
        assert inputs[0] == mode[denoiser.mode] and inputs[-1] == corpus.end_of_text
        assert np.isin(inputs, examples.sentinels).sum() == spans
        assert (labels != NO_LOSS).sum() == noise + spans + 1
        if denoiser.mode == "S":
            assert spans == 1 and inputs[-2] == examples.sentinels[0] == labels[0]
            assert abs(noise / length - 0.25) < 0.01
        seen.add(which)
    assert seen == set(range(7))


def test_inputs_of_512_tokens_fit(corpus, known):
    examples, _ = made(corpus, known, context=512)
    assert examples.example(0, 0)["input_ids"].shape == (512,)
    for denoiser, length in zip(PUBLISHED, examples.lengths.tolist(), strict=True):
        noise, spans = denoiser.numbers(length)
        assert length - noise + spans + 2 == 512


def test_what_does_not_fit_is_refused(corpus, known):
    with pytest.raises(ConfigError, match="'ul2' has spans of 64 tokens on average, but windows of"):
        made(corpus, known, context=32)
    with pytest.raises(ConfigError, match="sentinels for a window of .* but the tokenizer has 5"):
        made(corpus, known, sentinels=5)
    for cut in (Cut(128, cross_documents=False), Cut(128, separate_documents=True)):
        with pytest.raises(ConfigError, match="windows of the objective 'ul2' cross documents.*cross_documents=true"):
            made(corpus, known, cut=cut)


def test_tokens_beyond_the_vocabulary_are_refused(corpus, known):
    objective = build_objective("ul2")
    words = known(objective)
    words.size = 300
    with pytest.raises(ConfigError, match="special token with the id .*vocabulary has 300 tokens"):
        objective.examples(corpus, Cut(128), 0, words)
    examples, _ = made(corpus, known)
    examples.windows.vocab_size = 300
    with pytest.raises(DataError, match="holds the token id .*vocabulary has 300 tokens"):
        examples.example(0, 0)
    assert isinstance(words, Vocabulary)
