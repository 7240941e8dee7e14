"""Span corruption: T5's (objectives, Section 6.2.3 and Exercise 6.2.2; Raffel et al. 2020, Section 3.1.4), and UL2's mixture.

The input has a sentinel in place of each span of noise; the target has each sentinel followed by its span: ``Thank you
<extra_id_0> me to your party <extra_id_1> week`` and ``<extra_id_0> for inviting <extra_id_1> last``. Both end with
end-of-text, as in T5's code; the paper's Figure 2 and the exercise end the target with one more sentinel instead, and the
input with nothing.

UL2 (Tay et al. 2023, Section 3.1) assigns each window to a denoiser: R corrupts short spans as T5 does, X long spans or many, S
hides the window's end, in one span (``[S2S] ... <extra_id_0>``). A mode token before the input names the mode.
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from contextwise.data.documents import check_ids
from contextwise.objectives import (
    NO_LOSS,
    Cut,
    Examples,
    Kind,
    SingleObjective,
    SpecialToken,
    Vocabulary,
    WindowExamples,
    generator,
)
from contextwise.settings import ConfigError, DataError

if TYPE_CHECKING:
    import torch

    from contextwise.data import Corpus, Windows


class Denoiser(NamedTuple):
    """One denoiser: its mode in UL2 (``R``, ``S`` or ``X``), the share of noise, and the mean tokens of a span.

    Without a mean, as in mode S, there is one span, at the end.
    """

    mode: str
    rate: float
    mean_span: float | None = None

    def numbers(self, length: int) -> tuple[int, int]:
        """Noise tokens and spans of a window, as in T5's ``random_spans_noise_mask``: the same for every draw."""
        noise = min(max(round(length * self.rate), 1), length - 1)
        return noise, min(max(round(noise / (self.mean_span or length)), 1), length - noise)

    def input_length(self, length: int) -> int:
        """Tokens of the input of a window of ``length`` tokens, with end-of-text."""
        noise, spans = self.numbers(length)
        return length - noise + spans + 1

    def mask(self, length: int, draw: np.random.Generator) -> np.ndarray:
        """Draw the noise of a window as T5 does: bool (length,), True at noise.

        Noise and kept tokens are each divided into the same number of spans, uniformly over all ways to divide them, and
        alternate, kept tokens first.
        """
        noise, spans = self.numbers(length)
        if self.mean_span is None:
            return np.arange(length) >= length - noise
        lengths = [_composition(total, spans, draw) for total in (length - noise, noise)]
        return np.repeat(np.arange(2 * spans) % 2 == 1, np.stack(lengths, axis=1).ravel())

    def window_length(self, name: str, context: int, sentinels: int, before: int = 0) -> int:
        """Tokens of the window whose input, with ``before`` tokens before it, fills the context.

        A ConfigError, with the objective's name, for spans too short for their rate, too long for the window, or too many.
        """

        def size(length: int) -> int:
            return before + self.input_length(length)

        rate, mean_span = self.rate, self.mean_span or 0
        if mean_span and mean_span * (1 - rate) < rate:
            raise ConfigError(
                f"the objective {name!r} has a rate of {rate:g}, which leaves fewer kept tokens than spans of {mean_span:g} "
                f"tokens; choose spans of {math.ceil(rate / (1 - rate))} tokens or more, or a lower rate"
            )
        high = 2
        while size(high) <= context:
            high *= 2
        if high == 2:
            raise ConfigError(
                f"data.context is {context}, too short for a window of the objective {name!r}; lengthen it"
            )
        length = bisect.bisect_right(range(2, high), context, key=size) + 1
        if mean_span >= length:
            raise ConfigError(
                f"the objective {name!r} has spans of {mean_span:g} tokens on average, but windows of {length} tokens; "
                "choose shorter spans or a longer data.context"
            )
        if (spans := self.numbers(length)[1]) > sentinels:
            raise ConfigError(
                f"the objective {name!r} needs {spans} sentinels for a window of {length} tokens, but the tokenizer has "
                f"{sentinels}; choose a shorter data.context, longer spans, or more sentinels"
            )
        if size(length) < context:
            raise ConfigError(
                f"the inputs of the objective {name!r} with a rate of {rate:g} have {size(length)} tokens or {context + 1}, "
                f"never {context}; set data.context to {size(length)}, or choose longer spans"
            )
        return length


def _composition(total: int, parts: int, draw: np.random.Generator) -> np.ndarray:
    """Lengths (parts,), each at least 1, with the sum ``total``; uniform over all such lengths."""
    borders = np.sort(draw.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(borders, prepend=0, append=total)


def corrupt(tokens: np.ndarray, noise: np.ndarray, sentinels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Input and target, without an end, of tokens (n,) and a mask (n,) that is True at noise; ids of sentinels in order."""
    first = noise & ~np.concatenate([[False], noise[:-1]])
    sentinel = sentinels[np.maximum(np.cumsum(first) - 1, 0)]
    inputs = np.where(noise, sentinel, tokens)[~noise | first]
    # In the target a sentinel precedes the first token of each span.
    return inputs, np.insert(tokens[noise], np.flatnonzero(first[noise]), sentinel[first])


def restore(inputs: np.ndarray, targets: np.ndarray, sentinels: np.ndarray) -> np.ndarray:
    """Restore the tokens from the output of :func:`corrupt`; DataError if input and target have different sentinels."""
    holes, marks = (np.flatnonzero(np.isin(ids, sentinels)) for ids in (inputs, targets))
    begins = len(targets) == 0 or bool(len(marks) and marks[0] == 0)
    if not (begins and np.array_equal(inputs[holes], targets[marks])):
        raise DataError(
            f"the target has the sentinels {targets[marks].tolist()}, the input {inputs[holes].tolist()}; "
            "they must be the same, and the target must begin with one"
        )
    kept, spans = np.split(inputs, holes), np.split(targets, marks)[1:]
    pieces = [piece for span, rest in zip(spans, kept[1:], strict=True) for piece in (span[1:], rest[1:])]
    return np.concatenate([kept[0], *pieces])


def sentinel_tokens(count: int) -> list[SpecialToken]:
    """T5's sentinels in order."""
    return [SpecialToken(f"<extra_id_{i}>") for i in range(count)]


class SpanCorruption(SingleObjective):
    """T5's objective. ``data.context`` is the encoder's input; windows are longer, so that their inputs have this length."""

    name: Literal["spans"] = "spans"
    kind: ClassVar[Kind] = "encoder-decoder"
    rate: float = Field(default=0.15, gt=0, lt=1, description="share of the tokens that are noise")
    mean_span: float = Field(default=3.0, ge=1, description="mean tokens of a span")
    sentinels: int = Field(default=100, ge=1, description="sentinel tokens of the tokenizer; T5 has 100")

    @property
    def special_tokens(self) -> list[SpecialToken]:  # type: ignore[override]
        return sentinel_tokens(self.sentinels)

    @property
    def denoiser(self) -> Denoiser:
        """What draws the noise."""
        return Denoiser("R", self.rate, self.mean_span)

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        cut.refuse_separate_documents(self.name)
        sentinels, end = np.array(vocabulary.ids(self.special_tokens, self.name)), vocabulary.end(self.name)
        length = self.denoiser.window_length(self.name, cut.context, self.sentinels)
        return SpanExamples(cut.windows(corpus, length, vocabulary), self.denoiser, sentinels, end, seed)


class SpanExamples(WindowExamples):
    """Windows with spans drawn anew in each epoch: ``input_ids`` (context,), ``labels`` of a fixed length, no padding."""

    def __init__(self, windows: Windows, denoiser: Denoiser, sentinels: np.ndarray, end: int, seed: int) -> None:
        super().__init__(windows, seed)
        self.denoiser, self.sentinels, self.end = denoiser, sentinels, end

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = self.window(index)
        noise = self.denoiser.mask(len(item["input_ids"]), generator(self.seed, epoch, index, "spans"))
        inputs, targets = corrupt(item["input_ids"], noise, self.sentinels)
        return {
            "input_ids": np.append(inputs, self.end),
            "labels": np.append(targets, self.end),
            "window": item["window"],
        }

    def restore(self, example: dict[str, torch.Tensor]) -> np.ndarray:
        """The window's tokens, from its example."""
        return restore(example["input_ids"].numpy()[:-1], example["labels"].numpy()[:-1], self.sentinels)


PUBLISHED = (
    Denoiser("R", 0.15, 3),
    Denoiser("R", 0.15, 8),
    Denoiser("S", 0.25),
    Denoiser("X", 0.5, 3),
    Denoiser("X", 0.5, 8),
    Denoiser("X", 0.15, 64),
    Denoiser("X", 0.5, 64),
)
MODES = {"R": "[NLU]", "S": "[S2S]", "X": "[NLG]"}
"""The mode tokens of the released model."""


class UL2(SingleObjective):
    """UL2's mixture of its seven published denoisers, mixed evenly.

    The stream of an epoch is cut window by window, each as long as its denoiser needs to fill ``data.context`` exactly, so
    inputs need no padding and every token is in one window per epoch; the number of windows differs a little between
    epochs. Windows cross documents.

    The input is mode, corrupted window, end-of-text; the labels (target, end-of-text) are padded with -100 to those of the
    longest denoiser.
    """

    name: Literal["ul2"] = "ul2"
    kind: ClassVar[Kind] = "encoder-decoder"
    sentinels: int = Field(
        default=128, ge=1, description="sentinel tokens of the tokenizer; T5's 100 are too few for inputs of 512 tokens"
    )

    @property
    def special_tokens(self) -> list[SpecialToken]:  # type: ignore[override]
        return [*sentinel_tokens(self.sentinels), *map(SpecialToken, MODES.values())]

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        if cut.separate_documents or not cut.cross_documents:
            raise ConfigError(
                "the windows of the objective 'ul2' cross documents, and tokens move within them, so that they cannot be kept "
                "apart; set data.cross_documents=true and data.separate_documents=false"
            )
        return UL2Examples(self, corpus, cut, seed, vocabulary)


class UL2Examples(Examples):
    """Windows and their denoisers, both drawn anew in each epoch."""

    def __init__(self, settings: UL2, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> None:
        self.seed = seed
        ids = vocabulary.ids(settings.special_tokens, settings.name)
        self.modes = dict(zip(MODES, ids[settings.sentinels :], strict=True))
        self.sentinels = np.array(ids[: settings.sentinels])
        # The mode is before the input.
        lengths = [each.window_length(settings.name, cut.context, settings.sentinels, before=1) for each in PUBLISHED]
        # Opening windows of the longest denoiser raises an error if the corpus is too short for them.
        self.windows = cut.windows(corpus, max(lengths), vocabulary)
        self.lengths, self.end = np.array(lengths), vocabulary.end(settings.name)
        numbers = [denoiser.numbers(n) for denoiser, n in zip(PUBLISHED, lengths, strict=True)]
        self.target = max(noise + spans + 1 for noise, spans in numbers)
        self._epoch = -1
        self._starts = self._choices = np.empty(0, dtype=np.int64)

    def count(self, epoch: int) -> int:
        self._plan(epoch)
        return len(self._starts)

    def _plan(self, epoch: int) -> None:
        """Determine the start of each window of an epoch in the stream, and its denoiser."""
        if epoch == self._epoch:
            return
        windows, kinds = self.windows, len(PUBLISHED)
        stream = int(windows.starts[-1]) + windows.separators
        draw = generator(self.seed, epoch, 0, "ul2 denoisers")
        most = stream // int(self.lengths.min()) + len(windows.corpus) * windows.separators
        choices = draw.choice(kinds, size=most, p=np.full(kinds, 1 / kinds))
        lengths = self.lengths[choices]
        starts = np.cumsum(lengths) - lengths
        starts = starts[starts + lengths <= stream]
        self._epoch, self._starts, self._choices = epoch, starts, choices[: len(starts)]

    def denoiser(self, epoch: int, index: int) -> int:
        """Index of the denoiser of an example in :data:`PUBLISHED`."""
        self._plan(epoch)
        return int(self._choices[index])

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        which = self.denoiser(epoch, index)
        tokens, _ = self.windows.read(int(self._starts[index]), int(self.lengths[which]))
        check_ids(tokens, self.windows.vocab_size, self.windows.corpus.path)
        noise = PUBLISHED[which].mask(len(tokens), generator(self.seed, epoch, index, "ul2"))
        inputs, targets = corrupt(tokens, noise, self.sentinels)
        inputs, targets = np.append(self.modes[PUBLISHED[which].mode], inputs), np.append(targets, self.end)
        labels = np.full(self.target, NO_LOSS)
        labels[: len(targets)] = targets
        return {"input_ids": np.append(inputs, self.end), "labels": labels, "window": index}

    def restore(self, example: dict[str, torch.Tensor]) -> np.ndarray:
        """The window's tokens, from its example."""
        ids, labels = example["input_ids"].numpy(), example["labels"].numpy()
        return restore(ids[1:-1], labels[labels != NO_LOSS][:-1], self.sentinels)
