"""The inputs of training: the corpora, their examples under the objective, and the matching model configuration.

Continual pretraining (objectives, Section 6.2.7) improves a model on its new corpus and worsens it on the old one. A share
of old examples in the training reduces this (objectives, Exercise 6.2.4: 5 to 15%); an old corpus may also only be watched.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, ContextwiseError, DataError
from contextwise.base.progress import say, say_once
from contextwise.data.corpus import Corpus
from contextwise.data.document_lengths import short_documents_note
from contextwise.data.sources.alpaca import CHAT_TEMPLATE
from contextwise.data.windows import LastTenthWindows
from contextwise.models.embedding import TRAINED_POOLING
from contextwise.models.loading import load_tokenizer
from contextwise.models.prefix import prompt_form, set_prompt_form
from contextwise.models.tokenizers import check_tokenizer, corpus_tokenizer_hash, model_tokenizer_hash
from contextwise.objectives import NO_LOSS, Cut, ExampleStream, MixtureStream, Vocabulary, add_special_tokens
from contextwise.objectives.metadata import (
    LARGEST_SHARE,
    Conditioning,
    HeldOutWindows,
    MetadataExamples,
    MetadataSettings,
    MetadataStream,
    MetadataTexts,
)
from contextwise.objectives.vocabulary import add_tokens_of
from contextwise.training.identity import input_hashes
from contextwise.training.kinds import PretrainedModel
from contextwise.training.model import model_config
from contextwise.training.recipe import Recipe
from contextwise.training.settings import CorpusData
from contextwise_papers.cue.streams import SentenceInputs, SentenceStream

VALIDATION_SEED = 0
"""Runs with different seeds are validated on the same examples."""
COUNTED_EXAMPLES = 256
"""Examples of a run whose targets are counted for its plan."""
_OLD = 2**31
"""Added to the seed of old documents. Recipes' seeds are smaller, so old and new documents have different random numbers."""


@dataclass
class TrainingInputs:
    """The training examples of a run, with corpus, tokenizer and model configuration.

    The validation examples have the names of their losses in ``metrics.jsonl``: ``loss`` and, with an old corpus that is
    replayed or watched, ``replay_loss``; with metadata before the text, ``metadata_loss``, of the same text.
    """

    corpus: Any  # the training split (Corpus), or samples with a path and a fingerprint
    config: PreTrainedConfig  # of the model; its vocabulary includes the tokens that the objective added
    tokenizer: PreTrainedTokenizerFast | None  # the corpus's, if it has one, with the objective's special tokens
    stream: Dataset  # the examples of the whole run, in order
    validation: dict[str, Dataset]  # may be empty
    corpora: dict[
        str, Any
    ]  # all corpora by role: those of the training, and the held-out ones by the name of their loss
    recipe: Recipe  # of the run
    added_tokens: list[str] = field(default_factory=list)  # special tokens that were added to the tokenizer
    curve: LastTenthWindows | None = None  # windows of the context curve
    sentences: SentenceInputs | None = None  # sentences and CUE model of the objective `sentence`
    metadata_cut: int | None = None  # documents whose metadata is cut; None without metadata
    conditioning: Conditioning | None = None  # of metadata before the text

    @classmethod
    def open(cls, recipe: Recipe) -> "TrainingInputs":
        """Open the corpora; a ConfigError or DataError if corpora, objective and model do not match each other."""
        data, objective = recipe.data, recipe.objective
        if (own := data.open(recipe)) is not None:
            return own
        assert isinstance(data, CorpusData)
        corpus = Corpus.open(data.corpus, split=data.split)
        corpus = corpus if data.tokens is None else corpus.first(data.tokens)
        sentences = SentenceInputs.open(recipe, corpus)
        special = [token for each in recipe.objectives for token in each.special_tokens]
        pretrained = recipe.model.pretrained if isinstance(recipe.model, PretrainedModel) else None
        tokenizer = corpus.tokenizer() if special or sentences or pretrained else None
        if tokenizer is not None and pretrained is not None and model_tokenizer_hash(pretrained) is not None:
            add_tokens_of(load_tokenizer(pretrained), tokenizer)
        added = [] if tokenizer is None else add_special_tokens(tokenizer, dict.fromkeys(special))
        size = corpus.vocab_size
        if tokenizer is not None and size is not None:
            size = max(size, max(tokenizer.get_vocab().values()) + 1)
        composed = None if sentences is None else sentences.config
        config: Any = composed or model_config(recipe, size, corpus.end_of_text)
        if pretrained is not None:
            check_tokenizer(pretrained, config.get_text_config().vocab_size, corpus)
            if added and size is not None and size > config.vocab_size:
                config.vocab_size = size
        vocabulary = Vocabulary(tokenizer, corpus.end_of_text, config.vocab_size)
        forms = [each.prompt_form(vocabulary) for each in recipe.objectives]
        set_prompt_form(config, None if None in forms else forms[0])
        if recipe.objective.pooling is not None:
            setattr(config, TRAINED_POOLING, recipe.objective.pooling)
        elif hasattr(config, TRAINED_POOLING):  # of the model that the run starts from
            delattr(config, TRAINED_POOLING)
        replayed, watched = _old_corpora(data, corpus, vocabulary)
        stream: Any = objective.stream(corpus, recipe.cut, recipe.seed, vocabulary, recipe.examples)
        cuts_windows = any(hasattr(each.examples, "windows") for each in getattr(stream, "streams", [stream]))
        if cuts_windows and (note := short_documents_note(corpus, data.context)):
            say_once(f"note: {note}")
        given = None
        if data.metadata is not None:
            own = recipe.examples * (1 - (data.replay.share if data.replay else 0))
            given = _with_metadata(recipe, data.metadata, corpus, vocabulary)
            given.texts.check_any()
            stream = MetadataStream(stream, given, round(own * (1 - data.metadata.cooldown)))
        if replayed is not None and data.replay is not None:
            # Both corpora are read independently, the new one in the same order as without replay.
            seed = recipe.seed + _OLD
            old = recipe.objectives[-1].stream(replayed, _replay_cut(recipe), seed, vocabulary, recipe.examples)
            weights = [1 - data.replay.share, data.replay.share]
            stream = MixtureStream([stream, old], weights, recipe.seed, recipe.examples, label="corpus")
        if sentences is not None:
            stream = sentences.stream(stream, recipe.batch_sizes.first, data.split)
        validation, held_out = _validation_sets(recipe, data, corpus, watched, vocabulary, sentences)
        exported = corpus.tokenizer() if tokenizer is None else tokenizer
        if exported is not None and any(
            single.name == "instruction" for each in recipe.objectives for single in each.singles
        ):
            exported.chat_template = CHAT_TEMPLATE  # the training format, for serve and apply_chat_template
        corpora = {"train": corpus, **({} if replayed is None else {"replay": replayed}), **held_out}
        curve = _curve_windows(recipe, data, config)
        cut = None if given is None else given.texts.cut
        conditioning = given.conditioning() if given is not None and given.texts.form == "prepend" else None
        every = (corpus, config, exported, stream, validation, corpora, recipe, added, curve, sentences)
        return cls(*every, cut, conditioning)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Content hashes of what the run is made from (:func:`~contextwise.training.identity.input_hashes`)."""
        return input_hashes(self.recipe)

    @property
    def lengths(self) -> tuple[int, int]:
        """Positions per example: of the decoder or encoder, and of an encoder-decoder's decoder."""
        if self.recipe.model.positions is not None:
            return self.recipe.model.positions, 0
        if isinstance(self.stream, SentenceStream):  # batches are trimmed, so use the mean length
            return max(1, round(float(self.stream.lengths.mean()))), 0
        first: dict[str, Any] = self.stream[0]
        return len(first["input_ids"]), len(first["labels"]) if self.config.is_encoder_decoder else 0

    @property
    def targets_per_example(self) -> float:
        """Targets of an example, a mean: of all sentences, or of some of the examples."""
        if isinstance(self.stream, SentenceStream):  # sorted by length within a step
            return self.lengths[0]
        stream: Any = self.stream
        if isinstance(stream, MetadataStream) and 0 < stream.cooldown < len(stream):
            share = stream.cooldown / len(stream)
            return share * _mean_targets(stream.conditioned) + (1 - share) * _mean_targets(stream.plain)
        return _mean_targets(stream)


def _mean_targets(stream: Any) -> float:
    """Targets of an example, a mean of up to :data:`COUNTED_EXAMPLES`, none far into a run of many epochs."""
    count = min(len(stream), COUNTED_EXAMPLES)
    span = min(len(stream), 64 * count)
    return fmean(int(targets_in(stream[number * span // count])) for number in range(count))


def targets_in(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Number of targets in the loss of a batch or of an example, ()."""
    return batch["counted"].sum() if "counted" in batch else batch["labels"].ne(NO_LOSS).sum()


def _with_metadata(
    recipe: Recipe, settings: MetadataSettings, corpus: Corpus, vocabulary: Vocabulary
) -> MetadataExamples:
    """The examples of a corpus with metadata."""
    texts = MetadataTexts(corpus, settings.columns, settings.form, recipe.data.context // LARGEST_SHARE)
    return MetadataExamples(corpus, recipe.cut, vocabulary, texts, settings.share, recipe.seed)


def _replay_cut(recipe: Recipe) -> Cut:
    """The cut of an old corpus: the run's, but the layout of metadata before the text is for causal examples only."""
    if recipe.objectives[-1].name == "causal":
        return recipe.cut
    assert isinstance(recipe.data, CorpusData)
    return replace(recipe.cut, separate_documents=recipe.data.separate_documents, start_at_documents=False)


def _old_corpora(data: CorpusData, corpus: Corpus, vocabulary: Vocabulary) -> tuple[Corpus | None, ...]:
    """Open the training split of the replayed old corpus, and the validation split of the replayed or watched one."""
    split = data.validation_split
    if data.replay is not None:
        old = Corpus.open(data.replay.corpus, split=data.split)
        if old.fingerprint in (corpus.fingerprint, Corpus.open(data.corpus, split=data.split).fingerprint):
            raise ConfigError(
                f"data.replay.corpus is {old.path}, the same documents as data.corpus; name the corpus that the model was "
                "trained on before, or remove data.replay"
            )
        _check_same_tokens(old, corpus, vocabulary)
        return old, Corpus.open(old.path, split=split) if split in old.splits else None
    if data.watch is None:
        return None, None
    old = Corpus.open(data.watch, split=split)
    if old.split != split:  # a file without splits opens under every name
        raise DataError(
            f"data.watch is {old.path}, which has no split {split!r} to validate on; name a corpus that has one"
        )
    _check_same_tokens(old, corpus, vocabulary)
    return None, old


def _check_same_tokens(old: Corpus, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Check that an old corpus has the tokenizer of the new one and fits the model's vocabulary.

    Corpora without a tokenizer (Zarr, ``.bin``) are not compared.
    """
    fix = f"prepare one of them again with --tokenizer {corpus.path}/tokenizer"
    if len({corpus_tokenizer_hash(old.path), corpus_tokenizer_hash(corpus.path)} - {None}) > 1:
        raise DataError(f"the corpora {corpus.path} and {old.path} have different tokenizers; {fix}")
    if len({old.end_of_text, corpus.end_of_text} - {None}) > 1:
        raise DataError(
            f"the corpora {corpus.path} and {old.path} end their documents with different tokens, {corpus.end_of_text} "
            f"and {old.end_of_text}; prepare one of them again with the same --end-of-text"
        )
    if old.vocab_size is not None and vocabulary.size is not None and old.vocab_size > vocabulary.size:
        raise DataError(
            f"the corpus {old.path} has a vocabulary of {old.vocab_size} tokens, but the model's has {vocabulary.size}; {fix}"
        )


def _validation_sets(
    recipe: Recipe,
    data: CorpusData,
    corpus: Corpus,
    watched: Corpus | None,
    vocabulary: Vocabulary,
    sentences: SentenceInputs | None,
) -> tuple[dict[str, Dataset], dict[str, Corpus]]:
    """Validation examples of the new corpus and of the watched old one, and their corpora.

    Empty if the recipe asks for no validation, or the new corpus has no held-out documents.
    """
    if not recipe.training.evaluation_tokens:
        return {}, {}
    if data.validation_split not in corpus.splits:  # a .bin file has the training split only
        if watched is not None:
            say(f"note: {watched.path} is not watched, because {corpus.path} has no validation split")
        return {}, {}
    sets: dict[str, Dataset] = {}
    corpora: dict[str, Corpus] = {}
    for name, source in {"loss": corpus, "replay_loss": watched}.items():
        if source is None:
            continue
        try:
            held_out = Corpus.open(source.path, split=data.validation_split)
            count = max(1, recipe.training.evaluation_tokens // data.context)
            objective = recipe.objectives[-1] if name == "replay_loss" else recipe.objective
            cut = _replay_cut(recipe) if name == "replay_loss" else recipe.cut
            stream: Any = objective.stream(held_out, cut, VALIDATION_SEED, vocabulary, count)
            if isinstance(stream, ExampleStream):
                stream.length = min(count, stream.examples.count(0))  # each at most once
                if objective.whole_steps and stream.length > (step := recipe.examples_per_step):
                    stream.length -= stream.length % step  # pairs of a smaller batch have fewer negatives
            if sentences is not None:
                stream = sentences.stream(stream, len(stream), data.validation_split)
            sets[name], corpora[name] = stream, held_out
            if name == "loss" and data.metadata is not None and data.metadata.form == "prepend":
                sets |= _held_out_with_metadata(recipe, data.metadata, held_out, vocabulary, count)
                corpora |= dict.fromkeys(sets, held_out)
        except ContextwiseError as error:
            say(f"note: no validation on {source.path} during training: {error}")
            if name == "loss":
                break
    return sets, corpora


def _held_out_with_metadata(
    recipe: Recipe, settings: MetadataSettings, held_out: Corpus, vocabulary: Vocabulary, count: int
) -> dict[str, Dataset]:
    """Up to ``count`` windows for ``loss`` and ``metadata_loss``: the same text without and with its metadata before it."""
    examples = _with_metadata(recipe, settings.model_copy(update={"share": 1.0}), held_out, vocabulary)
    stream = ExampleStream(examples, VALIDATION_SEED, min(count, examples.count(0)))
    sets: Any = {"loss": HeldOutWindows(stream, given=False), "metadata_loss": HeldOutWindows(stream, given=True)}
    if not examples.conditioning(sets["metadata_loss"].indices).conditioned_share:
        say(f"note: no metadata_loss during training: no document of its windows of {held_out.path} has metadata")
        del sets["metadata_loss"]
    return sets


def _curve_windows(recipe: Recipe, data: CorpusData, config: PreTrainedConfig) -> LastTenthWindows | None:
    """Open the windows for a run's context curve; None if the recipe measures no curve."""
    settings, kind, split = recipe.training, recipe.objective.kind, data.validation_split
    if not settings.curve_every:
        return None
    if kind != "decoder":
        raise ConfigError(
            f"training.curve_every measures the loss at each context, which does not apply to a model of this kind "
            f"({kind}); set it to 0"
        )
    if (form := prompt_form(config)) is not None and form.tokens:
        raise ConfigError(
            "training.curve_every measures the loss of plain windows, but the objective puts tokens of its own around a "
            "prompt; set it to 0, and measure the finished run with contextwise curve"
        )
    held_out = Corpus.open(data.corpus, split=split)
    if held_out.split != split:
        raise ConfigError(
            f"training.curve_every needs held-out documents, and {held_out.path} has no split {split!r}; set it to 0, or "
            "prepare a corpus with one"
        )
    return LastTenthWindows(held_out, data.context, settings.curve_longest, settings.curve_tokens)
