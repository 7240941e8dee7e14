"""The sentences of a run: each step's in the order of their lengths, with what goes to the model beside their tokens.

Sentences are short, and differ in length by more than a factor of ten. Within a step they are sorted, so that a micro-batch
holds sentences of like lengths and is padded to its own longest only (:func:`contextwise.training.batches.collate`). The loss
of a step is the mean over all its targets, so the partition into micro-batches does not change it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from contextwise.objectives import NO_LOSS, ExampleStream
from contextwise.objectives.objective import generator
from contextwise.training.cue.contexts import EncodedContexts

Addition = Callable[[int, int], dict[str, torch.Tensor]]
"""From epoch and number of a sentence to what its example has beside its tokens."""


class SentenceStream(Dataset):
    """The examples of a run under the objective ``sentence``, each with ``length`` (): its positions without padding.

    Args:
        stream: the sentences in their order.
        lengths: int, positions of each sentence of the corpus.
        step: sentences of a step; they are sorted among themselves.
        additions: what examples have beside that.
    """

    def __init__(
        self,
        stream: ExampleStream,
        lengths: np.ndarray,
        step: int,
        additions: Addition | None = None,
    ) -> None:
        self.stream, self.lengths, self.step, self.additions = stream, lengths, step, additions
        self._step = -1
        self._places: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.stream)

    def place(self, index: int) -> tuple[int, int]:
        """Epoch and number of the sentence that stands at ``index``."""
        step, rest = divmod(index, self.step)
        if step != self._step:
            first = step * self.step
            places = [self.stream.place(i) for i in range(first, min(first + self.step, len(self)))]
            order = np.argsort(self.lengths[[number for _, number in places]], kind="stable")
            self._places, self._step = [places[i] for i in order], step
        return self._places[rest]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        epoch, number = self.place(index)
        example = self.stream.examples.example(epoch, number)
        example["length"] = example["labels"].ne(NO_LOSS).sum()
        return example | (self.additions(epoch, number) if self.additions is not None else {})


def with_contexts(encoded: EncodedContexts) -> Addition:
    """Each sentence's contexts: ``contexts`` (K, C), and ``context_mask`` (K,), False where one is missing."""

    def added(_: int, number: int) -> dict[str, torch.Tensor]:
        contexts, mask = encoded.of(number)
        return {"contexts": contexts, "context_mask": mask}

    return added


def with_noise(seed: int, width: int) -> Addition:
    """Standard normal numbers for each sentence's proxy, ``proxy_noise`` (P,): other ones in each epoch (CUE, Eq. 7)."""

    def added(epoch: int, number: int) -> dict[str, torch.Tensor]:
        drawn = generator(seed, epoch, number, "proxy_noise").standard_normal(width, dtype=np.float32)
        return {"proxy_noise": torch.from_numpy(drawn)}

    return added


def each_counts_once(*_: Any) -> dict[str, torch.Tensor]:
    """For a loss that is a mean over sentences, not over tokens."""
    return {"counted": torch.tensor(1)}
