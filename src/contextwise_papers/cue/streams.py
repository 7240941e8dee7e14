"""Examples of the objective ``sentence``: sorted by length within a step, with the encoded contexts of each sentence.

Sentences are short, and differ in length by more than a factor of ten. Within a step they are sorted, so that a micro-batch
contains sentences of similar length and is padded only to its own longest (:func:`contextwise.training.batches.collate`).
The loss of a step is the mean over all its targets, so it does not depend on the partition into micro-batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from contextwise.data import Corpus
from contextwise.models import load_config, load_model
from contextwise.models.tokenizers import check_tokenizer
from contextwise.objectives import NO_LOSS, ExampleStream, Stream, generator
from contextwise.training import Addition, HeldOut
from contextwise_papers.cue.config import CueConfig
from contextwise_papers.cue.contexts import ContextSets, ContextTexts
from contextwise_papers.cue.encoding import EncodedTexts, TextEncoder, TextSource, TextTable, check_encoder
from contextwise_papers.cue.kinds import AutoencoderModel, CueModel
from contextwise_papers.cue.settings import Started
from contextwise_papers.cue.stages import cue_config, text_choice


class _SharedTexts(EncodedTexts):
    """The cache, in which each process of a run encodes its share of the texts that are not yet there."""

    def rows(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        processes = PartialState(cpu=not torch.cuda.is_available())
        if processes.num_processes > 1:
            super().rows(texts[processes.process_index :: processes.num_processes])
            processes.wait_for_everyone()
        return super().rows(texts)


Tensors = Callable[[int, int], dict[str, torch.Tensor]]
"""Maps the epoch and number of a sentence to additional tensors of its example."""


class SentenceStream(Stream):
    """The examples of a run with the objective ``sentence``, each with ``length`` (), its positions without padding.

    ``lengths`` are the positions of each sentence of the corpus; each group of ``step`` sentences is sorted by length.
    """

    def __init__(self, stream: ExampleStream, lengths: np.ndarray, step: int, additions: Tensors | None = None) -> None:
        self.stream, self.lengths, self.step, self.additions = stream, lengths, step, additions
        self.length = len(stream)
        self._step = -1
        self._positions: list[tuple[int, int]] = []

    @property
    def mean_length(self) -> int:
        """Positions of a sentence, and its targets, a mean of all: they are sorted by length within a step."""
        return max(1, round(float(self.lengths.mean())))

    targets_per_example = mean_length

    def place(self, index: int) -> tuple[int, int]:
        """Epoch and number of the sentence at ``index``."""
        step, rest = divmod(index, self.step)
        if step != self._step:
            first = step * self.step
            positions = [self.stream.place(i) for i in range(first, min(first + self.step, len(self)))]
            order = np.argsort(self.lengths[[number for _, number in positions]], kind="stable")
            self._positions, self._step = [positions[i] for i in order], step
        return self._positions[rest]

    def item(self, index: int) -> dict[str, torch.Tensor]:
        epoch, number = self.place(index)
        example = self.stream.examples.example(epoch, number)
        example["length"] = example["labels"].ne(NO_LOSS).sum()
        return example | (self.additions(epoch, number) if self.additions is not None else {})


@dataclass
class SentenceInputs(Addition):
    """The sentences of a recipe, and the CUE model of its stage if it has one."""

    recipe: Any
    config: CueConfig | None = None  # of the whole CUE model; None for another model
    encoder: TextEncoder | None = None  # the frozen text encoder; None without contexts
    counts: dict[str, Any] = field(default_factory=dict)  # of sentences and contexts, by split

    @classmethod
    def open(cls, recipe: Any, corpus: Corpus) -> "SentenceInputs":
        """Open the parts of earlier runs and the text encoder."""
        if not isinstance(recipe.model, CueModel):
            return cls(recipe)
        stage = recipe.model.cue
        for name in ("sentence_encoder", "autoencoder", "start"):
            source = getattr(stage, name, None)
            if source is not None:
                check_tokenizer(source, corpus, load_config(source).get_text_config().vocab_size)
        if recipe.data.contexts is None:
            return cls(recipe, cue_config(recipe, None))
        choice, text_model, kept = text_choice(recipe), None, None
        if isinstance(stage, Started):
            kept = load_config(stage.start).context_encoder
            if TextSource.parse(choice["name"]).trained:
                start: Any = load_model(stage.start, torch.float32, "cpu")
                text_model = start.text_encoder
        encoder = TextEncoder.open(**choice, model=text_model)
        config = cue_config(recipe, encoder.about())
        if kept is not None:
            check_encoder(encoder, kept.text_encoder)
        return cls(recipe, config, encoder)

    def stream(self, stream: Any) -> SentenceStream:
        return self._sentences(stream, self.recipe.examples_per_step, self.recipe.data.split)

    def held_out(self, sets: dict[str, HeldOut]) -> None:
        corpus, stream = sets["loss"]
        sets["loss"] = HeldOut(corpus, self._sentences(stream, len(stream), self.recipe.data.validation_split))

    @property
    def facts(self) -> dict[str, Any]:
        return {"sentences": self.counts}

    def _sentences(self, stream: ExampleStream, step: int, name: str) -> SentenceStream:
        """The examples to train or validate on: the sentences of ``stream``, ``step`` in a step, of the split ``name``."""
        examples: Any = stream.examples
        lengths = (examples.sentences.lengths + 1).clip(max=examples.context)
        self.counts[name] = {"sentences": len(lengths), "sentences_cut": examples.cut}
        return SentenceStream(stream, lengths, step, self._additions(stream, examples, name))

    def _additions(self, stream: ExampleStream, examples: Any, name: str) -> Tensors | None:
        if self.encoder is not None:
            count = examples.count(0)
            numbers = np.arange(count)
            if len(stream) < count:
                numbers = np.sort([stream.place(i)[1] for i in range(len(stream))])
            texts = ContextTexts(examples.sentences, self.recipe.data.contexts.types)
            cache = Path(examples.sentences.corpus.path) / "encoded"
            encoded = TextTable(self.encoder) if self.encoder.tokens_only else _SharedTexts(self.encoder, cache)
            sets = ContextSets(texts.of, numbers, encoded)
            self.counts[name] |= {"contexts_truncated": sets.truncated, "contexts_missing": texts.missing()}
            return sets.of
        if self.config is not None and self.config.proxy is not None:
            return partial(proxy_noise, stream.seed, self.config.proxy.autoencoder.code_width)
        # The loss of an autoencoder is a mean over sentences, not over tokens.
        return counted_once if isinstance(self.recipe.model, AutoencoderModel) else None


# Named functions: loaders of examples that are not forked are given them by pickle.


def proxy_noise(seed: int, width: int, epoch: int, number: int) -> dict[str, torch.Tensor]:
    """``proxy_noise`` (P,), standard normal, new in each epoch (CUE, Eq. 7)."""
    numbers = generator(seed, epoch, number, "proxy_noise")
    return {"proxy_noise": torch.from_numpy(numbers.standard_normal(width, dtype=np.float32))}


def counted_once(*_: int) -> dict[str, torch.Tensor]:
    return {"counted": torch.tensor(1)}
