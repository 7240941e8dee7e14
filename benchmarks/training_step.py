"""One training step at equal shape: ours, transformers' and nanoGPT's model, in fp32 and bf16, compiled and not.

Each runs in a process of its own, set up the way its users run it: ours as ``contextwise train`` sets it up, the others as
they come, bf16 by autocast. All take the same fused AdamW and clipping. A further process multiplies square matrices
in the precision that is faster here: the limit.

Goals, for the fastest mode: at least half the rate of the matrix products, and at least 1.5 times the fastest mode of the
fastest peer; ContextLM at least 1.10 times as fast as its parameter-matched baseline. The step with four multi-token heads is
measured beside the step without.

nanoGPT is not part of this repository; give its folder with ``--nanogpt`` (a clone of karpathy/nanoGPT beside this one is
found by itself).
"""

import argparse
import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.harness import Worker, alternate, publish, serve
from contextwise.base.machine import has_fast_bf16
from contextwise.models import ContextLMConfig, ModelSize, backbone_config, build_model
from contextwise.models.spec import training_flops_per_example, training_flops_per_target
from contextwise.training.model import TrainedModel, compile_for
from contextwise.training.run import fast_steps
from contextwise_papers.objectives import MultiTokenConfig

SHAPES = {
    # name: family, layers, width, heads, vocabulary, context, rows
    "nano, 4k vocabulary": ("gpt2", 4, 128, 4, 4096, 256, 16),
    "tiny, 4k vocabulary": ("gpt2", 6, 256, 8, 4096, 512, 4),
    "tiny, 50k vocabulary": ("gpt2", 6, 256, 8, 50304, 256, 4),
    "Llama tiny, 4k vocabulary": ("llama", 6, 256, 8, 4096, 512, 4),
}
NAMES = ("family", "layers", "width", "heads", "vocabulary", "context", "rows")
MODES = ("fp32", "fp32 compiled", "bf16", "bf16 compiled")
OURS = ("PM", "ContextLM", "multi-token, 4 heads")
"""Our further models, in :data:`DEFAULT`."""
PEERS = ("transformers", "nanogpt")
DEFAULT = "bf16" if has_fast_bf16("cuda" if torch.cuda.is_available() else "cpu") else "fp32"
"""Precision in which ``contextwise train`` trains here."""
LIMIT = "matrix products"
STEPS = 5
"""Steps in a row that are timed together: after the others' turns, caches and threads of a process are cold."""
SIDE = 2048
"""Rows and columns of the matrices of the limit."""


_setup = contextlib.ExitStack()  # of this process, until it ends


def step_of(model: torch.nn.Module, loss_of: Any, bf16: bool = False) -> Any:
    """A closure that takes one AdamW step; every contender gets the same optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    device = next(model.parameters()).device.type

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = loss_of()
        loss.backward()
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


def config_of(name: str, shape: tuple[Any, ...]) -> Any:
    """Configuration of one of our models."""
    family, layers, width, heads, vocabulary, context, _ = shape
    size = ModelSize(layers, width, heads, 1e-3)
    plain = backbone_config(family, size, vocabulary, context)
    if name == "PM":
        return backbone_config(family, size, vocabulary, context, extra_layers=2)
    if name == "ContextLM":
        return ContextLMConfig(plain, chunk_size=4, predictor_layers=2)
    return MultiTokenConfig(plain, 4, "layer") if name.startswith("multi-token") else plain


def training_flops(name: str, shape: tuple[Any, ...]) -> float:
    """Operations of a step of one of our models, or of the plain model of a peer: forward and backward of all rows."""
    config, context, rows = config_of(name, shape), shape[5], shape[6]
    per_example = training_flops_per_example(config, context)
    return rows * (per_example + context * training_flops_per_target(config))


def contender(name: str, shape: tuple[Any, ...], nanogpt: Path, device: str) -> Callable[[], None]:
    """One training step of a contender, set up the way its users run it; ``name`` is "WHO: MODE"."""
    _, layers, width, heads, vocabulary, context, rows = shape
    torch.manual_seed(0)
    if name == LIMIT:
        a, b = torch.randn(2, SIDE, SIDE, dtype={"bf16": torch.bfloat16}.get(DEFAULT), device=device)
        multiply: Any = lambda: [a @ b for _ in range(4)]  # noqa: E731
        return synchronised(multiply) if device == "cuda" else multiply
    who, mode = name.split(": ")
    tokens = torch.randint(0, vocabulary, (rows, context + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if who == "nanogpt":
        theirs = load_nanogpt(nanogpt)
        config = theirs.GPTConfig(
            block_size=context, vocab_size=vocabulary, n_layer=layers, n_head=heads, n_embd=width, dropout=0.0
        )
        module = theirs.GPT(config)
        loss_of = lambda model: model(x, y)[1]  # noqa: E731
    elif who == "transformers":
        module = AutoModelForCausalLM.from_config(config_of("plain", shape))
        loss_of = lambda model: model(x, labels=x, use_cache=False).loss  # noqa: E731
    else:
        _setup.enter_context(fast_steps(device))
        ours = build_model(config_of(who, shape))
        module = TrainedModel(ours)
        if mode.endswith("compiled"):
            compile_for(module, whole=device == "cuda")
        loss_of = lambda model: model(x, y)  # noqa: E731
    module = module.to(device).train()
    model = torch.compile(module) if mode.endswith("compiled") and who in PEERS else module
    step = step_of(module, lambda: loss_of(model), bf16=mode.startswith("bf16"))
    return synchronised(step) if device == "cuda" else step


def measure(name: str, nanogpt: Path | None, rounds: int, modes: tuple[str, ...]) -> dict[str, Any]:
    """Speeds at one of the ``SHAPES``, each contender in a process of its own."""
    shape: dict[str, Any] = dict(zip(NAMES, SHAPES[name], strict=True))
    peers = ["transformers", *(["nanogpt"] if nanogpt and shape["family"] == "gpt2" else [])]
    names = [f"{who}: {mode}" for who in ("contextwise", *peers) for mode in modes]
    names += [LIMIT, *(f"{who}: {DEFAULT}" for who in OURS)]
    folder = str(nanogpt or ".")
    workers = {each: Worker("benchmarks.training_step", "--child", name, each, "--nanogpt", folder) for each in names}
    try:
        outcome = alternate(workers, rounds)
    finally:
        for worker in workers.values():
            worker.close()
    tokens = STEPS * shape["rows"] * shape["context"]

    ratio = outcome.ratio
    ours = min((each for each in names if each.startswith("contextwise")), key=outcome.median)
    theirs = min((each for each in names if each.split(":")[0] in peers), key=outcome.median)
    limit = STEPS * 4 * 2 * SIDE**3
    return {
        "shape": shape,
        "rounds": rounds,
        "tokens_per_second": {each: tokens / outcome.median(each) for each in names if each != LIMIT},
        "limit_gflops": limit / outcome.median(LIMIT) / 1e9,
        "share_of_limit": {
            each: STEPS * training_flops(each.split(":")[0], SHAPES[name]) / limit * outcome.speed(each, LIMIT)
            for each in names
            if each != LIMIT and each.split(":")[0] not in peers
        },
        "speed_of_contextwise": {
            each: {other: ratio(f"contextwise: {each}", other) for other in names if other.split(":")[0] in peers}
            for each in modes
        },
        "fastest": {"contextwise": ours, "peer": theirs, "speed": ratio(ours, theirs)},
        "ContextLM_against_PM": ratio(f"ContextLM: {DEFAULT}", f"PM: {DEFAULT}"),
        "multi_token_against_plain": ratio(f"multi-token, 4 heads: {DEFAULT}", f"contextwise: {DEFAULT}"),
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
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE")
    parser.add_argument("--child", nargs=2, metavar=("SHAPE", "CONTENDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        shape, name = options.child
        device = "cuda" if torch.cuda.is_available() else "cpu"
        step = contender(name, SHAPES[shape], options.nanogpt, device)
        serve(lambda: [step() for _ in range(STEPS)])
        return
    nanogpt = options.nanogpt if (options.nanogpt / "model.py").exists() else None
    results = {}
    for name in options.shapes:
        results[name] = result = measure(name, nanogpt, options.rounds, tuple(options.modes))
        fastest = result["fastest"]
        low, high = fastest["speed"]["quartiles"]
        print(f"training step, {name}: matrix products reach {result['limit_gflops']:.0f} GFLOP/s")
        for each, speed in result["tokens_per_second"].items():
            share = result["share_of_limit"].get(each)
            print(f"  {each}: {speed:,.0f} tokens/s" + (f", {share:.0%} of the limit" if share else ""))
        print(
            f"  {fastest['contextwise']} is {fastest['speed']['median']:.2f}x {fastest['peer']} "
            f"(quartiles {low:.2f}-{high:.2f}); ContextLM {result['ContextLM_against_PM']['median']:.2f}x PM; "
            f"multi-token with 4 heads takes {1 / result['multi_token_against_plain']['median']:.2f} times the step without",
            flush=True,
        )
    if nanogpt is None:
        print(f"training step: nanoGPT was not measured; there is no model.py in {options.nanogpt}")
    kind = "" if DEFAULT == "bf16" else "-fp32"
    if not torch.cuda.is_available() and torch.cpu._is_amx_tile_supported():
        kind = "-amx"
    publish(f"training_step{kind}", {"shapes": results}, records="shapes")


if __name__ == "__main__":
    main()
