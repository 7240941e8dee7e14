"""From scores of answers to means at each visible context, with intervals, and where more input stops helping.

A data set's score is the mean over its questions, a group's the mean over its data sets, the overall score the mean over the
groups, as LongBench averages. Intervals are 95% percentile bootstrap intervals: whole documents are drawn with replacement,
with all their questions and all visible contexts, each data set by itself. So the difference of two visible contexts is paired.

The bootstrap takes for certain what all documents agree on. There an interval is Wilson's instead, with the documents as its
trials; and a difference of 0 at every document has the interval ± z²/(D + z²), Wilson's upper end for a change never seen. In
the mean of several data sets, one without spread adds none.

More input stops helping at the smallest visible context than which no larger one is surely better: none whose paired difference
to it has an interval above 0.

Legend of shapes: Q questions, D documents, V visible contexts, R resamples.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import SEED, Interval, percentile_interval, resampled_ratios, wilson
from contextwise.evaluation.answering.batches import Key
from contextwise.evaluation.measures.long_tasks.metrics import score
from contextwise.evaluation.measures.long_tasks.prompts import LongPrompt

EQUAL = 1e-12


@dataclass(frozen=True)
class Level:
    """Scores of a data set, a group or all of them at each visible context.

    Attributes:
        values_V: mean scores.
        draws_RV: the same in each resample; None where a data set has one document only.
        low_V, high_V: Wilson's interval, for scores without spread.
        unseen: how far a difference may lie from one that is 0 at every document.
    """

    values_V: np.ndarray
    draws_RV: np.ndarray | None
    low_V: np.ndarray
    high_V: np.ndarray
    unseen: float

    def estimate(self, place: int) -> Estimate:
        """Mean score at one visible context."""
        value = float(self.values_V[place])
        if self.draws_RV is None:
            return Estimate(value)
        without_spread = float(self.low_V[place]), float(self.high_V[place])
        return Estimate(value, *_limits(self.draws_RV[:, place], without_spread))

    def gain(self, place: int, other: int) -> Estimate:
        """Score at ``other`` minus that at ``place``, paired."""
        value = float(self.values_V[other] - self.values_V[place])
        if self.draws_RV is None:
            return Estimate(value)
        unseen = max(-1.0, value - self.unseen), min(1.0, value + self.unseen)
        return Estimate(value, *_limits(self.draws_RV[:, other] - self.draws_RV[:, place], unseen))

    def stops_helping(self) -> int | None:
        """Place of the visible context at which more input stops helping; None where there are no intervals."""
        if self.draws_RV is None:
            return None
        count = len(self.values_V)
        better = [any(self.gain(i, j).above(0.0) for j in range(i + 1, count)) for i in range(count)]
        return better.index(False)


def _limits(draws_R: np.ndarray, without_spread: Interval) -> Interval:
    return without_spread if np.ptp(draws_R) < EQUAL else percentile_interval(draws_R)


def level_of(scores_QV: np.ndarray, documents: Sequence[str], stream: int = 0) -> Level:
    """The level of one data set.

    Args:
        documents: of each question.
        stream: another one for each data set, so that their resamples are independent.
    """
    _, place_Q = np.unique(np.array(documents), return_inverse=True)
    sizes_D = np.bincount(place_Q)
    sums_DV = np.zeros((len(sizes_D), scores_QV.shape[1]))
    np.add.at(sums_DV, place_Q, scores_QV)
    values_V = scores_QV.mean(axis=0)
    limits = [wilson(float(value), len(sizes_D)) for value in values_V]
    return Level(
        values_V,
        None if len(sizes_D) < 2 else resampled_ratios(sums_DV, sizes_D, (SEED, stream)),
        np.array([limit.low for limit in limits]),
        np.array([limit.high for limit in limits]),
        float(wilson(0.0, len(sizes_D)).high or 0.0),
    )


def mean_level(levels: Sequence[Level]) -> Level:
    """The mean of several levels, each with the same weight."""
    draws = [level.draws_RV for level in levels if level.draws_RV is not None]
    return Level(
        np.mean([level.values_V for level in levels], axis=0),
        np.mean(draws, axis=0) if len(draws) == len(levels) else None,
        np.mean([level.low_V for level in levels], axis=0),
        np.mean([level.high_V for level in levels], axis=0),
        float(np.mean([level.unseen for level in levels])),
    )


def shown_at(prompt: LongPrompt, visible: int, contexts: Sequence[int]) -> int:
    """The visible context whose answer is that at ``visible``: of those that show the whole prompt the smallest."""
    if len(prompt.body) > visible:
        return visible
    return min(context for context in contexts if len(prompt.body) <= context)


def scores_of(
    name: str, prompts: Sequence[LongPrompt], visible: Sequence[int], answers: dict[Key, str]
) -> np.ndarray:
    """Scores (Q, V) of the answers of one data set."""
    return np.array(
        [
            [_score(prompt, answers[name, shown_at(prompt, context, visible), index]) for context in visible]
            for index, prompt in enumerate(prompts)
        ]
    )


def _score(prompt: LongPrompt, answer: str) -> float:
    item = prompt.item
    return score(
        answer,
        item.answers,
        item.metric,
        classes=item.classes,
        language=item.language,
        first_line=item.few_shot,
    )


def summarise(
    prompts: dict[str, list[LongPrompt]], visible: Sequence[int], scores: dict[str, np.ndarray]
) -> dict[str, Any]:
    """``datasets``, ``groups`` and ``overall``, as they stand in ``summary.json``."""
    levels = {
        name: level_of(scores[name], [prompt.item.document for prompt in asked], stream)
        for stream, (name, asked) in enumerate(prompts.items())
    }
    members: dict[str, list[str]] = defaultdict(list)
    for name, asked in prompts.items():
        members[asked[0].item.group].append(name)
    groups = {group: mean_level([levels[name] for name in names]) for group, names in members.items()}
    return {
        "datasets": {
            name: {**_about(asked, visible), **level_rows(levels[name], visible)}
            for name, asked in prompts.items()
        },
        "groups": {
            group: {"datasets": members[group], **level_rows(level, visible)}
            for group, level in groups.items()
        },
        "overall": level_rows(mean_level(list(groups.values())), visible),
    }


def _about(prompts: Sequence[LongPrompt], visible: Sequence[int]) -> dict[str, Any]:
    lengths = [len(prompt.body) for prompt in prompts]
    first = prompts[0].item
    return {
        "metric": first.metric,
        "group": first.group,
        "new_tokens": max(prompt.item.new_tokens for prompt in prompts),
        "questions": len(prompts),
        "documents": len({prompt.item.document for prompt in prompts}),
        "prompt_tokens": {"mean": sum(lengths) / len(lengths), "least": min(lengths), "most": max(lengths)},
        "whole": [float(np.mean([length <= context for length in lengths])) for context in visible],
    }


def level_rows(level: Level, visible: Sequence[int]) -> dict[str, Any]:
    """A level as JSON: a row for each visible context, and where more input stops helping."""
    last = len(visible) - 1
    rows = [
        {
            "visible": context,
            "score": level.estimate(i).to_dict(),
            "to_the_next": level.gain(i, i + 1).to_dict() if i < last else None,
        }
        for i, context in enumerate(visible)
    ]
    stop = level.stops_helping()
    if stop is None:
        return {"scores": rows, "stops_helping": None}
    rest = None if stop == last else level.gain(stop, last).to_dict()
    return {"scores": rows, "stops_helping": {"visible": visible[stop], "to_the_largest": rest}}


def answer_rows(
    name: str,
    prompts: Sequence[LongPrompt],
    visible: Sequence[int],
    answers: dict[Key, str],
    scores_QV: np.ndarray,
) -> list[dict[str, Any]]:
    """One row a question, for ``answers.jsonl``; ``seen`` counts the prompt's tokens that were visible."""
    return [
        {
            "dataset": name,
            "index": index,
            "where": prompt.item.where,
            "document": prompt.item.document,
            "question": prompt.item.question,
            "answers": list(prompt.item.answers),
            "words": prompt.item.length,
            "prompt_tokens": len(prompt.body),
            "answered": [
                {
                    "visible": context,
                    "seen": len(prompt.visible_body(context)),
                    "answer": answers[name, shown_at(prompt, context, visible), index],
                    "score": float(scores_QV[index, i]),
                }
                for i, context in enumerate(visible)
            ],
        }
        for index, prompt in enumerate(prompts)
    ]
