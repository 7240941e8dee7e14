"""One sentence an example, for language models of sentences (CUE, Section 3.2).

``[end-of-text] w1 ... wn`` is read and ``w1 ... wn [end-of-text]`` predicted, so each token of a sentence is a target once,
and so is its end. Rows are filled up on the right to the window's length: with end-of-text in the input, where a causal model
sees nothing of it, and without a loss. A sentence that has more labels than the window is cut at its end, and counted.

``cross_documents`` and ``separate_documents`` have no effect: a sentence is always from one document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from contextwise.base.errors import DataError
from contextwise.base.progress import say
from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import NO_LOSS, Cut, Examples, SingleObjective
from contextwise.objectives.splitting import SentenceIndex
from contextwise.objectives.vocabulary import Vocabulary

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus


class Sentence(SingleObjective):
    """Next-token prediction within single sentences, without earlier sentences. The examples are not random."""

    name: Literal["sentence"] = "sentence"
    language: str = Field("en", description="whose rules cut the text into sentences, as an ISO 639 code")

    @property
    def kind(self) -> Kind:
        return "decoder"

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
        sentences: where they are.
        cut: sentences with more labels than ``context``, whose ends are not seen.

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
