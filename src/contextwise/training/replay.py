"""An old corpus in continual pretraining: replayed, to reduce forgetting, or only watched in validation.

Continual pretraining (objectives, Section 6.2.7) improves a model on its new corpus and worsens it on the old one; a share
of old examples in the training reduces this (objectives, Exercise 6.2.4: 5 to 15%).
"""

import torch
from torch.utils.data import Dataset

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.corpus import Corpus
from contextwise.models.tokenizers import corpus_tokenizer_hash
from contextwise.objectives import MixtureStream, Vocabulary
from contextwise.training.recipe import CorpusData, Recipe

_OLD = 2**31
"""Added to the seed of old documents. Recipes' seeds are smaller, so old and new documents have different random numbers."""


def replayed_corpus(recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary) -> Corpus | None:
    """Open the old corpus's training split; None if the recipe replays no corpus.

    Args:
        corpus: the corpus that the recipe trains on.
        vocabulary: vocabulary of the model.

    Raises:
        ConfigError: the old corpus is the new corpus.
        DataError: the old corpus does not exist, or has another tokenizer.
    """
    assert isinstance(recipe.data, CorpusData)
    if recipe.data.replay is None:
        return None
    old = Corpus.open(recipe.data.replay.corpus, split=recipe.data.split)
    if old.fingerprint == corpus.fingerprint:
        raise ConfigError(
            f"data.replay.corpus is {old.path}, the same documents as data.corpus; name the corpus that the model was "
            "trained on before, or remove data.replay"
        )
    _check_tokens(old, corpus, vocabulary)
    return old


def watched_corpus(
    recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary, replayed: Corpus | None
) -> Corpus | None:
    """Open the old corpus's validation split; None without an old corpus, or if a replayed one has no such split.

    Args:
        replayed: the result of :func:`replayed_corpus`.

    Raises:
        DataError: as for :func:`replayed_corpus`; or the watched corpus lacks the split.
    """
    assert isinstance(recipe.data, CorpusData)
    split = recipe.data.validation_split
    if replayed is not None:
        return Corpus.open(replayed.path, split=split) if split in replayed.splits else None
    if recipe.data.watch is None:
        return None
    old = Corpus.open(recipe.data.watch, split=split)
    if old.split != split:  # a file without splits opens under every name
        raise DataError(
            f"data.watch is {old.path}, which has no split {split!r} to validate on; name a corpus that has one"
        )
    _check_tokens(old, corpus, vocabulary)
    return old


def _check_tokens(old: Corpus, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Check that an old corpus has the tokenizer of the new one and fits the model's vocabulary.

    Corpora without a tokenizer (Zarr, ``.bin``) are not compared.

    Raises:
        DataError: it has another tokenizer or end-of-text token, or a larger vocabulary.
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


def with_replay(
    recipe: Recipe, new: "Dataset[dict[str, torch.Tensor]]", old: Corpus, vocabulary: Vocabulary
) -> MixtureStream:
    """Mix the recipe's share of examples of the old corpus into the examples of a run.

    Both corpora are read independently, epoch by epoch, with the recipe's objective; the new one in the same order as
    without replay. ``corpus`` () of an example is 1 for the old corpus.

    Args:
        new: the examples of the new corpus.
        old: the old corpus.

    Raises:
        ConfigError, DataError: raised by the objective.
    """
    assert isinstance(recipe.data, CorpusData) and recipe.data.replay is not None
    length = recipe.examples
    share = recipe.data.replay.share
    stream = recipe.objective.stream(old, recipe.cut, recipe.seed + _OLD, vocabulary, length)
    return MixtureStream([new, stream], [1 - share, share], recipe.seed, length, label="corpus")
