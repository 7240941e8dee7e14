"""Selection of documents, their splits, and batches."""

import hashlib
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import documents as module
from contextwise.data.documents import (
    Skipped,
    SplitFractions,
    in_batches,
    map_ahead,
    read_ahead,
    read_documents,
    text_digest,
)
from contextwise.data.sources import BadRecord, Document


def test_split_follows_the_first_64_bits_of_blake2b() -> None:
    text = "héllo".encode()
    position = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest()[:8], "big") / 2**64
    assert SplitFractions(validation=position + 1e-9).split_of(text_digest(text)) == "validation"
    assert SplitFractions(validation=position, test=1e-9).split_of(text_digest(text)) == "test"
    assert SplitFractions(validation=position - 1e-9).split_of(text_digest(text)) == "train"


def test_a_small_corpus_holds_out_thirty_documents_or_a_fifth() -> None:
    digests = [text_digest(str(number).encode()) for number in range(3000)]
    for size, held in ((3, 0), (10, 2), (149, 29), (300, 30), (500, 30)):
        shares = SplitFractions(0.0, 0.3).with_enough(digests[:size])
        assert [shares.split_of(digest) for digest in digests[:size]].count("validation") == held
        assert SplitFractions().with_enough([*digests[:size], *digests[:size]]) == SplitFractions().with_enough(
            digests[:size]
        )
    assert SplitFractions().with_enough(digests) == SplitFractions()  # 5% of 3000 are more than 30
    small, smaller = (SplitFractions().with_enough(digests[:size]) for size in (300, 100))
    before = {digest for digest in digests if SplitFractions().split_of(digest) == "validation"}
    for shares in (small, smaller):
        assert before < {digest for digest in digests if shares.split_of(digest) == "validation"}
    assert SplitFractions(0.0, 0.99).with_enough(digests[:300]) == SplitFractions(0.0, 0.99)


def test_shares_hold_and_a_test_share_does_not_change_validation() -> None:
    digests = [text_digest(str(i).encode()) for i in range(20_000)]
    without, with_test = SplitFractions(0.1), SplitFractions(0.1, 0.3)
    first = [without.split_of(digest) == "validation" for digest in digests]
    second = [with_test.split_of(digest) for digest in digests]
    assert first == [split == "validation" for split in second]
    assert sum(first) == pytest.approx(2000, abs=200)
    assert second.count("test") == pytest.approx(6000, abs=350)


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0), (1.0, 0), (0, 1.5), (0.6, 0.4), (float("nan"), 0)])
def test_invalid_shares(validation: float, test: float) -> None:
    with pytest.raises(ConfigError, match=r"validation|test"):
        SplitFractions(validation, test)


def test_bad_and_empty_records_are_counted_and_the_limit_counts_documents() -> None:
    bad, other = BadRecord("f:2", "is bad"), BadRecord("f:4", "is worse")
    records = [Document("a", {}), bad, Document(" \n\u2003", {}), other, Document("b", {}), Document("c", {})]
    skipped = Skipped()
    assert [d.text for d in read_documents(records, True, 2, skipped)] == ["a", "b"]
    assert (skipped.bad, skipped.empty, skipped.first_bad) == (2, 1, bad)
    with pytest.raises(DataError, match=r"f:2: is bad; fix it, or set skip_bad"):
        list(read_documents(records, False, None, Skipped()))


@given(st.lists(st.text(max_size=30), max_size=30))
def test_batches_keep_order_and_count_bytes_and_words(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_BYTES", 40)
        patch.setattr(module, "BATCH_DOCUMENTS", 7)
        batches = list(in_batches(Document(text, {"n": i}) for i, text in enumerate(texts)))
    documents = [document for batch in batches for document in batch]
    assert [document.text for document in documents] == texts
    assert [document.metadata["n"] for document in documents] == list(range(len(texts)))
    assert [document.n_bytes for document in documents] == [len(text.encode()) for text in texts]
    assert [document.n_words for document in documents] == [len(text.split()) for text in texts]
    for batch in batches:
        assert len(batch) <= 7 and sum(document.n_bytes for document in batch[:-1]) < 40


def test_reading_ahead_keeps_order_and_raises_errors() -> None:
    def numbers() -> Iterator[int]:
        yield from range(50)
        raise DataError("the file ends here")

    seen = []
    with pytest.raises(DataError, match="the file ends here"):
        for number in read_ahead(numbers()):
            seen.append(number)  # noqa: PERF402
    assert seen == list(range(50))


def test_reading_ahead_is_bounded_and_stops_when_closed() -> None:
    made = 0

    def endless() -> Iterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    items = read_ahead(endless(), depth=3)
    assert next(items) == 1
    time.sleep(0.3)
    assert made <= 6
    items.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_mapping_ahead_keeps_order_runs_two_at_once_and_raises_errors() -> None:
    both = threading.Barrier(2, timeout=20)

    def doubled(number: int) -> int:
        both.wait()  # passes only if another item is computed at the same time
        return 2 * number

    assert list(map_ahead(doubled, range(20), threads=2)) == list(range(0, 40, 2))

    def fails(number: int) -> int:
        if number == 5:
            raise DataError("the fifth cannot be read")
        return number

    seen = []
    with pytest.raises(DataError, match="the fifth"):
        for number in map_ahead(fails, count()):
            seen.append(number)  # noqa: PERF402
    assert seen == list(range(5))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("map")]
