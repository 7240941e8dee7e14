"""Metadata of whole documents in training windows: before the text as a condition, or after it as something to predict.

1. The windows are those of a run without metadata, in the same order: each begins where it begins there.
2. ``prepend`` (MeCo; Gao et al. 2025, arXiv 2501.01956): the metadata of a document stands before its text, and at the start of
   a window also before a text that goes on from the window before. It has no loss. The last share of the run (``cooldown``) is
   without metadata, so that the model does not need it.
3. ``append`` (arXiv 2511.21613): the metadata stands behind the end of its document, and is predicted like text.
4. The window keeps its length: what metadata pushes out at its end is not read in that epoch.

The metadata is text in lines ``name: value``, with an empty line between it and the document; dates and lists are written as
CUE's contexts are (:func:`~contextwise.data.contexts.as_english`). A document without any of the columns has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.data.contexts import check_columns, column_texts
from contextwise.data.documents import check_ids
from contextwise.objectives.objective import NO_LOSS, ExampleStream, WindowExamples, generator

if TYPE_CHECKING:
    import torch

    from contextwise.data.corpus import Corpus

LARGEST_SHARE = 4
"""Metadata has at most one in so many positions of a window; longer one is cut at its end."""


class MetadataSettings(Settings):
    """Metadata in the windows of a run."""

    columns: list[str] = Field(
        min_length=1, description="metadata columns; 'meta.title' is the field title of the column meta"
    )
    form: Literal["prepend", "append"] = Field(
        default="prepend", description="before the text and without a loss, or after it and predicted"
    )
    share: float = Field(
        default=1.0, gt=0, le=1, description="share of the documents with metadata, drawn in each epoch"
    )
    cooldown: float = Field(default=0.1, ge=0, lt=1, description="share of the run, its end, without metadata")

    @field_validator("columns")
    @classmethod
    def _different(cls, columns: list[str]) -> list[str]:
        check_columns(columns)
        return columns


class MetadataTexts:
    """The metadata of each document of a corpus as token ids, cut to ``most`` of them.

    Raises:
        ConfigError: the corpus has no tokenizer.
        DataError: a column does not exist, or holds objects.
    """

    def __init__(self, corpus: Corpus, columns: list[str], form: Literal["prepend", "append"], most: int) -> None:
        tokenizer = corpus.tokenizer()
        if tokenizer is None:
            raise ConfigError(
                f"metadata is text, but the corpus {corpus.path} comes without a tokenizer; prepare it with one"
            )
        self._tokenizer, self.form, self.most = tokenizer, form, most
        self._columns = {name: column_texts(corpus, name) for name in columns}

    def text(self, document: int) -> str:
        """The metadata of a document with the empty line; empty without any."""
        values = {name: texts[document] for name, texts in self._columns.items()}
        lines = "\n".join(f"{name}: {value}" for name, value in values.items() if value is not None)
        if not lines:
            return ""
        return f"{lines}\n\n" if self.form == "prepend" else f"\n\n{lines}"

    def longest(self, documents: int) -> int:
        """The most tokens that the metadata of one of the first ``documents`` has."""
        return max(len(self.of(document)) for document in range(documents))

    def of(self, document: int) -> np.ndarray:
        """Token ids of a document's metadata, (tokens,) int64."""
        text = self.text(document)
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids if text else []
        return np.array(ids[: self.most], dtype=np.int64)


class MetadataExamples(WindowExamples):
    """The windows of a corpus with metadata, the same number as without.

    Args:
        plain: the examples without metadata.
        share: of the documents with metadata, in each epoch.
    """

    def __init__(self, plain: WindowExamples, texts: MetadataTexts, share: float, seed: int) -> None:
        super().__init__(plain.windows, seed)
        self.texts, self.share = texts, share

    def metadata(self, epoch: int, document: int) -> np.ndarray:
        """The metadata of a document in an epoch, (tokens,); empty where it has none."""
        if self.share < 1 and generator(self.seed, epoch, document, "metadata").random() >= self.share:
            return np.empty(0, dtype=np.int64)
        return self.texts.of(document)

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        windows, prepend = self.windows, self.texts.form == "prepend"
        length, end = windows.context + 1, windows.separators
        start = windows.start_of(index)
        document = int(np.searchsorted(windows.starts, start, side="right")) - 1
        offset, filled = start - int(windows.starts[document]), 0
        tokens, positions = np.empty(length, np.int64), np.empty(length, np.int64)
        predicted = np.ones(length, dtype=bool)
        while filled < length and document < len(windows.corpus):
            metadata = self.metadata(epoch, document)
            separator = np.full(int(end and offset == 0), windows.separator)
            text = windows.corpus.document(document)[max(0, offset - end) :][: length - filled]
            parts = [separator, metadata, text] if prepend else [separator, text, metadata]
            piece = np.concatenate(parts)[: length - filled]
            stop = filled + len(piece)
            tokens[filled:stop], positions[filled:stop] = piece, np.arange(len(piece))
            if prepend:
                first = filled + len(separator)
                predicted[first : first + len(metadata)] = False
            filled, document, offset = stop, document + 1, 0
        tokens[filled:], positions[filled:] = (windows.separator, 0)  # the stream ends with one end-of-text token
        predicted[filled + 1 :] = False
        check_ids(tokens, windows.vocab_size, windows.corpus.path)
        item = {"input_ids": tokens[:-1], "labels": np.where(predicted[1:], tokens[1:], NO_LOSS), "window": index}
        return item | ({"position_ids": positions[:-1]} if windows.separate_documents else {})


class MetadataStream:
    """The examples of a run with metadata: those of a run without, with metadata up to the cooldown.

    Args:
        plain: the run without metadata, whose order and length it has.
        cooldown: the first item without metadata.
    """

    def __init__(self, plain: ExampleStream, texts: MetadataTexts, share: float, seed: int, cooldown: int) -> None:
        assert isinstance(plain.examples, WindowExamples)
        self.plain, self.cooldown = plain, cooldown
        self.examples = MetadataExamples(plain.examples, texts, share, seed)

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.cooldown:
            return self.plain[index]
        return self.examples.example(*self.plain.place(index))
