"""The best learning rate of each width, under the standard parametrization and µP.

``python -m benchmarks.widths --corpus corpora/stdlib --out runs/widths`` trains GPT-2, the parameter-matched model and
ContextLM (4 layers) at widths 64 to 512, with rates in steps of √2 and three seeds, as ``contextwise plan transfer`` searches.
It prints the best factor of the rates at each width, and what the best factor of width 128 costs there. A parametrization
*transfers* if no best factor is more than a step away from that of width 128 and its costs are at most 0.01 nats.
``--models``, ``--optimizers`` and ``--parametrizations`` replace only what they name. Finished runs are not trained again.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.estimates import as_json, count
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal
from contextwise.data import Corpus
from contextwise_plan.transfer import WidthRow, fitted, load_transfer, search

MODELS: dict[str, dict[str, Any]] = {"gpt2": {}, "pm": {"extra_layers": 2}, "contextlm": {"context_predictor": {}}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "muon": {
        "optimizer": "muon",
        "muon_learning_rate": 0.04,
        "muon_momentum": 0.9,
        "learning_rate": 0.02,
        "beta1": 0.8,
    },
    "muon, match_rms_adamw": {
        "optimizer": "muon",
        "muon_adjustment": "match_rms_adamw",
        "muon_learning_rate": 0.01,
        "muon_momentum": 0.9,
        "learning_rate": 0.02,
        "beta1": 0.8,
    },
    "adamw": {"optimizer": "adamw", "learning_rate": 4e-3},
    "adamw, decay 1": {"optimizer": "adamw", "learning_rate": 4e-3, "weight_decay": 1.0},
}
"""Name -> settings of the training. The rates are those of width 128, of which factors are tried. In short runs a weight decay
of 1 has the effect that 0.1 has in runs ten times as long."""
BASE = 128
STEP, MOST = 2**0.5, 0.01


def verdict(rows: list[WidthRow]) -> dict[str, Any]:
    """The farthest best factor from that of the base width, as a ratio, and the most that the base's lowest factor costs."""
    base = next(row for row in rows if row.width == BASE)
    lowest = min((loss, factor) for factor, loss in base.losses.items() if loss is not None)[1]
    costs = [_cost(row, lowest) for row in rows]
    bests = [row.best.value for row in rows if row.best is not None]
    if base.best is None or len(bests) < len(rows):
        return {"farthest": None, "costs": costs, "transfers": False}
    farthest = float(np.exp(np.abs(np.log(np.array(bests) / base.best.value)).max()))
    return {"farthest": farthest, "costs": costs, "transfers": farthest <= STEP and max(costs) <= MOST}


def _cost(row: WidthRow, factor: float) -> float:
    loss = row.losses[factor]
    return float("inf") if loss is None else loss - min(each for each in row.losses.values() if each is not None)


def searched(options: argparse.Namespace, model: str, optimizer: str, parametrization: str) -> dict[str, Any]:
    """The search of one model, optimizer and parametrization."""
    factors = [STEP**power for power in range(options.lowest, options.highest + 1)]
    training = {"tokens": options.tokens, "tokens_per_step": options.tokens_per_step, "warmup_steps": 0.05}
    training |= {"schedule": "linear", "evaluation_tokens": options.evaluation_tokens} | OPTIMIZERS[optimizer]
    recipe = {
        "name": f"{model}-{optimizer}-{parametrization}".replace(", ", "-").replace(" ", "-"),
        "data": {"corpus": str(options.corpus), "context": options.context, "verify": False},
        "model": {"family": "gpt2", "size": "nano"} | MODELS[model],
        "training": training | {"parametrization": parametrization, "mup_base_width": BASE},
    }
    values = {"recipe": recipe, "widths": options.widths, "factors": factors, "seeds": list(range(options.seeds))}
    settings = load_transfer(values | {"output": str(options.out / recipe["name"])})
    losses_WFS = search(settings)
    result = fitted(settings, losses_WFS)
    return {
        "settings": {"data": {"context": options.context}, "model": recipe["model"], "training": recipe["training"]},
        "corpus": Corpus.open(options.corpus).fingerprint,
        "widths": options.widths,
        "factors": factors,
        "losses": losses_WFS.tolist(),
        "best": [as_json(row.best) for row in result.rows],
        "slope": as_json(result.slope),
        **verdict(result.rows),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["muon", "adamw"])
    parser.add_argument("--parametrizations", nargs="+", choices=("mup", "standard"), default=["mup", "standard"])
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 256, 512], help="128 among them")
    parser.add_argument("--lowest", type=int, default=-5, help="lowest factor of the rates, in powers of √2")
    parser.add_argument("--highest", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--tokens-per-step", type=int, default=512)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--evaluation-tokens", type=int, default=32_768)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    rows: list[list[Any]] = []
    for optimizer in options.optimizers:
        for parametrization in options.parametrizations:
            for model in options.models:
                name = f"{model}, {optimizer}, {parametrization}, {count(options.tokens)} in steps of {options.tokens_per_step}"
                name += f", widths {', '.join(map(str, options.widths))}"
                cell = searched(options, model, optimizer, parametrization)
                publish("widths", {"cells": {name: cell}}, records="cells")
                best = [None if each is None else each["value"] for each in cell["best"]]
                rows.append([name, *best, cell["farthest"], max(cell["costs"]), "yes" if cell["transfers"] else "no"])
    columns: list[Column | str] = [
        "model",
        *[Column(str(width), form=".2f", missing="edge") for width in options.widths],
    ]
    columns += [Column("farthest", form=".2f"), Column("most cost", form=".4f"), "transfers"]
    console.print(terminal(Table("Best factor of the rates, by width", columns, rows)))


if __name__ == "__main__":
    main()
