"""Windows of ``context`` tokens over the documents of a corpus: consecutive ones, and those of best-context losses."""

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.documents import check_ids


class Documents(Protocol):
    """Interface of a corpus that windows require."""

    split: str
    lengths: np.ndarray

    @property
    def path(self) -> Path: ...

    @property
    def end_of_text(self) -> int | None: ...

    def __len__(self) -> int: ...

    def document(self, index: int) -> np.ndarray: ...


class Windows(Dataset):
    """Dataset of all windows of one pass over a corpus, in order.

    The documents are concatenated, with an end-of-text token before each and one at the end, and that stream is cut every
    ``context`` tokens: every token of it is a target exactly once, but for the first, and the last ones, which fill no window.
    Without ``cross_documents`` each document is cut separately, and the remainder at its end is dropped. With
    ``separate_documents`` positions restart at each document, which keeps attention (and ContextLM's chunks) inside it. With
    ``start_at_documents`` every window begins with a document: the rest of the one that the end of a window cuts is left out.

    Item i is a dictionary of int64 tensors: ``input_ids`` (context,), ``labels`` (context,) already shifted, ``window`` (),
    and ``position_ids`` (context,) if documents are kept separate. A corpus too short for a window is a :class:`DataError`.
    """

    def __init__(
        self,
        corpus: Documents,
        context: int,
        cross_documents: bool = True,
        separate_documents: bool = False,
        vocab_size: int | None = None,
        start_at_documents: bool = False,
    ) -> None:
        if context < 1:
            raise ConfigError(f"data.context is {context}, but must be at least 1 token")
        self.corpus, self.context, self.vocab_size = corpus, context, vocab_size
        self.cross_documents, self.separate_documents = cross_documents, separate_documents
        self.separator = corpus.end_of_text if corpus.end_of_text is not None else -1
        self.separators = int(corpus.end_of_text is not None)
        if cross_documents and not self.separators and len(corpus) > 1:
            raise ConfigError(
                f"the corpus {corpus.path} has no end-of-text token to put between documents; set data.cross_documents=false"
            )
        lengths = np.asarray(corpus.lengths, dtype=np.int64)
        # Start of each document in the stream: the end-of-text token before it.
        self.starts = np.concatenate([[0], np.cumsum(lengths + self.separators)])
        # Tokens that are cut together: all, or each document; the last target is one token after the inputs.
        cut = self.starts[-1:] + self.separators if cross_documents else lengths + 2 * self.separators
        counts = np.maximum(0, cut - 1) // context
        if start_at_documents:
            counts = self._beginning_windows() if cross_documents else np.minimum(counts, 1)
        self.first = np.concatenate([[0], np.cumsum(counts)])
        if not len(self):
            longest = int(lengths.max(initial=0))
            raise DataError(
                f"no window of {context} tokens fits: the split {corpus.split!r} of {corpus.path} has "
                f"{int(lengths.sum()):,} tokens, its longest document {longest:,}; choose a smaller data.context"
                + ("" if cross_documents else " or set data.cross_documents=true")
            )

    def _beginning_windows(self) -> np.ndarray:
        """The number of windows, 0 or 1, that begin with each document of the stream, (documents,)."""
        starts, counts = self.starts[:-1], np.zeros(len(self.starts) - 1, dtype=np.int64)
        following = np.searchsorted(self.starts, starts + self.context).tolist()
        # The others are too short.
        whole = int(np.searchsorted(starts, self.starts[-1] + self.separators - self.context))
        document = 0
        while document < whole:
            counts[document] = 1
            document = following[document]
        return counts

    def __len__(self) -> int:
        return int(self.first[-1])

    def start_of(self, index: int) -> int:
        """Position in the stream at which window ``index`` starts."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return int(self.starts_of(np.array(index)))

    def starts_of(self, indices: np.ndarray) -> np.ndarray:
        """Positions in the stream at which the windows start, int64 in the shape of ``indices``."""
        documents = np.searchsorted(self.first, indices, side="right") - 1
        return self.starts[documents] + (indices - self.first[documents]) * self.context

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.at(self.start_of(index)) | {"window": torch.tensor(index)}

    def at(self, start: int) -> dict[str, torch.Tensor]:
        """The item of the window that starts at a position of the stream, without its number."""
        tokens, positions = self.read(start, self.context + 1)
        check_ids(tokens, self.vocab_size, self.corpus.path)
        item = {"input_ids": torch.from_numpy(tokens[:-1]), "labels": torch.from_numpy(tokens[1:])}
        if self.separate_documents:
            item["position_ids"] = torch.from_numpy(positions[:-1])
        return item

    def read(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Read ``count`` tokens of the stream from ``start``, and their positions in their documents, both (count,) int64."""
        tokens = np.empty(count, dtype=np.int64)
        positions = np.empty(count, dtype=np.int64)
        document = int(np.searchsorted(self.starts, start, side="right")) - 1
        filled = 0
        while filled < count and document < len(self.corpus):
            offset = start + filled - int(self.starts[document])
            begin = filled
            if self.separators and offset == 0:
                tokens[filled] = self.separator
                filled, offset = filled + 1, 1
            body = self.corpus.document(document)[offset - self.separators :][: count - filled]
            tokens[filled : filled + len(body)] = body
            filled += len(body)
            positions[begin:filled] = np.arange(filled - begin)
            document += 1
        # The stream ends with one end-of-text token; what is read behind it is filled with more of them.
        tokens[filled:], positions[filled:] = max(0, self.separator), 0
        return tokens, positions


def last_tenth_length(context: int) -> int:
    """Number of positions in the last 10% of a context; at least 1."""
    return max(1, context // 10)


class LastTenthWindows(Dataset):
    """Dataset of windows that have the same targets for models of every training context (context scaling, footnote 4).

    Each document is cut into blocks of ``longest`` tokens, the longest context that is compared (``context`` if None), and the
    remainder is dropped. The last tenth of each block are the targets: a model with a shorter context has several windows a
    block, each ending a tenth of its context before the next, so that every model reads about as many tokens. Where a tenth of
    the context does not divide that of the block, the remainder at its beginning is left out. The blocks are chosen evenly
    from the whole split, for about ``tokens`` inputs.

    Item i is a dictionary of int64 tensors: ``input_ids`` and ``labels`` (context,), already shifted, and ``document`` ().
    """

    def __init__(self, corpus: Documents, context: int, longest: int | None, tokens: int) -> None:
        longest = longest or context
        if longest < context:
            raise ConfigError(
                f"the longest context to compare is {longest}, shorter than the training context {context}; give at least that"
            )
        lengths = np.asarray(corpus.lengths, dtype=np.int64)
        # A document's sequence: end-of-text where there is one, then its tokens. The last input needs a target after it.
        blocks = np.maximum(0, lengths + int(corpus.end_of_text is not None) - 1) // longest
        if not blocks.any():
            raise DataError(
                f"no document of the split {corpus.split!r} of {corpus.path} is longer than {longest} tokens (the longest has "
                f"{int(lengths.max(initial=0)):,}), so nothing can be measured at that context; choose a shorter one, or a "
                "corpus of longer documents"
            )
        total, tenth = int(blocks.sum()), last_tenth_length(context)
        count = min(total, max(1, tokens // longest))
        chosen = np.unique(np.linspace(0, total - 1, count).round().astype(int))
        document = np.searchsorted(np.cumsum(blocks), chosen, side="right")
        inside = chosen - (np.cumsum(blocks) - blocks)[document]
        back = np.arange(max(1, last_tenth_length(longest) // tenth)) * tenth
        self.windows = Windows(corpus, 1, cross_documents=False)
        block_ends = self.windows.starts[document] + (inside + 1) * longest
        self.starts = (block_ends[:, None] - back[::-1] - context).ravel()
        self.documents = np.repeat(document, len(back))
        self.context = context

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        tokens, _ = self.windows.read(int(self.starts[index]), self.context + 1)
        return {
            "input_ids": torch.from_numpy(tokens[:-1]),
            "labels": torch.from_numpy(tokens[1:]),
            "document": torch.tensor(int(self.documents[index])),
        }


def log_bins(context: int) -> np.ndarray:
    """Edges of bins, two a doubling, of 1 to ``context`` visible tokens: bin i holds ``edges[i] <= visible < edges[i + 1]``."""
    doublings = np.arange(int(np.ceil(np.log2(max(context, 2)))) * 2 + 1) / 2
    edges = np.unique(np.round(2.0**doublings).astype(int))
    return np.append(edges[edges <= context], context + 1)


def join_short_end(edges: np.ndarray) -> np.ndarray:
    """Edges of bins whose last bin joins the one before it if it is cut short.

    It would hold the few positions that are left, and its noise could pass for the best context.
    """
    widths = np.diff(edges)
    return np.delete(edges, -2) if len(widths) > 1 and widths[-1] < widths[-2] / 2 else edges
