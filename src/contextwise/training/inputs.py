"""The inputs of training: the corpus, its examples under the objective, and the matching model configuration."""

from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.progress import say
from contextwise.data.corpus import Corpus
from contextwise.data.sources.alpaca import CHAT_TEMPLATE
from contextwise.data.synthetic.samples import ParityStream, Samples, StoredSamples, open_samples
from contextwise.data.windows import LastTenthWindows
from contextwise.models.parity import ParityMLPConfig
from contextwise.models.tokenizers import check_tokenizer
from contextwise.objectives import ExampleStream, Vocabulary, add_special_tokens
from contextwise.training.cue.sentences import SentenceInputs, SentenceStream
from contextwise.training.hooks.curve import curve_windows
from contextwise.training.model import model_config
from contextwise.training.recipe import CorpusData, PretrainedModel, Recipe, SyntheticData
from contextwise.training.replay import replayed_corpus, watched_corpus, with_replay

VALIDATION_SEED = 0
"""Runs with different seeds are validated on the same examples."""


@dataclass
class TrainingInputs:
    """The training examples of a run, with corpus, tokenizer and model configuration.

    Attributes:
        corpus: the training split, or synthetic samples.
        config: configuration of the model; its vocabulary includes the tokens that the objective added.
        tokenizer: the corpus's, with the objective's special tokens; None for a corpus without a tokenizer.
        added_tokens: texts of the special tokens that were added to the tokenizer.
        stream: the examples of the whole run, in order.
        validation: validation examples by the name of their loss in ``metrics.jsonl``: ``loss`` and, with an old corpus that
            is replayed or watched, ``replay_loss``; may be empty.
        replayed: the training split of the replayed old corpus, or None.
        curve: windows of the context curve, or None.
        sentences: sentences and CUE model of the objective ``sentence``, or None.
    """

    corpus: Corpus | Samples | StoredSamples
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerFast | None
    stream: Dataset
    validation: dict[str, Dataset]
    added_tokens: list[str] = field(default_factory=list)
    replayed: Corpus | None = None
    curve: LastTenthWindows | None = None
    sentences: SentenceInputs | None = None

    @classmethod
    def open(cls, recipe: Recipe) -> "TrainingInputs":
        """Open the corpora and check the recipe against them.

        Raises:
            ConfigError, DataError: corpora, objective and model do not match each other.
        """
        data = recipe.data
        if isinstance(data, SyntheticData):
            return cls._synthetic(recipe, data)
        corpus = Corpus.open(data.corpus, split=data.split)
        corpus = corpus if data.tokens is None else corpus.first(data.tokens)
        sentences = SentenceInputs.open(recipe, corpus)
        tokenizer = corpus.tokenizer() if recipe.objective.special_tokens or sentences else None
        added = [] if tokenizer is None else add_special_tokens(tokenizer, recipe.objective.special_tokens)
        size = corpus.vocab_size
        if tokenizer is not None and size is not None:
            size = max(size, max(tokenizer.get_vocab().values()) + 1)
        composed = None if sentences is None else sentences.config
        config: Any = composed or model_config(recipe, size, corpus.end_of_text)
        if isinstance(recipe.model, PretrainedModel):
            check_tokenizer(recipe.model.pretrained, config.get_text_config().vocab_size, corpus)
            if added and size is not None and size > config.vocab_size:
                config.vocab_size = size
        vocabulary = Vocabulary(tokenizer, corpus.end_of_text, config.vocab_size)
        replayed = replayed_corpus(recipe, corpus, vocabulary)
        watched = watched_corpus(recipe, corpus, vocabulary, replayed)
        stream: Any = recipe.objective.stream(corpus, recipe.cut, recipe.seed, vocabulary, recipe.examples)
        if replayed is not None:
            stream = with_replay(recipe, stream, replayed, vocabulary)
        if sentences is not None:
            stream = sentences.stream(stream, recipe.examples_per_step, data.split)
        validation = _validation_sets(recipe, corpus, watched, vocabulary, sentences)
        kept = corpus.tokenizer() if tokenizer is None else tokenizer
        if kept is not None and recipe.objective.name == "instruction":
            kept.chat_template = CHAT_TEMPLATE  # the training format, for serve and apply_chat_template
        curve = curve_windows(recipe)
        return cls(corpus, config, kept, stream, validation, added, replayed, curve, sentences)

    @classmethod
    def _synthetic(cls, recipe: Recipe, data: SyntheticData) -> "TrainingInputs":
        """The samples of a synthetic task: generated on access, or stored.

        Raises:
            ConfigError, DataError: stored samples are too few, missing, damaged or of another task.
        """
        task = data.synthetic
        drawn = Samples(task, recipe.seed)
        samples: Samples | StoredSamples = drawn
        if task.stored is not None:
            samples = open_samples(drawn, task.stored)
            needed = task.samples or recipe.examples
            if len(samples) < needed:
                raise ConfigError(
                    f"data.synthetic.stored has {len(samples):,} samples, but the run needs {needed:,}; set samples to at most "
                    "that many, or write more"
                )
        held_out = Samples(task, VALIDATION_SEED, "validation")
        validation = ParityStream(held_out, task.validation_samples, None)
        stream = ParityStream(samples, recipe.examples, task.samples)
        return cls(samples, model_config(recipe, None, None), None, stream, {"loss": validation})

    @property
    def corpora(self) -> dict[str, Any]:
        """The training corpora, by role."""
        return {"train": self.corpus} | ({} if self.replayed is None else {"replay": self.replayed})

    @property
    def lengths(self) -> tuple[int, int]:
        """Positions per example: of the decoder or encoder, and of an encoder-decoder's decoder."""
        if isinstance(self.config, ParityMLPConfig):  # one vector per sample, for any number of bits
            return 1, 0
        if isinstance(self.stream, SentenceStream):  # batches are trimmed, so use the mean length
            return max(1, round(float(self.stream.lengths.mean()))), 0
        first: dict[str, Any] = self.stream[0]
        inputs, labels = len(first["input_ids"]), len(first["labels"])
        return inputs, labels if self.config.is_encoder_decoder else 0


def _validation_sets(
    recipe: Recipe,
    corpus: Corpus,
    watched: Corpus | None,
    vocabulary: Vocabulary,
    sentences: SentenceInputs | None,
) -> dict[str, Dataset]:
    """Validation examples of the new corpus and of the watched old corpus; empty if the new corpus has none."""
    assert isinstance(recipe.data, CorpusData)
    if recipe.data.validation_split not in corpus.splits:  # a .bin file has the training split only
        if watched is not None:
            say(f"note: {watched.path} is not watched, because {corpus.path} has no validation split")
        return {}
    sets = {"loss": _validation(recipe, corpus, vocabulary, sentences)}
    if watched is not None and sets["loss"] is not None:
        sets["replay_loss"] = _validation(recipe, watched, vocabulary, None)
    return {name: examples for name, examples in sets.items() if examples is not None}


def _validation(
    recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary, sentences: SentenceInputs | None
) -> Dataset | None:
    assert isinstance(recipe.data, CorpusData)
    try:
        held_out = Corpus.open(corpus.path, split=recipe.data.validation_split)
        count = max(1, recipe.training.evaluation_tokens // recipe.data.context)
        stream: Any = recipe.objective.stream(held_out, recipe.cut, VALIDATION_SEED, vocabulary, count)
        if isinstance(stream, ExampleStream):
            stream.length = min(count, stream.examples.count(0))  # each at most once
        if sentences is not None:
            return sentences.stream(stream, len(stream), recipe.data.validation_split)
        return stream
    except ContextwiseError as error:
        say(f"note: no validation on {corpus.path} during training: {error}")
        return None
