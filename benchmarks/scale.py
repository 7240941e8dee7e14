"""The arms of ``benchmarks/scale.yaml`` with one seed, in ten minutes of one GPU; and what several seeds say together.

``python -m benchmarks.scale train --corpus FOLDER --seed 0 --out FOLDER`` trains the arms one after the other, or with
``--together 4`` so many at the same time, and writes the held-out loss along training into ``scale-seed0-gpu.json``, every few
seconds. A GPU that is lent for ten minutes can take a seed at a time, as no run has to come back. Arms that are trained
together compile at the same time and share the GPU, so their seconds say nothing. ``python -m benchmarks.scale answer FILE
...`` prints the differences from the first arm, and the effective speed-up: how many times the cost the reference needs for
the same loss, along both runs' losses until the decay of the rates begins. ``--small`` takes few tokens and a small model, to
try both on a CPU.
"""

import argparse
import json
import math
import tempfile
from concurrent.futures import ProcessPoolExecutor, wait
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, publish
from contextwise.base.config import with_overrides
from contextwise.base.intervals import mean_estimate
from contextwise.base.runs import RunFolder
from contextwise.experiments.trial.settings import TrialSettings, load_trial
from contextwise.training import Recipe, train

TRIAL = Path(__file__).with_name("scale.yaml")
SMALL = {
    "recipe.data.context": 64,
    "recipe.model": {"family": "gpt2", "layers": 2, "width": 32, "heads": 2, "tie_embeddings": False},
    "recipe.training.tokens_per_step": 512,
    "recipe.training.micro_batch_tokens": 512,
    "recipe.training.precision": "fp32",
    "recipe.training.compile": False,
    "recipe.training.workers": 0,
    "recipe.training.evaluate_every": 5,
    "recipe.training.evaluation_tokens": 1024,
    "tokens": 20_000,
}
COSTS = ("tokens", "flops", "seconds")
BETWEEN = 5
"""Seconds between two publications of the losses so far."""


def recipe_of(trial: TrialSettings, arm: str, seed: int, out: Path) -> Recipe:
    """The run of an arm with a seed."""
    values: dict[str, Any] = {**trial.recipe, "name": arm, "seed": seed, "output": str(out / arm)}
    values = with_overrides(values, {"data.corpus": trial.corpus, "training.tokens": trial.tokens[0]})
    return Recipe.model_validate(with_overrides(values, trial.arms[arm].settings))


def losses_of(run: RunFolder) -> list[dict[str, float]]:
    """The held-out losses of a run along training, with what had been spent."""
    return [{name: row[name] for name in ("step", *COSTS, "loss")} for row in run.metrics("validation")]


def train_arms(trial: TrialSettings, seed: int, out: Path, together: int = 1) -> None:
    """Train the arms of a trial with a seed, so many at the same time, and publish their losses as they come."""
    result: dict[str, Any] = {
        "seed": seed,
        "together": together,
        "trial": trial.model_dump(mode="json", include={"arms", "recipe", "tokens"}),
    }
    runs = dict[str, dict[str, Any]]()
    processes = ProcessPoolExecutor(together, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as folder, processes:
        recipes = {arm: recipe_of(trial, arm, seed, Path(folder)) for arm in trial.arms}
        training = {arm: processes.submit(train, each) for arm, each in recipes.items()}
        unfinished = set(training.values())
        while unfinished:
            unfinished = wait(unfinished, timeout=BETWEEN).not_done
            for arm, recipe in recipes.items():
                run = RunFolder(recipe.output)
                if losses := losses_of(run):
                    decay_begins = recipe.total_steps - recipe.training.decay(recipe.total_steps)
                    runs[arm] = {"decay_begins": decay_begins, "losses": losses}
                if training[arm].done() and training[arm].exception() is None:
                    runs[arm]["summary"] = run.summary()
            result["runs"] = {arm: runs[arm] for arm in trial.arms if arm in runs}
            publish(f"scale-seed{seed}", result, folder=out)
        for arm, done in training.items():
            done.result()
            last = runs[arm]["losses"][-1]
            print(f"seed {seed}, {arm}: loss {last['loss']:.4f} after {last['seconds']:,.0f} s", flush=True)


def speedup(arm: dict[str, Any], reference: dict[str, Any], cost: str) -> float | None:
    """The cost of the reference over that of the arm for the same loss, before the rates decay; None if neither reaches it.

    The loss is the higher of those that the two have when the decay begins: both reach it. It is interpolated in the logarithm
    of the cost.
    """
    stable = [[row for row in run["losses"] if row["step"] <= run["decay_begins"]] for run in (arm, reference)]
    if not all(stable):
        return None
    loss = max(rows[-1]["loss"] for rows in stable)
    needed = []
    for rows in stable:
        for before, after in pairwise(rows):
            if after["loss"] <= loss < before["loss"]:
                share = (before["loss"] - loss) / (before["loss"] - after["loss"])
                needed.append(math.log(before[cost]) + share * math.log(after[cost] / before[cost]))
                break
        else:
            return None
    return math.exp(needed[1] - needed[0])


def answer(results: list[dict[str, Any]]) -> list[str]:
    """Lines about each arm against the first, over seeds, with intervals of Student's t."""
    lines = []
    reference, *arms = results[0]["runs"]
    for arm in (each for each in arms if all(each in result["runs"] for result in results)):
        pairs = [(result["runs"][arm], result["runs"][reference]) for result in results]
        ends = np.array([a["losses"][-1]["loss"] - b["losses"][-1]["loss"] for a, b in pairs])
        shown = f"{mean_estimate(ends):+.4f}" if len(ends) > 1 else f"{ends[0]:+.4f}, one seed"
        worth = []
        for cost in COSTS if all(result.get("together", 1) == 1 for result in results) else COSTS[:2]:
            values = [value for a, b in pairs if (value := speedup(a, b, cost)) is not None]
            worth.append(f"{cost} {', '.join(f'{value:.3f}' for value in values) or '–'}")
        lines.append(
            f"{arm} − {reference}: {shown} nats per token at the end; effective speed-up in {'; '.join(worth)}"
        )
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["train", "answer"])
    parser.add_argument(
        "files", nargs="*", type=Path, help="of `answer`: what `train` has written, a file for each seed"
    )
    parser.add_argument("--corpus", help="of `train`: a prepared corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=1, help="arms that are trained at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--small", action="store_true", help="few tokens and a small model, to try it on a CPU")
    options = parser.parse_args(arguments)
    if options.step == "answer":
        if not options.files:
            parser.error("name the files that `train` has written")
        print("\n".join(answer([json.loads(path.read_text()) for path in options.files])))
        return
    values: dict[str, Any] = {} if options.corpus is None else {"corpus": options.corpus}
    overrides = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()] if options.small else []
    train_arms(load_trial(TRIAL, values, [*overrides, *options.overrides]), options.seed, options.out, options.together)


if __name__ == "__main__":
    main()
