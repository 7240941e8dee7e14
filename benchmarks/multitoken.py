"""Multi-token prediction: peak memory of a training step over the number of heads, and speculative against greedy decoding.

Claims: the memory that a further head takes is that of its parameters and their gradients, not of its logits; speculative
decoding gives the greedy tokens in fewer passes, and in less time where enough proposals are accepted. How many are accepted
takes models that were trained (``--models RUN ...``, for example of ``contextwise recipes multitoken``): with weights as they
are drawn no proposal is ever right. What a block costs (``--only cost``) does not depend on the weights.
"""

import argparse
import itertools
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
from contextwise.models.decoding import generate

HEADS_OF_THE_MEMORY = (1, 2, 4, 8)
SHAPES = ((4, 128), (12, 256))
"""Blocks and width of the models whose verified blocks are timed."""


def one_step(which: str, head: str, n: int, context: int) -> None:
    """Child process: one training step of n heads at ``context`` tokens; prints the bytes it took beside the parameters."""
    from contextwise.training.model import TrainedModel
    from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM
    from contextwise_papers.objectives.multitoken.modeling import future_targets

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


def weights_read(model: Any) -> tuple[int, int]:
    """Weights of blocks and vocabulary matrices that a plain step and a verified block read, each once."""

    def size(*modules: Any) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    layer = model.config.head == "layer"
    shared = size(*model.family.blocks(model.stock), model.get_output_embeddings())
    return shared + (size(model.heads[0]) if layer else 0), shared + size(model.heads)


def speculation(run: Path, corpus: Path, prompts: int, new: int, rounds: int) -> dict[str, Any]:
    """Ways of greedy decoding of held-out prompts, one at a time, and the bounds of their ratio.

    A block outputs 1 + accepted tokens, so speculative decoding is (1 + accepted) / cost times as fast as plain decoding; the
    cost is that of a block in plain steps, as measured. Where reading weights takes all of the time, as in a large model
    on an accelerator, the cost is the ratio of the weights.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = load_model(str(run), device=device)
    length = 64
    held_out = Corpus.open(corpus, split="validation")
    long = [i for i in range(len(held_out)) if len(held_out.document(i)) >= length][:prompts]
    if len(long) < prompts:
        raise ConfigError(f"{corpus} has only {len(long)} held-out documents of {length} tokens; lower --prompts")
    tokens = torch.stack([torch.from_numpy(held_out.document(i)[:length].astype("int64")) for i in long])
    result: dict[str, Any] = {"prompts": prompts, "prompt_tokens": length, "new_tokens": new, "rounds": rounds}
    plain_weights, block_weights = weights_read(model)
    weights = block_weights / plain_weights
    # All texts have the same length: nothing ends them but their length.
    options: dict[str, Any] = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    batches = [part.to(device) for part in tokens.split(1)]
    counts: list[Any] = []

    def speculative() -> list[torch.Tensor]:
        out = []
        for batch in batches:
            out.append(model.generate(batch, speculative=True, **options))
            counts.append(model.last_acceptance)
        return out

    ways = {
        "transformers": lambda: [model.generate(batch, **options) for batch in batches],
        "recorded": lambda: [generate(model, batch, **options) for batch in batches],
        "speculative": speculative,
    }
    texts = {name: way() for name, way in ways.items()}
    same = all(torch.equal(a, b) for a, b in zip(texts["transformers"], texts["speculative"], strict=True))
    accepted = sum(each.accepted for each in counts) / sum(each.steps for each in counts)
    blocks = statistics.mean(each.steps for each in counts)
    timed = {name: synchronised(way) if device == "cuda" else way for name, way in ways.items()}
    outcome = alternate(timed, rounds, warmup=1)
    speed = outcome.speed("speculative", "recorded")
    result["rows of 1"] = {
        "same_tokens": same,
        "accepted_per_step": accepted,
        "milliseconds_per_token": {name: 1000 * outcome.median(name) / (new * len(batches)) for name in ways},
        "speed": {name: outcome.speed("speculative", name) for name in ("transformers", "recorded")},
        "quartiles": {name: outcome.spread("speculative", name) for name in ("transformers", "recorded")},
        "block_in_plain_steps": new / blocks / speed,
        "weights_of_a_block_in_plain_steps": weights,
        "bound_by_weights": (1 + accepted) / weights,
    }
    low, high = outcome.spread("speculative", "recorded")
    against, cost = outcome.speed("speculative", "transformers"), new / blocks / speed
    print(
        f"speculative decoding, {run.name}, one at a time: {speed:.2f}x recorded greedy decoding (quartiles "
        f"{low:.2f}-{high:.2f}), {against:.2f}x transformers' own; same tokens: {same}; {accepted:.2f} proposals accepted "
        f"a step; {_bounds(cost, model.config.future_tokens)}; by the weights that it reads it costs {weights:.2f}, and "
        f"{(1 + accepted) / weights:.2f}x is the most",
        flush=True,
    )
    return result


def _bounds(cost: float, n: int) -> str:
    """What the cost of a block in plain steps allows."""
    needed = 1.5 * cost - 1
    return (
        f"a block costs {cost:.2f} plain steps, so that {n / cost:.2f}x is reached if all proposals are accepted, and 1.5x "
        f"takes {needed:.2f} of {n - 1}"
    )


def block_costs(rounds: int, new: int = 48) -> dict[str, Any]:
    """What a verified block costs in plain steps, by size and heads; models as they are drawn, which accept nothing."""
    from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Any] = {"new_tokens": new, "rounds": rounds}
    options: dict[str, Any] = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    for (layers, width), head, n in itertools.product(SHAPES, ("layer", "linear"), (2, 4)):
        torch.manual_seed(0)
        trunk = layers - (head == "layer")  # as many blocks for a plain step
        backbone = backbone_config("gpt2", ModelSize(trunk, width, width // 64, 1e-3), 4096, 256)
        model = MultiTokenForCausalLM(MultiTokenConfig(backbone, n, head)).to(device).eval()
        prompt = torch.randint(1, 4096, (1, 32), device=device)
        ways = {
            "recorded": lambda model=model, prompt=prompt: generate(model, prompt, **options),
            "speculative": lambda model=model, prompt=prompt: model.generate(prompt, speculative=True, **options),
        }
        timed = {name: synchronised(way) if device == "cuda" else way for name, way in ways.items()}
        outcome = alternate(timed, rounds, warmup=1)
        cost = new / model.last_acceptance.steps / outcome.speed("speculative", "recorded")
        plain, block = weights_read(model)
        name = f"{layers} blocks of {width}, {n} {head} heads"
        results[name] = {"block_in_plain_steps": cost, "weights_of_a_block_in_plain_steps": block / plain, "heads": n}
        print(f"{name}: {_bounds(cost, n)}; by weights {block / plain:.2f}", flush=True)
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, metavar=("WHICH", "HEAD", "N", "CONTEXT"))
    parser.add_argument("--only", choices=["cost", "speculation"], help="one part alone")
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
    result: dict[str, Any] = {"memory": memory(options.context)} if options.only is None else {}
    if options.only in (None, "cost"):
        result["cost"] = block_costs(options.rounds)
    if options.models and options.corpus is None:
        parser.error("--models needs --corpus: a prepared corpus whose held-out documents begin the prompts")
    result["speculation"] = {
        run.name: speculation(run, options.corpus, options.prompts, options.new_tokens, options.rounds)
        for run in options.models
    }
    name, records = "multitoken", None
    if options.only is not None:
        name, records = f"{name}-{options.only}", "speculation" if options.only == "speculation" else None
    publish(name, result, records)  # of models that are measured one by one, the others are kept


if __name__ == "__main__":
    main(sys.argv[1:])
