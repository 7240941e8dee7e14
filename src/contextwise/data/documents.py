"""The documents of a corpus: which records of the sources are read, the split of each, and batches that are read ahead.

A document's split is drawn from a hash of its text, or is that of its source (``train=a.jsonl test=b.jsonl``).
"""

import difflib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import say
from contextwise.data.sources import BadRecord, Document, Record, Source, with_parts

BATCH_BYTES = 4_000_000
BATCH_DOCUMENTS = 4096
SPLITS = ("train", "validation", "test")
ENOUGH_HELD_OUT = 30
"""Documents that are held out by default where there are enough: a 95% interval over 30 covers nearly 95%."""
COUNTED = 1000
"""Documents are counted up to this many, of which the default share holds out 30 or more with a probability of 0.999."""
_NAMED = re.compile(r"([^=/.:*?~]*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z]\w*")  # as Hugging Face datasets requires
_RESERVED = ("tokenizer", "parts", "encoded")  # other folders of a corpus
T = TypeVar("T")
R = TypeVar("R")


class CountedDocument(NamedTuple):
    """A document with the digest and the sizes of its text."""

    text: str
    metadata: dict[str, Any]
    digest: bytes
    n_bytes: int
    n_words: int


@dataclass
class Skipped:
    """Counts of the records skipped in a pass over the sources, the first bad record, and examples of near-copies."""

    bad: int = 0
    empty: int = 0
    near_copies: int = 0
    first_bad: BadRecord | None = None
    examples: list[dict[str, Any]] = field(default_factory=list)


def _position(digest: bytes) -> float:
    """The first 64 bits of a digest as a number in [0, 1)."""
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True)
class SplitFractions:
    """Held-out shares of the documents; a document's split depends on its text alone."""

    validation: float = 0.05
    test: float = 0.0

    @classmethod
    def given(cls, validation: float | None, test: float | None, names: list[str] | None) -> "SplitFractions":
        """Build the shares from a user's options, with defaults for None; not if the sources name splits (``names``)."""
        options = {"validation": validation, "test": test}
        shares = {name: share for name, share in options.items() if share is not None}
        for name, share in shares.items() if names is not None else ():
            raise ConfigError(
                f"{name} {share} is a share of the documents, but the sources name their splits; "
                f"leave it out, or name a source {name}=..."
            )
        return cls(**shares)

    def __post_init__(self) -> None:
        for name, value in (("validation", self.validation), ("test", self.test)):
            if not 0 <= value < 1:
                raise ConfigError(f"{name} is {value}, but must be a share of the documents from 0 to below 1")
        if self.validation + self.test >= 1:
            raise ConfigError(
                f"validation {self.validation} and test {self.test} leave no document for training; "
                "their sum must be below 1"
            )

    def with_enough(self, digests: Iterable[bytes]) -> "SplitFractions":
        """The shares with a validation share that holds out 30 of these documents, or a fifth where they are fewer.

        A share that holds out enough is kept. A larger one holds out the same documents, and more.
        """
        positions = sorted(map(_position, set(digests)))
        wanted = min(ENOUGH_HELD_OUT, len(positions) // 5)
        if not wanted or positions[wanted - 1] < self.validation:
            return self
        share = (positions[wanted - 1] + positions[wanted]) / 2
        return replace(self, validation=share) if share + self.test < 1 else self

    def split_of(self, digest: bytes) -> str:
        """Split of the document with this digest, by its position in [0, 1)."""
        number = _position(digest)
        if number < self.validation:
            return "validation"
        return "test" if number < self.validation + self.test else "train"


@dataclass(frozen=True)
class Reading:
    """Documents to read from the sources; every pass over :meth:`documents` yields the same documents."""

    sources: list[Source]
    names: list[str] | None  # the split of each source; None if documents are split by shares
    text_field: str
    fractions: SplitFractions
    limit: int | None
    skip_bad: bool

    @property
    def splits(self) -> list[str]:
        """Names of the possible splits."""
        return list(SPLITS) if self.names is None else list(dict.fromkeys(self.names))

    def holding_out_enough(self) -> "Reading":
        """The same with a validation share that holds out enough documents (:meth:`SplitFractions.with_enough`)."""
        texts = islice(self.documents(Skipped()), COUNTED)
        digests = [text_digest(document.text.encode()) for document in texts]
        return self if len(digests) == COUNTED else replace(self, fractions=self.fractions.with_enough(digests))

    @property
    def done(self) -> float:
        """Share of the sources that the current pass has read, from 0 to 1."""
        return sum(source.done for source in self.sources) / len(self.sources)

    def documents(self, skipped: Skipped, split: str | None = None) -> Iterator[Document]:
        """Iterate over all documents in the order of the sources, or those of a named split; ``skipped`` counts the others."""
        records = chain.from_iterable(source.records(self.text_field) for source in self._of(split))
        return read_documents(records, self.skip_bad, self.limit, skipped)

    def batches(self, skipped: Skipped) -> Iterator[tuple[str | None, list[CountedDocument]]]:
        """Iterate over all documents in batches, each with its split if the sources name splits."""
        for source in self.sources:
            source.done = 0.0
        for split in [None] if self.names is None else self.splits:
            for batch in in_batches(self.documents(skipped, split)):
                yield split, batch

    def training_documents(self) -> Iterator[Document]:
        """Iterate over the documents of the training split, on which a tokenizer may be trained."""
        for document in self.documents(Skipped(), "train"):
            if self.names or self.fractions.split_of(text_digest(document.text.encode())) == "train":
                yield document

    def where(self, split: str, digest: bytes) -> str:
        """Location of the document with this digest in the sources of a split."""
        for source in self._of(split):
            for number, record in enumerate(source.records(self.text_field), start=1):
                if not isinstance(record, BadRecord) and text_digest(record.text.encode()) == digest:
                    return f"record {number:,} of {source.name}"
        return "a source that has changed meanwhile"

    def _of(self, split: str | None) -> list[Source]:
        if self.names is None or split is None:
            return self.sources
        return [source for source, name in zip(self.sources, self.names, strict=True) if name == split]


def text_digest(utf8: bytes) -> bytes:
    """128-bit BLAKE2b of a text's UTF-8 bytes: the identifier of the document."""
    return blake2b(utf8, digest_size=16).digest()


def read_documents(
    records: Iterable[Record], skip_bad: bool, limit: int | None, skipped: Skipped
) -> Iterator[Document]:
    """Yield the documents among ``records``, at most ``limit``; count the others in ``skipped``.

    A bad record is a :class:`DataError`, unless ``skip_bad`` is set.
    """
    count = 0
    for record in records:
        if isinstance(record, BadRecord):
            if not skip_bad:
                raise DataError(f"{record.where}: {record.why}; fix it, or set skip_bad to leave out such records")
            skipped.bad += 1
            skipped.first_bad = skipped.first_bad or record
        elif not record.text or record.text.isspace():
            skipped.empty += 1
        else:
            yield record
            count += 1
            if count == limit:
                return


def in_batches(documents: Iterable[Document]) -> Iterator[list[CountedDocument]]:
    """Group documents, in order, into batches of bounded size, to be tokenized together."""
    batch: list[CountedDocument] = []
    size = 0
    for text, metadata in documents:
        utf8 = text.encode()
        batch.append(CountedDocument(text, metadata, text_digest(utf8), len(utf8), len(text.split())))
        size += len(utf8)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
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


def map_ahead(function: Callable[[T], R], items: Iterable[T], threads: int = 2) -> Iterator[R]:
    """Apply ``function`` to ``items`` in threads, and yield the results in order; its errors are raised here.

    While the caller uses a result, the next ``threads`` are computed.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="map")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def read_splits(given: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Parse the sources to open, and the split of each; None if no source names a split.

    A source whose complete text is the name of a file or folder (``year=2020/part.parquet``) names no split. A single source
    that has parts names their splits.
    """
    given = with_parts(given)
    # os.path.exists is false for what cannot be a path; Path.exists may raise an error.
    is_path = [os.path.exists(os.path.expanduser(source)) for source in given]  # noqa: PTH110, PTH111
    matches = [None if known else _NAMED.fullmatch(source) for source, known in zip(given, is_path, strict=True)]
    if not any(matches):
        return list(given), None
    named = []
    for whole, match in zip(given, matches, strict=True):
        if match is None:
            raise ConfigError(
                f"the source {whole} names no split, but others do; write train={whole}, or name no split at all"
            )
        name, source = match.groups()
        if not source:
            raise ConfigError(f"{name}= names a split, but no source; write {name}=FILE")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"the split of the source {whole} is called {name!r}, but a split's name is a letter and then letters, digits "
                "and underscores; choose such a name (a file with an equals sign in its path begins with ./)"
            )
        if name in _RESERVED:
            raise ConfigError(f"no split can be called {name!r}, which the corpus uses itself; choose another name")
        near = [*difflib.get_close_matches(name, SPLITS, n=1), *(each for each in SPLITS if each.startswith(name[:3]))]
        if name not in SPLITS and near:
            say(f"note: the split is called {name!r}, not {near[0]!r}, which `train` or a measure looks for")
        named.append((source, name))
    return [source for source, _ in named], [name for _, name in named]


def check_ids(tokens: np.ndarray, size: int | None, path: str | Path) -> None:
    """Raise DataError if a corpus has a token id that the model's vocabulary of ``size`` tokens does not have."""
    worst = tokens.min() if tokens.min() < 0 else tokens.max()
    if size is not None and not 0 <= worst < size:
        raise DataError(
            f"{path} holds the token id {worst}, but the model's vocabulary has {size} tokens; set model.vocab_size"
        )
