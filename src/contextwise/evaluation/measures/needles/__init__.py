"""Two needles in a haystack: the loss of an answer as more and more of the left of a text is cut off: ``contextwise needles``.

Intrinsic entropy, Figure 5: the answer follows from two pieces of information, one far and one near, and its perplexity
is measured with ever more of the leftmost tokens masked. Both are needed, so a perfect reader loses the answer as soon as
the *first* is gone; the second's part is hidden behind that point.
"""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError
from contextwise.evaluation.kernel import Measure, Outcome, Subject, Work
from contextwise.evaluation.measures.ruler import LONGEST

if TYPE_CHECKING:
    from rich.console import RenderableType

    from contextwise.data import Corpus

STEPS = 16
"""Steps between nothing masked and everything, by default."""


class Needles(Measure):
    """Measure an answer that depends on two needles, with more and more of the text cut off.

    Prints the perplexity of the answer against the number of masked left tokens, and in how many texts each needle remains.
    """

    name = "needles"
    on_corpus = False

    length: int = Field(
        1024, ge=1, le=LONGEST, description="Tokens of a text, at most, by the model's own tokenizer."
    )
    masked: list[int] | None = Field(
        None,
        min_length=1,
        description="Numbers of first tokens that are cut off; default: 17 from none to the length.",
    )
    far: float = Field(
        0.75, ge=0, le=1, description="Distance of the far needle from the end, as a share of the length."
    )
    near: float = Field(
        0.25, ge=0, le=1, description="Distance of the near needle from the end, as a share of the length."
    )
    samples: int = Field(50, ge=1, description="Texts.")
    seed: int = Field(0, ge=0, description="Of the texts.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.near >= self.far:
            raise ConfigError(f"near is {self.near:g}; it must be below far, {self.far:g}")
        wrong = [count for count in self.masked or () if not 0 <= count <= self.length]
        if wrong:
            raise ConfigError(f"masked holds {wrong[0]}; give numbers from 0 to the length, {self.length}")
        return self

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        masked = self.masked or [round(self.length * step / STEPS) for step in range(STEPS + 1)]
        return self.model_copy(update={"masked": sorted(set(masked))})

    def label(self, corpus: "Corpus | None") -> str:
        return str(self.length)

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        from contextwise.evaluation.answering.prompts import Encoder, check_positions, check_vocabulary
        from contextwise.evaluation.measures.needles import reading
        from contextwise.evaluation.measures.ruler.questions import Size

        assert self.masked is not None
        encoder = Encoder(subject.tokenizer, name=subject.source)
        size = Size(self.length, 0.0, encoder.count, self.seed)
        examples = [
            encoder.encode(reading.two_needle_question(size, index, self.far, self.near))
            for index in range(self.samples)
        ]
        answers = [reading.answer_ids(encoder, example.question) for example in examples]
        check_vocabulary(subject, examples)
        every = [("a text", example, len(ids)) for example, ids in zip(examples, answers, strict=True)]
        check_positions(subject, every, self.length - self.masked[0], ", or a smaller length")
        nats_ME = reading.all_nats(subject, examples, answers, self.masked)
        rows = [
            {
                "text_tokens": len(example.body),
                "needles": [list(needle) for needle in example.needles],
                "answer": example.question.answers[0],
                "answer_tokens": len(ids),
                "nats": nats_ME[:, index].tolist(),
            }
            for index, (example, ids) in enumerate(zip(examples, answers, strict=True))
        ]
        by_masked = reading.needle_rows(examples, [len(ids) for ids in answers], self.masked, nats_ME)
        return Outcome({"rows": by_masked, "examples": rows})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> "RenderableType":
        from contextwise.evaluation.measures.needles.reading import needles_table

        return needles_table(summary)
