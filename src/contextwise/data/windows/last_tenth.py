"""Windows whose targets are the last tenth of long blocks: the same targets for models of every training context.

The best-context loss of a model that does not generalize past its training context is the mean over the last 10% of that
context (context scaling, footnote 4). A comparison of models of different contexts is fair if those are the *same* tokens, each
predicted from as many preceding tokens as the model was trained with:

1. Each document is cut into blocks of ``longest`` tokens, the longest context that is compared; the remainder is dropped.
2. The last tenth of each block are the targets. A model with a context of ``longest`` has one window per block; a model with a
   shorter context has several, each ending a tenth of its context before the next. So every model reads about as many tokens.
"""

import numpy as np
import torch
from torch.utils.data import Dataset

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.windows.consecutive import Documents, Windows


def last_tenth_length(context: int) -> int:
    """Number of positions in the last 10% of a context; at least 1."""
    return max(1, context // 10)


class LastTenthWindows(Dataset):
    """Dataset of windows of ``context`` tokens over documents, ending in the last tenth of blocks of ``longest``.

    Item i is a dictionary of int64 tensors: ``input_ids`` and ``labels`` (context,), already shifted, and ``document`` ().

    Args:
        corpus: the documents.
        context: number of inputs of a window.
        longest: block length in tokens: the longest context that is compared; ``context`` if not given.
        tokens: approximate number of inputs of all windows together; the blocks are chosen evenly from the whole split.

    Raises:
        ConfigError: ``longest`` is shorter than ``context``.
        DataError: no document is as long as ``longest``.
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
        total = int(blocks.sum())
        chosen = np.unique(
            np.linspace(0, total - 1, min(total, max(1, tokens // longest))).round().astype(int)
        )
        document = np.searchsorted(np.cumsum(blocks), chosen, side="right")
        inside = chosen - (np.cumsum(blocks) - blocks)[document]
        back = np.arange(
            max(1, last_tenth_length(longest) // last_tenth_length(context))
        ) * last_tenth_length(context)
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


def log_bins(context: int, per_doubling: int = 2) -> np.ndarray:
    """Edges of logarithmic bins over 1 to ``context`` visible tokens: bin i holds ``edges[i] <= visible < edges[i + 1]``."""
    doublings = np.arange(int(np.ceil(np.log2(max(context, 2)))) * per_doubling + 1) / per_doubling
    edges = np.unique(np.round(2.0**doublings).astype(int))
    return np.append(edges[edges <= context], context + 1)
