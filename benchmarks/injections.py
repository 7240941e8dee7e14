"""The size of what the forms of the injection add, along training: root mean squares, over those of the states added to.

``python -m benchmarks.injections RUN ... --corpus CORPUS`` reads trained models, such as those in the folder ``runs`` of
``contextwise trial benchmarks/injections.yaml``, at each checkpoint that a run has kept (``training.save_every`` and
``training.keep_checkpoints``) and at its end, and keeps as JSON a ratio for each place where a context is added.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.harness import publish
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.data.windows import Windows, stack
from contextwise.models import load_model
from contextwise.training.checkpoints import WEIGHTS, list_checkpoints, step_of


@torch.no_grad()
def shares(model: Any, tokens: Tensor) -> list[float]:
    """Root mean square of what is added, over that before, at each injection."""
    added: list[float] = []
    inject = type(model.context).inject

    def watched(h: Tensor, contexts: Any, layer: int) -> Tensor:
        after = inject(model.context, h, contexts, layer)
        added.append(((after - h).square().mean().sqrt() / h.square().mean().sqrt()).item())
        return after

    model.context.inject = watched
    model(tokens, use_cache=False)
    return added


def along(path: Path, corpus: Path) -> dict[int, list[float]]:
    """Step -> shares of a run, over 8 held-out windows of its context: at its checkpoints, and at its end."""
    run = RunFolder(path)
    windows = Windows(Corpus.open(corpus, split="validation"), run.recipe()["data"]["context"])
    tokens = stack([windows[i * (len(windows) // 8)] for i in range(8)])["input_ids"]
    model: Any = load_model(path, device="cpu")
    last = {int(run.summary()["steps"]): shares(model, tokens)}
    of_steps = {}
    for checkpoint in list_checkpoints(run.checkpoints):
        weights = {name.removeprefix("model."): weight for name, weight in load_file(checkpoint / WEIGHTS).items()}
        if unknown := model.load_state_dict(weights, strict=False).unexpected_keys:  # tied weights are stored once
            raise ValueError(f"{checkpoint} has weights that the model does not have: {', '.join(unknown[:4])}")
        of_steps[step_of(checkpoint)] = shares(model, tokens)
    return dict(sorted((of_steps | last).items()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--name", default="injection-size", help="of the result file")
    options = parser.parse_args(arguments)
    results = {}
    for path in options.runs:
        results[RunFolder(path).recipe()["name"]] = of_steps = along(path, options.corpus)
        for step, added in of_steps.items():
            print(f"{path.name}, step {step:,}: {', '.join(f'{share:.3f}' for share in added)}")
    publish(options.name, {"corpus": options.corpus.name, "shares": results})


if __name__ == "__main__":
    main()
