"""Time to a held-out loss: ``contextwise train`` against nanoGPT's ``train.py``; same corpus, tokenizer, context and shape.

``python -m benchmarks.time_to_loss --corpus corpora/stdlib --nanogpt ../nanoGPT --out runs/time-to-loss``

1. nanoGPT's learning rate and batch size are chosen by short runs (``--minutes-of-the-search`` each).
2. For each seed nanoGPT trains for ``--minutes`` on the CPU as its own ``train.py`` does: float32, AdamW, a cosine that ends
   with the run. The held-out loss of its final weights is the goal of that seed.
3. ``contextwise train RECIPE`` trains at several lengths, each a finished run. The time to the goal is interpolated between
   the runs around it, linearly in the logarithm of the time; runs are added until they surround it.

Times are those of whole commands, from start to exit: imports, reading, training, validation, export. Commands alternate; run
nothing else meanwhile. Losses are computed in float32 over the same held-out windows. Finished commands are not run again.
``--ingredients`` trains, at one length, the recipe with one ingredient replaced at a time.
"""

import argparse
import itertools
import json
import math
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks.harness import publish
from benchmarks.training_step import load_nanogpt
from contextwise.base.progress import say
from contextwise.data import Corpus
from contextwise.data.windows import Windows
from contextwise.models import load_model
from contextwise.models.losses import causal_loss
from contextwise.training.recipe import load_recipe

NANOGPT = (  # its train.py with another seed: the seed is no setting of it
    "import runpy, sys, torch; seed = torch.manual_seed; "
    "torch.manual_seed = lambda s: seed(s + {seed}); sys.argv = ['train.py', *sys.argv[1:]]; "
    "runpy.run_path('train.py', run_name='__main__')"
)
INGREDIENTS = {
    "all": {},
    "precision fp32": {"training.precision": "fp32"},
    "AdamW": {"training.optimizer": "adamw"},
    "AdamW and cosine": {"training.optimizer": "adamw", "training.schedule": "cosine"},
    "cosine": {"training.schedule": "cosine"},
}
"""Changes of the recipe that each take away one ingredient."""


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
        return self.loss(lambda x, y: causal_loss(model, x, y))

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


def time_to(goal: float, runs: list[dict[str, float]]) -> float | None:
    """Seconds to the loss ``goal``, between finished runs; None if they do not surround it."""
    runs = sorted(runs, key=lambda run: run["seconds"])
    for shorter, longer in itertools.pairwise(runs):
        if shorter["loss"] >= goal >= longer["loss"]:
            share = (shorter["loss"] - goal) / max(shorter["loss"] - longer["loss"], 1e-9)
            low, high = math.log(shorter["seconds"]), math.log(longer["seconds"])
            return math.exp(low + share * (high - low))
    return None


def interval_of_ratio(ratios: list[float], confidence: float = 0.95) -> dict[str, float]:
    """Geometric mean of ratios over seeds, with Student's interval of its logarithm."""
    logs = np.log(ratios)
    mean, half = float(logs.mean()), 0.0
    if len(logs) > 1:
        half = float(stats.t.ppf(0.5 + confidence / 2, len(logs) - 1) * stats.sem(logs))
    return {"mean": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, default=Path("recipes/contextlm/gpt2-nano.yaml"))
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="further recipes, timed to the same losses")
    parser.add_argument("--corpus", type=Path, default=Path("corpora/stdlib"))
    parser.add_argument("--nanogpt", type=Path, default=Path(__file__).parents[2] / "nanoGPT")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of finished results")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--minutes-of-the-search", type=float, default=1.5)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16], help="windows per step of nanoGPT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="first length of contextwise's runs")
    parser.add_argument("--held-out-tokens", type=int, default=262_144)
    parser.add_argument("--ingredients", action="store_true")
    parser.add_argument("--name", default="time_to_loss", help="of the result file")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.out / "results.json")
    recipe = load_recipe(options.recipe, [f"data.corpus={options.corpus}"])
    held_out = HeldOut(options.corpus, recipe.data.context, options.held_out_tokens)
    same_corpus = {"data.corpus": str(options.corpus.resolve())}

    if options.ingredients:
        for name, changes in INGREDIENTS.items():
            for seed in options.seeds:
                kept.get(
                    f"{name}, seed {seed}",
                    lambda name=name, seed=seed, changes=changes: contextwise(
                        options.recipe,
                        options.out,
                        f"{name.replace(' ', '-')}-{seed}",
                        options.tokens,
                        seed,
                        held_out,
                        **same_corpus,
                        **changes,
                    ),
                )
        publish(options.name, {"settings": _settings(options), "runs": kept.results})
        return

    peer = NanoGPT(options.nanogpt, options.out, recipe, held_out)

    def steps_in(minutes: float, rows: int) -> int:
        """Steps of nanoGPT in this time, from a pilot of 40 and one of 140 steps."""
        short, long = (
            kept.get(f"pilot of nanoGPT, {rows} rows, {n} steps", lambda n=n: peer.train("pilot", n, 1e-3, rows, 0))
            for n in (40, 140)
        )
        per_step = (long["seconds"] - short["seconds"]) / 100
        return max(1, int((60 * minutes - short["seconds"] + 40 * per_step) / per_step))

    search = {}
    for rows in options.rows:
        for rate in options.rates:
            name = f"search: nanoGPT at {rate:g}, {rows} rows"
            steps = steps_in(options.minutes_of_the_search, rows)
            search[rate, rows] = kept.get(
                name, lambda rate=rate, rows=rows, steps=steps: peer.train("search", steps, rate, rows, 0)
            )["loss"]
    rate, rows = min(search, key=lambda key: search[key])
    say(f"nanoGPT trains at {rate:g} with {rows} rows")

    steps = steps_in(options.minutes, rows)
    recipes = [options.recipe, *options.beside]
    outcome: dict[str, dict[str, Any]] = {path.stem: {} for path in recipes}
    for seed in options.seeds:
        theirs = kept.get(
            f"nanoGPT, seed {seed}", lambda seed=seed: peer.train(f"nanogpt-{seed}", steps, rate, rows, seed)
        )
        for path in recipes:
            runs: list[dict[str, float]] = []
            tokens: float = options.tokens
            while (seconds := time_to(theirs["loss"], runs)) is None and len(runs) < 8:
                runs.append(
                    kept.get(
                        f"{path.stem}, {tokens:.0f} tokens, seed {seed}",
                        lambda path=path, tokens=tokens, seed=seed: contextwise(
                            path,
                            options.out,
                            f"{path.stem}-{tokens:.0f}-{seed}",
                            round(tokens),
                            seed,
                            held_out,
                            **same_corpus,
                        ),
                    )
                )
                losses = [run["loss"] for run in runs]
                tokens = (
                    max(run["tokens"] for run in runs) * 1.3
                    if min(losses) > theirs["loss"]
                    else min(run["tokens"] for run in runs) / 1.3
                )
            if seconds is None:
                raise RuntimeError(f"the runs of {path} do not surround nanoGPT's loss {theirs['loss']:.3f}")
            outcome[path.stem][str(seed)] = {
                "seconds": seconds,
                "nanogpt": theirs["seconds"],
                "loss": theirs["loss"],
            }
    result = {}
    for name, by_seed in outcome.items():
        ratio = interval_of_ratio([each["seconds"] / each["nanogpt"] for each in by_seed.values()])
        result[name] = {"share_of_nanogpt": ratio, "seeds": by_seed}
        say(
            f"time to nanoGPT's loss, {name}: {ratio['mean']:.3f} of its time "
            f"[{ratio['low']:.3f}, {ratio['high']:.3f}], {len(by_seed)} seeds"
        )
    publish(
        options.name,
        {
            "settings": _settings(options) | {"nanogpt": {"learning_rate": rate, "rows": rows, "steps": steps}},
            "time_to_loss": result,
            "runs": kept.results,
        },
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    paths = {"recipe": options.recipe.name, "corpus": options.corpus.name}
    names = ("minutes", "minutes_of_the_search", "rates", "rows", "seeds", "held_out_tokens")
    return paths | {name: getattr(options, name) for name in names}


if __name__ == "__main__":
    main()
