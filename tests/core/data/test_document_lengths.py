"""The corpus meter, against counting one token at a time."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import DataError
from contextwise.data import Corpus
from contextwise.data.document_lengths import (
    DocumentLengths,
    boundary_note,
    in_tokens,
    measure_lengths,
    short_documents_note,
)

lengths = st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any)


@given(lengths, st.integers(0, 310))
def test_shares_are_what_counting_gives(documents: list[int], visible: int) -> None:
    meter = DocumentLengths(np.array(documents))
    before = [position for length in documents for position in range(length)]
    assert meter.preceded(visible) == sum(count >= visible for count in before) / len(before)
    assert meter.shorter(visible) == sum(length < visible for length in documents) / len(documents)


@given(lengths)
def test_bins_hold_every_document_once(documents: list[int]) -> None:
    meter = DocumentLengths(np.array(documents))
    bins = meter.bins()
    assert bins[-1].shortest <= meter.longest <= bins[-1].longest
    for part in bins:
        inside = [length for length in documents if part.shortest <= length <= part.longest]
        assert (part.documents, part.tokens) == (len(inside), sum(inside))
    assert sum(part.tokens for part in bins) == meter.tokens
    assert [part.preceded for part in bins] == sorted((part.preceded for part in bins), reverse=True)


def test_a_corpus_worked_by_hand() -> None:
    meter = DocumentLengths(np.array([2, 10, 4]))
    # Before the tokens there are 0 1 | 0 … 9 | 0 1 2 3.
    assert [meter.preceded(visible) for visible in (0, 1, 2, 4, 8, 10)] == [1.0, 13 / 16, 10 / 16, 6 / 16, 2 / 16, 0.0]
    assert meter.quantiles()["50%"] == 4 and meter.quantiles()["90%"] == 10
    assert meter.reward(8).preceded == meter.reward(7).preceded == 6 / 16
    assert meter.reward(7).half == 4
    assert meter.reward(8).enough and not meter.reward(16).enough  # no document of 16
    assert meter.longest_rewarded() == 8


def test_a_context_that_few_tokens_can_fill_is_not_rewarded() -> None:
    """The source's case: most documents under 2,048 tokens, a few longer ones."""
    meter = DocumentLengths(np.array([1000] * 95 + [9000] * 2))
    assert meter.shorter(2048) > 0.9
    assert not meter.reward(8192).enough and meter.reward(8192).documents == 2
    assert meter.reward(8192).preceded == pytest.approx(2 * (9000 - 4096) / (95 * 1000 + 18000))
    assert meter.longest_rewarded() == 4096 and meter.reward(4096).preceded > 0.1


def test_corpora_without_boundaries_say_so(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="needs zarr")
    np.arange(100, dtype="<u2").tofile(tmp_path / "text.bin")
    flat = Corpus.open(tmp_path / "text.bin")
    assert measure_lengths(flat).bins()[-1].documents == 1
    assert "counts as one" in str(boundary_note(flat))
    array = zarr.create_array(str(tmp_path / "long"), shape=(3, 64), dtype="u2")
    array[:] = 1
    rows = Corpus.open(tmp_path / "long")
    meter = measure_lengths(rows)
    assert meter.longest_rewarded() == 64 and meter.preceded(32) == 0.5
    assert "rows of one length" in str(boundary_note(rows))


def test_documents_of_a_prepared_corpus(corpus: Corpus) -> None:
    meter = measure_lengths(corpus)
    assert (meter.documents, meter.tokens) == (len(corpus), corpus.tokens)
    assert boundary_note(corpus) is None


def test_no_tokens(corpus: Corpus) -> None:
    corpus.lengths = np.zeros(2, dtype=int)
    with pytest.raises(DataError, match="the split 'train' of .* has no tokens to measure; choose another"):
        measure_lengths(corpus)


def test_a_context_that_few_documents_reach_is_noted(corpus: Corpus) -> None:
    corpus.lengths = np.array([20] * 99 + [300])
    note = short_documents_note(corpus, 256)
    assert note is not None and note.startswith(
        f"data.context is 256 tokens, but only 7.5% of the tokens of {corpus.path} (train) have"
    )
    assert short_documents_note(corpus, 16) is None


def test_a_context_longer_than_every_document_is_noted_with_what_can_be_seen(corpus: Corpus) -> None:
    longest = int(corpus.lengths.max())
    assert short_documents_note(corpus, longest) is None
    note = short_documents_note(corpus, longest + 1)
    half = -(-(longest + 1) // 2)
    share = np.maximum(0, corpus.lengths - half).sum() / corpus.tokens
    assert note is not None and f"the longest has {in_tokens(longest)}, and {share:.1%} of the tokens have" in note
    assert f"have {in_tokens(half)} or more (half of the context)" in note
