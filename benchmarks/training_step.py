"""One training step at equal shape: our plain GPT-2 path, transformers' own, and nanoGPT's model.

Each runs in a process of its own, set up the way its users run it: ours as ``contextwise train`` sets it up (the chunked
loss, freed memory kept), the others as they come. All take the same fused AdamW and clipping.

Claims: ours at least 1.25 times as fast as ``GPT2LMHeadModel`` called with ``labels=``, and not slower than nanoGPT.

nanoGPT is not part of this repository; give its folder with ``--nanogpt`` (a clone of karpathy/nanoGPT beside this one is
found by itself).
"""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.harness import Worker, alternate, publish, serve
from contextwise.base.machine import keep_freed_memory
from contextwise.models import ModelSize, backbone_config, build_model
from contextwise.training.model import TrainedModel

SHAPES = {
    # name: layers, width, heads, vocabulary, context, rows
    "nano, 4k vocabulary": (4, 128, 4, 4096, 256, 16),
    "tiny, 4k vocabulary": (6, 256, 8, 4096, 512, 4),
    "tiny, 50k vocabulary": (6, 256, 8, 50304, 256, 4),
}


def step_of(model: torch.nn.Module, loss_of: Any) -> Any:
    """A closure that takes one AdamW step; every contender gets the same optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def load_nanogpt(folder: Path) -> Any:
    """nanoGPT's ``model.py`` as a module."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contender(name: str, shape: tuple[int, ...], nanogpt: Path, device: str) -> Callable[[], None]:
    """One training step of a contender, set up the way its users run it."""
    layers, width, heads, vocabulary, context, rows = shape
    torch.manual_seed(0)
    tokens = torch.randint(0, vocabulary, (rows, context + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if name == "contextwise":
        if device == "cpu":
            keep_freed_memory()  # as `contextwise train` does
        size = ModelSize(layers, width, heads, 1e-3)
        model: torch.nn.Module = TrainedModel(build_model(backbone_config("gpt2", size, vocabulary, context)))
        step = step_of(model.to(device).train(), lambda: model(x, y))
    elif name == "transformers":
        config = GPT2Config(
            vocab_size=vocabulary, n_positions=context, n_embd=width, n_layer=layers, n_head=heads
        )
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        model = GPT2LMHeadModel(config)
        step = step_of(model.to(device).train(), lambda: model(x, labels=x, use_cache=False).loss)
    else:
        theirs = load_nanogpt(nanogpt)
        config = theirs.GPTConfig(
            block_size=context, vocab_size=vocabulary, n_layer=layers, n_head=heads, n_embd=width, dropout=0.0
        )
        model = theirs.GPT(config)
        step = step_of(model.to(device).train(), lambda: model(x, y)[1])
    return synchronised(step) if device == "cuda" else step


def measure(name: str, nanogpt: Path | None, rounds: int) -> dict[str, Any]:
    """Speeds at one of the ``SHAPES``, each contender in a process of its own."""
    names = ["contextwise", "transformers", *(["nanogpt"] if nanogpt else [])]
    folder = str(nanogpt or ".")
    workers = {
        each: Worker("benchmarks.training_step", "--child", name, each, "--nanogpt", folder) for each in names
    }
    try:
        outcome = alternate(workers, rounds)
    finally:
        for worker in workers.values():
            worker.close()
    shape = dict(
        zip(("layers", "width", "heads", "vocabulary", "context", "rows"), SHAPES[name], strict=True)
    )
    return {
        "shape": shape,
        "rounds": rounds,
        "tokens_per_second": {
            each: shape["rows"] * shape["context"] / outcome.median(each) for each in names
        },
        "speed_of_contextwise": {
            f"against {each}": {
                "median": outcome.speed("contextwise", each),
                "quartiles": outcome.spread("contextwise", each),
            }
            for each in names[1:]
        },
    }


def synchronised(step: Any) -> Any:
    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path, default=Path(__file__).parents[2] / "nanoGPT")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--child", nargs=2, metavar=("SHAPE", "CONTENDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        shape, name = options.child
        device = "cuda" if torch.cuda.is_available() else "cpu"
        serve(contender(name, SHAPES[shape], options.nanogpt, device))
        return
    nanogpt = options.nanogpt if (options.nanogpt / "model.py").exists() else None
    results = {}
    for name in SHAPES:
        results[name] = measure(name, nanogpt, options.rounds)
        for against, ratio in results[name]["speed_of_contextwise"].items():
            low, high = ratio["quartiles"]
            print(
                f"training step, {name}: {ratio['median']:.2f}x {against} (quartiles {low:.2f}-{high:.2f})",
                flush=True,
            )
    if nanogpt is None:
        print(f"training step: nanoGPT was not measured; there is no model.py in {options.nanogpt}")
    publish("training_step", {"shapes": results})


if __name__ == "__main__":
    main()
