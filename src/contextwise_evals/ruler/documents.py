"""qa_1: a question on one paragraph among many (RULER's document QA; intrinsic entropy, Figure 8).

The questions come from JSON Lines in the Hugging Face Hub's form of SQuAD (Rajpurkar et al. 2016, 2018), ``.gz`` too: a row a
question. Questions without an answer, which SQuAD 2.0 has, are left out.
"""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import StringConstraints

from contextwise.data import Form, checked, read_objects
from contextwise.settings import ConfigError, DataError
from contextwise_evals.answering.prompts import Question
from contextwise_evals.ruler.questions import Size, Spans, Task, distances_behind, join_pieces

DEMAND = "Answer the question from the documents. Give the answer alone, without any other words."
HEADING = "Document {}:\n"
ROWS = "JSON Lines whose rows have 'context' (the paragraph), 'question' and 'answers' (with 'text'), and optionally 'title'"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Answers(Form):
    text: list[str]


class _Row(Form):
    context: Text
    question: Text
    answers: _Answers
    title: Any = None


class PassageQuestion(NamedTuple):
    """A question; ``paragraph`` is the index of the paragraph that answers it."""

    text: str
    answers: tuple[str, ...]
    paragraph: int


class DocumentQA(Task):
    """Paragraphs, one of which answers the question.

    The others are of the same article first, in random order, then of any; as many as fit, shuffled. Then the position of the
    answering paragraph is drawn by the law, among the positions between the others. Only questions whose paragraph fits are
    used, each once before any is repeated.
    """

    name, title = "qa_1", "document QA"
    match = "part"
    new_tokens = 32

    def __init__(self, path: Path, size: Size) -> None:
        self.size = size
        paragraphs: dict[str, int] = {}
        self.titles: list[str] = []  # of the paragraphs' articles; one without is its own article
        questions: list[PassageQuestion] = []
        for where, fields in read_objects(path, ROWS):
            row = checked(_Row, fields, where, ROWS)
            answers = tuple(dict.fromkeys(text.strip() for text in row.answers.text if text.strip()))
            if row.context not in paragraphs:
                paragraphs[row.context] = len(paragraphs)
                self.titles.append(str(row.title or f"paragraph {len(paragraphs)}"))
            if answers:
                questions.append(PassageQuestion(row.question, answers, paragraphs[row.context]))
        if not questions:
            raise DataError(f"{path} has no question with an answer; give a file with some")
        self.paragraphs = list(paragraphs)
        self.sizes = np.array([size.tokens(_piece(1, text)) for text in paragraphs])
        if self.sizes.sum() < size.length:
            raise DataError(
                f"the {len(self.sizes):,} paragraphs of {path} have {self.sizes.sum():,} tokens together, too few "
                f"for a text of {size.length:,}; give a smaller length, or a larger file"
            )
        asked = {q.paragraph for q in questions if self.sizes[q.paragraph] <= size.length}
        # A text ends without the empty line of a piece, which may be cut into other tokens.
        fits = {i for i in asked if size.tokens(_piece(1, self.paragraphs[i]).rstrip()) <= size.length}
        self.questions = [q for q in questions if q.paragraph in fits]
        if not self.questions:
            shortest = min(int(self.sizes[q.paragraph]) for q in questions)
            raise ConfigError(
                f"length is {size.length}, but the shortest paragraph with a question in {path} has "
                f"{shortest} tokens; give at least that, and more for further paragraphs"
            )
        self.left_out = len(questions) - len(self.questions)
        self.order = size.generator(f"{self.name} order", 0).permutation(len(self.questions))

    def question(self, index: int) -> Question:
        question = self.questions[self.order[index % len(self.order)]]
        others = self._others(question.paragraph, index)
        body, needles = self._text(question.paragraph, others, index)
        ending = f"\n\n{DEMAND}\n\nQuestion: {question.text}\n"
        return Question(f"{DEMAND}\n\nThe documents:\n\n", body, ending, "Answer:", question.answers, needles)

    def _others(self, paragraph: int, index: int) -> list[int]:
        """Other paragraphs that fit together, those of the same article first, each in random order.

        A joined text has a few tokens more or fewer than its paragraphs one by one, so it is measured: a paragraph too many is
        left out, and as long as one that was not tried fits into what is missing, it is added.
        """
        order = self.size.generator(f"{self.name} others", index).permutation(len(self.sizes)).tolist()
        titles = self.titles
        left = sorted((i for i in order if i != paragraph), key=lambda i: titles[i] != titles[paragraph])
        length, chosen = self.size.length, list[int]()
        room = int(length - self.sizes[paragraph])
        while True:
            rest, left, before = left, list[int](), len(chosen)
            for other in rest:
                fits = self.sizes[other] <= room
                (chosen if fits else left).append(other)
                room -= int(self.sizes[other]) if fits else 0
            if len(chosen) == before:
                return chosen
            while (room := length - self.size.tokens(self._text(paragraph, chosen, index)[0])) < 0 and chosen:
                chosen.pop()

    def _text(self, paragraph: int, others: list[int], index: int) -> tuple[str, Spans]:
        draw = self.size.generator(self.name, index)
        shuffled = draw.permutation(np.array(others, dtype=np.int64))
        distances = np.minimum(distances_behind(self.sizes[shuffled]), self.size.length - 1)
        position = int(self.size.draw_positions(draw, distances)[0])
        paragraphs = np.insert(shuffled, position, paragraph)
        pieces = [_piece(i, self.paragraphs[p]) for i, p in enumerate(paragraphs, start=1)]
        text, ((start, end),) = join_pieces(pieces, [position])
        return text.rstrip(), ((start + len(HEADING.format(position + 1)), end),)


def _piece(number: int, paragraph: str) -> str:
    return f"{HEADING.format(number)}{paragraph}\n\n"
