"""An old corpus beside the one that a run trains on: replayed, so that the model keeps it, or only watched.

Continual pretraining (objectives, Section 6.2.7) pulls a model towards its new corpus and away from the old one; a share
of old examples in the training holds it (objectives, Exercise 6.2.4: 5 to 15%).
"""

import torch
from torch.utils.data import Dataset

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.corpus import Corpus
from contextwise.models.tokenizers import corpus_tokenizer_hash
from contextwise.objectives import MixtureStream, Vocabulary
from contextwise.training.recipe import CorpusData, Recipe

_OLD = 2**31
"""Recipes' seeds lie below it: the random numbers of an old document are never those of a new one."""


def replayed_corpus(recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary) -> Corpus | None:
    """The old corpus's training split, or None if the recipe replays none.

    Args:
        corpus: that the recipe trains on.
        vocabulary: of the model.

    Raises:
        ConfigError: it is the new corpus.
        DataError: there is no such corpus, or its token ids mean something else.
    """
    assert isinstance(recipe.data, CorpusData)
    if recipe.data.replay is None:
        return None
    old = Corpus.open(recipe.data.replay.corpus, split=recipe.data.split)
    if old.fingerprint == corpus.fingerprint:
        raise ConfigError(
            f"data.replay.corpus is {old.path}, the same documents as data.corpus; name the corpus that the model was "
            "trained on before, or leave data.replay out"
        )
    _check_tokens(old, corpus, vocabulary)
    return old


def watched_corpus(
    recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary, replayed: Corpus | None
) -> Corpus | None:
    """The old corpus's validation split; None if the recipe names no old corpus, or replays one without a validation split.

    Args:
        replayed: what :func:`replayed_corpus` gives.

    Raises:
        DataError: as :func:`replayed_corpus`; and a corpus that is given to be watched lacks the split.
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
    """Refuse an old corpus whose token ids mean something else than the new one's, or nothing to the model.

    Corpora without a tokenizer (Zarr, ``.bin``) are not compared.

    Raises:
        DataError: they do.
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
    """The examples of a run, the recipe's share of them from the old corpus.

    Both corpora are read on their own, epoch by epoch, under the recipe's objective; the new one in the order that it
    has without replay. ``corpus`` () of an example is 1 where it is an old one.

    Args:
        new: the examples of the new corpus.
        old: the old corpus.

    Raises:
        ConfigError, DataError: what the objective raises.
    """
    assert isinstance(recipe.data, CorpusData) and recipe.data.replay is not None
    length = recipe.examples
    share = recipe.data.replay.share
    stream = recipe.objective.stream(old, recipe.cut, recipe.seed + _OLD, vocabulary, length)
    return MixtureStream([new, stream], [1 - share, share], recipe.seed, length, label="corpus")
