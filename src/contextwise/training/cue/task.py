"""What a recipe with the objective ``sentence`` trains on: sentences in steps sorted by length, and their contexts."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from contextwise.data.corpus import Corpus
from contextwise.models.cue import CueConfig
from contextwise.models.cue.encoding import TextEncoder, check_encoder
from contextwise.models.loading import load_config
from contextwise.models.tokenizers import check_tokenizer
from contextwise.objectives import ExampleStream
from contextwise.objectives.sentence import SentenceExamples
from contextwise.training.cue.contexts import EncodedContexts
from contextwise.training.cue.parts import TextFacts, cue_config, text_choice
from contextwise.training.cue.streams import (
    Addition,
    SentenceStream,
    each_counts_once,
    with_contexts,
    with_noise,
)
from contextwise.training.settings import AUTOENCODER

if TYPE_CHECKING:
    from contextwise.training.recipe import Recipe


@dataclass
class SentenceTask:
    """The sentences of a recipe, and the CUE model of its stage where there is one.

    Attributes:
        config: of the whole CUE model; None for another model.
        encoder: the frozen text encoder, where contexts are read.
        facts: what the run's summary says of them.
    """

    recipe: "Recipe"
    config: CueConfig | None = None
    encoder: TextEncoder | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: "Recipe", corpus: Corpus) -> "SentenceTask | None":
        """None for a recipe of another objective.

        Raises:
            ConfigError, DataError, CheckpointError: parts of earlier runs do not fit each other, or not the corpus.
        """
        if recipe.objective.name != "sentence":
            return None
        settings = recipe.model.cue
        if settings is None:
            return cls(recipe)
        for source in (settings.sentence_encoder, settings.autoencoder, settings.start):
            if source is not None:
                check_tokenizer(source, load_config(source).get_text_config().vocab_size, corpus)
        if recipe.data.contexts is None:
            return cls(recipe, cue_config(recipe, None))
        encoder = TextEncoder.open(**text_choice(settings))
        config = cue_config(recipe, TextFacts(encoder.width, encoder.about()))
        if settings.start is not None and not settings.fresh_context_encoder:
            start: Any = load_config(settings.start)
            if start.context_encoder is not None:
                check_encoder(encoder, start.context_encoder.text_encoder)
        return cls(recipe, config, encoder)

    def stream(self, stream: ExampleStream, step: int, name: str) -> SentenceStream:
        """The examples that are trained or validated on.

        Args:
            stream: the sentences in their order.
            step: sentences of a step.
            name: of the split, for the summary.
        """
        examples: Any = stream.examples
        assert isinstance(examples, SentenceExamples)
        lengths = (examples.sentences.lengths + 1).clip(max=examples.context)
        self.facts[name] = {"sentences": len(lengths), "sentences_cut": examples.cut}
        return SentenceStream(stream, lengths, step, self._additions(stream, examples, name))

    def _additions(self, stream: ExampleStream, examples: SentenceExamples, name: str) -> Addition | None:
        if self.encoder is not None:
            assert self.recipe.data.contexts is not None
            encoded = EncodedContexts(examples, self.recipe.data.contexts, self.encoder, _numbers(stream))
            self.facts[name] |= {"contexts_truncated": encoded.truncated, "contexts_missing": encoded.missing}
            return with_contexts(encoded)
        if self.config is not None and self.config.proxy is not None:
            return with_noise(stream.seed, self.config.proxy.autoencoder.code_width)
        return each_counts_once if self.recipe.model.family == AUTOENCODER else None


def _numbers(stream: ExampleStream) -> np.ndarray:
    """The sentences that a stream reads, ascending."""
    count = stream.examples.count(0)
    if len(stream) >= count:
        return np.arange(count)
    return np.sort([stream.place(i)[1] for i in range(len(stream))])
