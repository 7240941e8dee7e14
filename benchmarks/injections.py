"""What the forms of the injection cost and do: training speed in alternation, and how large what they add is.

``python -m benchmarks.injections --models pm gpt2 contextlm contextlm-every`` times training steps on one thread;
``--runs RUN ... --corpus CORPUS`` gives the root mean square of what trained models add, over that of the state it is added to.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import alternate
from benchmarks.quality import described
from benchmarks.training_step import step_of
from contextwise.base.memory import keep_freed_memory
from contextwise.data import Corpus
from contextwise.data.windows import Windows, stack
from contextwise.models import build_model, load_model
from contextwise.training.model import TrainedModel
from contextwise.training.settings import ModelSettings


def speeds(models: list[str], size: str, rounds: int) -> dict[str, float]:
    """Tokens a second against the first model's: medians over rounds of 8 windows of 256."""
    tokens = torch.randint(0, 4096, (8, 257))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def contender(name: str) -> Any:
        settings = ModelSettings.model_validate({"size": size, **described(name)[0]})
        model = TrainedModel(build_model(settings.build_config(4096, 256, 0))).train()
        return step_of(model, lambda: model(x, y))

    outcome = alternate({name: contender(name) for name in models}, rounds)
    return {name: outcome.speed(name, models[0]) for name in models}


@torch.no_grad()
def shares(run: Path, corpus: Path) -> list[float]:
    """At each place of the decoder, over 8 held-out windows: root mean square added, over that before."""
    model: Any = load_model(run, device="cpu")
    windows = Windows(Corpus.open(corpus, split="validation"), 256)
    tokens = stack([windows[i * (len(windows) // 8)] for i in range(8)])["input_ids"]
    found: list[float] = []
    inject = model.context.inject

    def watched(h: torch.Tensor, contexts: Any, place: int) -> torch.Tensor:
        after = inject(h, contexts, place)
        found.append(((after - h).square().mean().sqrt() / h.square().mean().sqrt()).item())
        return after

    model.context.inject = watched
    model(tokens, use_cache=False)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--size", default="nano")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--corpus", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    for name, speed in (
        speeds(options.models, options.size, options.rounds) if options.models else {}
    ).items():
        print(f"training, {options.size}: {name} {speed:.2f}x {options.models[0]}")
    for run in options.runs:
        print(f"{run.name}: {', '.join(f'{share:.2f}' for share in shares(run, options.corpus))}")


if __name__ == "__main__":
    main()
