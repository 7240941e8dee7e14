"""The texts of each sentence's contexts: its document's metadata and the sentence before it (CUE, Section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from contextwise.base.errors import DataError
from contextwise.objectives.sentence import SentenceExamples
from contextwise.objectives.splitting import SentenceIndex

if TYPE_CHECKING:
    from contextwise.data.contexts import ContextSettings
    from contextwise.data.corpus import Corpus


class ContextTexts:
    """The context texts of a corpus's sentences. Distinct column texts are kept in memory once.

    Args:
        sentences: a corpus's sentences, or their examples.
        settings: the contexts to use.

    Raises:
        DataError: a column does not exist, has values of different types or objects, or no sentence has any context.
    """

    def __init__(self, sentences: SentenceExamples | SentenceIndex, settings: ContextSettings) -> None:
        self.sentences = sentences.sentences if isinstance(sentences, SentenceExamples) else sentences
        self.settings = settings
        corpus = self.sentences.corpus
        self._columns = [_column_texts(corpus, name) for name in settings.columns]
        tokenizer = self.sentences.vocabulary.tokenizer
        assert tokenizer is not None  # the index needs it
        self._tokenizer = tokenizer
        self._refuse_nothing()

    def _refuse_nothing(self) -> None:
        counts = np.diff(self.sentences.starts)
        filled = any(texts[i] is not None for texts in self._columns for i in np.flatnonzero(counts))
        if filled or (self.settings.previous_sentence and (counts > 1).any()):
            return
        corpus = self.sentences.corpus
        raise DataError(
            f"no sentence of the split {corpus.split!r} of {corpus.path} has any of the contexts "
            f"{', '.join(self.settings.types)}; all are missing: name other columns"
        )

    @property
    def types(self) -> list[str]:
        """Names of the contexts, in the order of :meth:`of`."""
        return self.settings.types

    def __len__(self) -> int:
        return len(self.sentences)

    def of(self, number: int) -> list[str | None]:
        """The texts of the contexts of sentence ``number``, (K,); None for missing ones."""
        document, sentence = self.sentences.place(number)
        texts = [column[document] for column in self._columns]
        return [*texts, self._previous(document, sentence)] if self.settings.previous_sentence else texts

    def _previous(self, document: int, sentence: int) -> str | None:
        """The previous sentence, on one line; None for a document's first."""
        if sentence == 0:
            return None
        ids = self.sentences.read(document, sentence - 1, sentence)
        return as_line(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def all_texts(self) -> Iterator[str]:
        """Yield the distinct texts of all contexts, in order of first appearance."""
        seen: set[str] = set()
        for number in range(len(self)):
            for text in self.of(number):
                if text is not None and text not in seen:
                    seen.add(text)
                    yield text

    def missing(self) -> dict[str, float]:
        """The share of sentences that lack each context, by its name."""
        counts = np.diff(self.sentences.starts)
        total = max(1, len(self))
        shares = {
            name: sum(int(n) for n, text in zip(counts, texts, strict=True) if text is None) / total
            for name, texts in zip(self.settings.columns, self._columns, strict=True)
        }
        if self.settings.previous_sentence:
            shares[self.types[-1]] = int((counts > 0).sum()) / total
        return shares


def as_line(text: str) -> str | None:
    """Replace all white space, including line breaks, by single spaces; None if the result is empty."""
    return " ".join(text.split()) or None


def _column_texts(corpus: Corpus, name: str) -> list[str | None]:
    """The text of a context column for each document.

    Raises:
        DataError: there is no such column, or its values are of different types, or objects.
    """
    column, dot, field = name.partition(".")
    if not dot or name in corpus.columns:
        column, field = name, ""
    values: list[Any] = corpus.column(column)
    if not field and name in corpus.manifest["columns_as_json"]:
        raise DataError(
            f"the values of the context column {name!r} of {corpus.path} have no common type, so they are kept as JSON text; "
            "give them one type and prepare the corpus again, or leave the column out"
        )
    if field and not any(_has_field(value, field) for value in values):
        raise DataError(
            f"the context column {name!r} of {corpus.path} does not exist: {column} has no field {field!r}; "
            "name one that it has"
        )
    shared: dict[str, str] = {}  # one string for all documents that say the same
    texts: list[str | None] = []
    for value in values:
        text = _english(_field(value, field), corpus, name)
        texts.append(None if text is None else shared.setdefault(text, text))
    return texts


def _has_field(value: Any, path: str) -> bool:
    *parents, last = path.split(".")
    inner = _field(value, ".".join(parents))
    return isinstance(inner, dict) and last in inner


def _field(value: Any, path: str) -> Any:
    """The field of nested objects at a dotted path; None where one of them is missing."""
    for part in path.split(".") if path else []:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _english(value: Any, corpus: Corpus, name: str) -> str | None:
    from contextwise.data.contexts import as_english

    try:
        return as_english(value)
    except DataError:
        fields = f", {name}.{next(iter(value))} for one" if isinstance(value, dict) and value else ""
        raise DataError(
            f"the context column {name!r} of {corpus.path} holds objects, which have no text of their own; "
            f"name one of their fields{fields}"
        ) from None
