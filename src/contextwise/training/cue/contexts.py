"""The encoded contexts of every sentence of a split: rows of the cache on disk, and vectors only when they are asked for.

Shapes: N sentences, K context types, C channels of the text encoder.
"""

from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState

from contextwise.data.contexts import ContextSettings
from contextwise.models.cue.encoding import EncodedTexts, TextEncoder
from contextwise.objectives.contexts import ContextTexts
from contextwise.objectives.sentence import SentenceExamples

_AT_ONCE = 8192
"""Sentences whose contexts are looked up together."""
FOLDER = "encoded"
"""Where a corpus keeps the vectors of its contexts."""


class EncodedContexts:
    """Contexts of the sentences of a split.

    Args:
        numbers: the sentences that are read; the texts of others are not encoded.

    Attributes:
        table: the cache's vectors by row.
        rows: int32, (N, K), where in the table each context's vector lies; -1: the sentence has no such context.
        truncated: distinct texts of contexts that were longer than the encoder takes.
        missing: the share of sentences that lack each context, by its name.
    """

    def __init__(
        self,
        examples: SentenceExamples,
        settings: ContextSettings,
        encoder: TextEncoder,
        numbers: np.ndarray,
    ) -> None:
        texts = ContextTexts(examples, settings)
        folder = Path(examples.sentences.corpus.path) / FOLDER
        wanted = _distinct(texts, numbers)
        _encode_share(wanted, encoder, folder)
        encoded = EncodedTexts(encoder, folder)
        encoded.rows(wanted)
        self.rows = _rows(texts, numbers, encoded)
        self.table = encoded.table  # and not all of the cache, which knows each text
        known = np.unique(self.rows)
        self.truncated = encoded.truncated(known[known >= 0])
        self.missing = texts.missing()

    def of(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Contexts (K, C) of a sentence, zero where one is missing, and which of them are there, (K,)."""
        rows = self.rows[number]
        present = rows >= 0
        vectors = np.zeros((len(rows), self.table.width), dtype=np.float32)
        vectors[present] = self.table[rows[present]]
        return torch.from_numpy(vectors), torch.from_numpy(present)


def _distinct(texts: ContextTexts, numbers: np.ndarray) -> list[str]:
    """The texts of all contexts of some sentences, each once."""
    found = (text for number in numbers.tolist() for text in texts.of(number))
    return list(dict.fromkeys(text for text in found if text is not None))


def _encode_share(wanted: list[str], encoder: TextEncoder, folder: Path) -> None:
    """Let each of several processes encode its share of the texts that are not in the cache yet."""
    processes = PartialState(cpu=not torch.cuda.is_available())
    if processes.num_processes == 1:
        return
    EncodedTexts(encoder, folder).rows(wanted[processes.process_index :: processes.num_processes])
    processes.wait_for_everyone()


def _rows(texts: ContextTexts, numbers: np.ndarray, encoded: EncodedTexts) -> np.ndarray:
    """int32, (N, K): the row of each context, -1 where there is none, and for all other sentences."""
    found = np.full((len(texts), len(texts.types)), -1, dtype=np.int32)
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        block = [texts.of(number) for number in some.tolist()]
        present = np.array([[text is not None for text in texts_K] for texts_K in block])
        rows = np.full(present.shape, -1)
        rows[present] = encoded.rows([text for texts_K in block for text in texts_K if text is not None])
        found[some] = rows
    return found
