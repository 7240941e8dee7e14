"""Span corruption, T5's (objectives, Section 6.2.3 and Exercise 6.2.2; Raffel et al. 2020, Section 3.1.4).

Of a window's tokens some spans are noise. The input has a sentinel in place of each span; the target has each sentinel and
behind it the span: ``Thank you <extra_id_0> me to your party <extra_id_1> week`` and ``<extra_id_0> for inviting
<extra_id_1> last``. Input and target each end with end-of-text, as in T5's code, which trained the published models. The
paper's Figure 2 and the exercise end the target with one more sentinel instead; the number of tokens is the same. The
exercise counts no end of the input: 512 tokens become 461 and end-of-text, and a target of 104.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives.objective import (
    Cut,
    Examples,
    Kind,
    SingleObjective,
    WindowExamples,
    generator,
    window_arrays,
)
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    import torch

    from contextwise.data.corpus import Corpus
    from contextwise.data.windows import Windows


class SpanCorruption(SingleObjective):
    """T5's objective. ``data.context`` is the encoder's input; the window is longer, so that its input fills it exactly."""

    name: Literal["spans"] = "spans"
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are noise")
    mean_span: float = Field(3.0, ge=1, description="mean tokens of a span")
    sentinels: int = Field(100, ge=1, description="sentinel tokens of the tokenizer; T5 has 100")

    @property
    def kind(self) -> Kind:
        return "encoder-decoder"

    @property
    def special_tokens(self) -> list[SpecialToken]:
        return sentinel_tokens(self.sentinels)

    def corruption(self, vocabulary: Vocabulary) -> Corruption:
        """The corruption of windows with this vocabulary's sentinels."""
        return Corruption(np.array(vocabulary.ids(self.special_tokens, self.name)))

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        cut.refuse_separate_documents(self.name)
        corruption, end = self.corruption(vocabulary), vocabulary.end(self.name)
        length = longest(lambda n: kept_and_sentinels(n, self.rate, self.mean_span) + 1, cut.context)
        spans = span_numbers(length, self.rate, self.mean_span)[1]
        check_spans(self.name, length, self.mean_span, spans, cut.context, self.sentinels)
        windows = cut.windows(corpus, length, vocabulary)
        return SpanExamples(self, windows, corruption, end, seed)


class SpanExamples(WindowExamples):
    """Windows with spans drawn anew in each epoch: ``input_ids`` (context,), ``labels`` of a fixed length, no padding."""

    def __init__(
        self, settings: SpanCorruption, windows: Windows, corruption: Corruption, end: int, seed: int
    ) -> None:
        super().__init__(windows)
        self.settings, self.corruption, self.end, self.seed = settings, corruption, end, seed

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = window_arrays(self.windows, index)
        tokens = item["input_ids"]
        draw = generator(self.seed, epoch, index, "spans")
        noise = noise_mask(len(tokens), self.settings.rate, self.settings.mean_span, draw)
        inputs, targets = self.corruption.corrupt(tokens, noise)
        return {
            "input_ids": np.append(inputs, self.end),
            "labels": np.append(targets, self.end),
            "window": item["window"],
        }

    def restore(self, example: dict[str, torch.Tensor]) -> np.ndarray:
        """The window's tokens, from its example."""
        return self.corruption.restore(example["input_ids"].numpy()[:-1], example["labels"].numpy()[:-1])


class Corruption:
    """Replaces spans by sentinels, and restores them.

    Args:
        sentinels: int64, ids of ``<extra_id_0>``, ``<extra_id_1>`` and so on.
    """

    def __init__(self, sentinels: np.ndarray) -> None:
        self.sentinels = sentinels

    def corrupt(self, tokens: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Input and target, without an end, of tokens (n,) and a mask (n,) that is True at noise."""
        first = noise & ~np.concatenate([[False], noise[:-1]])
        sentinel = self.sentinels[np.maximum(np.cumsum(first) - 1, 0)]
        inputs = np.where(noise, sentinel, tokens)[~noise | first]
        # In the target a sentinel precedes the first token of each span.
        targets = np.insert(tokens[noise], np.flatnonzero(first[noise]), sentinel[first])
        return inputs, targets

    def restore(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Restore the tokens from the output of :meth:`corrupt`.

        Raises:
            DataError: the sentinels of the input and of the target are not the same, in the same order.
        """
        holes, marks = (np.flatnonzero(np.isin(ids, self.sentinels)) for ids in (inputs, targets))
        if not np.array_equal(inputs[holes], targets[marks]) or (
            len(targets) > 0 and not (len(marks) and marks[0] == 0)
        ):
            raise DataError(
                f"the target has the sentinels {targets[marks].tolist()}, the input {inputs[holes].tolist()}; "
                "they must be the same, and the target must begin with one"
            )
        pieces, place = [], 0
        ends = [*marks.tolist(), len(targets)][1:]
        for hole, mark, following in zip(holes.tolist(), marks.tolist(), ends, strict=True):
            pieces += [inputs[place:hole], targets[mark + 1 : following]]
            place = hole + 1
        return np.concatenate([*pieces, inputs[place:]])


def sentinel_tokens(count: int) -> list[SpecialToken]:
    """T5's sentinels in order."""
    return [SpecialToken(f"<extra_id_{i}>") for i in range(count)]


def span_numbers(length: int, rate: float, mean_span: float) -> tuple[int, int]:
    """Noise tokens and spans of a window, as T5's ``random_spans_noise_mask`` counts them: the same for every draw."""
    noise = min(max(round(length * rate), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), length - noise)


def kept_and_sentinels(length: int, rate: float, mean_span: float) -> int:
    """Tokens of the corrupted input of a window, without an end."""
    noise, spans = span_numbers(length, rate, mean_span)
    return length - noise + spans


def longest(size: Callable[[int], int], room: int) -> int:
    """The longest window, of at least 2 tokens, whose ``size`` is at most ``room``; 0 if there is none."""
    if size(2) > room:
        return 0
    length = 2
    while size(length + 1) <= room:
        length += 1
    return length


def check_spans(name: str, length: int, mean_span: float, spans: int, context: int, sentinels: int) -> None:
    """Check that the spans fit the window and the sentinels.

    Raises:
        ConfigError: the spans do not fit the window, or there are more of them than sentinels.
    """
    if length == 0:
        raise ConfigError(
            f"data.context is {context}, too short for a window of the objective {name!r}; lengthen it"
        )
    if mean_span >= length:
        raise ConfigError(
            f"the objective {name!r} has spans of {mean_span:g} tokens on average, but windows of {length} tokens; "
            "choose shorter spans or a longer data.context"
        )
    if spans > sentinels:
        raise ConfigError(
            f"the objective {name!r} needs {spans} sentinels for a window of {length} tokens, but the tokenizer has "
            f"{sentinels}; choose a shorter data.context, longer spans, or more sentinels"
        )


def noise_mask(length: int, rate: float, mean_span: float, draw: np.random.Generator) -> np.ndarray:
    """T5's draw, bool (length,): noise and other tokens are each cut into as many spans, every way of cutting being
    equally likely, and take turns, other tokens first."""
    noise, spans = span_numbers(length, rate, mean_span)
    kept_lengths, noise_lengths = _composition(length - noise, spans, draw), _composition(noise, spans, draw)
    lengths = np.stack([kept_lengths, noise_lengths], axis=1).ravel()
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def _composition(total: int, parts: int, draw: np.random.Generator) -> np.ndarray:
    """Lengths, (parts,), at least 1 each, that add up to ``total``; uniform over all such."""
    borders = np.sort(draw.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(borders, prepend=0, append=total)
