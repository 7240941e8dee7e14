"""``contextwise train`` against a bare loop over the same model and batches: what the trainer, its logging and its checks cost.

Claim: at least 0.95 of the bare loop's tokens/s. Both run in this process, in alternation, several hundred steps each.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import default_collate

from benchmarks.harness import publish
from contextwise.base.progress import console
from contextwise.data import Corpus, prepare_corpus
from contextwise.models import build_model
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise.training.model import TrainedModel


def recipe_values(corpus: Path, output: Path, steps: int) -> dict:
    return {
        "name": "overhead",
        "data": {"corpus": str(corpus), "context": 256},
        "model": {"family": "gpt2", "size": "nano"},
        "training": {"steps": steps, "tokens_per_step": 4096, "warmup_steps": 5, "save_every": 10_000},
        "output": str(output),
    }


def bare_loop(recipe: Recipe, corpus: Corpus) -> float:
    """Tokens/s of nothing but batches, forward, backward, clip and step."""
    torch.manual_seed(recipe.seed)
    model = TrainedModel(build_model(recipe.model.config(recipe, corpus.vocab_size, corpus.end_of_text)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)
    steps, rows = recipe.total_steps, recipe.tokens_per_step // 256
    stream = TrainingInputs.open(recipe).stream
    model.train()
    start = time.perf_counter()
    for step in range(steps):
        batch = default_collate([stream[step * rows + i] for i in range(rows)])
        loss = model(batch["input_ids"], batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    return steps * recipe.tokens_per_step / (time.perf_counter() - start)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args(arguments)
    ratios, ours, bare = [], [], []
    console.quiet = True
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        corpus = prepare_corpus("stdlib", "train:4096", Path(folder) / "corpus", limit=200)
        for round_ in range(options.rounds + 1):
            recipe = Recipe.model_validate(recipe_values(corpus.path, Path(folder) / f"run{round_}", options.steps))
            speeds = {}
            for which in ("ours", "bare") if round_ % 2 else ("bare", "ours"):
                if which == "bare":
                    speeds[which] = bare_loop(recipe, corpus)
                else:
                    speeds[which] = train(recipe).summary()["tokens_per_second"]
            if round_:  # the first round warms up
                ours.append(speeds["ours"])
                bare.append(speeds["bare"])
                ratios.append(speeds["ours"] / speeds["bare"])
    console.quiet = False
    ratio = statistics.median(ratios)
    print(f"trainer: {ratio:.2f} of a bare loop's tokens/s (rounds {min(ratios):.2f}-{max(ratios):.2f})")
    publish(
        "train_overhead",
        {
            "steps": options.steps,
            "ratio": {"median": ratio, "rounds": ratios},
            "tokens_per_second": {"contextwise": statistics.median(ours), "bare loop": statistics.median(bare)},
        },
    )


if __name__ == "__main__":
    main()
