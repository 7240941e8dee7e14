"""One training step at equal shape: our plain GPT-2 path, transformers' own, and nanoGPT's model.

Claims: ours at least 1.25 times as fast as ``GPT2LMHeadModel`` called with ``labels=``, and not slower than nanoGPT.

nanoGPT is not part of this repository; give its folder with ``--nanogpt`` (a clone of karpathy/nanoGPT beside this one is
found by itself).
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.harness import alternate, publish
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


def load_nanogpt(folder: Path) -> Any | None:
    """nanoGPT's ``model.py`` as a module, or None where it is not at hand."""
    file = folder / "model.py"
    if not file.exists():
        return None
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(shape: tuple[int, ...], nanogpt: Any | None, rounds: int, device: str) -> dict[str, Any]:
    layers, width, heads, vocabulary, context, rows = shape
    torch.manual_seed(0)
    tokens = torch.randint(0, vocabulary, (rows, context + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    ours = TrainedModel(
        build_model(backbone_config("gpt2", ModelSize(layers, width, heads, 1e-3), vocabulary, context))
    )
    ours.to(device).train()
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=context, n_embd=width, n_layer=layers, n_head=heads
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    stock = GPT2LMHeadModel(config).to(device).train()
    contenders = {
        "contextwise": step_of(ours, lambda: ours(x, y)),
        "transformers": step_of(stock, lambda: stock(x, labels=x, use_cache=False).loss),
    }
    if nanogpt is not None:
        other = nanogpt.GPT(
            nanogpt.GPTConfig(
                block_size=context,
                vocab_size=vocabulary,
                n_layer=layers,
                n_head=heads,
                n_embd=width,
                dropout=0.0,
            )
        )
        other.to(device).train()
        contenders["nanogpt"] = step_of(other, lambda: other(x, y)[1])
    if device == "cuda":
        contenders = {name: _synchronised(step) for name, step in contenders.items()}
    outcome = alternate(contenders, rounds)
    return {
        "shape": dict(zip(("layers", "width", "heads", "vocabulary", "context", "rows"), shape, strict=True)),
        "rounds": rounds,
        "tokens_per_second": {name: rows * context / outcome.median(name) for name in contenders},
        "speed_of_contextwise": {
            f"against {name}": {
                "median": outcome.speed("contextwise", name),
                "quartiles": outcome.spread("contextwise", name),
            }
            for name in contenders
            if name != "contextwise"
        },
    }


def _synchronised(step: Any) -> Any:
    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path, default=Path(__file__).parents[2] / "nanoGPT")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    nanogpt = load_nanogpt(options.nanogpt)
    results = {}
    for name, shape in SHAPES.items():
        results[name] = measure(shape, nanogpt, options.rounds, device)
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
