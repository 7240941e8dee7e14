"""Cached generation: ContextLM against the parameter-matched baseline, 12 + 2 layers; and ways to generate against each other.

Claim: at most 0.95 of PM's milliseconds for a token, after prompts of 32 and of 1,024 tokens (the paper: 22.88 / 23.05 =
0.993). Also the time to the first token, what the cache takes for each token of context, and the same with a static cache
and a compiled step.

The ways (``--only ways``): transformers' own ``generate()``, the recorded step of :mod:`contextwise.models.decoding`, both with
bf16 weights, and (``--compiled``) the static cache with a step compiled by inductor; GPT-2 and ContextLM, a nano and a 124M
shape, one row and 16. Claim: a token of nano takes the recorded step at most two thirds of transformers' time. Also whether the
tokens are the same. Prompt and recording are part of the time of every way.
"""

import argparse
from functools import partial
from typing import Any

import torch
from transformers import CompileConfig

from benchmarks.harness import Outcome, alternate, publish
from benchmarks.training_step import synchronised
from contextwise.base.machine import keep_freed_memory
from contextwise.models import ContextLMConfig, ModelSize, backbone_config, build_model
from contextwise.models.decoding import generate

PROMPTS = (32, 1024)
NEW = 65
SHAPES = {"nano": (ModelSize(4, 128, 4, 1e-3), 4096, 128), "124M": (ModelSize(12, 768, 12, 6e-4), 50304, 32)}
"""Size, vocabulary and new tokens."""
ROWS = (1, 16)


def contenders(device: str) -> dict[str, Any]:
    """PM, the plain backbone and ContextLM, with weights as they are drawn (what is generated does not change the time)."""
    plain = backbone_config("gpt2", ModelSize(12, 256, 8, 1e-3), 4096, max(PROMPTS) + NEW)
    configs = {
        "pm": backbone_config("gpt2", ModelSize(12, 256, 8, 1e-3), 4096, max(PROMPTS) + NEW, extra_layers=2),
        "gpt2": plain,
        "contextlm": ContextLMConfig(plain, chunk_size=4, predictor_layers=2),
    }
    return {name: build_model(config).to(device).eval() for name, config in configs.items()}


def continuing(model: Any, prompt: torch.Tensor, new: int, **options: Any) -> Any:
    def run() -> None:
        model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, **options)

    return synchronised(run) if prompt.is_cuda else run


def cache_bytes(model: Any, prompt: torch.Tensor) -> float:
    """Bytes of all tensors in the cache, for each token of the prompt."""
    with torch.no_grad():
        cache = model(prompt, use_cache=True).past_key_values
    tensors = {
        id(tensor): tensor
        for layer in cache.layers
        for tensor in vars(layer).values()
        if isinstance(tensor, torch.Tensor)
    }
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) / prompt.shape[1]


def measure(models: dict[str, Any], length: int, rounds: int, device: str) -> dict[str, Any]:
    prompt = torch.randint(1, 4096, (1, length), device=device)
    first = alternate({name: continuing(model, prompt, 1) for name, model in models.items()}, rounds)
    whole = alternate({name: continuing(model, prompt, NEW) for name, model in models.items()}, rounds)
    # What a token takes behind the first, round by round.
    later = Outcome(
        {
            name: [(a - b) / (NEW - 1) for a, b in zip(whole.seconds[name], first.seconds[name], strict=True)]
            for name in models
        }
    )
    return {
        "rounds": rounds,
        "milliseconds_per_token": {name: 1000 * later.median(name) for name in models},
        "milliseconds_to_first_token": {name: 1000 * first.median(name) for name in models},
        "cache_bytes_per_token": {name: cache_bytes(model, prompt) for name, model in models.items()},
        "contextlm_over_pm": {
            "per_token": later.speed("pm", "contextlm"),
            "per_token_quartiles": later.spread("pm", "contextlm"),
            "to_first_token": first.speed("pm", "contextlm"),
        },
    }


def measure_compiled(models: dict[str, Any], length: int, rounds: int, device: str) -> dict[str, Any]:
    """A static cache and a compiled step against the growing cache, from prompt to last token."""
    prompt = torch.randint(1, 4096, (1, length), device=device)
    outcome = alternate(
        {
            f"{name}, {way}": continuing(models[name], prompt, NEW, **options)
            for name in ("pm", "contextlm")
            for way, options in (("growing", {}), ("compiled", compiled_step(device)))
        },
        rounds,
    )
    return {
        "rounds": rounds,
        "milliseconds": {name: 1000 * outcome.median(name) for name in outcome.seconds},
        "contextlm_compiled_speed": outcome.speed("contextlm, compiled", "contextlm, growing"),
        "contextlm_compiled_over_pm_compiled": outcome.speed("pm, compiled", "contextlm, compiled"),
    }


def compiled_step(device: str) -> dict[str, Any]:
    """Options of ``generate()`` for a static cache and a decoding step compiled by inductor, on a CPU too."""
    if device == "cuda":
        return {"cache_implementation": "static"}  # transformers compiles by itself, into CUDA graphs
    settings = CompileConfig(fullgraph=True, dynamic=False, mode=None)
    settings._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": settings}


def measure_ways(shape: str, rows: int, rounds: int, device: str, compiled: bool) -> dict[str, Any]:
    """Milliseconds a step of each way to generate, of GPT-2 and ContextLM, after a prompt of 32 tokens."""
    size, vocabulary, new = SHAPES[shape]
    plain = backbone_config("gpt2", size, vocabulary, PROMPTS[0] + new)
    prompt = torch.randint(1, vocabulary, (rows, PROMPTS[0]), device=device)
    options: dict[str, Any] = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(prompt)
    results: dict[str, Any] = {}
    for name, config in {"gpt2": plain, "contextlm": ContextLMConfig(plain, chunk_size=4)}.items():
        model = build_model(config).to(device).eval()
        half = build_model(config).to(device, torch.bfloat16).eval()
        half.load_state_dict(model.state_dict())
        ways: dict[str, Any] = {
            "transformers": partial(model.generate, prompt, **options),
            "recorded": partial(generate, model, prompt, **options),
            "transformers, bf16": partial(half.generate, prompt, **options),
            "recorded, bf16": partial(generate, half, prompt, **options),
        }
        if compiled:
            ways["compiled, bf16"] = partial(half.generate, prompt, **options, **compiled_step(device))
        texts = {way: run()[:, PROMPTS[0] :] for way, run in ways.items()}
        timed = {way: synchronised(run) if prompt.is_cuda else run for way, run in ways.items()}
        outcome = alternate(timed, rounds, warmup=1)
        with torch.no_grad():
            text = torch.cat([prompt, texts["transformers"]], dim=1)
            same = half(text).logits.argmax(-1) == model(text).logits.argmax(-1)
        results[name] = {
            way: {
                "milliseconds_per_token": 1000 * outcome.median(way) / new,
                "speed": outcome.speed(way, "transformers"),
                "speed_quartiles": outcome.spread(way, "transformers"),
                "equal_tokens": (texts[way] == texts["transformers"]).float().mean().item(),
            }
            for way in ways
        }
        agreement = same.float().mean().item()
        print(f"{shape}, {name}, {rows} rows: bf16 has the same likeliest token at {100 * agreement:.1f}% of positions")
        for way, result in results[name].items():
            low, high = result["speed_quartiles"]
            print(
                f"{shape}, {name}, {rows} row{'s' * (rows > 1)}, {way}: {result['milliseconds_per_token']:.2f} ms per token, "
                f"{result['speed']:.2f}x transformers (quartiles {low:.2f}-{high:.2f}), "
                f"{100 * result['equal_tokens']:.0f}% equal tokens",
                flush=True,
            )
        results[name]["bf16_same_likeliest_token"] = agreement
    return {"rounds": rounds, "new_tokens": new, **results}


def against_pm(rounds: int, device: str) -> dict[str, Any]:
    """The claim about ContextLM and the parameter-matched baseline."""
    models = contenders(device)
    results = {}
    for length in PROMPTS:
        result = results[f"prompt of {length}"] = measure(models, length, rounds, device)
        ratio, memory = result["contextlm_over_pm"], result["cache_bytes_per_token"]
        low, high = ratio["per_token_quartiles"]
        print(
            f"generation behind {length} tokens: ContextLM takes {ratio['per_token']:.2f} of PM's time for a token "
            f"(quartiles {low:.2f}-{high:.2f}), {ratio['to_first_token']:.2f} to the first; "
            f"cache {memory['contextlm'] / memory['pm']:.2f} of PM's bytes",
            flush=True,
        )
    compiled = measure_compiled(models, PROMPTS[0], rounds, device)
    print(
        f"generation of {NEW} tokens, static cache and compiled step: {compiled['contextlm_compiled_speed']:.2f}x the growing "
        f"cache; ContextLM takes {compiled['contextlm_compiled_over_pm_compiled']:.2f} of PM's time, both compiled",
        flush=True,
    )
    return {"prompts": results, "compiled": compiled}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", choices=["predictor", "ways"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--compiled", action="store_true", help="also the step compiled by inductor (minutes)")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        keep_freed_memory()
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    if options.only in (None, "predictor"):
        results |= against_pm(options.rounds, device)
    if options.only in (None, "ways"):
        cases = [(shape, rows) for shape in options.shapes for rows in ROWS]
        results["ways"] = {
            f"{shape}, {rows}": measure_ways(shape, rows, options.rounds, device, options.compiled)
            for shape, rows in cases
        }
    publish("generation" if options.only is None else f"generation-{options.only}", results)


if __name__ == "__main__":
    main()
