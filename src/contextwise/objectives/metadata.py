"""Metadata of whole documents in training: before the text as a condition, or after it as something to predict.

1. ``prepend`` (MeCo, metadata conditioning then cooldown; Gao et al. 2025, arXiv 2501.01956): the metadata stands before the
   text and has no loss. As in the authors' data code (``pack_complete``), every window begins with a document, attention and
   positions stay inside documents, and the rest of the document that the end of a window cuts is left out. So all text that
   is read is predicted with its document's metadata in view. The last share of the run (``cooldown``) has the same layout
   without metadata, so that the model does not need it.
2. ``append`` (arXiv 2511.21613): the metadata stands behind the text, and is predicted like it. Windows are cut over these
   documents as over any others, so that no text is lost. By default there is no cooldown, because no text depends on the
   metadata.

In each epoch a share of the documents has metadata. It is text in lines ``name: value``, with an empty line between it and the
document; dates and lists are written as CUE's contexts are (:func:`~contextwise.data.contexts.as_english`). A document without
any of the columns has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import say_once
from contextwise.data.contexts import check_columns, column_texts
from contextwise.data.tokenizers import CorpusTokenizer
from contextwise.objectives.objective import NO_LOSS, Cut, ExampleStream, RewrittenExamples, Stream, generator
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from contextwise.data.corpus import Corpus

LARGEST_SHARE = 4
"""The metadata of a document has at most one in so many positions of a window; longer metadata is cut."""

_GROUP = 1000
"""Documents whose metadata is tokenized in one call."""


class MetadataSettings(Settings):
    """Metadata in the windows of a run."""

    columns: list[str] = Field(
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

    @field_validator("columns")
    @classmethod
    def _different(cls, columns: list[str]) -> list[str]:
        check_columns(columns)
        return columns


class MetadataTexts:
    """The metadata of the documents of a corpus as token ids.

    Longer metadata than ``most`` tokens loses the end of its lines, not the empty line; a note names the number of documents.

    Args:
        limit: only the first so many documents.

    Attributes:
        lengths: int64, (documents,), tokens of each document's metadata; 0 without any.
        cut: number of documents whose metadata is cut.

    Raises:
        ConfigError: the corpus has no tokenizer, or ``most`` has no room for a token beside the empty line.
        DataError: a column does not exist, or holds objects.
    """

    def __init__(
        self,
        corpus: Corpus,
        columns: list[str],
        form: Literal["prepend", "append"],
        most: int,
        limit: int | None = None,
    ) -> None:
        tokenizer = corpus.tokenizer()
        if tokenizer is None:
            raise ConfigError(
                f"metadata is text, but the corpus {corpus.path} comes without a tokenizer; prepare it with one"
            )
        about = corpus.manifest["tokenizer"]
        # Special tokens that a metadata text spells are text, as in documents.
        backend = CorpusTokenizer(tokenizer, about["kind"], about["name"], about["end_of_text"]).backend
        self.form, self.most, self.cut = form, most, 0
        self.source = f"{corpus.path} ({corpus.split})"
        values = {name: column_texts(corpus, name)[:limit] for name in columns}
        blocks = [
            "\n".join(f"{name}: {value}" for name, value in zip(values, row, strict=True) if value is not None)
            for row in zip(*values.values(), strict=True)
        ]
        ids: list[np.ndarray] = []
        for first in range(0, len(blocks), _GROUP):
            texts = [self._with_empty_line(block) for block in blocks[first : first + _GROUP]]
            encoded = backend.encode_batch(texts, add_special_tokens=False)
            ids += map(self._shortened, blocks[first : first + _GROUP], encoded)
        self.lengths = np.array([len(each) for each in ids], dtype=np.int64)
        self._ids, self._ends = np.concatenate(ids), np.cumsum(self.lengths)
        if self.cut:
            say_once(
                f"note: the metadata of {self.cut:,} of {len(ids):,} documents of {corpus.path} ({corpus.split}) is cut to "
                f"{most} tokens, a quarter of the context"
            )

    def check_any(self) -> None:
        """Raise DataError if no document has any of the columns."""
        if not self.lengths.any():
            raise DataError(
                f"no document of {self.source} that is read has metadata in the columns; name columns that some have, or leave "
                "metadata out"
            )

    def _with_empty_line(self, block: str) -> str:
        if not block:
            return ""
        return f"{block}\n\n" if self.form == "prepend" else f"\n\n{block}"

    def _shortened(self, block: str, encoding: Any) -> np.ndarray:
        """The token ids of a block with its empty line, without the last ones of the block if they are too many."""
        ids = np.array(encoding.ids, dtype=np.int32)
        if len(ids) <= self.most:
            return ids
        begins, ends = np.array(encoding.offsets).T  # in characters
        empty = ends > len(block) if self.form == "prepend" else begins < len("\n\n")
        room = self.most - int(empty.sum())
        if room < 1:
            raise ConfigError(
                f"the metadata of a document has at most a quarter of the context, which is {self.most} tokens and no room for "
                f"metadata and an empty line; give a context of at least {LARGEST_SHARE * (self.most - room + 1)}"
            )
        self.cut += 1
        return ids[empty | (np.cumsum(~empty) <= room)]

    def of(self, document: int) -> np.ndarray:
        """Token ids of a document's metadata, (tokens,) int32."""
        end = int(self._ends[document])
        return self._ids[end - int(self.lengths[document]) : end]


class DocumentsWithMetadata:
    """The documents of a corpus with the metadata of some, as :class:`~contextwise.data.windows.Windows` reads a corpus.

    Args:
        chosen: bool, (documents,), those with metadata; as many documents as ``texts`` has.

    Attributes:
        metadata: int64, (documents + 1,), tokens of each document's metadata; 0 for the end of the stream.
        lengths: int64, (documents,), tokens of each document with its metadata.
    """

    def __init__(self, corpus: Corpus, texts: MetadataTexts, chosen: np.ndarray) -> None:
        self.corpus, self.texts = corpus, texts
        self.path, self.split, self.end_of_text = corpus.path, corpus.split, corpus.end_of_text
        self.metadata = np.append(texts.lengths * chosen, 0)
        self.lengths = corpus.lengths[: len(chosen)] + self.metadata[:-1]

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, index: int) -> np.ndarray:
        """Token ids of a document with its metadata."""
        text = self.corpus.document(index)
        if not self.metadata[index]:
            return text
        parts = [self.texts.of(index), text]
        return np.concatenate(parts if self.texts.form == "prepend" else parts[::-1])


@dataclass(frozen=True)
class Conditioning:
    """How much of the text is read with metadata before it.

    Attributes:
        conditioned_share: share of the text targets of an epoch's windows that see their document's metadata.
        text_share: share of the corpus's text targets that these windows have.
    """

    conditioned_share: float
    text_share: float

    def sentence(self) -> str:
        """What a reader of a plan is told."""
        return (
            f"{self.conditioned_share:.1%} of the text's targets see their document's metadata before the cooldown; "
            f"{self.text_share:.1%} of the text is read in an epoch"
        )


class MetadataExamples(RewrittenExamples):
    """Windows over the documents of an epoch, a share of them with metadata.

    Args:
        share: of the documents with metadata, drawn in each epoch; 0 gives the windows without metadata.
    """

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
        """What of a window is metadata that stands before a text.

        Returns:
            Whether each of its tokens is metadata, (context + 1,) bool, and the number of metadata tokens of the token's
            document, (context + 1,) int64.
        """
        windows = self.windows(epoch)
        tokens = windows.start_of(index) + np.arange(windows.context + 1)
        document = np.searchsorted(windows.starts, tokens, side="right") - 1
        inside = tokens - windows.starts[document] - windows.separators
        documents: Any = windows.corpus
        given = documents.metadata[document]
        return (inside >= 0) & (inside < given), given

    def conditioning(self, indices: np.ndarray | None = None) -> Conditioning:
        """How much text the first epoch reads with metadata before it; of some windows only, where ``indices`` are given."""
        windows = self.windows(0)
        metadata = self.texts.lengths
        documents: Any = windows.corpus
        # The text targets of a document are its tokens and the end-of-text behind it.
        ends = windows.starts[1:] + windows.separators
        begins = windows.starts[:-1] + windows.separators + documents.metadata[:-1]
        starts = windows.starts_of(np.arange(len(windows)) if indices is None else indices) + 1
        borders = np.stack([begins, ends], axis=1).ravel()

        def count(chosen: np.ndarray) -> float:
            targets = np.stack([np.zeros_like(begins), (ends - begins) * chosen], axis=1).ravel().cumsum()
            return float(
                sum(np.interp(starts + windows.context, borders, targets) - np.interp(starts, borders, targets))
            )

        read = count(np.ones(len(metadata), dtype=np.int64))
        with_metadata = count((documents.metadata[:-1] > 0).astype(np.int64))
        return Conditioning(with_metadata / read, read / float((ends - begins).sum()))


class MetadataStream:
    """The examples of a run with metadata: windows with metadata up to the cooldown, then those of a run without.

    Both are read independently: item k of the cooldown is item k of a run without metadata and the same cut.

    Args:
        plain: the run without metadata, whose length it has.
        cooldown: the first item without metadata.
    """

    def __init__(self, plain: Stream, examples: MetadataExamples, cooldown: int) -> None:
        self.plain, self.cooldown = plain, cooldown
        self.conditioned = ExampleStream(examples, examples.seed, cooldown)

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return (self.conditioned if index < self.cooldown else self.plain)[index]


class HeldOutWindows:
    """Windows of documents with metadata before the text, for validation: with the metadata, or the same text without it.

    With it, the text of documents that have metadata is predicted. Without it, the text of all documents is, and the window is
    filled up at its end.

    Args:
        stream: of :class:`MetadataExamples` with a share of 1, over its first epoch at most.
        given: whether the metadata is in the windows.
    """

    def __init__(self, stream: ExampleStream, given: bool) -> None:
        assert isinstance(stream.examples, MetadataExamples)
        self.stream, self.examples, self.given = stream, stream.examples, given

    def __len__(self) -> int:
        return len(self.stream)

    @property
    def indices(self) -> np.ndarray:
        """Numbers of the windows in the epoch, (windows,)."""
        return np.array([self.stream.place(number)[1] for number in range(len(self))])

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        import torch

        epoch, index = self.stream.place(number)
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
