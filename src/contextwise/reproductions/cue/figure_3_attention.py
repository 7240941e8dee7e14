"""The attention that each context receives, over training (CUE, Section 6.2, Figure 3).

In a set of K contexts an even share is 1/K. A type's *relative* weight is the mean, over the held-out sentences that have such
a context, of the attention that it receives times K: 1 for an even share, whatever other contexts the sentences have.

Legend of shapes: N sentences, K contexts of a set.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file
from scipy import stats
from torch import nn

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise.base.files import read_json
from contextwise.base.intervals import estimate
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.data.contexts import PREVIOUS
from contextwise.evaluation.kernel import Subject
from contextwise.reproductions.claims import Claim, above, all_hold, significant, undecided
from contextwise.reproductions.cue.one_run import HeldOut, OneRun, given_contexts, sentences_of, some
from contextwise.reproductions.item import Item, Outcome, Plot, registered
from contextwise.training.checkpoints import WEIGHTS, list_checkpoints, step_of

_AT_ONCE = 1024
_PREFIX = "model.context_encoder."
"""Of the context encoder's weights in a checkpoint."""


@registered("attention_over_training")
class AttentionOverTraining(OneRun):
    """The weights of every checkpoint that the run has kept."""

    sentences: int = Field(1000, ge=2, description="held-out sentences, drawn at random")
    gains: str | None = Field(
        None,
        description="the item beside this one that has each context's gain in perplexity alone, if it has been run",
    )
    without: str = Field("no context", description="the row of that item that the gains are to")

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        run = runs.folders(self.run)[0]
        corpus = self.held_out()
        subject = Subject(run.path, dtype="float32")
        subject.check_corpus(corpus)
        sentences = sentences_of(corpus, subject)
        held_out = given_contexts(subject, sentences, some(np.arange(len(sentences)), self.sentences))
        seen = Seen.of(*attention_at(run, subject.model.context_encoder, held_out), held_out)
        gains = self._gains(folder)
        claims = [
            *([most_weight(seen.last, seen.present, held_out)] if PREVIOUS in seen.final else []),
            same_order({name: weight.value for name, weight in seen.final.items()}, gains, self.gains),
        ]
        figures = {
            "steps": seen.steps,
            "relative": seen.relative,
            "final": {name: weight.to_dict() for name, weight in seen.final.items()},
            "gains": gains,
        }
        title = f"Attention to each context, 1 for an even share: {len(seen.present):,} sentences of the split {self.split}"
        return Outcome([weights_table(title, seen, gains)], claims, figures, runs.paths, [drawn(seen)])

    def _gains(self, folder: Path) -> dict[str, float]:
        """How much perplexity each context alone takes away, as a share; empty where the item has not been run here."""
        file = folder / f"{self.gains}.json"
        if self.gains is None or not file.exists():
            return {}
        perplexities = read_json(file, f"the outcome of {self.gains}")["figures"]["perplexities"]
        if self.without not in perplexities:
            raise DataError(
                f"{file} has no row {self.without!r} to take gains from; it has {', '.join(perplexities)}"
            )
        base = perplexities[self.without]["value"]
        return {
            name.replace(" ", "_"): 1 - perplexity["value"] / base
            for name, perplexity in perplexities.items()
        }


@dataclass(frozen=True)
class Seen:
    """Attention by context and step.

    Attributes:
        relative: for each context that any sentence has, its relative weight at each step.
        final: the same at the last step, with intervals over articles.
        present: (N, K) bool, which contexts each sentence has.
        last: (N, K) the weights at the last step.
        shares: the part of the sentences that has each context.
    """

    steps: list[int]
    relative: dict[str, list[float]]
    final: dict[str, Estimate]
    shares: dict[str, float]
    present: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, weights: dict[int, np.ndarray], present_NK: np.ndarray, held_out: HeldOut) -> "Seen":
        steps = sorted(weights)
        by_step = np.stack([relative_weights(weights[step], present_NK) for step in steps])
        last = weights[steps[-1]]
        even_NK = last * present_NK.sum(1, keepdims=True)
        known = {name: k for k, name in enumerate(held_out.types) if present_NK[:, k].any()}
        return cls(
            steps,
            {name: by_step[:, k].tolist() for name, k in known.items()},
            {
                name: _over_articles(even_NK[:, k], present_NK[:, k], held_out.articles)
                for name, k in known.items()
            },
            {name: float(present_NK[:, k].mean()) for name, k in known.items()},
            present_NK,
            last,
        )


def weights_table(title: str, seen: Seen, gains: dict[str, float]) -> Table:
    """First and last weights, the largest first, and the gain of each context alone where it is known."""
    columns = ["context", "sentences", f"step {seen.steps[0]:,}", f"step {seen.steps[-1]:,}", "gain alone"]
    rows = [
        [
            name,
            f"{seen.shares[name]:.0%}",
            f"{seen.relative[name][0]:.3f}",
            f"{weight:.3f}",
            f"{gains[name]:+.1%}" if name in gains else "",
        ]
        for name, weight in sorted(seen.final.items(), key=lambda pair: -pair[1].value)
    ]
    return Table(title, columns, rows)


def drawn(seen: Seen) -> Plot:
    """The figure's numbers: a line a context, in the order in which the lines end."""
    series = {
        name: [{"x": step, "y": y} for step, y in zip(seen.steps, seen.relative[name], strict=True)]
        for name in sorted(seen.final, key=lambda name: -seen.final[name].value)
    }
    label = "attention, relative to an even share"
    return Plot("Attention over training", "step", label, series, levels={"even share": 1.0})


def attention_at(
    run: RunFolder, encoder: nn.Module, held_out: HeldOut
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """The attention that each context of each sentence receives, (N, K), by step; and which contexts there are, (N, K).

    Args:
        encoder: the run's context encoder as it was exported; its weights are those of the last step afterwards.

    Raises:
        DataError: the run has kept one checkpoint at most, so that there is no change to be seen.
    """
    exported = {name: value.clone() for name, value in encoder.state_dict().items()}
    states = {step_of(path): path for path in list_checkpoints(run.checkpoints)}
    last = int(run.summary()["steps"])
    weights: dict[int, np.ndarray] = {}
    for step in sorted({*states, last}):
        if step in states:
            saved = load_file(states[step] / WEIGHTS)
            encoder.load_state_dict(
                {name.removeprefix(_PREFIX): w for name, w in saved.items() if name.startswith(_PREFIX)}
            )
        else:
            encoder.load_state_dict(exported)
        weights[step], present_NK = _attention(encoder, held_out)
    if len(weights) < 2:
        raise DataError(
            f"{run.path} has kept the checkpoint of step {last:,} only, so no change is to be seen; give the run more with "
            "training.save_every and training.keep_checkpoints, and remove that folder"
        )
    return weights, present_NK


def _attention(encoder: Any, held_out: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    weights, masks = [], []
    for start in range(0, len(held_out.texts), _AT_ONCE):
        batch = held_out.vectors.batch(np.arange(start, min(start + _AT_ONCE, len(held_out.texts))))
        weights.append(encoder.attention(batch["contexts"], batch["context_mask"]).double().cpu())
        masks.append(batch["context_mask"].cpu())
    return torch.cat(weights).numpy(), torch.cat(masks).numpy()


def relative_weights(weights_NK: np.ndarray, present_NK: np.ndarray) -> np.ndarray:
    """(K,): each context's weight relative to an even share, over the sentences that have it; NaN where none has."""
    shares_NK = weights_NK * present_NK.sum(1, keepdims=True)
    counts_K = present_NK.sum(0)
    return np.where(counts_K > 0, (shares_NK * present_NK).sum(0) / np.maximum(counts_K, 1), np.nan)


def _over_articles(values_N: np.ndarray, kept_N: np.ndarray, articles_N: np.ndarray) -> Estimate:
    """The mean of the kept sentences, with its interval over articles."""
    sums_A = np.bincount(articles_N, weights=values_N * kept_N)
    return estimate([sums_A[None]], np.bincount(articles_N, weights=kept_N))


def most_weight(weights_NK: np.ndarray, present_NK: np.ndarray, held_out: HeldOut) -> Claim:
    """Whether the previous sentence receives more attention than each other context of the same sets."""
    own = held_out.types.index(PREVIOUS)
    differences = {}
    for k, name in enumerate(held_out.types):
        both_N = present_NK[:, own] & present_NK[:, k]
        if k != own and both_N.any():
            differences[name] = _over_articles(
                weights_NK[:, own] - weights_NK[:, k], both_N, held_out.articles
            )
    text = "at the end the previous sentence receives the most weight"
    if not differences:
        return Claim.of(text, undecided("no sentence has another context beside it"))
    nearest = min(differences, key=lambda name: differences[name].value)
    rival = f"weight minus that of {nearest}, its strongest rival, {differences[nearest]:+.3f}"
    verdict = all_hold(above(difference) for difference in differences.values())
    return Claim.of(text, verdict, f"in sets that have both: {rival}")


def same_order(weights: dict[str, float], gains: dict[str, float], item: str | None) -> Claim:
    """Whether attention and perplexity gain are rank-correlated over contexts (Spearman)."""
    text = "the order by attention agrees with the order by perplexity gain"
    shared = [name for name in weights if name in gains]
    if len(shared) < 3:
        why = "no item has the gains" if item is None else f"{item} has not been run at this scale and folder"
        return Claim.of(text, undecided(why if not gains else f"only {len(shared)} contexts are in both"))
    ranked = [[values[name] for name in shared] for values in (weights, gains)]
    if any(len(set(values)) == 1 for values in ranked):
        return Claim.of(text, undecided("all weights or all gains are the same"))
    test = stats.spearmanr(*ranked, alternative="greater")
    correlation = f"Spearman's correlation over {len(shared)} contexts {test.statistic:+.2f}"
    verdict = significant(test.statistic, test.pvalue)
    return Claim.of(text, verdict, f"{correlation}, one-sided p {test.pvalue:.3f}")
