"""Small models with random weights."""

import pytest

from measured import make_model


@pytest.fixture
def model_of():
    """:func:`make_model`."""
    return make_model
