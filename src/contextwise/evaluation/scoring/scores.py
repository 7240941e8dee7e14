"""Losses of the targets of a corpus, their tables, and the measures made of them; imports no torch.

Every measure is a ratio of two sums over documents, so long documents have more weight, as in the loss of the whole text. Words
are separated by white space in the source text; bytes are those of its UTF-8.

       loss = Σ nats / Σ tokens                      perplexity = exp(loss)
       word perplexity = exp(Σ nats / Σ words)       byte perplexity = exp(Σ nats / Σ bytes)
       bits per byte = Σ nats / (ln 2 · Σ bytes)

Legend of shapes: N targets in the corpus.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from contextwise.base.estimates import Estimate, exponential
from contextwise.base.intervals import ratios
from contextwise.evaluation.kernel.result import column_or_none

if TYPE_CHECKING:
    from contextwise.data import Corpus


@dataclass(frozen=True)
class Scores:
    """Losses ``nats`` (N,) float32 of all targets of a corpus, in the order of the documents.

    Each document has a number of ``targets``. ``visible`` (N,) int32 tokens of the document precede a target; end-of-text is
    not counted. ``first_position`` is the index of the first target in its document: 0, or 1 without an end-of-text token.
    """

    targets: np.ndarray
    nats: np.ndarray
    visible: np.ndarray
    first_position: int

    def document_sums(self, values: np.ndarray | None = None) -> np.ndarray:
        """(documents,) float64: nats of each document, or sums of other ``values`` (N,)."""
        documents = np.repeat(np.arange(len(self.targets)), self.targets)
        weights = self.nats if values is None else values
        return np.bincount(documents, weights=weights, minlength=len(self.targets))

    def table(self) -> pa.Table:
        """Table with a row per target: ``document``, ``position`` (from 0), ``visible``, ``nats``."""
        position = numbered(self.targets) + self.first_position
        document = np.repeat(np.arange(len(self.targets), dtype=np.int32), self.targets)
        columns = {"document": document, "position": position.astype(np.int32)}
        return pa.table(columns | {"visible": self.visible, "nats": self.nats})


def numbered(sizes: np.ndarray) -> np.ndarray:
    """The place of each item in its group, from 0, of groups of these ``sizes`` one after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def documents_table(corpus: "Corpus", scores: Scores) -> pa.Table:
    """Table with a row per document: ``document``, its hash, ``tokens`` (targets), ``bytes``, ``words``, ``nats``.

    Bytes and words are null where its tokens do not decode to its text (``text_lost``): its nats are not those of its bytes.
    """
    count = len(scores.targets)

    def nullable(values: Any, kind: pa.DataType, mask: Any = None) -> pa.Array:
        return pa.nulls(count, kind) if values is None else pa.array(values[:count], kind, mask=mask)

    lost = None if corpus.lost is None else corpus.lost[:count]

    hashes = corpus.column("document_hash") if "document_hash" in corpus.columns else None
    return pa.table(
        {
            "document": np.arange(count, dtype=np.int32),
            "document_hash": nullable(hashes, pa.string()),
            "tokens": scores.targets,
            "bytes": nullable(corpus.bytes, pa.int64(), lost),
            "words": nullable(corpus.words, pa.int64(), lost),
            "text_lost": nullable(lost, pa.bool_()),
            "nats": scores.document_sums(),
        }
    )


def totals(documents: pa.Table) -> dict[str, Any]:
    """Compute counts, and measures with intervals over documents, in the format of ``summary.json``.

    Measures of words or bytes leave out the ``lost_texts``: documents whose tokens do not decode to their text; None if
    unknown.
    """
    nats = documents["nats"].to_numpy()
    sums: dict[str, int | None] = {}
    estimates: dict[str, Estimate] = {}
    for name in ("tokens", "bytes", "words"):
        known = documents[name].is_valid().to_numpy()
        sizes = documents[name].drop_null().to_numpy()
        sums[name] = int(sizes.sum()) if len(sizes) else None
        if sums[name]:
            estimates |= ratios(nats[known], {name: sizes})
    lost = column_or_none(documents, "text_lost") if "text_lost" in documents.column_names else None

    def mapped(size: str, function: Callable[[float], float]) -> dict[str, Any] | None:
        return estimates[size].map(function).to_dict() if size in estimates else None

    return {
        "documents": documents.num_rows,
        "lost_texts": None if lost is None else int(lost.sum()),
        **sums,
        "loss": estimates["tokens"].to_dict(),
        "perplexity": mapped("tokens", exponential),
        "word_perplexity": mapped("words", exponential),
        "byte_perplexity": mapped("bytes", exponential),
        "bits_per_byte": mapped("bytes", lambda nats_per_byte: nats_per_byte / math.log(2)),
    }
