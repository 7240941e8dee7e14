"""Cost and effect of the forms of the injection: training speed in alternation, and the size of what they add.

``python -m benchmarks.injections --settings benchmarks/injections.yaml`` times training steps of its arms on one thread;
``--runs RUN ... --corpus CORPUS`` gives the root mean square of what trained models add, over that of the state it is added to.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import alternate
from benchmarks.quality import read_settings
from benchmarks.training_step import step_of
from contextwise.base.machine import keep_freed_memory
from contextwise.data import Corpus
from contextwise.data.windows import Windows, stack
from contextwise.experiments.run_set import RunSet
from contextwise.models import build_model, load_model
from contextwise.training.model import TrainedModel, model_config


def speeds(settings: Path, rounds: int) -> dict[str, float]:
    """Tokens a second of each arm against the first one's: medians over rounds of 8 windows of 256."""
    tokens = torch.randint(0, 4096, (8, 257))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    arms = {run.arm: run for run in RunSet.of(read_settings(settings, ["seeds=[0]"]), Path(), corpus=Path("none")).runs}

    def contender(name: str) -> Any:
        config = model_config(arms[name].planned_recipe(), 4096, 0)
        model = TrainedModel(build_model(config)).train()
        return step_of(model, lambda: model(x, y))

    outcome = alternate({name: contender(name) for name in arms}, rounds)
    return {name: outcome.speed(name, next(iter(arms))) for name in arms}


@torch.no_grad()
def shares(run: Path, corpus: Path) -> list[float]:
    """Root mean square of what is added, over that before, at each injection; over 8 held-out windows."""
    model: Any = load_model(run, device="cpu")
    windows = Windows(Corpus.open(corpus, split="validation"), 256)
    tokens = stack([windows[i * (len(windows) // 8)] for i in range(8)])["input_ids"]
    added: list[float] = []
    inject = model.context.inject

    def watched(h: torch.Tensor, contexts: Any, layer: int) -> torch.Tensor:
        after = inject(h, contexts, layer)
        added.append(((after - h).square().mean().sqrt() / h.square().mean().sqrt()).item())
        return after

    model.context.inject = watched
    model(tokens, use_cache=False)
    return added


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, help="a YAML file of benchmarks.quality, whose arms are timed")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--corpus", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    for name, speed in (speeds(options.settings, options.rounds) if options.settings else {}).items():
        print(f"training: {name} {speed:.2f}x the first")
    for run in options.runs:
        print(f"{run.name}: {', '.join(f'{share:.2f}' for share in shares(run, options.corpus))}")


if __name__ == "__main__":
    main()
