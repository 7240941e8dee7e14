"""One sentence an example, for language models of sentences (CUE, Section 3.2), and the texts of its contexts (Section 3.1).

``[end-of-text] w1 ... wn`` is read and ``w1 ... wn [end-of-text]`` predicted, so each token of a sentence is a target once,
and so is its end. Rows are padded on the right to the window's length: with end-of-text in the input, which a causal model
does not see before it, and without a loss. A sentence that has more labels than the window is cut at its end, and counted.

``cross_documents`` and ``separate_documents`` have no effect: a sentence is always from one document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from contextwise.base.errors import DataError
from contextwise.base.progress import say
from contextwise.data.contexts import ContextSettings, as_english
from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import NO_LOSS, Cut, Examples, SingleObjective
from contextwise.objectives.text import SentenceIndex
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus


class Sentence(SingleObjective):
    """Next-token prediction within single sentences, without earlier sentences. The examples are not random."""

    name: Literal["sentence"] = "sentence"
    kind: ClassVar[Kind] = "decoder"
    language: str = Field("en", description="whose rules cut the text into sentences, as an ISO 639 code")

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> SentenceExamples:
        end = vocabulary.end(self.name)
        examples = SentenceExamples(SentenceIndex(corpus, vocabulary, self.language), end, cut.context)
        if examples.cut:
            say(
                f"{examples.cut:,} of {len(examples.sentences):,} sentences of the split {corpus.split!r} have more than "
                f"{cut.context - 1:,} tokens; they are cut to data.context={cut.context}"
            )
        return examples


class SentenceExamples(Examples):
    """The sentences of a corpus, the same in every epoch.

    Attributes:
        cut: number of sentences with more labels than ``context``, whose ends are not seen.

    Raises:
        DataError: the corpus has no sentence.
    """

    def __init__(self, sentences: SentenceIndex, end_of_text: int, context: int) -> None:
        if not len(sentences):
            corpus = sentences.corpus
            raise DataError(
                f"the split {corpus.split!r} of {corpus.path} has no sentence: all {len(corpus):,} documents are empty or "
                "white space; prepare the corpus from other text"
            )
        self.sentences, self.end_of_text, self.context = sentences, end_of_text, context
        self.cut = int((sentences.lengths >= context).sum())

    def count(self, epoch: int) -> int:
        return len(self.sentences)

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        document, sentence = self.sentences.place(index)
        tokens = self.sentences.read(document, sentence, sentence + 1)[: self.context]
        labels = np.append(tokens, self.end_of_text)[: self.context]
        input_ids = np.full(self.context, self.end_of_text, dtype=np.int64)
        input_ids[1 : len(labels)] = tokens[: len(labels) - 1]
        padding = np.full(self.context - len(labels), NO_LOSS)
        return {"input_ids": input_ids, "labels": np.concatenate([labels, padding]), "window": index}


class ContextTexts:
    """The context texts of a corpus's sentences: metadata of the document, and the sentence before.

    Raises:
        DataError: a column does not exist, has values of different types or objects, or no sentence has any context.
    """

    def __init__(self, sentences: SentenceExamples | SentenceIndex, settings: ContextSettings) -> None:
        self.sentences = sentences.sentences if isinstance(sentences, SentenceExamples) else sentences
        self.settings, corpus = settings, self.sentences.corpus
        self._columns = [_column_texts(corpus, name) for name in settings.columns]
        assert self.sentences.vocabulary.tokenizer is not None  # the index needs it
        self._tokenizer = self.sentences.vocabulary.tokenizer
        counts = np.diff(self.sentences.starts)
        filled = any(texts[i] is not None for texts in self._columns for i in np.flatnonzero(counts))
        if not filled and not (settings.previous_sentence and (counts > 1).any()):
            raise DataError(
                f"no sentence of the split {corpus.split!r} of {corpus.path} has any of the contexts "
                f"{', '.join(self.types)}; all are missing: name other columns"
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
        if self.settings.previous_sentence:
            before = ""
            if sentence > 0:
                ids = self.sentences.read(document, sentence - 1, sentence)
                before = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            texts.append(" ".join(before.split()) or None)  # on one line
        return texts

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


def _column_texts(corpus: Corpus, name: str) -> list[str | None]:
    """The text of a context column for each document; equal texts are one string in memory."""
    column, dot, field = name.partition(".")
    if not dot or name in corpus.columns:
        column, field = name, ""
    values: list[Any] = corpus.column(column)
    if not field and name in corpus.manifest["columns_as_json"]:
        raise DataError(
            f"the values of the context column {name!r} of {corpus.path} have no common type, so they are kept as JSON text; "
            "give them one type and prepare the corpus again, or leave the column out"
        )
    if field:
        *parents, last = field.split(".")
        objects = (_field(value, parents) for value in values)
        if not any(isinstance(inner, dict) and last in inner for inner in objects):
            raise DataError(
                f"the context column {name!r} of {corpus.path} does not exist: {column} has no field {field!r}; "
                "name one that it has"
            )
        values = [_field(value, [*parents, last]) for value in values]
    shared: dict[str, str] = {}
    texts: list[str | None] = []
    for value in values:
        try:
            text = as_english(value)
        except DataError:
            fields = f", {name}.{next(iter(value))} for one" if isinstance(value, dict) and value else ""
            raise DataError(
                f"the context column {name!r} of {corpus.path} holds objects, which have no text of their own; "
                f"name one of their fields{fields}"
            ) from None
        texts.append(None if text is None else shared.setdefault(text, text))
    return texts


def _field(value: Any, path: list[str]) -> Any:
    """The field of nested objects at a path; None where one of them is missing."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
