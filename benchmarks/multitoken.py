"""Multi-token prediction: peak memory of a training step over the number of heads, and speculative against greedy decoding.

Claims: the memory that a further head takes is that of its parameters and their gradients, not of its logits; speculative
decoding gives the greedy tokens in less time. The second needs models that were trained (``--models RUN ...``, for example of
``contextwise recipes multitoken``): with weights as they are drawn no proposal is ever right.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import alternate, peak_memory, publish
from benchmarks.memory import VOCABULARY
from benchmarks.training_step import synchronised
from contextwise.base import machine
from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.models import ModelSize, backbone_config, load_model

HEADS_OF_THE_MEMORY = (1, 2, 4, 8)


def one_step(which: str, head: str, n: int, context: int) -> None:
    """Child process: one training step of n heads at ``context`` tokens; prints the bytes it took beside the parameters."""
    from contextwise.models.multitoken import MultiTokenConfig, MultiTokenForCausalLM
    from contextwise.models.multitoken.modeling import future_targets
    from contextwise.training.model import TrainedModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = backbone_config("gpt2", ModelSize(4, 256, 4, 1e-3), VOCABULARY, context)
    model = MultiTokenForCausalLM(MultiTokenConfig(backbone, n, head)).to(device).train()
    if which == "contextwise" and device == "cpu":
        machine.keep_freed_memory()
    tokens = torch.randint(0, VOCABULARY, (1, context), device=device)
    targets = torch.roll(tokens, -1, 1)
    before = machine.peak_memory()
    if which == "contextwise":
        TrainedModel(model)(tokens, targets).backward()
    else:  # all heads' logits at once, as the formula is usually written down
        states = model.future_states(tokens)
        logits = [model.vocabulary_head(i + 1)(state) for i, state in enumerate(states)]
        every = future_targets(targets, n, None)
        losses = [
            torch.nn.functional.cross_entropy(one.flatten(0, 1), y.flatten(), ignore_index=-100)
            for one, y in zip(logits, every, strict=True)
        ]
        torch.stack(losses).sum().backward()
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({"bytes": machine.peak_memory() - before - gradients}))


def memory(context: int) -> dict[str, Any]:
    """Bytes a token beside parameters and gradients, over n."""
    result: dict[str, Any] = {"context": context, "vocabulary": VOCABULARY}
    for head in ("linear", "layer"):
        result[head] = {}
        for n in HEADS_OF_THE_MEMORY:
            row = {
                which: peak_memory("benchmarks.multitoken", "--child", which, head, str(n), str(context))["bytes"]
                / context
                for which in ("contextwise", "all logits")
            }
            result[head][str(n)] = row
            print(
                f"memory, {n} {head} heads at {context:,} tokens and a vocabulary of {VOCABULARY:,}: "
                f"{row['contextwise'] / 1024:,.0f} KiB a token, with all logits at once {row['all logits'] / 1024:,.0f}",
                flush=True,
            )
    return result


def speculation(run: Path, corpus: Path, prompts: int, new: int, rounds: int) -> dict[str, Any]:
    """Greedy and speculative decoding of held-out prompts, one at a time and eight at a time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = load_model(str(run), device=device)
    length = 64
    held_out = Corpus.open(corpus, split="validation")
    long = [i for i in range(len(held_out)) if len(held_out.document(i)) >= length][:prompts]
    if len(long) < prompts:
        raise ConfigError(f"{corpus} has only {len(long)} held-out documents of {length} tokens; lower --prompts")
    tokens = torch.stack([torch.from_numpy(held_out.document(i)[:length].astype("int64")) for i in long])
    result: dict[str, Any] = {"prompts": prompts, "prompt_tokens": length, "new_tokens": new, "rounds": rounds}
    for rows in (1, 8):
        batches = [part.to(device) for part in tokens.split(rows)]
        accepted: list[float] = []

        def decode(
            speculative: bool, batches: list[Any] = batches, accepted: list[float] = accepted
        ) -> list[torch.Tensor]:
            options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
            out = []
            for batch in batches:
                out.append(model.generate(batch, speculative=speculative, **options))
                if speculative:
                    accepted.append(model.last_acceptance.mean_accepted)
            return out

        same = all(torch.equal(a, b) for a, b in zip(decode(False), decode(True), strict=True))
        outcome = alternate(
            {
                name: synchronised(run_) if device == "cuda" else run_
                for name, run_ in {"greedy": lambda: decode(False), "speculative": lambda: decode(True)}.items()
            },
            rounds,
            warmup=1,
        )
        result[f"rows of {rows}"] = {
            "same_tokens": same,
            "speed": outcome.speed("speculative", "greedy"),
            "quartiles": outcome.spread("speculative", "greedy"),
            "accepted_per_step": statistics.mean(accepted),
        }
        print(
            f"speculative decoding, {run.name}, {rows} at a time: {outcome.speed('speculative', 'greedy'):.2f}x greedy "
            f"(quartiles {outcome.spread('speculative', 'greedy')[0]:.2f}-{outcome.spread('speculative', 'greedy')[1]:.2f}), "
            f"{statistics.mean(accepted):.2f} proposals accepted a step, same tokens: {same}",
            flush=True,
        )
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, metavar=("WHICH", "HEAD", "N", "CONTEXT"))
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="runs whose models have heads")
    parser.add_argument("--corpus", type=Path, help="whose held-out documents begin the prompts")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    if options.child:
        which, head, n, context = options.child
        one_step(which, head, int(n), int(context))
        return
    result: dict[str, Any] = {"memory": memory(options.context)}
    if options.models and options.corpus is None:
        parser.error("--models needs --corpus: a prepared corpus whose held-out documents begin the prompts")
    result["speculation"] = {
        run.name: speculation(run, options.corpus, options.prompts, options.new_tokens, options.rounds)
        for run in options.models
    }
    publish("multitoken", result)


if __name__ == "__main__":
    main(sys.argv[1:])
