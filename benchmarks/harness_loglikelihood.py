"""Peak memory and time of log-likelihoods for lm-evaluation-harness's tasks, our path against the harness's own ``HFLM``.

Two kinds of request at each length, with a 50k vocabulary: a whole text, where every position is scored (``wikitext``), and
two choices of eight tokens behind one long context, where 16 positions are (``race`` and the like). Both paths get the same
tokens of the same random model. Each measurement runs in a process of its own; times are taken in alternation.
"""

import argparse
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Worker, alternate, peak_memory, publish, serve
from benchmarks.memory import HEADS, LAYERS, VOCABULARY, WIDTH
from contextwise.base import machine

MODULE = "benchmarks.harness_loglikelihood"
CHOICES, CHOICE_TOKENS = 2, 8
KINDS = ("text", "choices")


def requests(kind: str, context: int) -> list[tuple[None, list[int], list[int]]]:
    """Tokens as the harness hands them to its model: (what it was, context, continuation)."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, context + CHOICES * CHOICE_TOKENS).tolist()
    if kind == "text":
        return [(None, tokens[:1], tokens[1 : context + 1])]
    before = tokens[: context - CHOICE_TOKENS]
    continuations = [tokens[context + i * CHOICE_TOKENS :][:CHOICE_TOKENS] for i in range(CHOICES)]
    return [(None, before, end) for end in continuations]


def language_model(which: str, context: int) -> Any:
    """The same random model, as one of the two paths asks it."""
    from lm_eval.models.huggingface import HFLM
    from transformers import LlamaForCausalLM

    from contextwise.data.tokenizers import byte_tokenizer
    from contextwise.evaluation.measures.lm_eval.model import BoundedLM
    from contextwise.models import ModelSize, backbone_config

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if which == "contextwise" and device == "cpu":
        machine.keep_freed_memory()  # as `contextwise evaluate` does
    torch.manual_seed(0)
    config = backbone_config("llama", ModelSize(LAYERS, WIDTH, HEADS, 1e-3), VOCABULARY, context)
    model = LlamaForCausalLM(config).to(device).eval()
    tokenizer = byte_tokenizer().tokenizer  # is not asked: the requests are tokens already
    if which == "contextwise":
        return BoundedLM(model, tokenizer, max_length=context, batch_tokens=16_384)
    return HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", max_length=context, batch_size=1)


def child(which: str, kind: str, context: int, serving: bool) -> None:
    """One path in its process: its peak over what the model itself holds, or one pass for each line of standard input."""
    lm, instances = language_model(which, context), requests(kind, context)

    def step() -> list[float]:
        return [nats for nats, _ in lm._loglikelihood_tokens(instances, disable_tqdm=True)]

    if serving:
        serve(step)
        return
    before = held_bytes()
    nats = step()
    print(json.dumps({"bytes": machine.peak_memory() - before, "nats": nats}))


def held_bytes() -> int:
    """What the process holds now; the peak that :func:`~contextwise.base.machine.peak_memory` reads starts anew from there."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # else a step could hide in what building the model left behind
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """A line of Linux's account of this process."""
    lines = Path("/proc/self/status").read_text().split("\n")
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def measure(kind: str, context: int, rounds: int) -> dict[str, Any]:
    """Both paths at one length."""
    names = ("contextwise", "lm_eval")
    peaks = {name: peak_memory(MODULE, "--child", name, kind, str(context), "once") for name in names}
    workers = {name: Worker(MODULE, "--child", name, kind, str(context), "serve") for name in names}
    try:
        outcome = alternate(workers, rounds, warmup=1)
    finally:
        for worker in workers.values():
            worker.close()
    ours, reference = peaks["contextwise"], peaks["lm_eval"]
    return {
        "kind": kind,
        "context": context,
        "bytes": {name: results["bytes"] for name, results in peaks.items()},
        "memory_ratio": reference["bytes"] / ours["bytes"],
        "seconds": outcome.seconds,
        "speed": outcome.speed("contextwise", "lm_eval"),
        "speed_quartiles": outcome.spread("contextwise", "lm_eval"),
        "difference_nats_per_token": max(
            abs(a - b) / len(continuation)
            for a, b, (_, _, continuation) in zip(
                ours["nats"], reference["nats"], requests(kind, context), strict=True
            )
        ),
        "nats": ours["nats"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, metavar=("WHICH", "KIND", "CONTEXT", "HOW"))
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 16_384])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.child:
        which, kind, context, how = options.child
        child(which, kind, int(context), how == "serve")
        return
    result: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "width": WIDTH,
        "layers": LAYERS,
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "measured": [],
    }
    for context in options.contexts:
        for kind in KINDS:
            row = measure(kind, context, options.rounds)
            result["measured"].append(row)
            low, high = row["speed_quartiles"]
            print(
                f"{kind} at {context:,} tokens: peak {row['bytes']['contextwise'] / 2**20:,.0f} MiB, lm_eval "
                f"{row['bytes']['lm_eval'] / 2**20:,.0f} ({row['memory_ratio']:.1f}x); {row['speed']:.2f} times as fast "
                f"({low:.2f} to {high:.2f}); differ by {row['difference_nats_per_token']:.1e} nats a token",
                flush=True,
            )
    publish("harness_loglikelihood", result)


if __name__ == "__main__":
    main(sys.argv[1:])
