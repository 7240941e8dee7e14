"""Coordinate check of ContextLM: sizes of activations over widths, standard parametrization against µP.

``python -m benchmarks.coordinates --corpus corpora/stdlib`` runs the check of ``contextwise transfer`` on ContextLM of 4
layers, with AdamW and with Muon in both of torch's adjustments. It prints the slope of each activation in log-log over the
widths, mean of ten steps. The JSON has the slope after each step and a t-interval over seeds; ``--ways`` replaces only what
it names.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import publish
from contextwise.base.estimates import as_json
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal
from contextwise.data import Corpus
from contextwise.experiments.transfer import coordinates, load_transfer

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


def checked(corpus: Path, family: str, widths: list[int], seeds: int, way: str, parametrization: str) -> dict[str, Any]:
    """The coordinates of one way to train, and the seconds that they took."""
    recipe = {
        "name": "coordinates",
        "data": {"corpus": str(corpus), "context": 256},
        "model": {"family": family, "size": "nano", "context_predictor": {}},
        "training": {"steps": 100, "precision": "fp32", "parametrization": parametrization, **WAYS[way]},
    }
    start = time.process_time()
    found = coordinates(load_transfer({"recipe": recipe, "widths": widths, "check_seeds": seeds}))
    return {
        "settings": {"family": family, "widths": widths, "seeds": seeds, "training": recipe["training"]},
        "corpus": Corpus.open(corpus).fingerprint,
        "seconds": round(time.process_time() - start, 1),
        "coordinates": as_json(found),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--family", default="gpt2")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args(arguments)
    cells = {
        f"{way}, {parametrization}": checked(
            options.corpus, options.family, options.widths, options.seeds, way, parametrization
        )
        for way in options.ways
        for parametrization in ("standard", "mup")
    }
    publish("coordinates", {"cells": cells}, records="cells")
    names = [each["name"] for each in next(iter(cells.values()))["coordinates"]]
    rows = [
        [name, *[cell["coordinates"][at]["slope"]["value"] for cell in cells.values()]] for at, name in enumerate(names)
    ]
    columns: list[Column | str] = ["activation", *[Column(cell, form="+.3f") for cell in cells]]
    console.print(terminal(Table("Slopes in log-log over the widths, mean of the steps", columns, rows)))


if __name__ == "__main__":
    main()
