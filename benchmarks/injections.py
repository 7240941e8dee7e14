"""The sizes of what an injection merges, along training: root mean squares of the state's and of the context's term.

``python -m benchmarks.injections RUN ... --corpus CORPUS`` reads trained models, such as those in the folder ``runs`` of
``contextwise trial benchmarks/norms.yaml``, at each checkpoint that a run has kept (``training.save_every`` and
``training.keep_checkpoints``) and at its end, and keeps both terms as JSON for each place where a context is injected.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import default_collate

from benchmarks.harness import publish
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.data.windows import Windows
from contextwise.models import load_model
from contextwise.training.checkpoints import WEIGHTS, list_checkpoints, step_of


@torch.no_grad()
def terms(model: Any, tokens: Tensor) -> list[tuple[float, float]]:
    """Root mean squares of the state's term and of the context's, behind norms and gates, at each injection."""
    sizes: list[tuple[float, float]] = []
    pathway = model.context
    inject = type(pathway).inject

    def watched(h: Tensor, contexts: Any, layer: int, backbone: Any) -> Tensor:
        after = inject(pathway, h, contexts, layer, backbone)
        state = pathway.gate.state(h, layer, partial(pathway.family.norm, backbone))
        sizes.append((state.square().mean().sqrt().item(), (after - state).square().mean().sqrt().item()))
        return after

    pathway.inject = watched
    model(tokens, use_cache=False)
    del pathway.inject
    return sizes


def along(path: Path, corpus: Path) -> dict[int, list[tuple[float, float]]]:
    """Step -> terms of a run, over 8 held-out windows of its context: at its checkpoints, and at its end."""
    run = RunFolder(path)
    windows = Windows(Corpus.open(corpus, split="validation"), run.recipe()["data"]["context"])
    tokens = default_collate([windows[i * (len(windows) // 8)] for i in range(8)])["input_ids"]
    model: Any = load_model(path, device="cpu")
    last = {int(run.summary()["steps"]): terms(model, tokens)}
    of_steps = {}
    for checkpoint in list_checkpoints(run.checkpoints):
        weights = {name.removeprefix("model."): weight for name, weight in load_file(checkpoint / WEIGHTS).items()}
        if unknown := model.load_state_dict(weights, strict=False).unexpected_keys:  # tied weights are stored once
            raise ValueError(f"{checkpoint} has weights that the model does not have: {', '.join(unknown[:4])}")
        of_steps[step_of(checkpoint)] = terms(model, tokens)
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
        for step, places in of_steps.items():
            sizes = ", ".join(f"{added:.3f} / {state:.3f} = {added / state:.3f}" for state, added in places)
            print(f"{path.name}, step {step:,}: {sizes}")
    publish(options.name, {"corpus": options.corpus.name, "terms": results})


if __name__ == "__main__":
    main()
