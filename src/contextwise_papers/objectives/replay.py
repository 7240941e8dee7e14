"""The section ``data.replay``: continual pretraining with examples of an old corpus.

Continual pretraining (objectives, Section 6.2.7) improves a model on its new corpus and worsens it on the old one. A share of
old examples in the training reduces this (objectives, Exercise 6.2.4: 5 to 15%). With a share of 0 the old corpus is only
validated on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from contextwise.objectives import AnyObjective, Cut, Objective, Vocabulary
from contextwise.objectives.mixture import MixtureStream
from contextwise.report import say
from contextwise.settings import ConfigError, DataError, Problem
from contextwise.training import Addition, DataSection, HeldOut

if TYPE_CHECKING:
    from contextwise.data import Corpus


_OLD = 2**31
"""Added to the seed of old documents. Recipes' seeds are smaller, so old and new documents have different random numbers."""


class ReplaySettings(DataSection):
    """The replay of an old corpus during training on a new one."""

    about: ClassVar[str] = "adds examples of an old corpus, and validates on it"

    corpus: str = Field(description="folder of the old corpus, prepared with the same tokenizer")
    share: float = Field(
        default=0.1, ge=0, lt=1, description="share of the examples that come from it; 0: it is validated on only"
    )
    objective: AnyObjective | None = Field(
        default=None, description="of its examples; by default that of the new corpus. For instructions: instruction"
    )

    @property
    def others(self) -> float:  # type: ignore[override]
        return self.share

    @property
    def objectives(self) -> list[Objective]:
        return [] if self.objective is None else [self.objective]

    @property
    def corpora(self) -> dict[str, str]:  # type: ignore[override]
        return ({"replay": self.corpus} if self.share else {}) | {"replay_loss": self.corpus}

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if self.objective is not None and self.objective.alone:
            why = f"cannot be replayed: the examples of {self.objective.name!r} are trained without others"
            yield Problem(why, "data.replay.objective", self.objective.name, "choose another objective")
        if recipe.objective.alone:
            why = f"does not apply to the objective {recipe.objective.name!r}"
            yield Problem(why, "data.replay", fix="remove it")

    def open(self, recipe: Any, corpus: Corpus, vocabulary: Vocabulary) -> Any:
        return OldCorpus(self, recipe, corpus, vocabulary)


class OldCorpus(Addition):
    """The old corpus of a run."""

    def __init__(self, settings: ReplaySettings, recipe: Any, corpus: Corpus, vocabulary: Vocabulary) -> None:
        from contextwise.data import Corpus

        self.settings, self.recipe, self.vocabulary = settings, recipe, vocabulary
        data, split = recipe.data, recipe.data.validation_split
        old = Corpus.open(settings.corpus, split=data.split)
        if old.fingerprint in (corpus.fingerprint, Corpus.open(data.corpus, split=data.split).fingerprint):
            raise ConfigError(
                f"data.replay.corpus is {old.path}, the same documents as data.corpus; name the corpus that the model was "
                "trained on before, or remove data.replay"
            )
        if not settings.share and split not in old.splits:
            raise DataError(
                f"data.replay.corpus is {old.path}, which has no split {split!r} to validate on; name a corpus that has one"
            )
        _check_same_tokens(old, corpus, vocabulary)
        self.corpora = {"replay": old} if settings.share else {}
        self.validated = Corpus.open(old.path, split=split) if split in old.splits else None
        if self.validated is not None and recipe.training.evaluation_tokens and split not in corpus.splits:
            say(f"note: there is no validation on {old.path}, because {corpus.path} has no validation split")

    @property
    def _objective(self) -> Objective:
        return self.settings.objective or self.recipe.objective

    @property
    def _cut(self) -> Cut:
        """The run's cut; a layout of other sections is for causal examples only."""
        cut: Cut = self.recipe.cut
        if self._objective.name == "causal":
            return cut
        return replace(cut, separate_documents=self.recipe.data.separate_documents, start_at_documents=False)

    def stream(self, stream: Any) -> Any:
        """Both corpora are read independently, the new one in the same order as without replay."""
        recipe, share = self.recipe, self.settings.share
        if not share:
            return stream
        seed = recipe.seed + _OLD
        old = self._objective.stream(self.corpora["replay"], self._cut, seed, self.vocabulary, recipe.examples)
        return MixtureStream([stream, old], [1 - share, share], recipe.seed, recipe.examples, label="corpus")

    def held_out(self, sets: dict[str, HeldOut]) -> None:
        from contextwise.training.inputs import held_out_examples, noted

        if self.validated is None:
            return
        with noted(self.validated.path):
            examples = held_out_examples(self.recipe, self.validated, self._objective, self._cut, self.vocabulary)
            sets["replay_loss"] = HeldOut(self.validated, examples)


def _check_same_tokens(old: Corpus, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Check that an old corpus has the tokenizer of the new one and fits the model's vocabulary.

    Corpora without a tokenizer (Zarr, ``.bin``) are not compared.
    """
    from contextwise.models.tokenizers import corpus_tokenizer_hash

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
