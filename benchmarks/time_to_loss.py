"""Time to a held-out loss: ``contextwise train`` against nanoGPT's ``train.py``; same corpus, tokenizer, context and shape.

``python -m benchmarks.time_to_loss --corpus corpora/stdlib --nanogpt ../nanoGPT --out runs/time-to-loss``

1. *Speeds*, on a quiet machine: short and longer runs of both in alternation, as whole commands. Their difference is the time
   of a step; the rest is the time from start to exit without steps: imports, reading, validation, export.
2. *Losses*: nanoGPT trains for as many steps as ``--minutes`` allow, as its own ``train.py`` does on a CPU: float32, AdamW, a
   cosine that ends with the run; its learning rate is the best of ``--rates``, each tried at the whole length with the first
   seed. The held-out loss of each seed is that seed's goal. ``contextwise train RECIPE`` trains at several lengths, each a
   finished run, until they surround the goal; the tokens it needs are interpolated, linearly in their logarithm.
3. Time to the goal: tokens over speed, and the time without steps. What is quoted is the median over the rounds of step 1 of
   the ratio within a round (the geometric mean over seeds), with the smallest and the largest of a round.

Losses do not depend on the load of the machine, so these runs may share it. They are computed in float32 over the same held-out
windows. Finished commands are not run again.
"""

import argparse
import itertools
import json
import math
import os
import pickle
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import publish
from benchmarks.training_step import load_nanogpt
from contextwise.base.progress import say
from contextwise.base.recipes import recipe_path
from contextwise.data import Corpus
from contextwise.data.windows import Windows
from contextwise.models import load_model
from contextwise.models.losses import token_losses
from contextwise.training.recipe import load_recipe

NANOGPT = (  # its train.py with another seed: the seed is no setting of it
    "import runpy, sys, torch; seed = torch.manual_seed; "
    "torch.manual_seed = lambda s: seed(s + {seed}); sys.argv = ['train.py', *sys.argv[1:]]; "
    "runpy.run_path('train.py', run_name='__main__')"
)
SPEED_STEPS = (40, 160)
"""Steps of the short and the longer runs whose difference is the time of a step."""


def timed(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> float:
    """Run a command in ``folder``; the seconds from start to exit."""
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - start


class HeldOut:
    """The held-out windows of a corpus: up to ``tokens`` tokens, (windows, context + 1)."""

    def __init__(self, corpus: Path, context: int, tokens: int) -> None:
        windows = Windows(Corpus.open(corpus, "validation"), context)
        count = min(len(windows), tokens // context)
        rows = [windows[i] for i in range(count)]
        self.inputs = torch.stack([row["input_ids"] for row in rows])
        self.targets = torch.stack([row["labels"] for row in rows])

    @torch.no_grad()
    def loss(self, loss_of: Any) -> float:
        """Mean loss in nats per token; ``loss_of(inputs, targets)`` is the sum over a batch."""
        batches = zip(self.inputs.split(16), self.targets.split(16), strict=True)
        return sum(float(loss_of(x, y)) for x, y in batches) / self.targets.numel()

    def of_contextwise(self, run: Path) -> float:
        model = load_model(str(run)).eval()
        return self.loss(lambda x, y: token_losses(model, x, y).sum())

    def of_nanogpt(self, folder: Path, checkpoint: Path) -> float:
        theirs = load_nanogpt(folder)
        saved = torch.load(checkpoint, map_location="cpu")
        model = theirs.GPT(theirs.GPTConfig(**saved["model_args"])).eval()
        model.load_state_dict({name.removeprefix("_orig_mod."): w for name, w in saved["model"].items()})

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            logits, _ = model(x, y)  # given targets, it computes the logits of all positions
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")

        return self.loss(loss_of)


class Kept:
    """Results of finished commands, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, make: Any) -> Any:
        if name not in self.results:
            self.results[name] = make()
            self.path.write_text(json.dumps(self.results, indent=1))
            say(f"{name}: {self.results[name]}")
        return self.results[name]


class NanoGPT:
    """nanoGPT's ``train.py`` on the corpus."""

    def __init__(self, source: Path, out: Path, recipe: Any, held_out: HeldOut) -> None:
        self.folder, self.out, self.held_out = source.resolve(), out.resolve(), held_out
        shape = recipe.model.shape
        self.context: int = recipe.data.context
        self.data = self.folder / "data" / "contextwise"
        if not (self.data / "meta.pkl").exists():
            self.data.mkdir(parents=True, exist_ok=True)
            for split, name in (("train", "train"), ("validation", "val")):
                corpus = Corpus.open(recipe.data.corpus, split)
                end = np.array([corpus.end_of_text])
                texts = [np.concatenate([corpus.document(i), end]) for i in range(len(corpus))]
                np.concatenate(texts).astype(np.uint16).tofile(self.data / f"{name}.bin")
            (self.data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": corpus.vocab_size}))
        self.settings = {
            "dataset": "contextwise",
            "device": "cpu",
            "dtype": "float32",
            "compile": False,
            "block_size": self.context,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_embd": shape.width,
            "bias": True,
            "gradient_accumulation_steps": 1,
            "eval_iters": 1,
            "log_interval": 10,
        }

    def train(self, name: str, steps: int, rate: float, rows: int, seed: int) -> dict[str, float]:
        """Train with a cosine that ends at ``steps``; seconds of the command, and the held-out loss."""
        out = self.out / name
        settings = self.settings | {
            "out_dir": str(out),
            "batch_size": rows,
            "learning_rate": rate,
            "min_lr": rate / 10,
            "max_iters": steps,
            "lr_decay_iters": steps,
            "warmup_iters": max(20, steps // 25),
            "eval_interval": steps,
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        seconds = timed([sys.executable, "-c", NANOGPT.format(seed=seed), *options], self.folder)
        loss = self.held_out.of_nanogpt(self.folder, out / "ckpt.pt")
        tokens = steps * rows * self.context
        return {"seconds": seconds, "loss": loss, "tokens": tokens}


def contextwise(
    recipe: Path, out: Path, name: str, tokens: int, seed: int, held_out: HeldOut, **changes: Any
) -> dict[str, float]:
    """``contextwise train`` on ``tokens`` tokens; seconds of the command, and the held-out loss."""
    run = out.resolve() / name
    values = {"training.tokens": tokens, "training.evaluate_every": 0, "seed": seed, **changes}
    sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "contextwise", "train", str(recipe.resolve()), *sets, "--out", str(run)]
    seconds = timed(command, Path.cwd())
    summary = json.loads((run / "summary.json").read_text())
    return {
        "seconds": seconds,
        "loss": held_out.of_contextwise(run),
        "tokens": summary["tokens"],
        "training_seconds": summary["seconds"],
    }


def tokens_to(goal: float, runs: list[dict[str, float]]) -> float | None:
    """Tokens to the loss ``goal``, between finished runs; None if they do not surround it."""
    for shorter, longer in itertools.pairwise(sorted(runs, key=lambda run: run["tokens"])):
        if shorter["loss"] >= goal >= longer["loss"]:
            share = (shorter["loss"] - goal) / max(shorter["loss"] - longer["loss"], 1e-9)
            low, high = math.log(shorter["tokens"]), math.log(longer["tokens"])
            return math.exp(low + share * (high - low))
    return None


@dataclass(frozen=True)
class Speed:
    """Seconds of a whole command: ``start + tokens * per_token``."""

    start: float
    per_token: float

    @classmethod
    def of(cls, short: dict[str, float], long: dict[str, float]) -> "Speed":
        """From a short and a longer run of a round."""
        per_token = (long["seconds"] - short["seconds"]) / (long["tokens"] - short["tokens"])
        return cls(short["seconds"] - short["tokens"] * per_token, per_token)

    def seconds(self, tokens: float) -> float:
        return self.start + tokens * self.per_token


def median_speed(rounds: list[Speed]) -> tuple[float, float]:
    """Medians over rounds of the seconds without steps and of the tokens a second."""
    return statistics.median(one.start for one in rounds), statistics.median(1 / one.per_token for one in rounds)


def time_to_goal(ours: list[Speed], theirs: list[Speed], by_seed: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Our share of their time to the goal: the median over rounds of the geometric mean over seeds, and each round's.

    Args:
        ours, theirs: of each round.
        by_seed: ``tokens`` to the goal and ``nanogpt_tokens``.
    """
    rounds = [
        statistics.geometric_mean(
            our.seconds(each["tokens"]) / their.seconds(each["nanogpt_tokens"]) for each in by_seed.values()
        )
        for our, their in zip(ours, theirs, strict=True)
    ]
    return {"median": statistics.median(rounds), "low": min(rounds), "high": max(rounds), "rounds": rounds}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=recipe_path, default="gpt2-nano", help="a file or a name")
    parser.add_argument("--beside", type=recipe_path, nargs="*", default=[], help="further recipes")
    parser.add_argument("--corpus", type=Path, default=Path("corpora/stdlib"))
    parser.add_argument("--nanogpt", type=Path, default=Path(__file__).parents[2] / "nanoGPT")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of finished results")
    parser.add_argument("--only", choices=["speeds", "losses"], help="one of the two parts that train")
    parser.add_argument("--rounds", type=int, default=5, help="of the speeds")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, help="of nanoGPT, instead of as many as the minutes allow")
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3])
    parser.add_argument("--rows", type=int, default=12, help="windows per step of nanoGPT; 12 in its guide")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[2_400_000, 2_730_000], help="first lengths of contextwise's runs"
    )
    parser.add_argument("--held-out-tokens", type=int, default=262_144)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.out / "results.json")
    recipe = load_recipe(options.recipe, [f"data.corpus={options.corpus}"])
    held_out = HeldOut(options.corpus, recipe.data.context, options.held_out_tokens)
    peer = NanoGPT(options.nanogpt, options.out, recipe, held_out)
    recipes = {path.stem: path for path in [options.recipe, *options.beside]}

    def theirs(name: str, steps: int, rate: float, seed: int) -> dict[str, float]:
        return kept.get(name, lambda: peer.train(name, steps, rate, options.rows, seed))

    def ours(name: str, recipe: str, tokens: int, seed: int) -> dict[str, float]:
        corpus = {"data.corpus": str(options.corpus.resolve())}
        return kept.get(name, lambda: contextwise(recipes[recipe], options.out, name, tokens, seed, held_out, **corpus))

    speeds: dict[str, list[Speed]] = {}
    if options.only != "losses":
        speeds = {who: [] for who in ("nanogpt", *recipes)}
        for round_ in range(options.rounds):
            for who, rounds in speeds.items():
                runs = []
                for steps in SPEED_STEPS:
                    name = f"speed-{round_}-{who}-{steps}"
                    if who == "nanogpt":
                        runs.append(theirs(name, steps, options.rates[0], 0))
                    else:
                        runs.append(ours(name, who, steps * recipe.tokens_per_step, 0))
                rounds.append(Speed.of(*runs))
        for who, rounds in speeds.items():
            start, rate = median_speed(rounds)
            say(f"{who}: {start:.1f} s without steps, {rate:,.0f} tokens/s")
        if options.only:
            return

    steps = options.steps
    if steps is None:
        start, rate = median_speed(speeds["nanogpt"])
        steps = int((60 * options.minutes - start) * rate / (options.rows * recipe.data.context))
    first = options.seeds[0]
    tried = {rate: theirs(f"nanogpt-{rate:g}-seed{first}", steps, rate, first)["loss"] for rate in options.rates}
    rate = min(tried, key=lambda rate: tried[rate])
    say(f"nanoGPT trains at {rate:g}: {steps} steps")
    outcome: dict[str, dict[int, Any]] = {name: {} for name in recipes}
    for seed in options.seeds:
        goal = theirs(f"nanogpt-{rate:g}-seed{seed}", steps, rate, seed)
        for name in recipes:
            runs = []
            lengths = sorted(options.tokens)
            while (needed := tokens_to(goal["loss"], runs)) is None and len(runs) < 8:
                if len(runs) >= len(lengths):
                    above = min(run["loss"] for run in runs) > goal["loss"]
                    lengths.append(round(max(lengths) * 1.3 if above else min(lengths) / 1.3))
                tokens = lengths[len(runs)]
                runs.append(ours(f"{name}-{tokens}-seed{seed}", name, tokens, seed))
            if needed is None:
                raise RuntimeError(
                    f"the runs of {name} do not surround nanoGPT's loss {goal['loss']:.3f}; set --tokens"
                )
            outcome[name][seed] = {"goal": goal["loss"], "tokens": needed, "nanogpt_tokens": goal["tokens"]}
            say(f"seed {seed}, {name}: {needed:,.0f} tokens to {goal['loss']:.4f}; nanoGPT {goal['tokens']:,.0f}")
    if not speeds:
        return
    result: dict[str, Any] = {}
    for name, by_seed in outcome.items():
        share = time_to_goal(speeds[name], speeds["nanogpt"], by_seed)
        result[name] = {"share_of_nanogpt": share, "seeds": by_seed}
        say(
            f"time to nanoGPT's loss, {name}: {share['median']:.3f} of its time ({share['low']:.3f} to {share['high']:.3f} in "
            f"{len(share['rounds'])} rounds), {len(by_seed)} seeds"
        )
    settings = {
        "recipe": options.recipe.name,
        "corpus": options.corpus.name,
        "minutes": None if options.steps else options.minutes,
        "held_out_tokens": options.held_out_tokens,
        "nanogpt": {"rates": tried, "learning_rate": rate, "rows": options.rows, "steps": steps},
        "speeds": {
            who: dict(zip(("start", "tokens_per_second"), median_speed(rounds), strict=True))
            for who, rounds in speeds.items()
        },
    }
    own = options.recipe.stem
    publish(
        "time_to_loss" + f"-{own}" * (own != "gpt2-nano"),
        {"settings": settings, "time_to_loss": result, "runs": kept.results},
    )


if __name__ == "__main__":
    main()
