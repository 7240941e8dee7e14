"""The inputs of training: the corpora, their examples under the objective, and the matching model configuration."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.progress import say, say_once
from contextwise.data.corpus import Corpus
from contextwise.data.document_lengths import short_documents_note
from contextwise.data.windows import LastTenthWindows
from contextwise.models.prefix import set_prefix
from contextwise.models.spec import register_models
from contextwise.objectives import NO_LOSS, Cut, ExampleStream, Objective, Vocabulary, add_special_tokens
from contextwise.objectives.mixture import MixtureStream
from contextwise.objectives.objective import Stream
from contextwise.training.identity import input_hashes
from contextwise.training.recipe import Recipe
from contextwise.training.settings import Addition, CorpusData, HeldOut

VALIDATION_SEED = 0
"""Runs with different seeds are validated on the same examples."""
COUNTED_EXAMPLES = 256
"""Examples of a run whose targets are counted for its plan."""


@dataclass
class TrainingInputs:
    """The training examples of a run, with corpus, tokenizer and model configuration.

    The validation examples have the names of their losses in ``metrics.jsonl``: ``loss``, and those of the additions.
    """

    corpus: Any  # the training split (Corpus), or samples with a path and a fingerprint
    config: PreTrainedConfig  # of the model; its vocabulary includes the tokens that the objective added
    tokenizer: PreTrainedTokenizerFast | None  # the corpus's, if it has one, with the objective's special tokens
    stream: Stream  # the examples of the whole run, in order
    validation: dict[str, Stream]  # may be empty
    corpora: dict[str, Any]  # by role: those of the training, and the held-out ones by the name of their loss
    recipe: Recipe  # of the run
    added_tokens: list[str] = field(default_factory=list)  # special tokens that were added to the tokenizer
    curve: LastTenthWindows | None = None  # windows of the context curve
    additions: dict[str, Addition] = field(default_factory=dict)  # of sections of data and of the objective, by name

    @classmethod
    def open(cls, recipe: Recipe) -> "TrainingInputs":
        """Open the corpora; a ConfigError or DataError if corpora, objective and model do not match each other."""
        data, objective = recipe.data, recipe.objective
        register_models()  # and the adapters of backbones that other packages bring
        if (own := data.open(recipe)) is not None:
            return own
        assert isinstance(data, CorpusData)
        corpus = Corpus.open(data.corpus, split=data.split)
        corpus = corpus if data.tokens is None else corpus.first(data.tokens)
        opened: Addition | None = objective.open(recipe, corpus)
        special = [token for each in recipe.singles for token in each.special_tokens]
        tokenizer = recipe.model.tokenizer_for(corpus) or (corpus.tokenizer() if special or opened else None)
        added = [] if tokenizer is None else add_special_tokens(tokenizer, dict.fromkeys(special))
        size = corpus.vocab_size
        if tokenizer is not None and size is not None:
            size = max(size, max(tokenizer.get_vocab().values()) + 1)
        if (config := opened.config if opened else None) is None:
            config = recipe.model.config(recipe, size, corpus.end_of_text)
            if added and size is not None and size > config.vocab_size:  # of a pretrained model
                config.vocab_size = size
        vocabulary = Vocabulary(tokenizer, corpus.end_of_text, config.vocab_size)
        set_prefix(config, all(each.has_prefix for each in recipe.singles))
        parts = {name: section.open(recipe, corpus, vocabulary) for name, section in data.sections.items()}
        additions = {name: part for name, part in (parts | {objective.name: opened}).items() if part is not None}
        stream: Any = objective.stream(corpus, recipe.cut, recipe.seed, vocabulary, recipe.examples)
        cuts_windows = any(hasattr(each.examples, "windows") for each in getattr(stream, "streams", [stream]))
        if cuts_windows and data.cross_documents and (note := short_documents_note(corpus, data.context)):
            say_once(f"note: {note}")
        for addition in additions.values():
            stream = addition.stream(stream)
        held_out = _held_out(recipe, corpus, vocabulary, additions)
        validation = {name: each.examples for name, each in held_out.items()}
        exported = corpus.tokenizer() if tokenizer is None else tokenizer
        templates = [each.chat_template for each in recipe.singles if each.chat_template is not None]
        if exported is not None and templates:
            exported.chat_template = templates[0]
        corpora = {"train": corpus}
        for addition in additions.values():
            corpora |= addition.corpora
        corpora |= {name: each.corpus for name, each in held_out.items()}
        curve = _curve_windows(recipe, data)
        return cls(corpus, config, exported, stream, validation, corpora, recipe, added, curve, additions)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Content hashes of what the run is made from (:func:`~contextwise.training.identity.input_hashes`)."""
        return input_hashes(self.recipe)

    @property
    def facts(self) -> dict[str, Any]:
        """What ``summary.json`` says of the additions."""
        return {name: value for each in self.additions.values() for name, value in each.facts.items()}

    @property
    def lengths(self) -> tuple[int, int]:
        """Positions per example: of the decoder or encoder, and of an encoder-decoder's decoder."""
        if (mean := getattr(self.stream, "mean_length", None)) is not None:  # batches are trimmed
            return mean, 0
        first: dict[str, Any] = self.stream[0]
        return len(first["input_ids"]), len(first["labels"]) if self.config.is_encoder_decoder else 0


def mean_targets(stream: Any) -> float:
    """Targets of an example: the mean that a stream names, or that of up to :data:`COUNTED_EXAMPLES`, none far into the run."""
    if (mean := getattr(stream, "targets_per_example", None)) is not None:
        return mean
    count = min(len(stream), COUNTED_EXAMPLES)
    span = min(len(stream), 64 * count)
    return fmean(int(targets_in(stream[number * span // count])) for number in range(count))


def targets_in(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Number of targets in the loss of a batch or of an example, ()."""
    return batch["counted"].sum() if "counted" in batch else batch["labels"].ne(NO_LOSS).sum()


def _held_out(
    recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary, additions: Mapping[str, Addition]
) -> dict[str, HeldOut]:
    """Validation examples by the name of their loss; none if the recipe asks for none, or no documents are held out."""
    split = recipe.data.validation_split
    sets: dict[str, HeldOut] = {}
    if not recipe.training.evaluation_tokens or split not in corpus.splits:  # a .bin file has the training split only
        return sets
    held_out = Corpus.open(corpus.path, split=split)
    with noted(corpus.path):
        examples = held_out_examples(recipe, held_out, recipe.objective, recipe.cut, vocabulary)
        sets["loss"] = HeldOut(held_out, examples)
        for addition in additions.values():
            addition.held_out(sets)
    return sets


@contextlib.contextmanager
def noted(path: Path) -> Iterator[None]:
    """Turn an error in the block into a note that there is no validation on the corpus at ``path``."""
    try:
        yield
    except ContextwiseError as error:
        say(f"note: no validation on {path} during training: {error}")


def held_out_examples(recipe: Recipe, held_out: Corpus, objective: Objective, cut: Cut, vocabulary: Vocabulary) -> Any:
    """The examples of held-out documents that a run validates on, each at most once under each objective."""
    count = max(1, recipe.training.evaluation_tokens // recipe.data.context)
    stream: Any = objective.stream(held_out, cut, VALIDATION_SEED, vocabulary, count)
    if isinstance(stream, ExampleStream | MixtureStream):
        stream.length = stream.distinct
        if objective.whole_steps and stream.length > (step := recipe.examples_per_step):
            stream.length -= stream.length % step  # pairs of a smaller batch have fewer negatives
    return stream


def _curve_windows(recipe: Recipe, data: CorpusData) -> LastTenthWindows | None:
    """Open the windows for a run's context curve; None if the recipe measures no curve."""
    settings, kind, split = recipe.training, recipe.objective.kind, data.validation_split
    if not settings.curve_every:
        return None
    if kind != "decoder":
        raise ConfigError(
            f"training.curve_every measures the loss at each context, which does not apply to a model of this kind "
            f"({kind}); set it to 0"
        )
    held_out = Corpus.open(data.corpus, split=split)
    if held_out.split != split:
        raise ConfigError(
            f"training.curve_every needs held-out documents, and {held_out.path} has no split {split!r}; set it to 0, or "
            "prepare a corpus with one"
        )
    return LastTenthWindows(held_out, data.context, settings.curve_longest, settings.curve_tokens)
