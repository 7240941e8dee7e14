"""Measures of curves that are known: a model that obeys a law, curves worked by hand, and what must hold for any."""

import math

import numpy as np
import pytest
import torch
from benchmarks.effective_context import LAWS, coverage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from contextwise.base.intervals import jackknife_estimate, leave_one_out, ratios, resampled_ratios, student_t
from contextwise.evaluation.kernel import Work
from contextwise.evaluation.measures.curve import minus_longest
from contextwise.evaluation.measures.curve.passes import Bins, CurveSums, running_pass, truncated_pass, whole_windows
from contextwise.evaluation.measures.curve.readings import Doublings, curve_measures, effective_context, lowest_estimate
from contextwise.evaluation.scoring.truncated import choose_targets


class LawModel(PreTrainedModel):
    """Gives the token 1 a loss of ``law(visible tokens)`` nats, whatever it reads."""

    config_class = PreTrainedConfig

    def __init__(self, law):
        super().__init__(PreTrainedConfig(vocab_size=2))
        self.law = law
        self.embedding = torch.nn.Embedding(2, 1)

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return None

    def forward(self, input_ids, use_cache=None):
        loss = self.law(torch.arange(1, input_ids.shape[1] + 1, dtype=torch.float64))
        odds = -torch.log(torch.expm1(loss))  # -log sigmoid(odds) = loss
        return CausalLMOutput(
            logits=torch.stack([torch.zeros_like(odds), odds], -1)[None].expand(len(input_ids), -1, -1)
        )


def power_law(visible):
    return 2 + 3 * visible**-0.7


def dip(visible):
    """Falls up to 512 visible tokens, and rises beyond."""
    return 2 + 0.2 * (torch.log2(visible) - 9).abs()


def ones(corpus_of, lengths):
    corpus = corpus_of(lengths)
    corpus.documents = [np.ones_like(document) for document in corpus.documents]
    return corpus


def measured(model, corpus, tmp_path, context, trained=None, worth=0.01):
    plan = whole_windows(corpus, context)
    sums = running_pass(model, corpus, plan, trained, Work(tmp_path / "c", "", {}), batch_tokens=8192)
    return sums, *curve_measures(sums, worth)


def test_a_known_law_is_recovered(corpus_of, tmp_path):
    context, worth = 2048, 0.02
    sums, bins, measures = measured(
        LawModel(power_law), ones(corpus_of, [2048, 4096, 2500]), tmp_path, context, worth=worth
    )
    law = power_law(np.arange(1, context + 1.0))
    np.testing.assert_allclose(sums.loss, law, atol=1e-5)
    for row in bins:
        assert row["loss"] == pytest.approx(law[row["visible_from"] - 1 : row["visible_to"]].mean(), abs=1e-5)
        assert row["low"] == pytest.approx(row["loss"]) == pytest.approx(row["high"])  # no document differs
    assert (measures["lowest_bin"]["visible_from"], measures["lowest_bin"]["visible_to"]) == (1448, 2048)
    # A doubling from l is worth 3 l^-0.7 (1 - 2^-0.7) nats.
    expected = (3 * (1 - 2**-0.7) / worth) ** (1 / 0.7)
    assert measures["effective_context"]["value"] == pytest.approx(expected, rel=0.05)
    assert measures["best_context_loss"]["value"] == pytest.approx(law[-204:].mean(), abs=1e-5)
    assert measures["average_loss"]["value"] == pytest.approx(law.mean(), abs=1e-5)


def test_a_best_context_within_the_window_is_found(corpus_of, tmp_path):
    _, _, measures = measured(LawModel(dip), ones(corpus_of, [3000, *[2100] * 5]), tmp_path, 2048, trained=512)
    best = measures["lowest_bin"]
    assert best["visible_from"] <= 512 <= best["visible_to"] + 1
    assert (measures["best_context_loss"]["visible_from"], measures["best_context_loss"]["visible_to"]) == (462, 512)
    assert 256 <= measures["effective_context"]["value"] <= 512


def test_truncated_mode_recovers_the_same_law(corpus_of, tmp_path):
    corpus, contexts = ones(corpus_of, [3000, 2500]), [2**i for i in range(12)]
    targets = choose_targets(corpus, 2048, 40, seed=0)
    sums = truncated_pass(
        LawModel(power_law), corpus, targets, contexts, Work(tmp_path / "c", "", {}), batch_tokens=8192
    )
    bins, measures = curve_measures(sums, 0.02)
    assert [row["loss"] for row in bins] == pytest.approx(list(power_law(np.array(contexts, float))), abs=1e-5)
    assert measures["effective_context"]["value"] == pytest.approx((3 * (1 - 2**-0.7) / 0.02) ** (1 / 0.7), rel=0.05)
    assert measures["best_context_loss"] is None and measures["average_loss"] is None


def test_a_curve_that_goes_on_falling_has_an_effective_context_beyond_it(corpus_of, tmp_path):
    steady = LawModel(lambda visible: 9 - 0.5 * torch.log2(visible))
    effective = measured(steady, ones(corpus_of, [300, 300]), tmp_path, 256)[2]["effective_context"]
    assert effective["value"] is None and effective["low"] is None and effective["high"] is None
    assert 64 < effective["measured_to"] <= 128


def test_one_document_allows_no_interval(corpus_of, tmp_path):
    _, bins, measures = measured(LawModel(power_law), ones(corpus_of, [300]), tmp_path, 256, worth=0.1)
    assert all(row["low"] is None and row["high"] is None for row in bins)
    for name in ("lowest_bin", "best_context_loss", "effective_context", "average_loss"):
        assert measures[name]["value"] is not None and measures[name]["low"] is None


def effective_contexts(losses, centre, worth):
    doublings = Doublings(centre)
    return doublings.effective(doublings.gains(losses), worth)


def test_effective_context_by_hand():
    # Doublings from 1, 2 and 4 are worth 2, 0.5 and 0.01: 0.1 is crossed at (0.5 - 0.1) / (0.5 - 0.01) of the way from 2 to 4.
    curve = np.array([[4, 2, 1.5, 1.49]])
    result = effective_contexts(curve, np.array([1.0, 2, 4, 8]), 0.1)
    assert result[0] == pytest.approx(2 ** (1 + 0.4 / 0.49))
    assert effective_contexts(curve, np.array([1.0, 2, 4, 8]), 3.0)[0] == 1
    assert effective_contexts(curve, np.array([1.0, 2, 4, 8]), 0.001)[0] == np.inf
    # The loss at 32 is read off the line between 16 and 64, half way: a doubling from 16 is worth 1.
    sparse = effective_contexts(np.array([[5.0, 3, 3, 3]]), np.array([16.0, 64, 128, 256]), 0.5)
    assert sparse[0] == pytest.approx(32)


def test_no_doubling_beyond_the_effective_context_is_worth_it():
    """A curve that is flat at first: a doubling at its end is worth more than the limit."""
    centre = 2.0 ** np.arange(8)
    curve = np.array([[3.0, 3.0, 3.0, 3.0, 2.8, 2.8, 2.8, 2.8], [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.8]])
    assert effective_contexts(curve, centre, 0.1).tolist() == [pytest.approx(2**3.5), np.inf]


def test_one_noisy_bin_is_no_effective_context():
    centre = 2.0 ** np.arange(8)
    # Doublings from 1, 2, ...: worth -1, 1, 1, 0.5, 0, 0, 0. The first is the noise of the first bin.
    assert effective_contexts(np.array([[4, 5, 4, 3, 2.5, 2.5, 2.5, 2.5]]), centre, 0.1)[0] == pytest.approx(2**3.8)
    # Worth 1, 1, 0, 0.5, 0, 0, 0: the third comes before one that is worth it.
    assert effective_contexts(np.array([[5, 4, 3, 3, 2.5, 2.5, 2.5, 2.5]]), centre, 0.1)[0] == pytest.approx(2**3.8)
    # The last doubling that is measured has none behind it.
    assert effective_contexts(np.array([[5.0, 4, 3, 3]]), centre[:4], 0.1)[0] == pytest.approx(2**1.9)


@pytest.mark.parametrize("noise", [1.0, 3.0])
@pytest.mark.parametrize("law", LAWS)
def test_the_interval_of_the_effective_context_holds_it_on_noisy_and_on_flat_curves(law, noise):
    """Bins of noise seem to fall somewhere: percentiles of resamples hold the context of a flat curve in few cases."""
    shares = coverage(LAWS[law], 30, noise, 60, seed=0)
    assert shares["t"] >= 0.9
    if law == "flat behind 8":
        assert shares["resamples"] < 0.6
        assert 7 < shares["value"] < 25 and shares["unfitted"] > 60  # it is 7.5
    if law == "falls throughout":
        assert shares["value"] is None


def test_a_late_doubling_that_is_surely_worth_it_counts_whatever_the_fit_says():
    losses, documents = np.array([3.0, 2, 1.9, 1.9, 1.9, 1.9, 1.9, 1.8]), 10
    noise = 1e-4 * np.random.default_rng(0).normal(size=(documents, 8))
    found = effective_context(2.0 ** np.arange(8), losses, losses + noise, np.ones((documents, 8)), 0.05)
    assert found["value"] is found["low"] is None
    # Without the last one, doublings from 1, 2, 4 … are worth 1, 0.1 and nothing: 0.05 half way from 2 to 4.
    found = effective_context(2.0 ** np.arange(7), losses[:7], (losses + noise)[:, :7], np.ones((documents, 7)), 0.05)
    assert found["low"] <= found["value"] <= found["high"] and found["value"] == pytest.approx(2**1.5, rel=0.02)


def test_doublings_that_are_surely_worth_it_together_raise_the_lower_limit():
    """Each of six doublings is worth 0.08 with a standard error of about 0.07; all of them 0.48, with the same error."""
    documents, centre = 40, 2.0 ** np.arange(7)
    noise = np.random.default_rng(0).normal(size=(documents, 7))
    nats = 3 - 0.08 * np.arange(7) + 0.05 * math.sqrt(documents) * (noise - noise.mean(0))
    sizes = np.ones_like(nats)
    losses, left_out, doublings = nats.mean(0), leave_one_out(nats, sizes), Doublings(centre)
    errors = [math.sqrt(part.variance) for part in doublings.parts(losses, left_out, sizes)]
    assert (doublings.gains(losses[None])[0] - student_t(39) * np.array(errors) < 0.01).all()  # none is sure alone
    found = effective_context(centre, losses, left_out, sizes, 0.01)
    surely = [  # contexts whose loss exceeds the longest one's by more than 0.01 for each doubling between them
        context
        for i, context in enumerate(centre[:-1])
        if (
            losses[i]
            - losses[-1]
            - student_t(39, 1 - 0.05 / 11) * np.std(nats[:, i] - nats[:, -1], ddof=1) / math.sqrt(documents)
            > 0.01 * (6 - i)
        )
    ]
    assert found["high"] is None and surely[-1] <= found["low"] < 2 * surely[-1] and surely[-1] >= 4


def test_an_interval_of_the_effective_context_by_hand():
    """Doublings are worth 0.5, 0.02 and 0 with standard errors of 0.01 and nine degrees of freedom."""
    gains, documents = np.array([0.5, 0.02, 0.0]), 10
    signs = np.resize([1.0, -1.0], documents)[:, None] * math.sqrt((documents - 1) / documents)
    # Each document changes one bin's mean alone, so that the errors of the gains are those of the bins.
    losses = np.array([3.0, 2.5, 2.48, 2.48])
    left_out = losses + np.array([[0.0, 0.01, 0, 0.01]]) * signs * math.sqrt(1 / (documents - 1))
    found = effective_context(2.0 ** np.arange(4), losses, left_out, np.ones((documents, 4)), 0.1)
    first, second = gains[:2]
    error = np.sqrt(np.square(left_out[:, 1] - losses[1]).sum() * (documents - 1) / documents)
    low, high = student_t(9, 1 - 0.05 / 5) * error, student_t(9) * error  # three doublings, two chains of several
    for limit, at in (("low", -low), ("value", 0.0), ("high", high)):  # crossings of the line between the two
        one, other = first + at, second + at
        assert found[limit] == pytest.approx(2 ** ((one - 0.1) / (one - other)))


curves = arrays.arrays(float, (3, 9), elements=st.floats(0, 10))


@given(curves, st.floats(0.001, 1), st.floats(0.001, 1))
def test_a_doubling_worth_less_is_reached_later(losses, one, other):
    centre = 2.0 ** np.arange(9)
    low, high = sorted((one, other))
    assert (effective_contexts(losses, centre, low) >= effective_contexts(losses, centre, high)).all()


@given(curves, st.floats(0.001, 1))
def test_an_effective_context_lies_on_the_curve_or_beyond_it(losses, worth):
    result = effective_contexts(losses, 2.0 ** np.arange(9), worth)
    assert (np.isinf(result) | ((result >= 1) & (result <= 128))).all()


@given(st.integers(1, 5000))
def test_bins_hold_each_number_of_visible_tokens_once(context):
    bins = Bins.logarithmic(context)
    assert bins.low[0] == 1 and bins.high[-1] == context
    assert (bins.low[1:] == bins.high[:-1] + 1).all()
    assert (bins.high[:-1] < 2 * bins.low[:-1]).all()  # no bin but the last is wider than a doubling
    widths = bins.high - bins.low + 1
    assert len(bins) == 1 or 2 * widths[-1] >= widths[-2]


def test_resamples_of_whole_documents_agree_with_the_t_interval():
    draw = np.random.default_rng(1)
    targets = draw.integers(1, 50, (30, 1)).astype(float)
    nats = targets * draw.normal(3, 0.5, (30, 1))
    low, high = np.quantile(resampled_ratios(nats, targets)[:, 0], [0.025, 0.975])
    known = ratios(nats[:, 0], {"tokens": targets[:, 0]})["tokens"]
    assert (low, high) == pytest.approx((known.low, known.high), abs=0.1 * (high - low))


def test_the_interval_of_the_lowest_of_many_equal_bins_covers_their_loss():
    """Bins of one true loss: the lowest is below it, in each resample once more, and the interval has to reach up to it."""
    draw, covered = np.random.default_rng(0), 0
    for _ in range(60):
        nats = 100 * (4 + draw.normal(0, 0.3, (40, 1)) + draw.normal(0, 0.3, (40, 15)))
        sizes = np.full((40, 15), 100.0)
        losses = nats.sum(0) / sizes.sum(0)
        best = int(losses.argmin())
        fixed = jackknife_estimate(losses[best], leave_one_out(nats, sizes)[:, best], sizes[:, best])
        estimate = lowest_estimate(fixed, resampled_ratios(nats, sizes).min(axis=1), 40)
        assert estimate.low <= losses[best] <= estimate.high
        covered += estimate.low <= 4 <= estimate.high
    assert covered > 42, "percentiles of the resamples cover it in half of such cases, these in more than four of five"


def test_the_interval_of_the_lowest_bin_holds_that_of_the_bin():
    """One document has a third of all targets: mirrored quantiles alone would be narrower than the t-interval, and lopsided."""
    draw = np.random.default_rng(3)
    sizes = np.full((14, 8), 10.0)
    sizes[0] = 70.0
    for _ in range(20):
        nats = sizes * (6 + draw.normal(0, 0.4, (14, 1)) + draw.normal(0, 0.02, (14, 8)))
        losses = nats.sum(0) / sizes.sum(0)
        best = int(losses.argmin())
        fixed = jackknife_estimate(losses[best], leave_one_out(nats, sizes)[:, best], sizes[:, best])
        lowest = lowest_estimate(fixed, resampled_ratios(nats, sizes).min(axis=1), 14)
        assert lowest.low <= fixed.low < fixed.high <= lowest.high


def sums_of(losses_DT):
    """The sums of a window in each document, with a loss for each target."""
    nats_DT, bins = np.array(losses_DT), Bins.logarithmic(len(losses_DT[0]))
    count, context = nats_DT.shape
    bin_nats, sizes = np.add.reduceat(nats_DT, bins.low - 1, axis=1), bins.high - bins.low + 1
    visible = np.arange(1.0, context + 1)
    return CurveSums(visible, nats_DT.mean(0), count, np.arange(count), bins, bin_nats, np.tile(sizes, (count, 1)))


def test_the_difference_to_the_longest_context_is_paired_by_document():
    """Documents that differ by three nats, and gain alike from context: the losses are uncertain, the gain is not."""
    levels = [2.0, 5.0, 3.0, 4.0, 2.5, 4.5]
    bins, _ = curve_measures(sums_of([level + np.array([1.0, 0.5, 0.25, 0.0]) for level in levels]), 0.01)
    *others, last = bins
    assert all(row["high"] - row["low"] > 2 for row in bins)
    for row, gain in zip(others, (1.0, 0.5, 0.25), strict=True):
        limits = row["minus_longest_low"], row["minus_longest_high"]
        assert (row["minus_longest"], *limits) == pytest.approx((gain, gain, gain))
    assert last["minus_longest"] is last["minus_longest_low"] is last["minus_longest_high"] is None


def test_the_interval_of_the_difference_is_that_of_a_paired_t_test():
    """By hand: one target of each document at each context, so the difference is a mean over documents."""
    gains = np.array([0.9, 0.1, 0.4, 0.7, 0.2, 0.3])
    row = curve_measures(sums_of([[3.0 + gain, 3.0] for gain in gains]), 0.01)[0][0]
    half = 2.5706 * gains.std(ddof=1) / np.sqrt(6)  # the 97.5% quantile of t with 5 degrees of freedom
    assert minus_longest(row, 6).decided and not minus_longest(row, 5).decided  # with five documents nothing is
    assert row["minus_longest"] == pytest.approx(gains.mean())
    assert row["minus_longest_high"] - row["minus_longest"] == pytest.approx(half, rel=1e-4)
