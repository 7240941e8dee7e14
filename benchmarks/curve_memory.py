"""Peak memory of a context curve at 65,536 tokens and a 50k vocabulary, against lm-evaluation-harness's path.

Ours is the pass of ``contextwise curve`` over one document. The other does what lm-evaluation-harness 0.4.13
does with a request (``HFLM._loglikelihood_tokens``): ``log_softmax`` of all the logits of the input in float32, the most
likely token of each position, and the log-probabilities of the tokens gathered. It is measured at a length that fits, and
both are stated for a token. Each measurement runs in a process of its own, which reports its peak over what it held before.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import peak_memory, publish
from benchmarks.memory import HEADS, LAYERS, VOCABULARY, WIDTH
from contextwise.base import machine


@dataclass
class OneDocument:
    """A corpus of one document."""

    tokens: np.ndarray
    end_of_text: int | None = None

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(self.tokens)])

    def document(self, index: int, /) -> np.ndarray:
        return self.tokens


def one(which: str, context: int) -> None:
    """Child process: the losses of ``context`` tokens."""
    from transformers import LlamaForCausalLM, PreTrainedModel

    from contextwise.evaluation.kernel import Work
    from contextwise.evaluation.measures.curve.passes import running_pass, whole_windows
    from contextwise.models import ModelSize, backbone_config

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if which == "contextwise" and device == "cpu":
        machine.keep_freed_memory()  # as `contextwise evaluate` does
    torch.manual_seed(0)
    config = backbone_config("llama", ModelSize(LAYERS, WIDTH, HEADS, 1e-3), VOCABULARY, context)
    model: PreTrainedModel = LlamaForCausalLM(config).to(device).eval()
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, context + 1)
    before = machine.peak_memory()
    if which == "contextwise":
        corpus = OneDocument(tokens)
        with tempfile.TemporaryDirectory() as folder:
            work = Work(Path(folder) / "curve", "", {})
            sums = running_pass(model, corpus, whole_windows(corpus, context), None, work, batch_tokens=context)
        total = float(sums.bin_nats.sum())
    else:
        inputs = torch.from_numpy(tokens[None]).to(device)
        with torch.no_grad():
            log_p = torch.nn.functional.log_softmax(model(inputs[:, :-1]).logits, dim=-1, dtype=torch.float32)
        log_p.argmax(dim=-1)
        total = -float(log_p.gather(2, inputs[:, 1:, None]).sum())
    print(json.dumps({"bytes": machine.peak_memory() - before, "nats": total}))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, metavar=("WHICH", "CONTEXT"))
    parser.add_argument("--context", type=int, default=65_536, help="tokens of our pass")
    parser.add_argument("--fits", type=int, default=8192, help="tokens at which both paths are measured")
    options = parser.parse_args(arguments)
    if options.child:
        one(options.child[0], int(options.child[1]))
        return
    result: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "width": WIDTH,
        "layers": LAYERS,
        "full_logits_bytes_per_token": VOCABULARY * 4,
        "peaks": [],
    }
    measured = (
        ("lm-evaluation-harness", options.fits),
        ("contextwise", options.fits),
        ("contextwise", options.context),
    )
    for which, context in measured:
        results = peak_memory("benchmarks.curve_memory", "--child", which, str(context))
        row = {"path": which, "context": context, **results, "bytes_per_token": results["bytes"] / context}
        result["peaks"].append(row)
        print(
            f"{which} at {context:,} tokens and a vocabulary of {VOCABULARY:,}: peak {results['bytes'] / 2**30:.2f} GiB, "
            f"{row['bytes_per_token'] / 1024:,.1f} KiB a token",
            flush=True,
        )
    harness, ours, long = result["peaks"]
    result["ratio_at_equal_length"] = harness["bytes"] / ours["bytes"]
    result["ratio_per_token"] = harness["bytes_per_token"] / long["bytes_per_token"]
    print(
        f"lm-evaluation-harness / contextwise: {result['ratio_at_equal_length']:.1f}x at {options.fits:,} tokens, "
        f"{result['ratio_per_token']:.1f}x a token against {options.context:,}; losses differ by "
        f"{abs(harness['nats'] - ours['nats']) / options.fits:.1e} nats a token"
    )
    publish("curve_memory", result)


if __name__ == "__main__":
    main(sys.argv[1:])
