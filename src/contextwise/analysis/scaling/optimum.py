"""The minimum of a law at a budget, over model size and context; tokens follow from the budget.

A grid over both, then smaller grids around each law's own best point; all laws of an ensemble at once.

Legend: R laws side by side, K sizes, M contexts.
"""

from dataclasses import dataclass

import numpy as np

from contextwise.analysis.scaling.cost import Cost
from contextwise.analysis.scaling.forms import Array, Law

COARSE, FINE, ZOOMS = 49, 9, 8


@dataclass(frozen=True)
class Optimum:
    """The best points of R laws, each (R,): parameters, context, tokens, and the loss there in nats."""

    parameters: Array
    context: Array
    tokens: Array
    loss: Array


def best_context(
    law: Law, cost: Cost, budget: float, parameters: float, contexts: tuple[float, float]
) -> Optimum:
    """The best context of one model size."""
    return _zoom(law, cost, budget, (parameters, parameters), contexts)


def best_of_sizes(
    law: Law, cost: Cost, budget: float, sizes: Array, contexts: tuple[float, float]
) -> Optimum:
    """The best context with the best of some sizes (K,)."""
    optima = [best_context(law, cost, budget, float(size), contexts) for size in sizes]
    best = np.stack([optimum.loss for optimum in optima]).argmin(0)
    laws = np.arange(len(best))
    return Optimum(
        *(
            np.stack([getattr(optimum, name) for optimum in optima])[best, laws]
            for name in ("parameters", "context", "tokens", "loss")
        )
    )


def best_anywhere(
    law: Law, cost: Cost, budget: float, sizes: tuple[float, float], contexts: tuple[float, float]
) -> Optimum:
    """The best context and size, between bounds."""
    return _zoom(law, cost, budget, sizes, contexts)


def _zoom(
    law: Law, cost: Cost, budget: float, sizes: tuple[float, float], contexts: tuple[float, float]
) -> Optimum:
    if law.theta.ndim == 1:
        law = Law(law.form, law.theta[None], law.centre)
    laws = np.arange(len(law.theta))
    bounds = [np.log(sizes), np.log(contexts)]
    middle = [np.full(len(laws), span.mean()) for span in bounds]
    half = [np.ptp(span) / 2 for span in bounds]
    count = COARSE
    for _ in range(ZOOMS):
        log_n, log_l = (
            np.clip(m[:, None] + h * np.linspace(-1, 1, count if h else 1)[None] * (h > 0), *span)
            for m, h, span in zip(middle, half, bounds, strict=True)
        )
        if count == COARSE:  # the same grid for all
            log_n, log_l = log_n[:1], log_l[:1]
        n, l = np.exp(log_n)[:, :, None], np.exp(log_l)[:, None, :]  # noqa: E741
        tokens = budget / cost.per_token(n, l)
        loss = law.loss(l, n, tokens)  # (R, K, M)
        best = loss.reshape(len(laws), -1).argmin(1)
        row, column = np.unravel_index(best, loss.shape[1:])
        middle = [
            np.broadcast_to(log_n, (len(laws), log_n.shape[1]))[laws, row],
            np.broadcast_to(log_l, (len(laws), log_l.shape[1]))[laws, column],
        ]
        half = [1.5 * 2 * h / (count - 1) for h in half]
        count = FINE
    n, l = np.exp(middle[0]), np.exp(middle[1])  # noqa: E741
    tokens = budget / cost.per_token(n, l)
    lowest = law.loss(l[:, None], n[:, None], tokens[:, None])[:, 0]
    return Optimum(n, l, tokens, lowest)
