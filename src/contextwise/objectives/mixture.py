"""Several objectives in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import NO_LOSS, AnySingleObjective, Cut, Objective, Stream
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    import torch

    from contextwise.data.corpus import Corpus

_BLOCK = 4096
_SALTS = {"objective": 0x6D6978, "corpus": 0x636F72}
"""Seeds that make the draws of a mixture of corpora independent of those of a mixture of objectives inside it."""


class Part(Settings):
    """An objective of a mixture, and its share of the examples."""

    weight: float = Field(gt=0, le=1)
    objective: AnySingleObjective


class Mixture(Objective):
    """Each example comes from one of several objectives of the same kind, drawn with their weights.

    Each objective reads the corpus independently, epoch by epoch.
    """

    name: Literal["mixture"] = "mixture"
    parts: list[Part] = Field(min_length=2)

    @model_validator(mode="after")
    def _whole(self) -> Mixture:
        weights = [part.weight for part in self.parts]
        total = sum(weights)
        if abs(total - 1) > 1e-6:
            near = ", ".join(f"{weight / total:.4g}" for weight in weights)
            raise ConfigError(f"the weights of the mixture add up to {total:.6g}, not to 1; {near} would")
        kinds = {part.objective.kind: part.objective.name for part in reversed(self.parts)}
        if len(kinds) > 1:
            listed = " and ".join(f"{name!r} ({kind})" for kind, name in kinds.items())
            raise ConfigError(
                f"the mixture has objectives for different kinds of model, {listed}; choose those of one kind"
            )
        if (alone := next((part.objective.name for part in self.parts if part.objective.alone), None)) is not None:
            raise ConfigError(
                f"the mixture has the objective {alone!r}, whose examples are not trained with others; choose another objective"
            )
        return self

    @property
    def kind(self) -> Kind:
        return self.parts[0].objective.kind

    @property
    def special_tokens(self) -> list[SpecialToken]:  # type: ignore[override]
        return list(dict.fromkeys(token for part in self.parts for token in part.objective.special_tokens))

    @property
    def singles(self) -> list[Any]:
        return [part.objective for part in self.parts]

    def stream(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary, length: int) -> MixtureStream:
        streams = [
            part.objective.stream(corpus, cut, seed, vocabulary, length, salt=(1 + number,))
            for number, part in enumerate(self.parts)
        ]
        return MixtureStream(streams, [part.weight for part in self.parts], seed, length)


class MixtureStream(Stream):
    """Item k is the next example of a stream that depends only on (seed, k).

    Its items have all keys of all streams: missing keys get neutral values (no prefix, no padding, one segment, no pair
    label), and labels are padded to the longest with -100.

    Args:
        streams: of one objective each, or of one corpus each, which may be mixtures of objectives.
        weights: share of each stream in the items.
        label: ``objective`` or ``corpus``, in which the streams differ; the key under which an item has the number of its
            stream, ().
    """

    def __init__(
        self,
        streams: Sequence[Any],
        weights: list[float],
        seed: int,
        length: int,
        label: Literal["objective", "corpus"] = "objective",
    ) -> None:
        self.streams, self.seed, self.length, self.label = streams, seed, length, label
        self.borders = np.cumsum(weights)[:-1] / sum(weights)
        self._before = [np.zeros(len(weights), dtype=np.int64)]  # items of each stream before each block
        self._block, self._drawn = -1, np.empty(0, dtype=np.int64)
        firsts = [stream[0] for stream in streams]
        self.keys = list(dict.fromkeys(key for first in firsts for key in first))
        self.labels = max(len(first["labels"]) for first in firsts)

    @property
    def distinct(self) -> int:
        """Number of items before the first one that repeats an example of its stream, at most all."""
        known = [stream.distinct for stream in self.streams]
        repeats = (index for index in range(self.length) for part, item in [self.place(index)] if item >= known[part])
        return next(repeats, self.length)

    def _draw(self, block: int) -> np.ndarray:
        if block != self._block:
            seeds = [self.seed, block, len(self.borders), _SALTS[self.label]]
            draw = np.random.Generator(np.random.PCG64(seeds))
            self._drawn = np.searchsorted(self.borders, draw.random(_BLOCK), side="right")
            self._block = block
        return self._drawn

    def place(self, index: int) -> tuple[int, int]:
        """The stream of item ``index``, and the index of the item in that stream."""
        block, rest = divmod(index, _BLOCK)
        for earlier in range(len(self._before) - 1, block):
            counts = np.bincount(self._draw(earlier), minlength=len(self.streams))
            self._before.append(self._before[-1] + counts)
        drawn = self._draw(block)
        part = int(drawn[rest])
        return part, int(self._before[block][part] + (drawn[:rest] == part).sum())

    def item(self, index: int) -> dict[str, torch.Tensor]:
        import torch

        part, item = self.place(index)
        example = self.streams[part][item]
        labels = torch.full((self.labels,), NO_LOSS)
        labels[: len(example["labels"])] = example["labels"]
        context = len(example["input_ids"])
        neutral = {
            "prefix": torch.zeros(context, dtype=torch.bool),
            "position_ids": torch.arange(context),
            "attention_mask": torch.ones(context, dtype=torch.int64),
            "token_type_ids": torch.zeros(context, dtype=torch.int64),
            "pair_label": torch.tensor(NO_LOSS),
            "read": torch.tensor(context),
            "objective": torch.tensor(0),  # of a corpus that has one alone
        }
        filled = {key: example[key] if key in example else neutral[key] for key in self.keys}
        return filled | {"labels": labels, self.label: torch.tensor(part)}
