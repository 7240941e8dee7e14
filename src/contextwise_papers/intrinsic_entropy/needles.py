"""Loss of an answer that depends on two needles, with the text's start cut off: ``contextwise measure needles``.

Intrinsic entropy, Figure 5: a text is noise with two sentences in it, "Ada has 3 stones." and, nearer to the question, "Ben
has 5 stones more than Ada."; the question is how many stones Ben has, and the answer the tokens of "8". Its perplexity is
measured with ever more of the leftmost tokens masked. Both needles are needed, so the second's effect cannot be seen once the
*first* is gone. Masked tokens are absent: the model reads the rest from its position 0. The question is always whole.

Legend of shapes: E examples, M numbers of masked tokens.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator
from rich.console import RenderableType
from rich.text import Text

from contextwise.base.estimates import exponential
from contextwise.base.progress import interruption
from contextwise.measures import Measure, Outcome, Subject, Work
from contextwise.report import Column, Table, progress_bar, terminal
from contextwise.settings import CheckpointError, ConfigError
from contextwise.stats import Estimate
from contextwise_evals.answering.prompts import Encoded, Encoder, Question, check_positions, check_vocabulary
from contextwise_evals.ruler import LONGEST
from contextwise_evals.ruler.questions import NOISE, Size, Spans, join_pieces, largest_fit, too_short

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from contextwise.data import Corpus

STEPS = 16
"""Steps between nothing masked and everything, by default."""
NAMES = ("Ada", "Ben", "Carla", "David", "Elena", "Felix", "Greta", "Hugo")
THINGS = ("stones", "books", "keys", "coins", "shells", "cups")
OPENING = "Read the text, and answer the question behind it.\n\n"


class Needles(Measure):
    """Measure an answer that depends on two needles, with more and more of the text cut off.

    Prints the perplexity of the answer against the number of masked left tokens, and in how many texts each needle remains.
    """

    name = "needles"
    on_corpus = False

    length: int = Field(
        default=1024, ge=1, le=LONGEST, description="Tokens of a text, at most, by the model's own tokenizer."
    )
    masked: list[int] | None = Field(
        default=None,
        min_length=1,
        description="Numbers of first tokens that are cut off; default: 17 from none to the length.",
    )
    far: float = Field(
        default=0.75, ge=0, le=1, description="Distance of the far needle from the end, as a share of the length."
    )
    near: float = Field(
        default=0.25, ge=0, le=1, description="Distance of the near needle from the end, as a share of the length."
    )
    samples: int = Field(default=50, ge=1, description="Texts.")
    seed: int = Field(default=0, ge=0, description="Of the texts.")

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
        assert self.masked is not None
        encoder = Encoder(subject.tokenizer, name=subject.source)
        size = Size(self.length, 0.0, encoder.count, self.seed)
        examples = []
        with progress_bar("make texts", self.samples) as advance:
            for index in range(self.samples):
                interruption.check("stopped while the texts were made")
                examples.append(encoder.encode(two_needle_question(size, index, self.far, self.near)))
                advance()
        answers = [answer_ids(encoder, example.question) for example in examples]
        check_vocabulary(subject, examples)
        texts = [("a text", example, len(ids)) for example, ids in zip(examples, answers, strict=True)]
        check_positions(subject, texts, self.length - self.masked[0], ", or a smaller `length`", "a visible part of")
        nats_ME = all_nats(subject, examples, answers, self.masked, work)
        rows = [
            {
                "text_tokens": len(example.body),
                "needles": [list(needle) for needle in example.needles],
                "answer": example.question.answers[0],
                "answer_tokens": len(ids),
                "nats": nats_E.tolist(),
            }
            for example, ids, nats_E in zip(examples, answers, nats_ME.T, strict=True)
        ]
        by_masked = needle_rows(examples, [len(ids) for ids in answers], self.masked, nats_ME)
        return Outcome({"rows": by_masked, "examples": rows})

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        settings = summary["settings"]
        heading = (
            f"{summary['model']}: {settings['samples']:,} texts of up to {settings['length']:,} tokens, needles at "
            f"about {settings['far']:g} and {settings['near']:g} of the length from the end: loss of the answer with the "
            "first tokens cut off, and the share of texts that still hold each needle"
        )
        return terminal(Text(heading), needles_table(summary))


def needles_table(summary: dict[str, Any], title: str = "") -> Table:
    """Loss of the answer by masked tokens, and the share of texts that still hold each needle."""
    columns = (
        Column("masked", "integer", align="right"),
        Column("nats/token", "estimate", interval="own"),
        Column("perplexity", "estimate"),
        *(Column(f"{name}\nneedle", "percent", ".0%") for name in ("far", "near")),
    )
    rows = []
    for row in summary["rows"]:
        nats, perplexity = Estimate.from_dict(row["nats"]), row["perplexity"]["value"]
        rows.append((row["masked"], nats, perplexity, row["far_in_view"], row["near_in_view"]))
    return Table(title, columns, rows)


def two_needle_question(size: Size, index: int, far: float = 0.75, near: float = 0.25) -> Question:
    """One text with two needles, at distances ``far`` > ``near`` from the end, shares of the length; the far one is the first.

    Its one answer is a number; γ of the size is not used.
    """
    sentences, (thing, second, answer) = _needles(size, index)

    def text(lines: int) -> tuple[str, Spans]:
        before, between = round((1 - far) * lines), round((1 - near) * lines)
        pieces = [NOISE] * before + [sentences[0]] + [NOISE] * (between - before) + [sentences[1]]
        body, needles = join_pieces(pieces + [NOISE] * (lines - between), [before, between + 1])
        return body.rstrip("\n"), needles

    guess = size.length // max(1, size.tokens(NOISE))
    lines = largest_fit(lambda count: size.tokens(text(count)[0]), size.length, guess, 1)
    if lines < 1:
        raise too_short("a text with two needles", size.length, size.tokens(text(1)[0]))
    body, needles = text(lines)
    ending = f"\n\nQuestion: How many {thing} does {second} have?\n"
    return Question(OPENING, body, ending, f"Answer: {second} has", (str(answer),), needles)


def _needles(size: Size, index: int) -> tuple[tuple[str, str], tuple[str, str, int]]:
    """The two sentences of a question; and what is asked for: the thing, its owner, and how many."""
    draw = size.generator("two needles", index)
    first, second = draw.choice(NAMES, 2, replace=False)
    thing = draw.choice(THINGS)
    has, more = (int(value) for value in draw.integers(1, 5, size=2))
    sentences = (f"{first} has {has} {thing}.\n", f"{second} has {more} {thing} more than {first}.\n")
    return sentences, (thing, second, has + more)


def answer_nats(
    model: "PreTrainedModel", prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> np.ndarray:
    """Nats of each answer after its prompt, summed over the answer's tokens: -Σ ln p(token | all before it).

    (prompts,) float64; of token ids, at least one each. A model that was trained with prefixes reads the prompt as one.
    """
    import torch

    from contextwise.evaluation.scoring.windows import Plan, Texts, window_losses
    from contextwise.measures import batches
    from contextwise.models.rope import same_frequencies_up_to

    texts = Texts([np.array([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)])
    index, known = np.arange(len(prompts)), np.array([len(prompt) for prompt in prompts])
    plan = Plan(index, np.zeros_like(index), texts.lengths - 1, known - 1)
    nats = np.empty(len(prompts))
    with torch.no_grad():
        for rows in batches(plan.length, len(index) * int(plan.length.max()), same_frequencies_up_to(model)):
            nats[rows] = window_losses(model, texts, plan, rows).sum(axis=1, dtype=np.float64)
    return nats


def answer_ids(encoder: Encoder, question: Question) -> list[int]:
    """Tokens of the answer after the prompt, its leading space included."""
    before = encoder.ids(question.ending + question.answer_prefix)
    whole = encoder.ids(f"{question.ending}{question.answer_prefix} {question.answers[0]}")
    if whole[: len(before)] == before and len(whole) > len(before):
        return whole[len(before) :]
    return encoder.ids(f" {question.answers[0]}")


def needle_rows(
    examples: Sequence[Encoded], answer_tokens: Sequence[int], steps: Sequence[int], nats_ME: np.ndarray
) -> list[dict[str, Any]]:
    """For each number of masked tokens: nats per answer token, perplexity, and the share of texts with each needle whole."""
    from contextwise.stats import ratios

    rows = []
    for masked, nats_E in zip(steps, nats_ME, strict=True):
        loss = ratios(nats_E, {"tokens": np.array(answer_tokens)})["tokens"]
        in_view = [[needle.reach <= len(e.body) - masked for needle in e.needles] for e in examples]
        far, near = np.mean(in_view, axis=0).tolist()
        estimates = {"nats": loss.to_dict(), "perplexity": loss.map(exponential).to_dict()}
        rows.append({"masked": masked, **estimates, "far_in_view": far, "near_in_view": near})
    return rows


def all_nats(
    subject: Subject, examples: Sequence[Encoded], answers: Sequence[Sequence[int]], steps: Sequence[int], work: Work
) -> np.ndarray:
    """(M, E) nats of each example's answer with each number of tokens masked."""
    count = len(examples)

    def prompt(row: int) -> list[int]:
        example = examples[row % count]
        return example.prompt(max(0, len(example.body) - steps[row // count]))

    def in_batches() -> Iterator[range]:
        for rows in (range(first, first + count) for first in range(0, len(steps) * count, count)):
            size = max(1, subject.batch_tokens // max(len(prompt(row)) for row in rows))
            yield from (rows[first : first + size] for first in range(0, count, size))

    def scored(rows: list[int]) -> list[dict[str, Any]]:
        nats = answer_nats(subject.model, [prompt(row) for row in rows], [answers[row % count] for row in rows])
        if not np.isfinite(nats).all():
            raise CheckpointError(f"the losses of {subject.source} are not finite; the model is damaged")
        return [{"nats": value} for value in nats.tolist()]

    kept = work.rows("answers", len(steps) * count, in_batches(), scored, f"needles {subject.name}")
    return np.array([row["nats"] for row in kept]).reshape(len(steps), count)
