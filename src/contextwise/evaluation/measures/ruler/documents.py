"""qa_1: a question on one paragraph among many (RULER's document QA; intrinsic entropy, Figure 8)."""

import numpy as np

from contextwise.base.errors import ConfigError, DataError
from contextwise.evaluation.answering.prompts import Question
from contextwise.evaluation.measures.ruler.questions import (
    Match,
    Size,
    distances_behind,
    draw_positions,
    join_pieces,
    position_probabilities,
    source_of,
)
from contextwise.evaluation.measures.ruler.squad import PassageQuestion, Passages

DEMAND = "Answer the question from the documents. Give the answer alone, without any other words."
HEADING = "Document {}:\n"
PASSED_OVER = 20


class DocumentQA:
    """Paragraphs, one of which answers the question.

    The others are of the same article first, in random order, then of any; as many as fit, shuffled. Then the position of the
    answering paragraph is drawn by the law, among the positions between the others.

    Args:
        passages: paragraphs and questions; only questions whose paragraph fits are used, each once before any is repeated.

    Raises:
        ConfigError: no paragraph with a question fits into the length.
        DataError: all the paragraphs together are shorter than the length.
    """

    name, title = "qa_1", "document QA"
    match: Match = "part"
    new_tokens = 32

    def __init__(self, passages: Passages, size: Size) -> None:
        self.passages, self.size = passages, size
        self.sizes = np.array([size.tokens(_piece(1, text)) for text in passages.paragraphs])
        if self.sizes.sum() < size.length:
            raise DataError(
                f"the {len(self.sizes):,} paragraphs of {passages.path} have {self.sizes.sum():,} tokens together, too few "
                f"for a text of {size.length:,}; give a smaller length, or a larger file"
            )
        self.questions = [q for q in passages.questions if self.sizes[q.paragraph] <= size.length]
        if not self.questions:
            shortest = min(int(self.sizes[q.paragraph]) for q in passages.questions)
            raise ConfigError(
                f"length is {size.length}, but the shortest paragraph with a question in {passages.path} has "
                f"{shortest} tokens; give at least that, and more for further paragraphs"
            )
        self.left_out = len(passages.questions) - len(self.questions)
        self.order = source_of(size, f"{self.name} order", 0).permutation(len(self.questions))

    def question(self, index: int) -> Question:
        question = self.questions[self.order[index % len(self.order)]]
        others = self._others(question, index)
        room = self.size.length - int(self.sizes[question.paragraph])
        others = self._fitting(others, room)
        body, needles = self._body(question, others, index)
        # A text may have a few tokens more than its paragraphs one by one.
        while len(others) and self.size.tokens(body) > self.size.length:
            others = others[:-1]
            body, needles = self._body(question, others, index)
        ending = f"\n\n{DEMAND}\n\nQuestion: {question.text}\n"
        return Question(f"{DEMAND}\n\nThe documents:\n\n", body, ending, "Answer:", question.answers, needles)

    def _others(self, question: PassageQuestion, index: int) -> np.ndarray:
        """All other paragraphs in random order, those of the same article first."""
        order = source_of(self.size, f"{self.name} others", index).permutation(len(self.sizes))
        order = order[order != question.paragraph]
        title = self.passages.titles[question.paragraph]
        other_article = np.array([self.passages.titles[i] != title for i in order], dtype=bool)
        return order[np.argsort(other_article, kind="stable")]

    def _fitting(self, others: np.ndarray, room: int) -> np.ndarray:
        """The first of ``others`` that fit together; up to :data:`PASSED_OVER` that do not fit are left out on the way."""
        chosen: list[int] = []
        passed_over = 0
        for paragraph in others:
            if self.sizes[paragraph] <= room:
                chosen.append(int(paragraph))
                room -= int(self.sizes[paragraph])
            elif (passed_over := passed_over + 1) == PASSED_OVER:
                break
        return np.array(chosen, dtype=np.int64)

    def _body(
        self, question: PassageQuestion, others: np.ndarray, index: int
    ) -> tuple[str, tuple[tuple[int, int], ...]]:
        draw = source_of(self.size, self.name, index)
        others = draw.permutation(others)
        distances = distances_behind(self.sizes[others])
        position = int(
            draw_positions(draw, position_probabilities(distances, self.size.length, self.size.gamma))[0]
        )
        chosen = [*others[:position], question.paragraph, *others[position:]]
        pieces = [_piece(i, self.passages.paragraphs[p]) for i, p in enumerate(chosen, start=1)]
        text, ((start, end),) = join_pieces(pieces, [position])
        return text.rstrip(), ((start + len(HEADING.format(position + 1)), end),)


def _piece(number: int, paragraph: str) -> str:
    return f"{HEADING.format(number)}{paragraph}\n\n"
