"""The two scoring passes of a curve, which can be stopped and resumed: running windows, and the same targets at each context.

Each leaves sums, from which the contextwise loss curve and its readings are made.

Legend of shapes: D documents, K bins of visible tokens, P numbers of visible tokens, W windows of T positions, N targets.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel

from contextwise.base.errors import DataError
from contextwise.base.progress import progress_bar, say
from contextwise.data.windows import join_short_end, last_tenth_length, log_bins
from contextwise.evaluation.kernel import Work
from contextwise.evaluation.scoring.truncated import Targets, truncated_passes
from contextwise.evaluation.scoring.windows import Documents, Plan, plan_windows, score_windows

PART = "sums"


@dataclass(frozen=True)
class Bins:
    """Bins of visible tokens: bin k holds ``low[k] <= visible <= high[k]``; both (K,) int64."""

    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.low)

    @property
    def centre(self) -> np.ndarray:
        """(K,) geometric mean of the limits: the position of a bin on a logarithmic axis."""
        return np.sqrt(self.low * self.high.astype(float))

    @classmethod
    def logarithmic(cls, context: int) -> "Bins":
        """Two for each doubling, over 1 to ``context``; a last one that is cut short is merged into the one before."""
        edges = join_short_end(log_bins(context))
        return cls(edges[:-1], edges[1:] - 1)


@dataclass(frozen=True)
class Tail:
    """The last tenth of a training context: ``low <= visible <= high``, with its sums by document, both (D,)."""

    low: int
    high: int
    nats: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class CurveSums:
    """Result of a scoring pass over D ``documents`` of the corpus.

    ``visible`` and ``loss`` are (P,): numbers of visible tokens, of a band the mean, and the mean loss at each of ``targets``
    tokens, in nats. ``bin_nats`` and ``bin_targets`` are (D, K) sums. The same targets at each context have no ``tail``.
    """

    visible: np.ndarray
    loss: np.ndarray
    targets: int
    documents: np.ndarray
    bins: Bins
    bin_nats: np.ndarray
    bin_targets: np.ndarray
    tail: Tail | None = None

    def curve_table(self) -> pa.Table:
        """Loss at each number of visible tokens."""
        targets = np.full(len(self.visible), self.targets, dtype=np.int64)
        return pa.table({"visible": self.visible, "loss": self.loss, "targets": targets})

    def documents_table(self) -> pa.Table:
        """Sums of each document in each bin, and in the last tenth, from which intervals over documents are made."""
        documents, count = len(self.documents), len(self.bins)
        columns = {
            "document": np.repeat(self.documents.astype(np.int32), count),
            "bin": np.tile(np.arange(count, dtype=np.int32), documents),
            "nats": self.bin_nats.ravel(),
            "targets": self.bin_targets.ravel().astype(np.int64),
        }
        if self.tail is not None:
            columns["tail_nats"] = np.repeat(self.tail.nats, count)
            columns["tail_targets"] = np.repeat(self.tail.targets.astype(np.int64), count)
        return pa.table(columns)


def running_pass(
    model: PreTrainedModel, corpus: Documents, plan: Plan, trained: int | None, work: Work, *, batch_tokens: int
) -> CurveSums:
    """Score :func:`whole_windows`, each position with the tokens before it; ``trained`` is the training context."""
    context, total = int(plan.length[0]), len(plan.document)
    bins, (low, high) = Bins.logarithmic(context), last_tenth(context, trained)
    documents, row_of, windows = np.unique(plan.document, return_inverse=True, return_counts=True)
    with progress_bar("curve", total * context, "tokens") as advance:
        options: dict[str, Any] = {"batch_tokens": batch_tokens, "on_progress": advance, "work": work, "part": PART}
        nats_WT = score_windows(model, corpus, plan, **options).reshape(total, context)
    bin_nats, tail_nats = np.zeros((len(documents), len(bins))), np.zeros(len(documents))
    for row, nats_T in zip(row_of, nats_WT, strict=True):  # all at once they take twice the memory again
        exact_T = nats_T.astype(np.float64)
        bin_nats[row] += np.add.reduceat(exact_T, bins.low - 1)
        tail_nats[row] += exact_T[low - 1 : high].sum()
    tail = Tail(low, high, tail_nats, windows * (high - low + 1))
    bin_targets, loss = windows[:, None] * (bins.high - bins.low + 1), nats_WT.sum(axis=0, dtype=np.float64) / total
    visible = np.arange(1.0, context + 1)
    return CurveSums(visible, loss, total, documents, bins, bin_nats, bin_targets, tail)


def truncated_pass(
    model: PreTrainedModel,
    corpus: Documents,
    targets: Targets,
    contexts: list[int],
    work: Work,
    *,
    start: int | None = None,
    batch_tokens: int,
) -> CurveSums:
    """Score the same targets at each of the ascending contexts C, only the nearest tokens visible, alone or in bands.

    ``start`` is the id of a token before every window, which does not count as visible.
    """
    count, total = len(targets), len(targets) * len(contexts)
    nats_CN, done_C = np.zeros((len(contexts), count), np.float32), np.zeros(len(contexts), np.int64)
    saved = work.resumed(PART, {"nats": nats_CN, "done": done_C})
    if saved is not None and saved["done"].any() and ((saved["done"] >= 0) & (saved["done"] <= count)).all():
        nats_CN, done_C = saved["nats"], saved["done"]
    done = dict(zip(contexts, done_C.tolist(), strict=True))
    cost = {context: context / targets.band(context) for context in contexts}  # tokens that are read for a target
    tokens, before = sum(cost.values()) * count, sum(cost[context] * number for context, number in done.items())
    if before:
        say(f"resuming a stopped measurement: {before:,.0f} of {tokens:,.0f} tokens are done")
    with progress_bar("curve", tokens, "tokens") as advance:
        advance(before)
        passes = truncated_passes(model, corpus, targets, contexts, start=start, batch_tokens=batch_tokens, done=done)
        for batch in passes:
            row = contexts.index(batch.context)
            nats_CN[row, batch.start : batch.stop] = batch.nats
            done_C[row] = batch.stop
            advance((batch.stop - batch.start) * cost[batch.context])
            if done_C.sum() < total:
                where = f"after {done_C.sum():,} of {total:,} predictions"
                work.checkpoint(PART, lambda: {"nats": nats_CN, "done": done_C}, where)
    documents, row_of, sizes = np.unique(targets.document, return_inverse=True, return_counts=True)
    sums_CD = np.stack([np.bincount(row_of, weights=nats, minlength=len(documents)) for nats in nats_CN])
    high, band = np.array(contexts, dtype=np.int64), np.array([targets.band(context) for context in contexts])
    visible, loss, bins = high - (band - 1) / 2, sums_CD.sum(1) / count, Bins(high - band + 1, high)
    return CurveSums(visible, loss, count, documents, bins, sums_CD.T, np.tile(sizes[:, None], len(contexts)))


def whole_windows(corpus: Documents, context: int, limit: int | None = None) -> Plan:
    """Consecutive windows of ``context`` targets in each document that is long enough; the rest is left out.

    Position t of a window (from 1) predicts the token after t visible ones. Where the corpus has an end-of-text token, each
    document begins with it, and it counts as visible.
    """
    lengths = np.asarray(corpus.lengths[:limit], dtype=np.int64)
    targets = np.maximum(lengths - int(corpus.end_of_text is None), 0)
    if context > int(targets.max(initial=0)):
        longest = int(lengths.max(initial=0))
        raise DataError(
            f"no document is long enough for a context of {context:,} tokens: the longest of the {len(lengths):,} documents "
            f"has {longest:,}; give a shorter context, or a corpus of longer documents"
        )
    plan = plan_windows(targets, context, context)
    return plan.chosen(plan.length == context)


def last_tenth(context: int, trained: int | None) -> tuple[int, int]:
    """Limits of the last 10% of the training context, in visible tokens; of the window if that is shorter."""
    high = min(context, trained or context)
    return high - last_tenth_length(high) + 1, high
