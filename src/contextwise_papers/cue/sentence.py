"""The objective ``sentence``: next-token prediction within single sentences (CUE, Section 3.2).

``[end-of-text] w1 ... wn`` is read and ``w1 ... wn [end-of-text]`` predicted. Rows are padded on the right: with end-of-text in
the input, which a causal model does not see before it, and without a loss. ``cross_documents`` and ``separate_documents`` have
no effect: a sentence is always from one document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from contextwise.objectives import NO_LOSS, Cut, Examples, Kind, SingleObjective, Vocabulary
from contextwise.report import say
from contextwise.settings import DataError, Problem
from contextwise_papers.objectives.text import SentenceIndex

if TYPE_CHECKING:
    from contextwise.data import Corpus


class SentenceExamples(Examples):
    """The sentences of a corpus, the same in every epoch; ``cut`` counts those whose ends ``context`` does not hold."""

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


class Sentence(SingleObjective):
    """Next-token prediction within single sentences, without earlier sentences. The examples are not random."""

    name: Literal["sentence"] = "sentence"
    kind: ClassVar[Kind] = "decoder"
    alone: ClassVar[bool] = True
    reads_sentences: ClassVar[bool] = True
    language: str = Field(default="en", description="whose rules cut the text into sentences, as an ISO 639 code")

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if recipe.training.curve_every:
            why = "measures the loss at each context, but a sentence has no context before it"
            yield Problem(why, "training.curve_every", fix="set it to 0")

    def open(self, recipe: Any, corpus: Corpus) -> Any:
        from contextwise_papers.cue.streams import SentenceInputs

        return SentenceInputs.open(recipe, corpus)

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> SentenceExamples:
        end = vocabulary.end(self.name)
        examples = SentenceExamples(SentenceIndex(corpus, vocabulary.tokenizer, self.language), end, cut.context)
        if examples.cut:
            say(
                f"{examples.cut:,} of {len(examples.sentences):,} sentences of the split {corpus.split!r} have more than "
                f"{cut.context - 1:,} tokens; they are cut to data.context={cut.context}"
            )
        return examples
