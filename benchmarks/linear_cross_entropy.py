"""The vocabulary head's loss and gradients: ours in pieces, the whole matrix, and torch's own chunked form where it has one."""

import argparse
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.harness import alternate, publish
from contextwise.models.losses import linear_cross_entropy

SHAPES = [(4096, 128, 4096), (2048, 256, 4096), (1024, 256, 50_304)]


def contenders(tokens: int, width: int, vocabulary: int, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device, requires_grad=True)
    weight = (0.02 * torch.randn(vocabulary, width, device=device)).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), device=device)
    functions: dict[str, Any] = {
        "contextwise": lambda: linear_cross_entropy(hidden, weight, targets),
        "whole matrix": lambda: cross_entropy(hidden @ weight.t(), targets, reduction="sum"),
    }
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        functions["torch, chunked"] = lambda: torch.nn.functional.linear_cross_entropy(
            hidden, weight, targets, reduction="sum", options=torch.nn.LinearCrossEntropyOptions()
        )

    def timed(make: Any) -> Any:
        def run() -> None:
            make().backward()
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    return {name: timed(make) for name, make in functions.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for shape in SHAPES:
        things = contenders(*shape, device)
        outcome = alternate(things, options.rounds)
        ratios = {name: outcome.speed("contextwise", name) for name in things if name != "contextwise"}
        rows.append({"tokens, width, vocabulary": shape, "speed_of_contextwise_against": ratios})
        shown = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in ratios.items())
        print(f"loss of {shape[0]:,} tokens, width {shape[1]}, vocabulary {shape[2]:,}: {shown}", flush=True)
    publish("linear_cross_entropy", {"shapes": rows})


if __name__ == "__main__":
    main()
