"""Loss of sentences, each on its own, given its contexts where the model takes any: ``contextwise measure sentences``."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field
from rich.console import RenderableType

from contextwise.measures import Evaluation, Measure, Outcome, Subject, Work

if TYPE_CHECKING:
    from contextwise.data import Corpus


class SentenceLoss(Measure):
    """Score each sentence of held-out documents on its own, with its contexts where the model takes any.

    Prints the loss of all tokens, sentence ends included, with 95% intervals over documents; of a CUE model also the gain over
    its sentence encoder alone, by whether a token's word occurs in the contexts (CUE, Section 7).
    """

    name = "sentences"
    result = Evaluation
    gives_contexts = True
    scored = "single sentences"

    contexts: list[str] | None = Field(
        default=None,
        description="Contexts that a CUE model is given: metadata columns, previous_sentence, or proxy; none: no contexts; "
        "default: all that it was trained with.",
    )
    drop_contexts: float = Field(
        default=0.0, ge=0, le=1, description="Withhold each context of each sentence with this probability."
    )
    limit: int | None = Field(default=None, ge=1, description="Score only the first N documents.")

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise_papers.cue.sentences.running import chosen_types

        assert corpus is not None
        types = chosen_types(subject, corpus, self.contexts, self.drop_contexts)
        return self.model_copy(update={"contexts": types})

    @property
    def metadata_columns(self) -> list[str]:
        from contextwise_papers.cue.sentences.running import PROXY
        from contextwise_papers.cue.settings import PREVIOUS

        return [name for name in self.contexts or [] if name not in (PREVIOUS, PROXY)]

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise_papers.cue.sentences.running import score_sentences

        assert corpus is not None and self.contexts is not None
        return Outcome(*score_sentences(subject, corpus, self.contexts, self.drop_contexts, self.limit, work))

    @classmethod
    def remark(cls, summary: dict[str, Any]) -> str:
        return "scored sentence by sentence, each on its own, its end included."

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        from contextwise_papers.cue.sentences.running import sentences_tables

        return sentences_tables(summary)
