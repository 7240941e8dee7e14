"""Whitening: the identity as covariance, the directions of PCA, and what is refused."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from contextwise.base.errors import ConfigError, DataError
from contextwise_papers.objectives.embedding.whitening import Whitening

DRAW = np.random.default_rng(0)
VECTORS = (DRAW.normal(size=(200, 6)) @ DRAW.normal(size=(6, 6)) + 3).astype(np.float32)


def test_the_covariance_becomes_the_identity():
    white = Whitening.fit(VECTORS)(VECTORS)
    np.testing.assert_allclose(np.cov(white.T), np.eye(6), atol=1e-4)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-4)


def test_fewer_components_are_those_of_pca():
    white = Whitening.fit(VECTORS, 2)(VECTORS)
    expected = PCA(2, whiten=True, svd_solver="full").fit_transform(VECTORS)
    np.testing.assert_allclose(np.abs(white), np.abs(expected), atol=1e-3)


def test_a_direction_without_variance_is_left_out():
    """A final layer norm fixes one direction of every state."""
    flat = VECTORS - VECTORS.mean(1, keepdims=True)
    white = Whitening.fit(flat)(flat)
    assert white.shape == (200, 5)
    np.testing.assert_allclose(np.cov(white.T), np.eye(5), atol=1e-4)
    with pytest.raises(DataError, match=r"vary in 5 directions, too few for 6 components; .* at most 5 components"):
        Whitening.fit(flat, 6)


@pytest.mark.parametrize(
    ("vectors", "components", "message"),
    [
        (VECTORS[:6], None, "6 texts are too few to whiten 6 numbers .* at least 7 texts, or at most 5 components"),
        (VECTORS[:1], 2, "1 text is too few to whiten 2 numbers of a vector; give at least 3 texts$"),
        (np.ones((9, 6), np.float32), None, "vary in 0 directions"),
    ],
)
def test_too_few_texts_are_refused(vectors, components, message):
    with pytest.raises(DataError, match=message):
        Whitening.fit(vectors, components)


def test_no_components_are_refused():
    with pytest.raises(ConfigError, match="components is 0"):
        Whitening.fit(VECTORS, 0)


def test_a_stored_whitening_is_the_same(tmp_path):
    file = tmp_path / "w"
    fitted = Whitening.fit(VECTORS, 3, {"layer": "2"})
    fitted.save(file)
    stored = Whitening.load(file)
    np.testing.assert_array_equal(fitted(VECTORS), stored(VECTORS))
    stored.check({"layer": "2"})
    with pytest.raises(ConfigError, match=r"vectors of another layer \(2\) than these \(1\)"):
        stored.check({"layer": "1"})
    (tmp_path / "other").write_text("text")
    with pytest.raises(DataError, match="cannot be read as a whitening"):
        Whitening.load(tmp_path / "other")
