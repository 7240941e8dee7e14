"""Perplexity of an answer that depends on two needles, as more of the text is cut off (intrinsic entropy, Figure 5)."""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import mean_estimate
from contextwise.base.tables import Table
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.needles import STEPS, Needles
from contextwise.reproductions.claims import Claim, above, point, undecided
from contextwise.reproductions.given_model import GivenModel
from contextwise.reproductions.item import Item, Outcome, Plot, registered

ANSWERS = 7
"""A needle's number is 1 to 4, and so is what the other one adds: 2 to 8."""


@registered("needle_curves")
class NeedleCurves(GivenModel):
    """Perplexity of the answer against masked tokens, and what it costs to lose the first needle and then the second."""

    length: int = Field(1024, ge=64, description="tokens of a text")
    samples: int = Field(50, ge=2, description="texts")
    seed: int = Field(0, ge=0)

    def tokens_read(self) -> int:
        # From nothing masked to all of it, in even steps.
        return self.samples * self.length * (STEPS + 1) // 2

    def measure(self, item: Item, folder: Path) -> Outcome:
        out = self.measured_folder(folder, f"needles-{self.length}-{self.samples}-{self.seed}")
        out.parent.mkdir(parents=True, exist_ok=True)
        settings = Needles(length=self.length, samples=self.samples, seed=self.seed)
        summary = measure(self.subject(folder), settings, out=out).summary
        rows = [
            [f"{row['masked']:,}", f"{row['perplexity']['value']:,.2f}", f'{Estimate(**row["nats"]):.3f}',
             f"{row['far_in_view']:.0%}", f"{row['near_in_view']:.0%}"]
            for row in summary["rows"]
        ]  # fmt: skip
        table = Table(
            f"{self.samples} texts of up to {self.length:,} tokens, the answer's perplexity; 95% intervals over texts",
            ["masked", "perplexity", "nats per token", "first needle seen", "second"],
            rows,
        )
        claims = needle_claims(summary)
        series = {
            "perplexity": [point(row["masked"], Estimate(**row["perplexity"])) for row in summary["rows"]]
        }
        plot = Plot("Perplexity of the answer", "masked left tokens", "perplexity", series, logarithmic="y")
        return Outcome([table], claims, {"rows": summary["rows"]}, self.runs(folder), [plot])


def needle_claims(summary: dict[str, Any]) -> list[Claim]:
    """The claims of the figure; decided only for a model that, with both needles in view, answers better than a guess."""
    first, second = needle_costs(summary)
    difference = _difference(first, second, summary)
    losses = needle_losses(summary)
    seen = float(losses[:, 0].mean()) if len(losses) else float("inf")
    answers = seen < np.log(ANSWERS)
    unanswered = undecided(
        f"the model does not answer: a perplexity of {np.exp(seen):,.0f} with both in view"
    )
    return [
        Claim.of(
            "the answer's perplexity rises when the first needle is masked",
            above(first) if answers else unanswered,
            f"{first:+.3f} nats per answer token",
        ),
        Claim.of(
            "and far less when the second one is masked as well",
            above(difference) if answers else unanswered,
            f"then {second:+.3f}; first minus second {difference:+.3f}",
        ),
    ]


def needle_losses(summary: dict[str, Any]) -> np.ndarray:
    """(texts, 3) mean nats per answer token with both needles whole in view, with the second alone, and with none.

    Texts that lack one of the three are left out.
    """
    masked = [row["masked"] for row in summary["rows"]]
    losses = []
    for example in summary["examples"]:
        nats = np.array(example["nats"]) / example["answer_tokens"]
        left = example["text_tokens"] - np.array(masked)
        far, near = (np.array(needle[1]) <= left for needle in example["needles"])
        states = [far & near, near & ~far, ~near]
        if all(state.any() for state in states):
            losses.append([nats[state].mean() for state in states])
    return np.array(losses).reshape(-1, 3)


def needle_costs(summary: dict[str, Any]) -> tuple[Estimate, Estimate]:
    """Cost of losing the first needle, and of losing the second as well; nats per answer token, intervals over texts."""
    losses = needle_losses(summary)
    if not len(losses):
        return Estimate(float("nan")), Estimate(float("nan"))
    return mean_estimate(losses[:, 1] - losses[:, 0]), mean_estimate(losses[:, 2] - losses[:, 1])


def _difference(first: Estimate, second: Estimate, summary: dict[str, Any]) -> Estimate:
    """The first cost minus the second, paired by text."""
    losses = needle_losses(summary)
    if not len(losses):
        return Estimate(first.value - second.value)
    return mean_estimate(2 * losses[:, 1] - losses[:, 0] - losses[:, 2])
