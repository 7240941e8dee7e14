"""The context of the lowest loss for each size of the training set, and whether it moves with that size (Figures 4 and 12).

With several seeds a claim is decided where it holds in each of them, or in none; one seed decides none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contextwise.base.tables import Table
from contextwise.reproductions.claims import LEAST_SEEDS, Claim, Verdict, all_agree, exact


@dataclass(frozen=True)
class Optima:
    """Lowest losses by (training-set size, context), seed by seed.

    Attributes:
        losses: one value a seed, nats.
        sizes: of the training set, the smallest first.
        contexts: the shortest first.
    """

    losses: Mapping[tuple[int, int], Sequence[float]]
    sizes: Sequence[int]
    contexts: Sequence[int]

    @property
    def means(self) -> dict[tuple[int, int], float]:
        """Means over seeds."""
        return {key: float(np.mean(values)) for key, values in self.losses.items()}

    @property
    def best(self) -> dict[int, int]:
        """Size -> the context of the lowest mean; the shorter one of two."""
        return self._best(self.means)

    def _best(self, losses: Mapping[tuple[int, int], float]) -> dict[int, int]:
        return {n: min(self.contexts, key=lambda context: losses[n, context]) for n in self.sizes}

    def table(self, title: str, unit: str, context_column: Mapping[int, str] | None = None) -> Table:
        """Losses of each context (rows) and size (columns).

        Args:
            context_column: further cells of each context, ``lowest``, beside it.
        """
        seeds = len(next(iter(self.losses.values())))
        many = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
        means, best = self.means, self.best
        rows = [
            [
                str(context),
                *([] if context_column is None else [context_column[context]]),
                *(f"{means[n, context]:.4f}{'*' if best[n] == context else ''}" for n in self.sizes),
            ]
            for context in self.contexts
        ]
        head = ["context", *([] if context_column is None else ["lowest"])]
        return Table(
            f"{title} ({many}; * the lowest of a column)",
            [*head, *(f"{n:,} {unit}" for n in self.sizes)],
            rows,
        )

    def inner(self, text: str, least: float) -> Claim:
        """Whether for ``least`` or more of the sizes a context between the shortest and the longest is best."""

        def inside(best: Mapping[int, int]) -> int:
            return sum(self.contexts[0] < best[n] < self.contexts[-1] for n in self.sizes)

        verdict = self._each_seed(lambda best: inside(best) >= least)
        return Claim.of(text, verdict, f"for {inside(self.best)} of {len(self.sizes)}")

    def grows(self, text: str) -> Claim:
        """Whether the best context grows with the training set."""

        def growing(best: Mapping[int, int]) -> bool:
            contexts = [best[n] for n in self.sizes]
            return contexts == sorted(contexts) and contexts[-1] > contexts[0]

        return Claim.of(
            text, self._each_seed(growing), ", ".join(f"{n:,}: {c}" for n, c in self.best.items())
        )

    def _each_seed(self, holds: Callable[[Mapping[int, int]], bool]) -> Verdict:
        """A condition on the best contexts, over seeds."""
        by_seed = [
            dict(zip(self.losses, values, strict=True)) for values in zip(*self.losses.values(), strict=True)
        ]
        verdicts = (exact(holds(self._best(losses)), *losses.values()) for losses in by_seed)
        return all_agree(verdicts, "seeds", LEAST_SEEDS)
