"""Training throughput of ContextLM against the parameter-matched baseline, 12 + 2 layers.

Claim: at least 1.10 times. Layer passes allow 14 / 12.5 = 1.12; the attention of the predictor is w*w times cheaper on top.
"""

import argparse
from typing import Any

import torch

from benchmarks.harness import alternate, publish
from benchmarks.training_step import step_of, synchronised
from contextwise.base.machine import keep_freed_memory
from contextwise.models import ContextLMConfig, ModelSize, backbone_config, build_model
from contextwise.models.building import parameter_count
from contextwise.training.model import TrainedModel

SHAPES = {
    # name: layers, width, heads, vocabulary, context, rows
    "12 + 2 layers of 256, context 512": (12, 256, 8, 4096, 512, 4),
    "12 + 2 layers of 384, context 1024": (12, 384, 6, 4096, 1024, 1),
}


def measure(shape: tuple[int, ...], rounds: int, device: str) -> dict[str, Any]:
    layers, width, heads, vocabulary, context, rows = shape
    size = ModelSize(layers, width, heads, 1e-3)
    plain = backbone_config("gpt2", size, vocabulary, context)
    configs = {
        "gpt2": plain,
        "pm": backbone_config("gpt2", size, vocabulary, context, extra_layers=2),
        "contextlm": ContextLMConfig(plain, chunk_size=4, predictor_layers=2),
        "contextlm, every layer": ContextLMConfig(plain, chunk_size=4, predictor_layers=2, inject_every_layer=True),
    }
    torch.manual_seed(0)
    tokens = torch.randint(0, vocabulary, (rows, context + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def contender(config: Any) -> Any:
        model = TrainedModel(build_model(config)).to(device).train()
        step = step_of(model, lambda: model(x, y))
        return synchronised(step) if device == "cuda" else step

    outcome = alternate({name: contender(config) for name, config in configs.items()}, rounds)
    return {
        "shape": dict(zip(("layers", "width", "heads", "vocabulary", "context", "rows"), shape, strict=True)),
        "rounds": rounds,
        "parameters": {name: parameter_count(config) for name, config in configs.items()},
        "tokens_per_second": {name: rows * context / outcome.median(name) for name in configs},
        "speed_against_pm": {
            name: {"median": outcome.speed(name, "pm"), "quartiles": outcome.spread(name, "pm")}
            for name in configs
            if name != "pm"
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        keep_freed_memory()  # as `contextwise train` does
    results = {}
    for name, shape in SHAPES.items():
        results[name] = measure(shape, options.rounds, device)
        for contender, ratio in results[name]["speed_against_pm"].items():
            low, high = ratio["quartiles"]
            print(
                f"training, {name}: {contender} {ratio['median']:.2f}x PM (quartiles {low:.2f}-{high:.2f})", flush=True
            )
    publish("context_predictor", {"shapes": results})


if __name__ == "__main__":
    main()
