"""Coverage and power of the sequential intervals of trials, which are looked at after every seed.

``python -m benchmarks.sequential`` draws 10,000 sequences of paired differences for each of several distributions and looks
after each of 30 seeds; a t interval looked at as often is shown beside. With documents: 2,000 trials of up to 12 seeds for each
ratio of the spread over documents to that over seeds, and each number of documents. ``--only ledger`` simulates the sets of
``python -m benchmarks.trials ledger``: 30 changes that gain nothing and 10 that gain 32 standard deviations.

Claims: at most 5% of the sequences without a difference are decided as better or worse with normal differences; seconds on
one core.
"""

import argparse
from typing import Any, get_args

import numpy as np
from scipy import stats

from benchmarks.harness import publish
from contextwise.base.estimates import Estimate
from contextwise.comparison.sequential import (
    Decision,
    decide,
    discoveries,
    evidence,
    looks,
    seeds_to_decide,
    sequence_limits,
)

Draw = dict[str, Any]
DISTRIBUTIONS: Draw = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "Student, 5 degrees": lambda draw, shape: draw.standard_t(5, shape) / np.sqrt(5 / 3),
    "Student, 3 degrees": lambda draw, shape: draw.standard_t(3, shape) / np.sqrt(3),
    "uniform": lambda draw, shape: draw.uniform(-np.sqrt(3), np.sqrt(3), shape),
    "skewed (lognormal, 0.25)": lambda draw, shape: draw.lognormal(0, 0.25, shape) - np.exp(0.25**2 / 2),
    "skewed (lognormal, 0.5)": lambda draw, shape: draw.lognormal(0, 0.5, shape) - np.exp(0.5**2 / 2),
    "skewed (lognormal, 1)": lambda draw, shape: draw.lognormal(0, 1, shape) - np.exp(1 / 2),
    "skewed (exponential)": lambda draw, shape: draw.exponential(1.0, shape) - 1,
    "lognormal (1) minus lognormal (1)": lambda draw, shape: draw.lognormal(0, 1, shape) - draw.lognormal(0, 1, shape),
    "one seed in ten 5 times as far": lambda draw, shape: (
        draw.normal(size=shape) * np.where(draw.random(shape) < 0.1, 5, 1)
    ),
}


def false_decisions(sequences: int, seeds: int, confidence: float, seed: int) -> dict[str, dict[str, float]]:
    """Share of sequences around zero that were ever decided, by the sequence and by a t interval at every look."""
    result = {}
    n = np.arange(1, seeds + 1)
    for name, drawn in DISTRIBUTIONS.items():
        differences = drawn(np.random.default_rng(seed), (sequences, seeds))
        means, halves = sequence_limits(differences, confidence)
        deviation = np.stack([differences[:, :k].std(axis=1, ddof=1) for k in range(2, seeds + 1)], axis=1)
        plain = stats.t.ppf((1 + confidence) / 2, n[1:] - 1) * deviation / np.sqrt(n[1:])
        result[name] = {
            "sequence": float((np.abs(means) > halves).any(axis=1).mean()),
            "t interval at every look": float((np.abs(means[:, 1:]) > plain).any(axis=1).mean()),
        }
    return result


def with_documents(trials: int, seeds: int, confidence: float, seed: int) -> list[dict[str, Any]]:
    """Share of trials whose interval for any documents ever missed the truth, zero, after each number of seeds."""
    result = []
    for documents in (6, 20, 60, 200):
        for ratio in (0.0, 0.5, 1.0, 2.0, 5.0):  # error over documents, in those over ten seeds
            draw = np.random.default_rng([seed, documents, int(10 * ratio)])
            missed = np.zeros(seeds)
            for _ in range(trials):
                tokens = draw.lognormal(6, 0.7, documents).round()
                own = draw.normal(0, ratio * np.sqrt(documents / 10), documents)
                noise = draw.normal(size=(seeds, 1)) + 0.5 * draw.normal(size=(seeds, documents))
                path = looks((own + noise) * tokens, tokens, confidence)
                limits = np.array([look.random.limits for look in path])
                missed += np.maximum.accumulate((limits[:, 0] > 0) | (limits[:, 1] < 0))
            shares = {str(n): missed[n - 1] / trials for n in (4, 8, seeds) if n <= seeds}
            result.append({"documents": documents, "ratio": ratio, "missed": shares})
    return result


def power(confidence: float, margin: float, seed: int) -> list[dict[str, Any]]:
    """Seeds that are promised for a decision, and the share of 1,000 other trials that decided rightly within them."""
    result = []

    def decision(mean: float, half: float) -> str:
        return decide(Estimate(mean, mean - half, mean + half), margin)

    for effect in (0.0, 0.5, 1.0, 2.0, 4.0):  # of the margin
        for deviation in (0.4, 1.0, 2.0):
            promised = seeds_to_decide(effect * margin, deviation * margin, margin, confidence)
            row: dict[str, Any] = {"difference": effect, "deviation": deviation, "promised": promised}
            if promised is not None:
                draw = np.random.default_rng([seed, int(10 * effect), int(10 * deviation)])
                draws = draw.normal(effect * margin, deviation * margin, (1000, promised))
                means, halves = sequence_limits(draws, confidence)
                first = [
                    next((made for made in map(decision, *path) if made != "undecided"), "undecided")
                    for path in zip(means, halves, strict=True)
                ]
                row |= {made: first.count(made) / len(first) for made in get_args(Decision)}
            result.append(row)
    return result


def ledgers(sets: int, seeds: int, confidence: float, seed: int) -> dict[str, dict[str, float]]:
    """False shares of sets of 40 changes whose trials stop at their decision, and how many sets keep two false ones."""
    result = {}
    gains = np.arange(40) < 10
    for name, drawn in DISTRIBUTIONS.items():
        draw = np.random.default_rng(seed)
        false, shares, lower = np.zeros(sets), np.zeros(sets), np.zeros(sets)
        for number in range(sets):
            differences = drawn(draw, (40, seeds)) - np.where(gains, 32.0, 0.0)[:, None]
            means, halves = sequence_limits(differences, confidence)
            decided = np.abs(means) > halves
            stops = np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, seeds)
            values = []
            for change, stop in zip(differences, stops, strict=True):
                mean = float(change[:stop].mean())
                values.append(evidence(mean, float(change[:stop].std(ddof=1)), int(stop)) if mean < 0 else 0.0)
            kept, first = np.array(discoveries(values)), differences[:, 0] < 0
            false[number] = (kept & ~gains).sum()
            shares[number], lower[number] = ((each & ~gains).sum() / max(1, each.sum()) for each in (kept, first))
        result[name] = {
            "mean false share": float(shares.mean()),
            "sets with two false or more": float((false >= 2).mean()),
            "mean false share of lower after one seed": float(lower.mean()),
        }
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=2000, help="with documents")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["ledger"], help="sets of a ledger, as many as --trials")
    options = parser.parse_args(arguments)
    if options.only:
        sets = ledgers(options.trials, options.seeds, options.confidence, options.seed)
        for name, row in sets.items():
            print(f"{name:>34}: " + ", ".join(f"{what} {share:.2%}" for what, share in row.items()))
        publish("sequential-ledger", {"settings": vars(options), "false": sets})
        return
    common = (options.seeds, options.confidence, options.seed)
    decided = false_decisions(options.sequences, *common)
    for name, shares in decided.items():
        print(f"{name:>32}: " + ", ".join(f"{how} {share:.2%}" for how, share in shares.items()))
    documents = with_documents(options.trials, min(12, options.seeds), options.confidence, options.seed)
    for case in documents:
        by_seeds = ", ".join(f"{share:.2%} by {seeds} seeds" for seeds, share in case["missed"].items())
        print(f"{case['documents']:>3} documents, ratio {case['ratio']:g}: missed {by_seeds}")
    powers = power(options.confidence, 0.01, options.seed)
    for promise in powers:
        print(", ".join(f"{name} {value}" for name, value in promise.items()))
    result = {"settings": vars(options), "false": decided, "documents": documents, "power": powers}
    publish("sequential", result)


if __name__ == "__main__":
    main()
