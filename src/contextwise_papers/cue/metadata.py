"""Metadata of whole documents in training: before the text as a condition, or after it as something to predict.

``prepend`` is MeCo, metadata conditioning then cooldown (Gao et al. 2025, arXiv 2501.01956), with the windows of the authors'
data code (``pack_complete``); ``append`` is that of arXiv 2511.21613. Both: docs/papers/cue.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.progress import say_once
from contextwise.objectives import NO_LOSS, Cut, ExampleStream, Stream, Vocabulary, generator
from contextwise.objectives.objective import RewrittenExamples
from contextwise.report import say
from contextwise.settings import Problem
from contextwise.training import Addition, DataSection, HeldOut
from contextwise_papers.cue.metadata_texts import LARGEST_SHARE, Columns, DocumentsWithMetadata, MetadataTexts

if TYPE_CHECKING:
    import torch

    from contextwise.data import Corpus


MOST_READ = 0.9
"""Share of the text below which it is noted how little the windows of MeCo's form read."""


class MetadataSettings(DataSection):
    """Metadata in the windows of a run."""

    about: ClassVar[str] = "metadata of each document in its windows, for the objective causal"

    columns: Columns = Field(
        min_length=1, description="metadata columns; 'meta.title' is the field title of the column meta"
    )
    form: Literal["prepend", "append"] = Field(
        default="prepend",
        description="before the text and without a loss, in windows that begin with a document and whose attention stays "
        "inside documents (MeCo); or after the text and predicted, in windows like any others",
    )
    share: float = Field(
        default=1.0, gt=0, le=1, description="share of the documents with metadata, drawn in each epoch"
    )
    cooldown: float = Field(
        default=0.1, ge=0, lt=1, description="share of the run, its end, without metadata; 0 by default with append"
    )

    @model_validator(mode="before")
    @classmethod
    def _appended_needs_no_cooldown(cls, values: Any) -> Any:
        appended = isinstance(values, dict) and values.get("form") == "append"
        return {"cooldown": 0.0} | values if appended else values

    @property
    def read(self) -> list[str]:  # type: ignore[override]
        return self.columns

    def cut(self, cut: Cut) -> Cut:
        return replace(cut, separate_documents=True, start_at_documents=True) if self.form == "prepend" else cut

    def problems(self, recipe: Any) -> Iterator[Problem]:
        name, training = recipe.objective.name, recipe.training
        if name != "causal":
            why = f"does not apply to the objective {name!r}"
            yield Problem(why, "data.metadata", fix="remove it, or set objective: causal")
        if self.form == "append" and not recipe.data.cross_documents:
            why = "appends to the ends of documents, which windows of one document do not reach"
            yield Problem(why, "data.metadata.form", "append", "set data.cross_documents=true")
        if recipe.data.context_stages:
            why = "divides windows, which only the objective causal without data.metadata allows"
            yield Problem(why, "data.context_stages", fix="remove it")
        if self.cooldown and (training.branches or training.trunk is not None):
            why = "a share of a run, which runs that share a trunk cannot have"
            yield Problem(why, "data.metadata.cooldown", self.cooldown, "set it to 0")

    def open(self, recipe: Any, corpus: Corpus, vocabulary: Vocabulary) -> Any:
        return ConditionedTexts(self, recipe, corpus, vocabulary)

    def examples(self, recipe: Any, corpus: Corpus, vocabulary: Vocabulary) -> MetadataExamples:
        """The windows of a corpus with its metadata."""
        texts = MetadataTexts(corpus, self.columns, self.form, recipe.data.context // LARGEST_SHARE)
        return MetadataExamples(corpus, recipe.cut, vocabulary, texts, self.share, recipe.seed)


class MetadataExamples(RewrittenExamples):
    """Windows over the documents of an epoch, a share of them with metadata, drawn in each epoch."""

    def __init__(
        self, corpus: Corpus, cut: Cut, vocabulary: Vocabulary, texts: MetadataTexts, share: float, seed: int
    ) -> None:
        super().__init__(cut, vocabulary)
        self.corpus, self.texts, self.share, self.seed = corpus, texts, share, seed
        self.windows(0)

    def documents(self, epoch: int) -> DocumentsWithMetadata:
        draws = generator(self.seed, epoch, 0, "metadata").random(len(self.corpus))
        return DocumentsWithMetadata(self.corpus, self.texts, draws < self.share)

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        item = super().arrays(epoch, index)
        if self.texts.form == "prepend":
            item["labels"] = np.where(self.window_metadata(epoch, index)[0][1:], NO_LOSS, item["labels"])
        return item

    def window_metadata(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Whether each token of a window is metadata before a text, and the metadata tokens of the token's document.

        (context + 1,) bool and (context + 1,) int64.
        """
        windows = self.windows(epoch)
        tokens = windows.start_of(index) + np.arange(windows.context + 1)
        document = np.searchsorted(windows.starts, tokens, side="right") - 1
        inside = tokens - windows.starts[document] - windows.separators
        documents: Any = windows.corpus
        given = documents.metadata[document]
        return (inside >= 0) & (inside < given), given

    def text_share(self) -> float:
        """Share of the corpus's text targets that the windows of the first epoch have."""
        windows = self.windows(0)
        documents: Any = windows.corpus
        # The text targets of a document are its tokens and the end-of-text behind it.
        ends = windows.starts[1:] + windows.separators
        begins = windows.starts[:-1] + windows.separators + documents.metadata[:-1]
        starts = windows.starts_of(np.arange(len(windows))) + 1
        borders = np.stack([begins, ends], axis=1).ravel()
        targets = np.stack([np.zeros_like(begins), ends - begins], axis=1).ravel().cumsum()
        read = np.interp(starts + windows.context, borders, targets) - np.interp(starts, borders, targets)
        return float(read.sum() / (ends - begins).sum())


class MetadataStream(Stream):
    """The examples of a run with metadata: windows with metadata up to the item ``cooldown``, then those of a run without.

    Both are read independently: item k of the cooldown is item k of a run without metadata and the same cut.
    """

    def __init__(self, plain: Stream, examples: MetadataExamples, cooldown: int) -> None:
        self.plain, self.cooldown, self.length = plain, cooldown, len(plain)
        self.conditioned = ExampleStream(examples, examples.seed, cooldown)

    def item(self, index: int) -> dict[str, torch.Tensor]:
        return (self.conditioned if index < self.cooldown else self.plain)[index]

    @property
    def targets_per_example(self) -> float:
        """Targets of an example, a mean."""
        from contextwise.training.inputs import mean_targets

        share = min(self.cooldown, len(self)) / len(self)
        own = mean_targets(self.conditioned) if share else 0.0
        return share * own + ((1 - share) * mean_targets(self.plain) if share < 1 else 0.0)


class HeldOutWindows(Stream):
    """Windows of documents with metadata before the text, for validation: with the metadata, or the same text without it.

    With it, the text of documents that have metadata is predicted. Without it, the text of all documents is, and the window is
    filled up at its end. ``stream`` has a share of 1, over its first epoch at most.
    """

    def __init__(self, stream: ExampleStream, given: bool) -> None:
        self.stream, self.given, self.length = stream, given, len(stream)
        self.examples: Any = stream.examples

    def item(self, index: int) -> dict[str, torch.Tensor]:
        import torch

        epoch, index = self.stream.place(index)
        is_metadata, lengths = self.examples.window_metadata(epoch, index)
        if self.given:
            item = self.examples.arrays(epoch, index)
            item["labels"] = np.where(lengths[:-1] > 0, item["labels"], NO_LOSS)
        else:
            item = self._text_alone(epoch, index, ~is_metadata, lengths)
        return {name: torch.as_tensor(value) for name, value in item.items()}

    def _text_alone(self, epoch: int, index: int, is_text: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
        windows = self.examples.windows(epoch)
        tokens, positions = windows.read(windows.start_of(index), windows.context + 1)
        tokens = tokens[is_text]
        positions = (positions - np.where(positions >= windows.separators, lengths, 0))[is_text]
        rest = windows.context + 1 - len(tokens)
        inputs = np.append(tokens[:-1], np.full(rest, max(0, windows.separator)))
        labels = np.append(tokens[1:], np.full(rest, NO_LOSS))
        return {
            "input_ids": inputs,
            "labels": labels,
            "position_ids": np.append(positions[:-1], positions[-2] + 1 + np.arange(rest)),
            "window": np.int64(index),
        }


class ConditionedTexts(Addition):
    """The windows of a corpus with its metadata; raises what their classes raise, and DataError if no document has any."""

    def __init__(self, settings: MetadataSettings, recipe: Any, corpus: Corpus, vocabulary: Vocabulary) -> None:
        self.settings, self.recipe, self.vocabulary = settings, recipe, vocabulary
        self.examples = settings.examples(recipe, corpus, vocabulary)
        self.examples.texts.check_any()
        if settings.form == "prepend" and (read := self.examples.text_share()) < MOST_READ:
            say_once(
                f"note: windows begin with a document, so {read:.0%} of the text is read; a larger data.context reads more"
            )

    def stream(self, stream: Any) -> MetadataStream:
        others = sum(section.others for section in self.recipe.data.sections.values())
        conditioned = self.recipe.examples * (1 - others) * (1 - self.settings.cooldown)
        return MetadataStream(stream, self.examples, round(conditioned))

    def held_out(self, sets: dict[str, HeldOut]) -> None:
        """With the metadata before the text: ``loss`` and ``metadata_loss``, of the same text without and with it."""
        if self.settings.form == "append":
            return
        from contextwise.training import VALIDATION_SEED

        plain = sets["loss"]
        whole = self.settings.model_copy(update={"share": 1.0})
        examples = whole.examples(self.recipe, plain.corpus, self.vocabulary)
        count = max(1, self.recipe.training.evaluation_tokens // self.recipe.data.context)
        stream = ExampleStream(examples, VALIDATION_SEED, min(count, examples.count(0)))
        sets["loss"] = HeldOut(plain.corpus, HeldOutWindows(stream, given=False))
        given = HeldOutWindows(stream, given=True)
        if any((given[number]["labels"] != NO_LOSS).any() for number in range(len(given))):
            sets["metadata_loss"] = HeldOut(plain.corpus, given)
        else:
            where = f"no document of its windows of {plain.corpus.path} has metadata"
            say(f"note: no metadata_loss during training: {where}")

    @property
    def facts(self) -> Mapping[str, Any]:
        cut = {"metadata_cut": self.examples.texts.cut}
        return cut if self.settings.form == "append" else cut | {"text_share": self.examples.text_share()}
