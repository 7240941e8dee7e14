"""Mean scores at each visible context, with intervals, and where more input stops helping.

A data set's score is the mean over its questions, a group's the mean over its data sets, the overall score the mean over the
groups, as LongBench averages. Intervals are 95% t-intervals over documents: all questions on a document, at all visible
contexts, stay together. So the difference of two visible contexts is paired. In the mean of several data sets, the squared
variances of the data sets are added.

Where all documents agree there is no spread. There the interval is Wilson's, with the documents as its trials; and a
difference of 0 at every document has the interval ± z²/(D + z²), Wilson's upper limit for a change that was not
observed. In the mean of several data sets, one without spread adds none.

More input stops helping at the smallest visible context that no larger one improves on significantly: none has a paired
difference to it with an interval above 0, where the intervals of all larger ones hold together at 95%.

Legend of shapes: Q questions, D documents, V visible contexts.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, Estimate
from contextwise.base.intervals import Interval, Part, joint, leave_one_out, over_documents, wilson
from contextwise.comparison.sequential import simultaneous
from contextwise_evals.answering.prompts import Key, body_lengths
from contextwise_evals.long_tasks.metrics import score
from contextwise_evals.long_tasks.prompts import LongPrompt, shown_at

EQUAL = 1e-24


@dataclass(frozen=True)
class Level:
    """Scores of a data set, a group or all of them at each visible context.

    Attributes:
        values_V: mean scores.
        parts: of each data set: its weight in the mean, the sums of its scores (D, V) and its questions by document (D,).
        low_V, high_V: Wilson's interval, for scores without spread.
        unseen: half the interval of a difference that is 0 at every document.
    """

    values_V: np.ndarray
    parts: list[tuple[float, np.ndarray, np.ndarray]]
    low_V: np.ndarray
    high_V: np.ndarray
    unseen: float

    @property
    def documents(self) -> int:
        """Documents of the data set that has the fewest."""
        return min(len(sizes_D) for _, _, sizes_D in self.parts)

    def estimate(self, context: int) -> Estimate:
        """Mean score at the visible context of this index."""
        without_spread = float(self.low_V[context]), float(self.high_V[context])
        return self._estimate({context: 1}, without_spread)

    def gain(self, context: int, other: int) -> Estimate:
        """Score at ``other`` minus that at ``context``, paired."""
        value = float(self.values_V[other] - self.values_V[context])
        unseen = max(-1.0, value - self.unseen), min(1.0, value + self.unseen)
        return self._estimate({other: 1, context: -1}, unseen)

    def _estimate(self, signs: dict[int, int], without_spread: Interval) -> Estimate:
        """The sum of the scores at some contexts, each with a sign, and its 95% interval."""
        value, parts = sum(sign * float(self.values_V[i]) for i, sign in signs.items()), []
        for share, sums_DV, sizes_D in self.parts:
            sums_D = np.sum([sign * sums_DV[:, i] for i, sign in signs.items()], axis=0)
            part = over_documents(sums_D.sum() / sizes_D.sum(), leave_one_out(sums_D, sizes_D), sizes_D)
            if part is None:
                return Estimate(value)
            parts.append(Part(share**2 * part.variance, part.freedom))
        both = joint(parts)
        half = both.half_width
        if half**2 < EQUAL:
            return Estimate(value, *without_spread, method="Wilson", documents=self.documents)
        least = 0.0 if min(signs.values()) > 0 else -1.0
        limits = max(least, value - half), min(1.0, value + half)
        about: dict[str, Any] = {
            "method": "t",
            "documents": self.documents,
            "freedom": both.freedom,
            "parts": tuple(parts),
        }
        return Estimate(value, *limits, **about)

    def stops_helping(self) -> int | None:
        """Index of the visible context at which more input stops helping; None where the documents are too few."""
        if self.documents < FEWEST_DOCUMENTS:
            return None
        count = len(self.values_V)
        for i in range(count - 1):
            confidence = simultaneous(CONFIDENCE, count - 1 - i)
            if not any(self.gain(i, j).at(confidence).above(0.0) for j in range(i + 1, count)):
                return i
        return count - 1


def level_of(scores_QV: np.ndarray, documents: Sequence[str]) -> Level:
    """The level of one data set; ``documents`` names the document of each question."""
    _, document_Q = np.unique(np.array(documents), return_inverse=True)
    sizes_D = np.bincount(document_Q)
    sums_DV = np.zeros((len(sizes_D), scores_QV.shape[1]))
    np.add.at(sums_DV, document_Q, scores_QV)
    values_V = scores_QV.mean(axis=0)
    low_V, high_V = np.array([wilson(float(value), len(sizes_D)).limits for value in values_V]).T
    return Level(values_V, [(1.0, sums_DV, sizes_D)], low_V, high_V, wilson(0.0, len(sizes_D)).limits[1])


def mean_level(levels: Sequence[Level]) -> Level:
    """The mean of several levels, each with the same weight."""
    parts = [(share / len(levels), sums, sizes) for level in levels for share, sums, sizes in level.parts]
    values_V, low_V, high_V = np.mean([[x.values_V, x.low_V, x.high_V] for x in levels], axis=0)
    return Level(values_V, parts, low_V, high_V, float(np.mean([level.unseen for level in levels])))


def summarize(
    prompts: dict[str, list[LongPrompt]], visible: Sequence[int], answers: dict[Key, str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """``datasets``, ``groups`` and ``overall`` of ``summary.json``; and the rows of ``answers.jsonl``, one a question.

    In a row, ``seen`` counts the prompt's tokens that were visible.
    """
    rows: list[dict[str, Any]] = []
    datasets: dict[str, Any] = {}
    of_group: dict[str, dict[str, Level]] = defaultdict(dict)
    for name, encoded in prompts.items():
        answered = [_answer_row(name, index, p, visible, answers) for index, p in enumerate(encoded)]
        rows += answered
        scores_QV = np.array([[given["score"] for given in row["answered"]] for row in answered])
        documents = [prompt.item.document for prompt in encoded]
        level = level_of(scores_QV, documents)
        first, lengths = encoded[0].item, [len(prompt.body) for prompt in encoded]
        of_group[first.group][name] = level
        datasets[name] = {
            "metric": first.metric,
            "group": first.group,
            "new_tokens": max(prompt.item.new_tokens for prompt in encoded),
            "questions": len(encoded),
            "documents": len(set(documents)),
            "prompt_tokens": body_lengths(encoded),
            "whole": [float(np.mean([length <= context for length in lengths])) for context in visible],
            **level_rows(level, visible),
        }
    groups = {group: mean_level(list(levels.values())) for group, levels in of_group.items()}
    summary = {
        "datasets": datasets,
        "groups": {
            group: {"datasets": list(of_group[group]), **level_rows(level, visible)} for group, level in groups.items()
        },
        "overall": level_rows(mean_level(list(groups.values())), visible),
    }
    return summary, rows


def _answer_row(
    name: str, index: int, prompt: LongPrompt, visible: Sequence[int], answers: dict[Key, str]
) -> dict[str, Any]:
    item, answered = prompt.item, []
    for context in visible:
        answer = answers[name, shown_at(prompt, context, visible), index]
        points = score(
            answer, item.answers, item.metric, classes=item.classes, chinese=item.chinese, first_line=item.few_shot
        )
        seen = len(prompt.visible_body(context))
        answered.append({"visible": context, "seen": seen, "answer": answer, "score": points})
    return {
        "dataset": name,
        "index": index,
        "where": item.where,
        "document": item.document,
        "question": item.question,
        "answers": list(item.answers),
        "words": item.length,
        "prompt_tokens": len(prompt.body),
        "answered": answered,
    }


def level_rows(level: Level, visible: Sequence[int]) -> dict[str, Any]:
    """A level as JSON: a row for each visible context, and where more input stops helping."""
    last = len(visible) - 1
    rows = []
    for i, context in enumerate(visible):
        gain = level.gain(i, i + 1).to_dict() if i < last else None
        rows.append({"visible": context, "score": level.estimate(i).to_dict(), "to_the_next": gain})
    stop = level.stops_helping()
    if stop is None:
        return {"scores": rows, "stops_helping": None}
    gain = None if stop == last else level.gain(stop, last).to_dict()
    return {"scores": rows, "stops_helping": {"visible": visible[stop], "to_the_largest": gain}}
