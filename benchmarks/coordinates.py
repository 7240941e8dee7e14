"""Coordinate check of models of 4 layers: sizes of activations over widths, standard parametrization against µP.

``python -m benchmarks.coordinates --corpus corpora/stdlib`` runs the check of ``contextwise plan transfer`` on ContextLM, with
AdamW and with Muon in both of torch's adjustments. It prints the slope of each activation in log-log over the widths, mean
of ten steps. The JSON has the slope after each step and a t-interval over seeds. ``--models``, ``--families``, ``--ways`` and
``--parametrizations`` choose others; what they do not name is kept.
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import publish
from contextwise.base.estimates import as_json
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal
from contextwise.data import Corpus
from contextwise_plan.coordinates import coordinates
from contextwise_plan.transfer_settings import load_transfer, recipe_at

MODELS: dict[str, dict[str, Any]] = {
    "backbone": {},
    "pm": {"extra_layers": 2},
    "contextlm": {"context_predictor": {}},
    "layer heads": {"multi_token": {"future_tokens": 4, "head": "layer"}},
    "linear heads": {"multi_token": {"future_tokens": 4, "head": "linear"}},
}
FAMILIES = ("gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3")
WAYS: dict[str, dict[str, Any]] = {
    "adamw": {"learning_rate": 4e-3},
    "muon, original": {"optimizer": "muon", "learning_rate": 0.02, "muon_learning_rate": 0.04},
    "muon, match_rms_adamw": {
        "optimizer": "muon",
        "learning_rate": 0.02,
        "muon_learning_rate": 0.01,
        "muon_adjustment": "match_rms_adamw",
    },
}
"""Name -> settings of the training. The rates are those of width 128."""


def checked(options: argparse.Namespace, model: str, family: str, way: str, parametrization: str) -> dict[str, Any]:
    """The coordinates of one model and way to train, and the seconds that they took."""
    recipe = {
        "name": "coordinates",
        "data": {"corpus": str(options.corpus), "context": 256},
        "model": {"family": family, "size": "nano", **MODELS[model]},
        "training": {"steps": 100, "precision": "fp32", "parametrization": parametrization, **WAYS[way]},
    }
    start = time.process_time()
    settings = load_transfer({"recipe": recipe, "widths": options.widths, "check_seeds": options.seeds})
    recipes = {width: recipe_at(settings, width) for width in settings.widths}
    found = coordinates(recipes, settings.steps, settings.check_seeds)
    return {
        "settings": {"widths": options.widths, "seeds": options.seeds}
        | {name: recipe[name] for name in ("model", "training")},
        "corpus": Corpus.open(options.corpus).fingerprint,
        "seconds": round(time.process_time() - start, 1),
        "coordinates": as_json(found),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["contextlm"])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=["gpt2"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--parametrizations", nargs="+", choices=("standard", "mup"), default=["standard", "mup"])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    chosen = itertools.product(options.models, options.families, options.ways, options.parametrizations)
    cells = {", ".join(names): checked(options, *names) for names in chosen}
    publish("coordinates", {"cells": cells}, records="cells")
    columns: list[Column | str] = ["activation", Column("slope", form="+.3f"), "95% interval"]
    columns += [Column("least step", form="+.3f"), Column("largest step", form="+.3f")]
    for name, cell in cells.items():
        rows = [
            [each["name"], each["slope"]["value"], interval(each["slope"]), min(each["slopes"]), max(each["slopes"])]
            for each in cell["coordinates"]
        ]
        console.print(terminal(Table(f"{name}: slopes in log-log over the widths, mean of the steps", columns, rows)))


def interval(slope: dict[str, Any]) -> str:
    """The limits of a slope."""
    return f"[{slope['low']:+.3f}, {slope['high']:+.3f}]"


if __name__ == "__main__":
    main()
