"""Covariances of streams: against scikit-learn, against exact arithmetic, and whatever the order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise_papers.intrinsic_entropy.entropy import covariance
from contextwise_papers.intrinsic_entropy.entropy.covariance import RunningCovariance

QUICK = settings(max_examples=30)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few rows and columns, so that small streams fill several."""
    monkeypatch.setattr(covariance, "BLOCK", 16)
    monkeypatch.setattr(covariance, "_COLUMNS", 3)


def features(rows, width=8, seed=0, mean=5.0):
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.normal(size=(rows, width)) @ draw.normal(size=(width, width)) + mean)


def streamed(rows, cuts=()):
    running = RunningCovariance(rows.shape[1])
    for part in np.split(rows, sorted(cuts)):
        running.add(torch.as_tensor(part))
    return running


def covariance_of(running, centred=True):
    """Both halves of the symmetric matrix."""
    upper = running.upper(centred).triu()
    return upper + upper.triu(1).mT


def test_a_stream_has_the_spectrum_of_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition", reason="scikit-learn is not installed")
    rows = features(203)
    pca = decomposition.PCA(svd_solver="full").fit(rows.numpy())
    running = streamed(rows.numpy(), range(0, 203, 7))
    np.testing.assert_allclose(running.eigenvalues().numpy(), pca.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(covariance_of(running).numpy(), pca.get_covariance(), rtol=1e-9)
    np.testing.assert_allclose(running.mean().numpy(), pca.mean_, rtol=1e-12)


def test_a_state_keeps_what_was_added_until_then():
    rows = features(48)
    running = streamed(rows[:20].numpy())
    state, before = running.state(), streamed(rows[:20].numpy()).eigenvalues()
    running.add(3 * rows[20:])
    again = RunningCovariance.from_state(state)
    for tensor in state.values():
        tensor.zero_()  # nor does what is resumed change with its state
    assert torch.equal(again.eigenvalues(), before)


def test_uncentred_is_about_the_origin():
    rows = features(50)
    running = streamed(rows.numpy(), [20])
    expected = rows.T @ rows / 50
    torch.testing.assert_close(covariance_of(running, centred=False), expected)
    np.testing.assert_allclose(
        running.eigenvalues(centred=False).numpy(), np.linalg.eigvalsh(expected)[::-1], rtol=1e-9
    )
    # The mean of 5 in each channel is then the first direction: eight times its square, about.
    assert running.eigenvalues(centred=False)[0] > 8 * 4.0**2 > running.eigenvalues()[0]


def test_a_hand_worked_covariance():
    running = RunningCovariance(2)
    for row in ([1.0, 0.0], [3.0, 0.0], [2.0, 3.0]):
        running.add(torch.tensor([row]))
    assert running.mean().tolist() == [2.0, 1.0]
    assert covariance_of(running).tolist() == [[1.0, 0.0], [0.0, 3.0]]
    assert running.eigenvalues().tolist() == [3.0, 1.0]


@QUICK
@given(rows=st.integers(2, 80), data=st.data())
def test_batches_make_no_difference_to_the_last_bit(rows, data):
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=6))
    whole, pieces = streamed(features(rows).numpy()), streamed(features(rows).numpy(), cuts)
    assert torch.equal(covariance_of(whole), covariance_of(pieces))
    np.testing.assert_allclose(covariance_of(whole).numpy(), np.cov(features(rows).numpy().T), rtol=1e-9)


@QUICK
@given(stop=st.integers(1, 69))
def test_a_resumed_stream_gives_the_same_bits(stop):
    rows = features(70)
    first = streamed(rows[:stop].numpy(), [stop // 2])
    again = RunningCovariance.from_state(first.state())
    again.add(rows[stop:])
    assert torch.equal(covariance_of(again), covariance_of(streamed(rows.numpy())))


def test_bfloat16_features_lose_nothing_more():
    rows = (features(4000, mean=100.0)).to(torch.bfloat16)
    running = RunningCovariance(8)
    for part in rows.split(7):
        running.add(part)
    exact = np.cov(rows.double().numpy().T)
    np.testing.assert_allclose(covariance_of(running).numpy(), exact, rtol=1e-10)
    # The same sums in the features' own format, and even in 32 bits, are wrong.
    own = (rows.T @ rows / 4000 - torch.outer(rows.mean(0), rows.mean(0))).double().numpy()
    assert np.abs(own - exact).max() > 0.1 * exact.max()
    single = rows.float()
    naive = (single.T @ single / 4000 - torch.outer(single.mean(0), single.mean(0))).double().numpy()
    assert np.abs(naive - exact).max() > 1e-5 * exact.max()


def test_a_large_mean_cancels_nothing():
    rows = features(300, mean=1e7)
    result = covariance_of(streamed(rows.numpy(), range(0, 300, 11))).numpy()
    np.testing.assert_allclose(result, np.cov((rows - 1e7).numpy().T), rtol=1e-6)


def test_a_gaussian_of_known_covariance_is_found():
    draw = np.random.default_rng(0)
    variances = np.array([9.0, 4.0, 1.0, 0.25])
    running = RunningCovariance(4)
    for _ in range(40):
        running.add(torch.from_numpy(draw.normal(size=(500, 4)) * np.sqrt(variances)))
    # The standard error of a variance is its sqrt(2 / n): 1% here.
    np.testing.assert_allclose(running.eigenvalues().numpy(), variances, rtol=0.04)


def test_constant_features_have_no_spectrum():
    running = RunningCovariance(3)
    running.add(torch.full((40, 3), 0.1))
    assert running.eigenvalues().abs().max() < 1e-30


def test_one_feature_is_too_few():
    running = RunningCovariance(3)
    running.add(torch.ones(1, 3))
    with pytest.raises(ValueError, match="two features or more, and there are 1"):
        covariance_of(running)


def test_a_buffer_that_is_used_again_leaves_what_was_added():
    rows = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    running, buffer = RunningCovariance(8), torch.empty(30, 8)
    for part in rows.split(30):
        buffer.copy_(part)
        running.add(buffer)
    np.testing.assert_allclose(covariance_of(running).numpy(), np.cov(rows.double().numpy().T), rtol=1e-9)
