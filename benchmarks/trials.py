"""Trials with real training: false decisions without a difference, the power that a plan promises, and what pairing gives.

``python -m benchmarks.trials calibration --corpus corpora/stdlib --out runs/trials`` trains pairs of runs that differ in their
initial values only, so that their true difference is zero, and looks at the interval after each seed: 200 trials of 8 seeds.
``power`` plants a handicap (a lower learning rate), measures it with 30 seeds, and counts in how many of 50 other trials it is
found within the seeds that a plan promises. ``pairing`` compares the spread of the differences between GPT-2 and ContextLM with
seeds paired in nothing, in the order of the windows, and in the initial values too. ``ledger`` tries sets of 40 changes, of
which 10 gain something, each set with other seeds. ``decisions`` draws 300 decisions without a difference, of the runs of
100 seeds (pairs that differ in their initial values), each through files that ``contextwise decide`` reads. Finished runs are
not trained again.

Claims: at most 5% false decisions at 95% confidence; the handicap is found in at least 80% of the trials; at most 10% of the
changes that a ledger keeps gain nothing, on average over sets, and at least 7 of the 10 gains are kept.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

import contextwise
from benchmarks.harness import publish
from contextwise.base.progress import console
from contextwise.comparison.sequential import decide, deviation_limits, discoveries, looks, seeds_to_decide
from contextwise.data import Corpus
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.loss import Loss
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise.experiments.trial.arms import total_nats
from contextwise.experiments.trial.settings import BUILT_IN
from contextwise.stats import LossWriter

LEDGER, LOWER = "ledger", "lower after one seed"
PAIRED, OTHER_START = "training.paired_initialization=true", "training.paired_initialization=false"


class Pool:
    """Losses of runs on the held-out documents, trained as they are asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.held_out = Corpus.open(options.corpus, split="validation")
        training = {"tokens": options.tokens, "tokens_per_step": options.tokens_per_step, "warmup_steps": 0.05}
        model = {"size": options.size}
        self.recipe = {"data": {"context": options.context, "verify": False}, "model": model, "training": training}
        self.tokens = np.zeros(0)

    def differences(self, arm: list[str], reference: list[str], seeds: Iterable[int]) -> np.ndarray:
        """(S, N) arm minus reference: nats of each document, by seed."""
        return np.stack([self.nats(arm, seed) - self.nats(reference, seed) for seed in seeds])

    def nats(self, settings: list[str], seed: int) -> np.ndarray:
        """(N,) nats of each document under the run of a seed."""
        name = "-".join(part.split(".")[-1] for part in settings) or "plain"
        arms = {name: {"settings": ["training.evaluation_tokens=0", *settings]}}
        runs = RunSet.of(
            RunSetSettings.model_validate({"recipe": self.recipe, "arms": arms, "seeds": [seed]}),
            self.options.out,
            corpus=self.options.corpus,
        )
        with _quiet():
            runs.train_missing()
            nats, self.tokens = total_nats(
                measure(runs.runs[0].folder, Loss(limit=self.options.documents), self.held_out)
            )
        return nats


@contextlib.contextmanager
def _quiet() -> Any:
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def calibration(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Trials without a difference: how many are decided as better or worse, and how many as equivalent."""
    first = []
    for trial in range(options.trials or 200):
        seeds = range(trial * options.seeds, (trial + 1) * options.seeds)
        path = looks(pool.differences([OTHER_START], [PAIRED], seeds), pool.tokens, options.confidence)
        made = [decide(look.fixed, options.margin) for look in path]
        first.append(next((each for each in made if each != "undecided"), "undecided"))
        wrong = sum(each in ("better", "worse") for each in first)
        print(f"{len(first)} trials: {wrong} decided falsely, {first.count('equivalent')} equivalent", flush=True)
    return {"trials": len(first), **{each: first.count(each) for each in dict.fromkeys(first)}}


def power(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """A planted handicap: its size from 30 seeds, the seeds that a plan promises, and in how many trials it is found."""
    handicap = [PAIRED, f"training.learning_rate={options.handicap!r}"]
    known = pool.differences(handicap, [PAIRED], range(1_000_000, 1_000_030)).sum(axis=1) / pool.tokens.sum()
    size, deviation = float(known.mean()), float(known.std(ddof=1))
    promised = seeds_to_decide(size, deviation_limits(deviation, 30, 0.6)[1], options.margin, options.confidence)
    print(f"handicap {size:+.4f} nats, standard deviation {deviation:.4f}: {promised} seeds promised", flush=True)
    found = 0
    trials = 0 if promised is None else options.trials or 50
    for trial in range(trials):
        assert promised is not None
        seeds = range(trial * promised, (trial + 1) * promised)
        path = looks(pool.differences(handicap, [PAIRED], seeds), pool.tokens, options.confidence)
        expected = "worse" if size > 0 else "better"
        found += expected in [decide(look.fixed, options.margin) for look in path]
        print(f"{trial + 1} trials: found in {found}", flush=True)
    return {"handicap": size, "deviation": deviation, "promised": promised, "trials": trials, "found": found}


def decisions(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Decisions from files without a difference: how many are made falsely, in each reading, by any look."""
    runs = np.stack([[pool.nats([PAIRED], seed), pool.nats([OTHER_START], seed)] for seed in range(100)])
    draw, false, trials = np.random.default_rng(0), {"fixed": 0, "random": 0}, options.trials or 300
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as folder:
            for number, seed in enumerate(draw.choice(len(runs), options.seeds, replace=False)):
                swapped = draw.permutation(2)
                for arm, nats in zip(("base", "same"), runs[seed][swapped], strict=True):
                    with LossWriter(Path(folder, f"{arm}-{number}.jsonl"), arm, number) as losses:
                        for name, (tokens, each) in enumerate(zip(pool.tokens, nats, strict=True)):
                            losses.add(str(name), tokens=tokens, nats=each)
            path = contextwise.decide([Path(folder)], "base", confidence=options.confidence).comparisons[0].looks
        for reading in ("fixed", "random"):
            false[reading] += any(look.of(reading).decided for look in path)
    print(
        f"{trials} decisions: an interval excluded zero in {false['fixed']} (these documents), {false['random']} (any)"
    )
    return {"pairs": len(runs), "trials": trials, "false": false}


def pairing(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Standard deviation of ContextLM minus GPT-2 by seed, and how it depends on what the seeds share."""
    seeds, context = range(options.trials or 20), BUILT_IN["contextlm"]

    def losses(settings: list[str]) -> np.ndarray:
        return np.array([pool.nats(settings, seed).sum() / pool.tokens.sum() for seed in seeds])

    gpt2, contextlm, other = losses([PAIRED]), losses([PAIRED, *context]), losses([OTHER_START, *context])
    spread = {
        "nothing": float((np.roll(contextlm, 1) - gpt2).std(ddof=1)),
        "order of the windows": float((other - gpt2).std(ddof=1)),
        "order and initial values": float((contextlm - gpt2).std(ddof=1)),
    }
    for what, value in spread.items():
        print(f"seeds share {what}: {value:.5f} nats")
    return {"seeds": len(seeds), "deviation": spread}


def ledger(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Sets of 40 changes, of which 10 gain something: what a ledger keeps of each, and what one seed's lower loss keeps.

    The share of false ones among those that are kept is controlled on average over sets, not in each.
    """
    sets = [_ledger_of(pool, options, number) for number in range(options.sets)]
    means = {way: float(np.mean([each[way]["false share"] for each in sets])) for way in (LEDGER, LOWER)}
    for way, share in means.items():
        print(f"{way}: mean false share {share:.3f} of {len(sets)} sets")
    return {"mean false share": means, "sets": sets}


def _ledger_of(pool: Pool, options: argparse.Namespace, number: int) -> dict[str, Any]:
    """One set of 40 changes, with seeds of its own."""
    better = [PAIRED, f"training.learning_rate={options.handicap!r}"]  # the reference of the ten is handicapped
    gains = np.arange(40) < 10
    evidence, first = [], []
    for change, gain in enumerate(gains):
        start = (number * len(gains) + change + 1) * 10_000
        arm, reference = ([PAIRED], better) if gain else ([OTHER_START], [PAIRED])
        differences, path = [], []
        for seed in range(start, start + options.seeds):  # a trial at 99% that stops at its decision
            differences.append(pool.differences(arm, reference, [seed])[0])
            path = looks(np.stack(differences), pool.tokens, 0.99)
            if decide(path[-1].fixed, options.margin) != "undecided":
                break
        evidence.append(path[-1].evidence if path[-1].fixed.value < 0 else 0.0)
        first.append(path[0].fixed.value < 0)
        print(f"set {number}, {change + 1} changes: evidence {evidence[-1]:.3g} after {len(path)} seeds", flush=True)
    result: dict[str, Any] = {"set": number, "evidence": evidence}
    for way, chosen in ((LEDGER, np.array(discoveries(evidence))), (LOWER, np.array(first))):
        false = float((chosen & ~gains).sum() / max(1, chosen.sum()))
        result[way] = {"kept": int(chosen.sum()), "gains kept": int((chosen & gains).sum()), "false share": false}
        print(f"set {number}, {way}: {result[way]}", flush=True)
    return result


PARTS = {"calibration": calibration, "power": power, "decisions": decisions, "pairing": pairing, "ledger": ledger}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--size", default="pico")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--tokens-per-step", type=int, default=512)
    parser.add_argument("--documents", type=int, default=12, help="held-out documents that are scored")
    parser.add_argument("--trials", type=int, default=None, help="of pairing: seeds")
    parser.add_argument("--seeds", type=int, default=8, help="of a trial of calibration, or of a decision")
    parser.add_argument("--sets", type=int, default=1, help="of ledger: sets of 40 changes")
    parser.add_argument("--margin", type=float, default=0.001)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--handicap", type=float, default=1.4e-3, help="learning rate of the handicapped arm")
    options = parser.parse_args(arguments)
    if options.sets < 1:
        parser.error(f"--sets is {options.sets}, but must be 1 or more")
    logging.disable_progress_bar()
    result = PARTS[options.part](Pool(options), options)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    settings |= {"corpus": options.corpus.name, "out": options.out.name}
    print(publish(f"trials-{options.part}", {"settings": settings, **result}))


if __name__ == "__main__":
    main()
