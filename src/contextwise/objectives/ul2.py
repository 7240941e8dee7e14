"""UL2's mixture of denoisers (objectives, Section 6.2.3; Tay et al. 2023, Section 3.1 and its table of denoisers).

Each window goes to one denoiser: R corrupts short spans as T5 does, X corrupts long ones or many, S hides the window's end. All
are span corruption; S has one span, at the end, as in the examples of the released model (``[S2S] ... <extra_id_0>``). A mode
token before the input names the mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, DataError
from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import NO_LOSS, Cut, Examples, SingleObjective, generator
from contextwise.objectives.spans import (
    Corruption,
    check_spans,
    longest,
    noise_mask,
    sentinel_tokens,
    span_numbers,
)
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    import torch

    from contextwise.data.corpus import Corpus
    from contextwise.data.windows import Windows


class Denoiser(Settings):
    """One denoiser of the mixture."""

    mode: Literal["R", "S", "X"]
    rate: float = Field(gt=0, lt=1, description="share of the tokens that are noise")
    mean_span: float | None = Field(
        None, ge=1, description="mean tokens of a span; S has none: one span, at the end"
    )
    weight: float = Field(1.0, gt=0, description="share of the examples, relative to the other denoisers'")

    @model_validator(mode="after")
    def _span(self) -> Denoiser:
        if (self.mean_span is None) != (self.mode == "S"):
            raise ConfigError(
                "mean_span is missing for a denoiser of mode R or X"
                if self.mean_span is None
                else "mean_span is given for a denoiser of mode S, which has one span at the end; leave it out"
            )
        return self

    def numbers(self, length: int) -> tuple[int, int]:
        """Noise tokens and spans of a window of ``length`` tokens."""
        return span_numbers(length, self.rate, length if self.mean_span is None else self.mean_span)

    def mask(self, length: int, draw: np.random.Generator) -> np.ndarray:
        """True at noise, (length,)."""
        if self.mean_span is None:
            return np.arange(length) >= length - self.numbers(length)[0]
        return noise_mask(length, self.rate, self.mean_span, draw)


PUBLISHED = (
    Denoiser(mode="R", rate=0.15, mean_span=3),
    Denoiser(mode="R", rate=0.15, mean_span=8),
    Denoiser(mode="S", rate=0.25),
    Denoiser(mode="X", rate=0.5, mean_span=3),
    Denoiser(mode="X", rate=0.5, mean_span=8),
    Denoiser(mode="X", rate=0.15, mean_span=64),
    Denoiser(mode="X", rate=0.5, mean_span=64),
)


class ModeTokens(Settings):
    """Names of the mode tokens; those of the released model."""

    R: str = "[NLU]"
    S: str = "[S2S]"
    X: str = "[NLG]"


class UL2(SingleObjective):
    """The published seven denoisers, mixed evenly.

    The stream of an epoch is cut window by window, each as long as its denoiser takes to fill ``data.context`` exactly, so
    inputs need no padding and every token is in one window an epoch; the number of windows differs a little between
    epochs. (With ``cross_documents=False`` a window that does not fit into the rest of a document goes to the next one that
    is long enough; what it leaves is dropped. So the mixture keeps its shares.)

    With ``model="encoder-decoder"`` the input is mode, corrupted window, end-of-text, and the labels (target, end-of-text)
    are filled up with -100 to the longest denoiser's. With ``model="decoder"`` one sequence holds the mode, the corrupted
    window (``prefix``: seen in both directions), the target and end-of-text, with the loss on the last two; it is filled up
    with at most two end-of-text tokens, which have no loss and are seen by nothing that has.
    """

    name: Literal["ul2"] = "ul2"
    model: Literal["encoder-decoder", "decoder"] = "encoder-decoder"
    denoisers: list[Denoiser] = Field(
        default_factory=lambda: [d.model_copy() for d in PUBLISHED], min_length=1
    )
    modes: ModeTokens = Field(default_factory=ModeTokens)
    sentinels: int = Field(
        128,
        ge=1,
        description="sentinel tokens of the tokenizer; T5's 100 are too few for inputs of 512 tokens",
    )

    @property
    def kind(self) -> Kind:
        return self.model

    @property
    def has_prefix(self) -> bool:
        return self.model == "decoder"

    @property
    def special_tokens(self) -> list[SpecialToken]:
        modes = dict.fromkeys(getattr(self.modes, denoiser.mode) for denoiser in self.denoisers)
        return [*sentinel_tokens(self.sentinels), *(SpecialToken(text) for text in modes)]

    def window_length(self, denoiser: Denoiser, context: int) -> int:
        """Tokens of a window of one denoiser.

        Raises:
            ConfigError: its spans do not fit.
        """

        def size(length: int) -> int:
            noise, spans = denoiser.numbers(length)
            if self.model == "decoder":  # mode, input and target; the end is a label only
                return 1 + length + 2 * spans
            return 1 + (length - noise + spans) + 1

        length = longest(size, context)
        spans = denoiser.numbers(length)[1] if length else 0
        check_spans(self.name, length, denoiser.mean_span or 0, spans, context, self.sentinels)
        return length

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        cut.refuse_separate_documents(self.name)
        ids = vocabulary.ids(self.special_tokens, self.name)
        corruption = Corruption(np.array(ids[: self.sentinels]))
        texts = [token.text for token in self.special_tokens]
        modes = [ids[texts.index(getattr(self.modes, denoiser.mode))] for denoiser in self.denoisers]
        lengths = [self.window_length(denoiser, cut.context) for denoiser in self.denoisers]
        # Reads the stream, and says in one sentence what is wrong with the corpus or too short in it.
        windows = cut.windows(corpus, max(lengths), vocabulary)
        return UL2Examples(self, windows, cut, corruption, modes, lengths, vocabulary.end(self.name), seed)


class UL2Examples(Examples):
    """Windows and their denoisers, both drawn anew in each epoch."""

    def __init__(
        self,
        settings: UL2,
        windows: Windows,
        cut: Cut,
        corruption: Corruption,
        modes: list[int],
        lengths: list[int],
        end: int,
        seed: int,
    ) -> None:
        self.settings, self.windows, self.context, self.corruption = (
            settings,
            windows,
            cut.context,
            corruption,
        )
        self.modes, self.lengths, self.end, self.seed = modes, np.array(lengths), end, seed
        numbers = [d.numbers(n) for d, n in zip(settings.denoisers, lengths, strict=True)]
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
        windows, weights = self.windows, np.array([d.weight for d in self.settings.denoisers])
        stream = int(windows.starts[-1]) + windows.separators
        draw = generator(self.seed, epoch, 0, "ul2 denoisers")
        most = stream // int(self.lengths.min()) + len(windows.corpus) * windows.separators
        choices = draw.choice(len(weights), size=most, p=weights / weights.sum())
        lengths = self.lengths[choices]
        if windows.cross_documents:
            starts = np.cumsum(lengths) - lengths
            starts = starts[starts + lengths <= stream]
        else:
            starts = _inside_documents(windows, lengths)
        self._epoch, self._starts, self._choices = epoch, starts, choices[: len(starts)]

    def denoiser(self, epoch: int, index: int) -> int:
        """Index of the denoiser of an example in the settings."""
        self._plan(epoch)
        return int(self._choices[index])

    def tokens(self, epoch: int, index: int) -> np.ndarray:
        """The original tokens of an example's window."""
        length = int(self.lengths[self.denoiser(epoch, index)])
        tokens, _ = self.windows.read(int(self._starts[index]), length)
        if self.windows.vocab_size is not None and tokens.max() >= self.windows.vocab_size:
            raise DataError(
                f"{self.windows.corpus.path} holds the token id {tokens.max()}, but the model's vocabulary has "
                f"{self.windows.vocab_size} tokens; set model.vocab_size"
            )
        return tokens

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        tokens, which = self.tokens(epoch, index), self.denoiser(epoch, index)
        noise = self.settings.denoisers[which].mask(len(tokens), generator(self.seed, epoch, index, "ul2"))
        inputs, targets = self.corruption.corrupt(tokens, noise)
        inputs, targets = np.append(self.modes[which], inputs), np.append(targets, self.end)
        form = self._decoder if self.settings.model == "decoder" else self._pair
        return form(inputs, targets) | {"window": index}

    def _pair(self, inputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
        labels = np.full(self.target, NO_LOSS)
        labels[: len(targets)] = targets
        return {"input_ids": np.append(inputs, self.end), "labels": labels}

    def _decoder(self, inputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
        ids, labels = np.full(self.context, self.end), np.full(self.context, NO_LOSS)
        ids[: len(inputs)] = inputs
        ids[len(inputs) : len(inputs) + len(targets) - 1] = targets[:-1]
        labels[len(inputs) - 1 : len(inputs) + len(targets) - 1] = targets
        return {"input_ids": ids, "labels": labels, "prefix": np.arange(self.context) < len(inputs)}

    def restore(self, example: dict[str, torch.Tensor]) -> np.ndarray:
        """The window's tokens, from its example."""
        ids, labels = example["input_ids"].numpy(), example["labels"].numpy()
        inputs = ids[example["prefix"].numpy()] if "prefix" in example else ids[:-1]
        return self.corruption.restore(inputs[1:], labels[labels != NO_LOSS][:-1])


def _inside_documents(windows: Windows, lengths: np.ndarray) -> np.ndarray:
    """Starts of windows of these lengths, as many as there is room for, each inside one document."""
    firsts = windows.starts[:-1].tolist()
    ends = (windows.starts[1:] + windows.separators).tolist()
    starts, document, place = [], 0, 0
    for length in lengths.tolist():
        while document < len(firsts) and max(place, firsts[document]) + length > ends[document]:
            document += 1
        if document == len(firsts):
            break
        place = max(place, firsts[document])
        starts.append(place)
        place += length
    return np.array(starts, dtype=np.int64)
