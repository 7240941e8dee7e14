"""Covariances of streams: against scikit-learn, against exact arithmetic, and stopped in the middle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise_papers.intrinsic_entropy.entropy.running import RunningCovariance


def features(rows, width=8, seed=0, mean=5.0):
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.normal(size=(rows, width)) @ draw.normal(size=(width, width)) + mean)


def streamed(rows, size):
    running = RunningCovariance()
    for part in rows.split(size):
        running.add(part)
    return running


def spectrum_of(rows):
    return np.linalg.eigvalsh(np.cov(rows.double().numpy().T))[::-1]


def test_a_stream_has_the_spectrum_of_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition", reason="scikit-learn is not installed")
    rows = features(203)
    pca = decomposition.PCA(svd_solver="full").fit(rows.numpy())
    running = streamed(rows, 7)
    np.testing.assert_allclose(running.eigenvalues().numpy(), pca.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(running.mean().numpy(), pca.mean_, rtol=1e-12)


def test_a_hand_worked_covariance():
    running = streamed(torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]]), 1)
    assert running.mean().tolist() == [2.0, 1.0]
    assert running.eigenvalues().tolist() == [3.0, 1.0]


@settings(max_examples=30)
@given(rows=st.integers(20, 70), stop=st.integers(1, 9))
def test_a_resumed_stream_gives_the_same_bits(rows, stop):
    every = features(rows)
    first = streamed(every[: 7 * stop], 7)
    again = RunningCovariance({name: value.clone() for name, value in first.sums.items()})
    for part in every[7 * stop :].split(7):
        again.add(part)
    assert torch.equal(again.eigenvalues(), streamed(every, 7).eigenvalues())
    np.testing.assert_allclose(again.eigenvalues().numpy(), spectrum_of(every), rtol=1e-6)


def test_bfloat16_features_lose_nothing_more():
    rows = (features(4000, mean=100.0)).to(torch.bfloat16)
    np.testing.assert_allclose(streamed(rows, 7).eigenvalues().numpy(), spectrum_of(rows), rtol=1e-9)


def test_a_large_mean_cancels_nothing():
    rows = features(300, mean=1e7)
    np.testing.assert_allclose(streamed(rows, 11).eigenvalues().numpy(), spectrum_of(rows - 1e7), rtol=1e-6)


def test_constant_features_have_no_spectrum():
    assert streamed(torch.full((40, 3), 0.1), 7).eigenvalues().abs().max() < 1e-30


def test_a_buffer_that_is_used_again_leaves_what_was_added():
    rows = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    running, buffer = RunningCovariance(), torch.empty(30, 8)
    for part in rows.split(30):
        buffer.copy_(part)
        running.add(buffer)
    np.testing.assert_allclose(running.eigenvalues().numpy(), spectrum_of(rows), rtol=1e-9)
