"""The size of what the forms of the injection add: root mean squares, over those of the states that it is added to.

``python -m benchmarks.injections RUN ... --corpus CORPUS`` reads trained models, such as those in the folder ``runs`` of
``contextwise trial benchmarks/injections.yaml``, and prints a ratio for each place where a context is added.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from contextwise.data import Corpus
from contextwise.data.windows import Windows, stack
from contextwise.models import load_model


@torch.no_grad()
def shares(run: Path, corpus: Path) -> list[float]:
    """Root mean square of what is added, over that before, at each injection; over 8 held-out windows of 256 tokens."""
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
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--corpus", type=Path, required=True)
    options = parser.parse_args(arguments)
    for run in options.runs:
        print(f"{run.name}: {', '.join(f'{share:.2f}' for share in shares(run, options.corpus))}")


if __name__ == "__main__":
    main()
