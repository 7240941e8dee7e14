"""Measures by hand, and intervals that cover."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.estimates import Estimate, exponential
from contextwise.base.intervals import ratios
from contextwise.evaluation.scoring.scores import totals


def measures(
    nats: list[float], tokens: list[int], words: list[int] | None, n_bytes: list[int] | None
) -> dict[str, Any]:
    """The measures of documents with these sums; None where they are not known."""
    unknown = pa.nulls(len(nats), pa.int64())
    optional = {"words": unknown if words is None else words, "bytes": unknown if n_bytes is None else n_bytes}
    return totals(pa.table({"nats": nats, "tokens": tokens, **optional}))


def test_measures_by_hand():
    # Two documents: 4 tokens at 1.0 nats and 2 tokens at 2.5 nats; 3 words and 12 bytes in all.
    result = measures([4.0, 5.0], [4, 2], [2, 1], [8, 4])
    assert [result[name] for name in ("documents", "tokens", "words", "bytes")] == [2, 6, 3, 12]
    values = {name: measure["value"] for name, measure in result.items() if isinstance(measure, dict)}
    assert values["loss"] == pytest.approx(9 / 6)
    assert values["perplexity"] == pytest.approx(math.exp(1.5))
    assert values["word_perplexity"] == pytest.approx(math.exp(3.0))
    assert values["byte_perplexity"] == pytest.approx(math.exp(0.75))
    assert values["bits_per_byte"] == pytest.approx(0.75 / math.log(2))
    # Without document 1 or 2: 2.5 and 1.0 nats a token; a variance of (1 + 0.25) / 2, and one degree of freedom.
    half = 12.706205 * 0.625**0.5
    assert result["loss"]["high"] - 1.5 == 1.5 - result["loss"]["low"] == pytest.approx(half)
    assert (result["loss"]["method"], result["loss"]["documents"]) == ("t", 2)
    assert result["perplexity"]["high"] == pytest.approx(math.exp(1.5 + half))


def test_unknown_words_and_bytes_are_null_not_numbers():
    result = measures([4.0, 5.0], [4, 2], None, [0, 0])
    assert result["word_perplexity"] is None and result["byte_perplexity"] is None and result["bits_per_byte"] is None


def test_a_perplexity_beyond_all_floats_is_null():
    assert exponential(1000.0) == math.inf
    assert Estimate(1000.0, 1.0, 2000.0).map(exponential).to_dict() == {
        "value": None,
        "low": pytest.approx(math.e),
        "high": None,
    }


@given(st.integers(2, 30), st.integers(0, 100))
def test_the_value_lies_in_its_interval_for_equal_documents_and_repeats_exactly(documents, seed):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, 100, documents)
    nats = 2.0 * tokens
    first = ratios(nats, {"tokens": tokens, "bytes": 3 * tokens})
    assert first == ratios(nats, {"tokens": tokens, "bytes": 3 * tokens})
    assert first["tokens"].low == pytest.approx(2) and first["bytes"].high == pytest.approx(2 / 3)
