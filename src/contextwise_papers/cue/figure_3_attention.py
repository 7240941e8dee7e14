"""The attention that each context receives, over training (CUE, Section 6.2, Figure 3).

In a set of K contexts an even share is 1/K. A type's *relative* weight is the mean, over the held-out sentences that have such
a context, of the attention that it receives times K: 1 for an even share, whatever other contexts the sentences have. In
shapes S are seeds, T steps, N sentences.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file
from scipy import stats
from torch import nn

from contextwise.base.files import read_json
from contextwise.base.runs import RunFolder
from contextwise.report import written
from contextwise.settings import DataError
from contextwise.stats import Estimate, estimate
from contextwise.training.checkpoints import WEIGHTS, list_checkpoints, step_of
from contextwise_papers.claims import Claim, above, all_agree, all_hold, significant, undecided
from contextwise_papers.cue.runs import HeldOut, OneRun, given_contexts, sentences_of, some
from contextwise_papers.cue.settings import PREVIOUS
from contextwise_papers.item import Item, Outcome
from contextwise_papers.tables import Plot, points, seeds_behind, table_of

_AT_ONCE = 1024
ORDERS = 50_000
"""Of contexts, to which that of the attention is compared: all orders of up to eight contexts, random ones of more."""
_PREFIX = "model.context_encoder."
"""Of the context encoder's weights in a checkpoint."""


class AttentionOverTraining(OneRun, name="attention_over_training"):
    """The weights of every checkpoint that the run has kept."""

    sentences: int = Field(default=1000, ge=2, description="held-out sentences, drawn at random")
    gains: str | None = Field(default=None, description="the item that has each context's gain alone, where it was run")
    without: str = Field(default="no context", description="the row of that item that the gains are to")

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        of_seeds = []
        for run in runs.folders(self.run):
            subject, sentences = sentences_of(self.held_out(), run.path)
            held_out = given_contexts(subject, sentences, some(np.arange(len(sentences)), self.sentences))
            weights, present_NK = attention_at(run, subject.model.context_encoder, held_out)
            of_seeds.append(weights)
        steps = sorted(set.intersection(*map(set, of_seeds)))
        last_SNK = np.stack([weights[steps[-1]] for weights in of_seeds])
        even_SNK = last_SNK * present_NK.sum(1, keepdims=True)
        by_step_STK = np.array(
            [[relative_weights(weights[step], present_NK) for step in steps] for weights in of_seeds]
        )
        by_step = by_step_STK.mean(axis=0)
        known = {name: k for k, name in enumerate(held_out.types) if present_NK[:, k].any()}
        articles = held_out.articles
        final = {name: _over_articles(even_SNK[:, :, k], present_NK[:, k], articles) for name, k in known.items()}
        order = sorted(final, key=lambda name: -final[name].value)
        relative = {name: by_step[:, known[name]].tolist() for name in order}
        gains = self._gains(folder)
        table = table_of(
            f"Attention to each context, 1 for an even share: {len(present_NK):,} sentences of the split {self.split}; "
            f"{seeds_behind(len(self.seeds))}",
            ["context", ("sentences", ".0%"), (f"step {steps[0]:,}", ".3f"), (f"step {steps[-1]:,}", ".3f"),
             ("gain alone", "+.1%")],
            [[name, present_NK[:, known[name]].mean(), relative[name][0], final[name], gains.get(name)] for name in order],
        )  # fmt: skip
        claims = [
            *([most_weight(last_SNK, present_NK, held_out)] if PREVIOUS in final else []),
            same_order(
                [{name: at_last[k] for name, k in known.items()} for at_last in by_step_STK[:, -1]], gains, self.gains
            ),
        ]
        claims = [claim.over_seeds(len(self.seeds)) for claim in claims]
        series = {name: points(dict(zip(steps, relative[name], strict=True))) for name in order}
        label = "attention, relative to an even share"
        plot = Plot("Attention over training", "step", label, series, levels={"even share": 1.0})
        figures = {"steps": steps, "relative": relative, "final": final, "gains": gains}
        return Outcome([table], claims, figures, runs.paths, [plot])

    def _gains(self, folder: Path) -> dict[str, float]:
        """How much perplexity each context alone takes away, as a share; empty where the item has not been run here."""
        file = folder / f"{self.gains}.json"
        if self.gains is None or not file.exists():
            return {}
        perplexities = read_json(file, f"the outcome of {self.gains}")["figures"].get("perplexities", {})
        if self.without not in perplexities:
            raise DataError(f"{file} has no row {self.without!r} to take gains from; it has {', '.join(perplexities)}")
        base = perplexities[self.without]["value"]
        return {name.replace(" ", "_"): 1 - row["value"] / base for name, row in perplexities.items()}


def attention_at(run: RunFolder, encoder: nn.Module, held_out: HeldOut) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """The attention that each context of each sentence receives, (N, K), by step; and which contexts there are, (N, K).

    The encoder is the run's as it was exported; its weights are those of the last step afterwards.
    """
    exported = {name: value.clone() for name, value in encoder.state_dict().items()}
    states = {step_of(path): path for path in list_checkpoints(run.checkpoints)}
    last = int(run.summary()["steps"])
    weights: dict[int, np.ndarray] = {}
    for step in sorted({*states, last}):
        saved = load_file(states[step] / WEIGHTS) if step in states else {}
        own = {name.removeprefix(_PREFIX): w for name, w in saved.items() if name.startswith(_PREFIX)}
        encoder.load_state_dict(own if step in states else exported)
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
        batch = held_out.batch(np.arange(start, min(start + _AT_ONCE, len(held_out.texts))))
        weights.append(encoder.attention(batch["contexts"], batch["context_mask"]).double().cpu())
        masks.append(batch["context_mask"].cpu())
    return torch.cat(weights).numpy(), torch.cat(masks).numpy()


def relative_weights(weights_NK: np.ndarray, present_NK: np.ndarray) -> np.ndarray:
    """(K,): each context's weight relative to an even share, over the sentences that have it; NaN where none has."""
    shares_NK = weights_NK * present_NK.sum(1, keepdims=True)
    counts_K = present_NK.sum(0)
    return np.where(counts_K > 0, (shares_NK * present_NK).sum(0) / np.maximum(counts_K, 1), np.nan)


def _over_articles(values_SN: np.ndarray, kept_N: np.ndarray, articles_N: np.ndarray) -> Estimate:
    """The mean of the kept sentences, with its interval over articles and seeds."""
    sums_SA = np.stack([np.bincount(articles_N, weights=values_N * kept_N) for values_N in values_SN])
    return estimate([sums_SA], np.bincount(articles_N, weights=kept_N))


def most_weight(weights_SNK: np.ndarray, present_NK: np.ndarray, held_out: HeldOut) -> Claim:
    """Whether the previous sentence receives more attention than each other context of the same sets."""
    own = held_out.types.index(PREVIOUS)
    differences = {}
    for k, name in enumerate(held_out.types):
        both_N = present_NK[:, own] & present_NK[:, k]
        if k != own and both_N.any():
            more_SN = weights_SNK[:, :, own] - weights_SNK[:, :, k]
            differences[name] = _over_articles(more_SN, both_N, held_out.articles)
    text = "at the end the previous sentence receives the most weight"
    if not differences:
        return Claim.of(text, undecided("no sentence has another context beside it"))
    nearest = min(differences, key=lambda name: differences[name].value)
    rival = f"weight minus that of {nearest}, its strongest rival, {differences[nearest]:+.3f}"
    verdict = all_hold(above(difference) for difference in differences.values())
    return Claim.of(text, verdict, f"in sets that have both: {rival}")


def same_order(weights: Sequence[dict[str, float]], gains: dict[str, float], item: str | None) -> Claim:
    """Whether attention (of each seed's run) and perplexity gain are rank-correlated over contexts (Spearman).

    The p-value is that of a permutation test (:data:`ORDERS`).
    """
    text = "the order by attention agrees with the order by perplexity gain"
    shared = [name for name in weights[0] if name in gains]
    if len(shared) < 3:
        why = "no item has the gains" if item is None else f"{item} has not been run at this scale and folder"
        return Claim.of(text, undecided(why if not gains else f"only {len(shared)} contexts are in both"))
    *weights_S, gain = ([values[name] for name in shared] for values in (*weights, gains))
    if any(len(set(values)) == 1 for values in (*weights_S, gain)):
        return Claim.of(text, undecided("all weights or all gains are the same"))
    ranks = stats.zscore(stats.rankdata(gain)) / len(shared)

    def correlation(weights: np.ndarray, axis: int) -> np.ndarray:
        return (stats.zscore(stats.rankdata(weights, axis=axis), axis=axis) * ranks).sum(axis)

    how: dict[str, Any] = {"permutation_type": "pairings", "vectorized": True, "n_resamples": ORDERS, "rng": 0}

    def p_value(weight: list[float], side: str) -> float:
        return float(stats.permutation_test((weight,), correlation, alternative=side, **how).pvalue)

    found = [float(correlation(np.array(weight), 0)) for weight in weights_S]
    p_values = [p_value(weight, "greater") for weight in weights_S]
    correlations = ", ".join(
        f"{written(value, '+.2f')} (one-sided p {p:.3f})" for value, p in zip(found, p_values, strict=True)
    )
    # The other side of a test of few orders is not 1 - p.
    both = [
        p if value >= 0 else 1 - p_value(weight, "less")
        for value, p, weight in zip(found, p_values, weights_S, strict=True)
    ]
    verdict = all_agree((significant(value, p) for value, p in zip(found, both, strict=True)), "seeds")
    return Claim.of(text, verdict, f"Spearman's correlation over {len(shared)} contexts: {correlations}")
