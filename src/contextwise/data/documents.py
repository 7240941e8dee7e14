"""Documents, and their iteration in batches: skipping of bad records and empty texts, limits, reading ahead."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast

from contextwise.base.errors import DataError

BATCH_BYTES = 4_000_000
BATCH_DOCUMENTS = 4096
LONGEST_TEXT = 2**31 - 1  # Arrow's list offsets are 32-bit, and a token has at least one byte
T = TypeVar("T")


class Document(NamedTuple):
    """A text and its metadata."""

    text: str
    metadata: dict[str, Any]


class BadRecord(NamedTuple):
    """An invalid record of a source: its location (``file:line``), and the reason."""

    where: str
    why: str


@dataclass
class Skipped:
    """Counts of the records skipped in a pass over the sources, and the first bad record."""

    bad: int = 0
    empty: int = 0
    first_bad: BadRecord | None = None


def text_digest(utf8: bytes) -> bytes:
    """128-bit BLAKE2b of a text's UTF-8 bytes: the identifier of the document."""
    return blake2b(utf8, digest_size=16).digest()


@dataclass
class Batch:
    """Batch of documents that are tokenized together; all lists have one entry per document."""

    texts: list[str] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    n_bytes: list[int] = field(default_factory=list)
    n_words: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)


def read_documents(
    records: Iterable[Document | BadRecord], skip_bad: bool, limit: int | None, skipped: Skipped
) -> Iterator[Document]:
    """Yield the documents among ``records``, at most ``limit``; count the others in ``skipped``.

    Raises:
        DataError: a bad record, unless ``skip_bad``.
    """
    count = 0
    if limit == 0:
        return
    for record in records:
        if isinstance(record, BadRecord):
            if not skip_bad:
                raise DataError(
                    f"{record.where}: {record.why}; fix it, or set skip_bad to leave out such records"
                )
            skipped.bad += 1
            skipped.first_bad = skipped.first_bad or record
        elif not record.text or record.text.isspace():
            skipped.empty += 1
        else:
            yield record
            count += 1
            if count == limit:
                return


def in_batches(documents: Iterable[Document]) -> Iterator[Batch]:
    """Group documents, in order, into batches of bounded size, with their sizes and digests."""
    batch, size = Batch(), 0
    for text, metadata in documents:
        utf8 = text.encode()
        batch.texts.append(text)
        batch.metadata.append(metadata)
        batch.digests.append(text_digest(utf8))
        batch.n_bytes.append(len(utf8))
        batch.n_words.append(len(text.split()))
        size += len(utf8)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = Batch(), 0
    if len(batch):
        yield batch


def read_ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """Iterate over ``items`` in a thread, at most ``depth`` items ahead; its errors are raised here."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="reader")
    try:
        waiting = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield cast(T, item)
    finally:
        pool.shutdown(cancel_futures=True)
