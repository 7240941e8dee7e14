"""Sums from which a contextwise loss curve and the intervals of all that is read off it are made.

Legend of shapes: D documents, K bins of visible tokens, P numbers of visible tokens, T positions of a window.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from contextwise.base.intervals import student_t
from contextwise.data.windows.last_tenth import log_bins


@dataclass(frozen=True)
class Bins:
    """Bins of visible tokens: bin k holds ``low[k] <= visible <= high[k]``; both (K,) int64."""

    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.low)

    @property
    def centre(self) -> np.ndarray:
        """(K,) geometric mean of the ends: where a bin stands on a logarithmic axis."""
        return np.sqrt(self.low * self.high.astype(float))

    @classmethod
    def logarithmic(cls, context: int) -> "Bins":
        """Two for each doubling, over 1 to ``context``. A last one that is cut short joins the one before it.

        Else the last bin would hold the few positions that are left, and its noise would pass for the best context.
        """
        edges = log_bins(context)
        widths = np.diff(edges)
        if len(widths) > 1 and widths[-1] < widths[-2] / 2:
            edges = np.delete(edges, -2)
        return cls(edges[:-1], edges[1:] - 1)

    @classmethod
    def single(cls, contexts: list[int]) -> "Bins":
        """One for each context."""
        exact = np.array(contexts, dtype=np.int64)
        return cls(exact, exact)


@dataclass(frozen=True)
class Tail:
    """The last tenth of a training context: ``low <= visible <= high``, with its sums by document, both (D,)."""

    low: int
    high: int
    nats: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class CurveSums:
    """What a scoring pass leaves behind.

    Attributes:
        visible: (P,) numbers of visible tokens.
        loss: (P,) mean loss at each, in nats.
        error: (P,) its standard error over documents; NaN with one document.
        targets: (P,) how many losses the mean is of.
        bins: of visible tokens.
        documents: (D,) index of each scored document in the corpus.
        bin_nats, bin_targets: (D, K) sums and counts.
        tail: of the training context; None where there are no positions of a window.
    """

    visible: np.ndarray
    loss: np.ndarray
    error: np.ndarray
    targets: np.ndarray
    bins: Bins
    documents: np.ndarray
    bin_nats: np.ndarray
    bin_targets: np.ndarray
    tail: Tail | None = None

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the 95% intervals of :attr:`loss`, (P,) each, by Student's t over documents; NaN with one document."""
        degrees = max(1, len(self.documents) - 1)
        reach = student_t(degrees) * self.error
        return self.loss - reach, self.loss + reach

    def curve_table(self) -> pa.Table:
        """Loss at each number of visible tokens; its interval is null with one document."""
        low, high = self.ends()
        return pa.table(
            {
                "visible": pa.array(self.visible.astype(np.int32)),
                "loss": pa.array(self.loss),
                "low": pa.array(low, mask=np.isnan(low)),
                "high": pa.array(high, mask=np.isnan(high)),
                "targets": pa.array(self.targets),
            }
        )

    def documents_table(self) -> pa.Table:
        """Sums of each document in each bin: what a bootstrap over documents draws from."""
        documents, count = len(self.documents), len(self.bins)
        return pa.table(
            {
                "document": pa.array(np.repeat(self.documents.astype(np.int32), count)),
                "bin": pa.array(np.tile(np.arange(count, dtype=np.int32), documents)),
                "nats": pa.array(self.bin_nats.ravel()),
                "targets": pa.array(self.bin_targets.ravel().astype(np.int64)),
            }
        )


def ratio_error(squares: np.ndarray, crossed: np.ndarray, mean: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Standard error of a ratio Σ s_d / Σ n_d of sums over documents, linearised; shaped as ``mean``, NaN for one document.

    Args:
        squares: Σ s_d².
        crossed: Σ s_d n_d.
        mean: the ratio.
        sizes: (D,) n_d, targets of each document.
    """
    count, sizes = len(sizes), sizes.astype(float)
    if count < 2:
        return np.full_like(mean, np.nan)
    residuals = squares - 2 * mean * crossed + mean**2 * (sizes**2).sum()
    return np.sqrt(np.maximum(0, residuals) * count / (count - 1)) / sizes.sum()


class RunningSums:
    """Sums over windows that are added in the order of their documents; the state is a dictionary of arrays.

    Args:
        documents: (windows,) int64, document of each window, ascending.
        context: T.
        tail: ends of the last tenth of the training context, both included.
    """

    def __init__(self, documents: np.ndarray, context: int, tail: tuple[int, int]) -> None:
        self.bins, self.tail, self.context = Bins.logarithmic(context), tail, context
        self.documents, self.row_of, self.windows = np.unique(
            documents, return_inverse=True, return_counts=True
        )
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("position_nats", "squares", "crossed", "current"), (context,)
        )
        shapes |= {"bin_nats": (len(self.documents), len(self.bins)), "tail_nats": (len(self.documents),)}
        self.state = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.state["done"] = np.zeros((), dtype=np.int64)

    @property
    def done(self) -> int:
        """Windows that were added."""
        return int(self.state["done"])

    def add(self, nats_T: np.ndarray) -> None:
        """Add the losses of the next window."""
        nats_T, row, state = nats_T.astype(np.float64), self.row_of[self.done], self.state
        state["position_nats"] += nats_T
        state["current"] += nats_T
        state["bin_nats"][row] += np.add.reduceat(nats_T, self.bins.low - 1)
        state["tail_nats"][row] += nats_T[self.tail[0] - 1 : self.tail[1]].sum()
        state["done"] += 1
        if self.done == len(self.row_of) or self.row_of[self.done] != row:  # the document's last window
            state["squares"] += state["current"] ** 2
            state["crossed"] += state["current"] * self.windows[row]
            state["current"][:] = 0

    def finish(self) -> CurveSums:
        """The sums, once all windows were added."""
        windows = len(self.row_of)
        loss = self.state["position_nats"] / windows
        widths = self.bins.high - self.bins.low + 1
        low, high = self.tail
        return CurveSums(
            visible=np.arange(1, self.context + 1),
            loss=loss,
            error=ratio_error(self.state["squares"], self.state["crossed"], loss, self.windows),
            targets=np.full(self.context, windows, dtype=np.int64),
            bins=self.bins,
            documents=self.documents,
            bin_nats=self.state["bin_nats"],
            bin_targets=self.windows[:, None] * widths,
            tail=Tail(low, high, self.state["tail_nats"], self.windows * (high - low + 1)),
        )


def truncated_sums(document: np.ndarray, contexts: list[int], nats_CN: np.ndarray) -> CurveSums:
    """Sums of targets that were scored at every context.

    Args:
        document: (N,) of each target.
        contexts: C visible tokens, ascending.
        nats_CN: (C, N) losses.
    """
    documents, row_of, targets = np.unique(document, return_inverse=True, return_counts=True)
    sums_CD = np.stack([np.bincount(row_of, weights=nats, minlength=len(documents)) for nats in nats_CN])
    loss = sums_CD.sum(1) / len(document)
    bins = Bins.single(contexts)
    return CurveSums(
        visible=bins.low,
        loss=loss,
        error=ratio_error((sums_CD**2).sum(1), (sums_CD * targets).sum(1), loss, targets),
        targets=np.full(len(contexts), len(document), dtype=np.int64),
        bins=bins,
        documents=documents,
        bin_nats=sums_CD.T,
        bin_targets=np.repeat(targets[:, None], len(contexts), axis=1),
    )
