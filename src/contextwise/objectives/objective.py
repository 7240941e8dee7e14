"""What all objectives share: settings, one pass over a corpus, and the stream of a whole run.

1. An :class:`Objective` is settings. With a corpus, a :class:`Cut`, a seed and a vocabulary it gives :class:`Examples`.
2. :class:`Examples` are one pass over the corpus for each epoch: ``example(epoch, index)`` is made when it is asked for.
3. :class:`ExampleStream` orders the examples of one epoch after the other, as a run takes them.

Whatever is drawn for an example comes from :func:`generator`, seeded with (seed, epoch, number of the window or document,
name of the objective) and nothing else. So an example is the same whatever reads it: any number of workers or processes,
after any restart.

Examples are dictionaries of tensors with the same shapes throughout an objective:

- decoder: ``input_ids`` (T,), ``labels`` (T,) already shifted (the label of position t is token t+1), and where they apply
  ``position_ids`` (T,) and ``prefix`` (T,), bool: positions that see each other in both directions;
- encoder: ``input_ids`` (T,), ``labels`` (T,) in place, and where they apply ``position_ids``, ``token_type_ids``,
  ``attention_mask`` (T,) and ``pair_label`` ();
- encoder-decoder: ``input_ids`` (S,) for the encoder, ``labels`` (U,) for the decoder, not shifted.

A label of -100 stands where there is no loss. ``window`` () is the number of the example in its epoch.
"""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.data.corpus import Corpus
from contextwise.data.windows import Documents, Windows
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

Kind = Literal["decoder", "encoder", "encoder-decoder"]
NO_LOSS = -100


@dataclass(frozen=True)
class Cut:
    """How the documents become windows; see :mod:`contextwise.data.windows`."""

    context: int
    cross_documents: bool = True
    separate_documents: bool = False

    def windows(self, corpus: Documents, length: int, vocabulary: Vocabulary) -> Windows:
        """Windows of ``length`` tokens.

        Raises:
            ConfigError, DataError: as :class:`~contextwise.data.windows.Windows` does.
        """
        return Windows(corpus, length, self.cross_documents, self.separate_documents, vocabulary.size)

    def refuse_separate_documents(self, name: str) -> None:
        """For objectives whose windows cannot keep several documents apart.

        Raises:
            ConfigError: they are asked to.
        """
        if self.separate_documents:
            raise ConfigError(
                f"data.separate_documents is true, but the objective {name!r} moves tokens within a window and cannot keep "
                "its documents apart; set data.cross_documents=false instead, so that each window is of one document"
            )


class Examples(ABC):
    """The examples of a corpus under one objective, epoch by epoch."""

    @abstractmethod
    def count(self, epoch: int) -> int:
        """Number of examples of an epoch."""

    @abstractmethod
    def example(self, epoch: int, index: int) -> dict[str, torch.Tensor]:
        """Example ``index`` of an epoch, 0 <= index < count(epoch)."""


class Objective(Settings, ABC):
    """Settings of an objective. Subclasses have a field ``name``, by which recipes choose them."""

    name: str

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """The kind of model that the examples are for."""

    @property
    def special_tokens(self) -> list[SpecialToken]:
        """The special tokens that it needs beside end-of-text."""
        return []

    @abstractmethod
    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        """The examples of a corpus.

        Raises:
            ConfigError: the settings contradict each other, the window or the vocabulary.
            DataError: no example can be made of the corpus.
        """

    def stream(
        self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary, length: int
    ) -> "Dataset[dict[str, torch.Tensor]]":
        """The ``length`` examples of a run; raises what :meth:`examples` does."""
        return ExampleStream(self.examples(corpus, cut, seed, vocabulary), seed, length)


def generator(seed: int, epoch: int, index: int, name: str) -> np.random.Generator:
    """The source of all that is drawn for one example."""
    return np.random.Generator(np.random.PCG64([seed, epoch, index, zlib.crc32(name.encode())]))


class ExampleStream(Dataset):
    """As many examples as a run takes: each epoch's shuffled anew from (seed, epoch).

    Epochs may differ in their number of examples; to find item k all epochs before its own are counted, once.

    Args:
        salt: further numbers for the shuffling, so that several streams of one seed differ.
    """

    def __init__(self, examples: Examples, seed: int, length: int, salt: tuple[int, ...] = ()) -> None:
        self.examples, self.seed, self.length, self.salt = examples, seed, length, salt
        self._ends = [0]  # item behind the last one of each epoch, with that of an epoch before the first
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.length

    def place(self, index: int) -> tuple[int, int]:
        """Epoch of item ``index``, and which of the epoch's examples it is."""
        while self._ends[-1] <= index:
            self._ends.append(self._ends[-1] + self.examples.count(len(self._ends) - 1))
        epoch = int(np.searchsorted(self._ends, index, side="right")) - 1
        if epoch != self._epoch:
            self._epoch = epoch
            numbers = np.random.Generator(np.random.PCG64([self.seed, epoch, *self.salt]))
            self._order = numbers.permutation(self.examples.count(epoch))
        return epoch, int(self._order[index - self._ends[epoch]])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.examples.example(*self.place(index))
