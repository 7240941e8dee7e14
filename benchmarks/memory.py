"""Peak memory of training and of scoring at long context with a large vocabulary, ours against transformers' own.

Each measurement runs in a process of its own, which reports its peak resident size (on a GPU: the allocator's peak) over
what it held before the step. The yardstick is the full matrix of fp32 logits: tokens x vocabulary x 4 bytes.
"""

import argparse
import json
import sys
from typing import Any

import torch

from benchmarks.harness import peak_memory, publish
from contextwise.base import machine

VOCABULARY, WIDTH, LAYERS, HEADS = 50_304, 256, 4, 4


def one(which: str, task: str, context: int) -> None:
    """Child process: one training step, or one scoring pass, at ``context`` tokens."""
    from transformers import GPT2LMHeadModel

    from contextwise.models import ModelSize, backbone_config, token_losses
    from contextwise.training.model import TrainedModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if which == "contextwise" and device == "cpu":
        machine.keep_freed_memory()  # as `contextwise train` and `evaluate` do
    config = backbone_config("gpt2", ModelSize(LAYERS, WIDTH, HEADS, 1e-3), VOCABULARY, context)
    model = GPT2LMHeadModel(config).to(device)
    tokens = torch.randint(0, VOCABULARY, (1, context), device=device)
    targets = torch.roll(tokens, -1, 1)
    before = machine.peak_memory()
    if task == "train":
        loss = TrainedModel(model)(tokens, targets) if which == "contextwise" else model(tokens, labels=tokens).loss
        loss.backward()
    elif which == "contextwise":
        model.eval()
        token_losses(model, tokens, targets)
    else:
        model.eval()
        with torch.no_grad():  # what an evaluation of log-probabilities does with transformers alone
            log_p = torch.log_softmax(model(tokens, use_cache=False).logits.float(), -1)
            log_p.gather(2, targets[..., None])
    print(json.dumps({"bytes": machine.peak_memory() - before}))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("WHICH", "TASK", "CONTEXT"))
    parser.add_argument("--context", type=int, default=8192)
    options = parser.parse_args(arguments)
    if options.child:
        one(options.child[0], options.child[1], int(options.child[2]))
        return
    context = options.context
    result: dict[str, Any] = {
        "context": context,
        "vocabulary": VOCABULARY,
        "full_logits_bytes_per_token": VOCABULARY * 4,
    }
    for task in ("train", "score"):
        results = {
            which: peak_memory("benchmarks.memory", "--child", which, task, str(context))["bytes"] / context
            for which in ("contextwise", "transformers")
        }
        result[task] = {"bytes_per_token": results, "ratio": results["transformers"] / results["contextwise"]}
        print(
            f"memory, {task} at {context:,} tokens and a vocabulary of {VOCABULARY:,}: "
            f"{results['contextwise'] / 1024:,.0f} KiB a token, transformers {results['transformers'] / 1024:,.0f} "
            f"({result[task]['ratio']:.1f}x); full fp32 logits are {VOCABULARY * 4 / 1024:,.0f}",
            flush=True,
        )
    publish("memory", result)


if __name__ == "__main__":
    main(sys.argv[1:])
