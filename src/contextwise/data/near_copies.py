"""Near-copies of documents: by MinHash while a corpus is prepared, and by the n-grams that other texts share with a corpus.

Both work on hashes of n-grams of token ids. MinHash: Broder 1997; n-gram containment of 13 tokens: the test for contamination
of GPT-3 (Brown et al. 2020, Appendix C), there over words.
"""

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus

SHINGLE, CONTAINED = 5, 13  # tokens of an n-gram: of MinHash, and of containment
COMPARED = 8  # documents of a band that others are compared with
BANDS, ROWS = 20, 6  # of the 120 minima of a document: it is compared with those that have all minima of one band
DOUBT = 0.1  # by how much the share of equal minima may be below the similarity, about three standard errors at 0.8
COPIED = 0.5  # a text that shares this share of its n-grams counts as copied
COPIED_BYTES, LONGEST = 40, 64
"""Bytes of text that an n-gram must hold to say that a document is copied: 13 bytes are two words, which any text shares. And
the most tokens of such an n-gram."""
MOST_COMPARED = 20_000_000
"""Training tokens that held-out documents are compared with unasked: six seconds; of more, see ``corpus --overlap``."""
EXAMPLES = 10
BLOCK = 2**16
_DRAW = np.random.default_rng(5)
_FACTORS, _ADDED = _DRAW.integers(1, 2**63, (2, BANDS * ROWS, 1), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_POWERS = _DRAW.integers(1, 2**63, LONGEST, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def ngram_hashes(ids: np.ndarray, length: int) -> np.ndarray:
    """64-bit hashes of the n-grams of ``length`` tokens, (N - length + 1,); of a shorter text one, of all of it."""
    length = min(length, len(ids))
    tokens = _mixed(ids.astype(np.uint64) + np.uint64(1))
    count = len(ids) - length + 1
    return _mixed(sum(tokens[j : j + count] * _POWERS[j] for j in range(length)) + np.uint64(length))


def _mixed(values: np.ndarray) -> np.ndarray:
    """A permutation of 64-bit numbers in which all bits depend on all (splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass
class NearCopies:
    """Finds documents that are nearly equal to earlier ones, by the Jaccard similarity of their sets of 5-grams.

    Documents that may be similar are found by 120 minima, and then compared by the sets, which are kept in a temporary file (4
    bytes of each 5-gram). A similarity of 0.8 is looked at with a probability of 99.8%, one of 0.7 with 92%, unless many others
    are as similar: a document is compared with the first 8 that share a band. Equal documents are always found. About 4 kB of
    memory for each document that is kept.
    """

    threshold: float  # the least similarity of a near-copy
    folder: Path | None = None  # where the temporary file is written; None: the system's folder
    _minima: list[np.ndarray] = field(default_factory=list)
    _with: dict[int, list[int]] = field(default_factory=dict)  # hash of a band -> the first documents with it
    _equal: dict[int, int] = field(default_factory=dict)  # hash of a set -> the first document with it
    _ends: list[int] = field(default_factory=lambda: [0])  # of the sets in the file, bytes

    def __post_init__(self) -> None:
        self._sets = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  closed with this object

    def original(self, ids: np.ndarray) -> tuple[int, float] | None:
        """The number of the document that this one nearly copies, among those that are kept, and the similarity.

        None if there is none; the document is then kept, and counted.
        """
        hashes = np.unique(ngram_hashes(ids, SHINGLE))
        minima = np.full(BANDS * ROWS, 2**32 - 1, dtype=np.uint32)
        for start in range(0, len(hashes), BLOCK // BANDS):
            each = (_FACTORS * hashes[None, start : start + BLOCK // BANDS] + _ADDED) >> np.uint64(32)
            np.minimum(minima, each.min(axis=1).astype(np.uint32), out=minima)
        bands = [hash((i, part.tobytes())) for i, part in enumerate(minima.reshape(BANDS, ROWS))]
        grams = np.unique((hashes >> np.uint64(32)).astype(np.uint32))
        equal = hash(grams.tobytes())
        candidates = sorted({number for band in bands for number in self._with.get(band, ())})
        likely = [number for number in candidates if (self._minima[number] == minima).mean() >= self.threshold - DOUBT]
        for number in ([self._equal[equal]] if equal in self._equal else []) + likely:
            if (similarity := self._similarity(number, grams)) >= self.threshold:
                return number, similarity
        for band in bands:
            if len(alike := self._with.setdefault(band, [])) < COMPARED:
                alike.append(len(self._minima))
        self._equal.setdefault(equal, len(self._minima))
        self._minima.append(minima)
        self._ends.append(self._sets.seek(0, os.SEEK_END) + self._sets.write(grams.tobytes()))
        return None

    def _similarity(self, number: int, grams: np.ndarray) -> float:
        """The Jaccard similarity of the set of a document that is kept and another one."""
        self._sets.seek(self._ends[number])
        kept = np.frombuffer(self._sets.read(self._ends[number + 1] - self._ends[number]), dtype=np.uint32)
        both = len(np.intersect1d(kept, grams, assume_unique=True))
        return both / (len(kept) + len(grams) - both)


def containment(corpus: "Corpus", texts: Iterable[np.ndarray]) -> np.ndarray:
    """The share of each text's distinct n-grams that the documents of a corpus hold, (texts,); 0 for a shorter text.

    ``texts`` are token ids of the corpus's tokenizer; n-grams have :func:`copied_length`.
    """
    length = copied_length(corpus)
    grams = [np.unique(ngram_hashes(ids, length)) if len(ids) >= length else np.empty(0, np.uint64) for ids in texts]
    wanted = np.unique(np.concatenate([*grams, np.empty(0, np.uint64)]))
    seen = np.zeros(len(wanted) + 1, dtype=bool)
    for index in range(len(corpus) if len(wanted) else 0):
        ids = corpus.document(index)
        for start in range(0, len(ids) - length + 1, BLOCK):
            hashes = ngram_hashes(ids[start : start + BLOCK + length - 1], length)
            at = np.searchsorted(wanted, hashes)
            seen[at[wanted[np.minimum(at, len(wanted) - 1)] == hashes]] = True
    return np.array([seen[np.searchsorted(wanted, each)].mean() if len(each) else 0.0 for each in grams])


def copied_length(corpus: "Corpus") -> int:
    """Tokens of the n-grams by which a document counts as copied: 13, or more where these hold less than 40 bytes."""
    about = corpus.manifest["splits"][corpus.split] if corpus.manifest else {"bytes": 1, "tokens": 0}
    tokens = -(-COPIED_BYTES * about["tokens"] // max(1, about["bytes"]))
    return min(max(CONTAINED, tokens), LONGEST)


def copied_documents(corpus: "Corpus", other: "Corpus", documents: int) -> dict[int, float]:
    """Those of the first ``documents`` of another split that copy a corpus: number -> share of its n-grams, half or more."""
    shares = containment(corpus, (other.document(index) for index in range(documents)))
    return {int(number): float(shares[number]) for number in np.flatnonzero(shares >= COPIED)}


@dataclass(frozen=True)
class Copied:
    """A text, the share of its n-grams that is in the corpus, and its number in its split, from 0."""

    number: int
    share: float
    beginning: str


@dataclass(frozen=True)
class Overlap:
    """How much of a split's texts is in the corpus, another split."""

    name: str
    split: str  # of the corpus
    texts: int
    share: float  # mean over the texts
    copied: int  # texts that share half of their n-grams or more
    ngram: int  # tokens of an n-gram
    examples: list[Copied]  # at most ten texts that share most

    @property
    def sentence(self) -> str:
        """The finding."""
        return (
            f"{self.copied:,} of {self.texts:,} texts of {self.name!r} share half or more of their {self.ngram}-grams with "
            f"{self.split!r} (mean {self.share:.1%})"
        )


def split_overlap(corpus: "Corpus", other: "Corpus") -> Overlap:
    """The overlap of a corpus's documents with those of another split of it."""
    tokenizer = corpus.tokenizer()
    shares = containment(corpus, (other.document(index) for index in range(len(other))))
    most = [int(i) for i in np.argsort(-shares, kind="stable")[:EXAMPLES] if shares[i] > 0]
    texts = ["" if tokenizer is None else tokenizer.decode(other.document(i)[:200]) for i in most]
    examples = [Copied(i, float(shares[i]), beginning(text)) for i, text in zip(most, texts, strict=True)]
    copied, mean = int((shares >= COPIED).sum()), float(shares.mean())
    return Overlap(other.split, corpus.split, len(shares), mean, copied, copied_length(corpus), examples)


def beginning(text: str) -> str:
    """The first 60 characters of a text on one line."""
    shown = " ".join(text[:1000].split())
    return shown if len(shown) <= 60 else shown[:57] + "..."
