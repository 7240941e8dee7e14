"""The objective ``sentence``: next-token prediction within sentences (CUE, Section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from contextwise.base.errors import Problem
from contextwise.base.progress import say
from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import Cut, SingleObjective
from contextwise.objectives.vocabulary import Vocabulary
from contextwise_papers.cue.sentence import SentenceExamples
from contextwise_papers.objectives.text import SentenceIndex

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus


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
        examples = SentenceExamples(SentenceIndex(corpus, vocabulary, self.language), end, cut.context)
        if examples.cut:
            say(
                f"{examples.cut:,} of {len(examples.sentences):,} sentences of the split {corpus.split!r} have more than "
                f"{cut.context - 1:,} tokens; they are cut to data.context={cut.context}"
            )
        return examples
