"""Scores of documents behind their metadata."""

import numpy as np

from contextwise.evaluation.scoring.scores import Scores


def behind(scores: Scores, tokens_D: np.ndarray) -> Scores:
    """The scores without those of the first tokens of each document."""
    starts = np.cumsum(scores.targets) - scores.targets
    kept = np.arange(len(scores.nats)) >= np.repeat(starts + tokens_D, scores.targets)
    targets = np.maximum(scores.targets - tokens_D, 0)
    return Scores(targets, scores.nats[kept], scores.visible[kept], scores.first_position)


def conditioned(scores: Scores, tokens_D: np.ndarray) -> np.ndarray:
    """(N,) bool: targets whose windows have all of the tokens, at least one, that :func:`behind` took away before them."""
    first = np.repeat(np.cumsum(scores.targets) - scores.targets, scores.targets)
    position = np.arange(len(scores.nats)) - first + scores.first_position
    before = np.repeat(tokens_D, scores.targets)
    return (before > 0) & (scores.visible == position + before)
