"""Document lengths of a corpus, and the longest training context that they support.

Over 90% of the documents of OpenWebText are shorter than 2,048 tokens, and the loss of a model trained with 8,192 stops falling
at that position (context scaling, Section 1): the remainder of a longer window holds unrelated documents.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from contextwise.base.errors import DataError
from contextwise.data.corpus.corpus import Corpus

if TYPE_CHECKING:
    from contextwise.data.windows import Documents

LEAST_SHARE = 0.1
"""Minimum share of the tokens that must have at least half of a training context before them in their document. A corpus
rewards a training context if this holds and at least one document is as long as the context."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class LengthBin:
    """Bin of the documents with ``shortest`` to ``longest`` tokens, both included: one doubling of the length."""

    shortest: int
    longest: int
    documents: int
    tokens: int
    shorter: float  # share of all documents that have fewer than ``shortest`` tokens
    preceded: float  # share of all tokens that have ``shortest`` tokens or more before them in their document


@dataclass(frozen=True)
class Reward:
    """Whether the documents of a corpus reward a training context."""

    context: int
    half: int  # half of the context in tokens, rounded up
    preceded: float  # share of the tokens that have `half` tokens or more before them in their document
    documents: int  # as long as the context
    enough: bool  # `preceded` is `LEAST_SHARE` or more, and at least one document is as long as the context

    @property
    def shortfall(self) -> str:
        """Reason why the corpus does not reward the context, as a clause."""
        if not self.documents:
            return "no document is as long"
        return (
            f"{self.preceded:.1%} of the tokens have {in_tokens(self.half)} or more (half of it) before them in their "
            f"document, less than {LEAST_SHARE:.0%}"
        )


class DocumentLengths:
    """Distribution of the lengths of documents in tokens (not all 0); end-of-text tokens are not counted."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = np.sort(np.asarray(lengths, dtype=np.int64))
        self.documents, self.tokens = len(self.lengths), int(self.lengths.sum())
        self._sums = np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def longest(self) -> int:
        """Length of the longest document in tokens."""
        return int(self.lengths[-1])

    def preceded(self, visible: int) -> float:
        """Share of the tokens that have ``visible`` tokens or more before them: sum of max(0, n - visible) / sum of n."""
        shorter = int(np.searchsorted(self.lengths, visible, side="right"))
        beyond = self.tokens - int(self._sums[shorter]) - visible * (self.documents - shorter)
        return beyond / self.tokens

    def shorter(self, length: int) -> float:
        """Share of the documents that have fewer than ``length`` tokens."""
        return int(np.searchsorted(self.lengths, length)) / self.documents

    def quantiles(self) -> dict[str, int]:
        """Quantiles of the document lengths: ``{"0%": …, "50%": …}``."""
        lengths = np.quantile(self.lengths, QUANTILES, method="inverted_cdf")
        return {f"{share:.0%}": int(length) for share, length in zip(QUANTILES, lengths, strict=True)}

    def bins(self) -> list[LengthBin]:
        """Bins between powers of two, up to the longest document; empty documents are excluded."""
        edges = 2 ** np.arange(self.longest.bit_length() + 1)
        indices = np.searchsorted(self.lengths, edges)
        bins = []
        for low, (first, last) in zip(edges.tolist(), pairwise(indices.tolist()), strict=False):
            tokens = int(self._sums[last] - self._sums[first])
            shares = self.shorter(low), self.preceded(low)
            bins.append(LengthBin(low, 2 * low - 1, last - first, tokens, *shares))
        return bins

    def reward(self, context: int) -> Reward:
        """Whether the corpus rewards a training context of ``context`` tokens."""
        half = -(-context // 2)
        preceded = self.preceded(half)
        documents = self.documents - int(np.searchsorted(self.lengths, context))
        return Reward(context, half, preceded, documents, preceded >= LEAST_SHARE and documents > 0)

    def longest_rewarded(self) -> int | None:
        """Longest training context that the corpus rewards, among powers of two; None if it rewards none."""
        contexts = (2**power for power in range(self.longest.bit_length()))
        return max((context for context in contexts if self.reward(context).enough), default=None)


def measure_lengths(corpus: Corpus) -> DocumentLengths:
    """Measure the document lengths of a corpus's split; a :class:`DataError` if it has no tokens."""
    if not corpus.tokens:
        raise DataError(f"the split {corpus.split!r} of {corpus.path} has no tokens to measure; choose another split")
    return DocumentLengths(corpus.lengths)


def boundary_note(corpus: Corpus) -> str | None:
    """Return a note on corpora that do not store document boundaries; None for a prepared corpus."""
    if corpus.manifest:
        return None
    if corpus.path.suffix == ".bin" or any(corpus.path.glob("*.bin")):
        return "A .bin file does not say where documents end and counts as one: the shares hold only if it is one long text."
    return "A Zarr array has rows of one length: each counts as one document, whatever texts are in it."


def short_documents_note(documents: "Documents", context: int) -> str | None:
    """Sentence on a training context that the documents do not reward; None if they do."""
    measured = DocumentLengths(documents.lengths)
    if not measured.tokens or (reward := measured.reward(context)).enough:
        return None
    of = f"of {documents.path} ({documents.split})"
    longest = f"no document {of} is that long: the longest has {in_tokens(measured.longest)}, and "
    visible = f"have {in_tokens(reward.half)} or more (half of the context) of their own document before them"
    of_tokens = f"{reward.preceded:.1%} of the tokens"
    what = f"only {of_tokens} {of} {visible}" if reward.documents else f"{longest}{of_tokens} {visible}"
    return f"data.context is {in_tokens(context)}, but {what}; a window is filled with several documents"


def report(corpus: Corpus, lengths: DocumentLengths, contexts: list[int]) -> dict[str, Any]:
    """The document lengths of a corpus, and whether it rewards these training contexts."""
    return {
        "corpus": str(corpus.path),
        "split": corpus.split,
        "documents": lengths.documents,
        "tokens": lengths.tokens,
        "quantiles": lengths.quantiles(),
        "bins": lengths.bins(),
        "contexts": [lengths.reward(context) for context in contexts],
        "longest_rewarded_context": lengths.longest_rewarded(),
        "least_share": LEAST_SHARE,
        "note": boundary_note(corpus),
        "lost": corpus.manifest["splits"][corpus.split]["lost"] if corpus.manifest else None,
    }


def token_count(tokens: float) -> str:
    """Format a number of tokens: 512, 2,048."""
    return f"{tokens:,.0f}" if tokens >= 2**10 else f"{tokens:.4g}"


def in_tokens(tokens: float) -> str:
    """Format a number of tokens with its unit: 1 token, 2,048 tokens."""
    return f"{token_count(tokens)} token{'' if tokens == 1 else 's'}"
