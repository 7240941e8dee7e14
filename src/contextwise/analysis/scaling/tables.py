"""The table of a sweep: its points as one small JSON file, from which ``contextwise plan`` plans as from the sweep's folder.

The loss over each held-out document is part of it, so that contexts can be compared paired by document.
"""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.analysis.scaling.observations import Observations, observations
from contextwise.analysis.sweep_points import COLUMNS, SweepPoint
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_write, read_json
from contextwise.data import Corpus
from contextwise.experiments.sweep import Sweep

WHAT = "the table of a sweep"
OF_A_RUN = {"context", "steps", "tokens", "branches", "trunk"}
"""Settings in which the runs of a sweep differ: the points say what they are."""


def write_table(observed: Observations, path: Path, folder: Path) -> None:
    """Write the points of the sweep in a folder, with the settings that their runs share and what they were trained on.

    Raises:
        ConfigError: there is another file, which would be lost.
    """
    if path.exists():
        try:
            read_table(path)
        except DataError:
            raise ConfigError(f"{path} is no table of a sweep, and would be lost; give another name") from None
    sweep = Sweep.open(folder)
    recipe = sweep.run_folder(observed.points[0].run).recipe()
    shared = {
        part: {name: value for name, value in recipe[part].items() if name not in OF_A_RUN}
        for part in ("data", "training")
    }
    corpus = Path(recipe["data"]["corpus"])
    shared["data"]["corpus"] = corpus.name
    median = None
    with contextlib.suppress(DataError):  # the corpus is elsewhere
        texts = Corpus.open(corpus)
        median = float(np.median(texts.lengths)) if texts.fingerprint == sweep.corpus else None
    documents = {p.context: {"ids": p.document_ids, "targets": p.document_targets} for p in observed.points}
    rows = [
        [*(getattr(point, name) for name in COLUMNS), [round(nats, 2) for nats in point.document_nats]]
        for point in observed.points
    ]
    values = {
        "name": folder.resolve().name,
        "recipe": shared,
        "corpus_sha256": sweep.corpus,
        "median_document": median,
        "models": observed.model,
        "planned": observed.planned,
        "constant_rate": observed.constant_rate,
        "left_out": observed.left_out,
        "documents": documents,
        "columns": [*COLUMNS, "document_nats"],
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    points = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    atomic_write(path, "{" + ",\n".join([*lines, f'"points": [\n{points}\n]']) + "}\n", WHAT)


def read_table(path: Path) -> Observations:
    """Read what :func:`write_table` wrote.

    Raises:
        DataError: there is no such file, or it is no table of a sweep.
    """
    values = read_json(path, WHAT)
    try:
        points = [_point(values, dict(zip(values["columns"], row, strict=True))) for row in values["points"]]
        if not points or not all(0 < point.loss < float("inf") for point in points):
            raise ValueError("a loss is missing, or is no positive number")
        observed = observations(points, values["models"])
        about = {name: values[name] for name in ("planned", "constant_rate", "left_out")}
        return replace(observed, **about)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is no table of a sweep: {error!r}") from None


def _point(values: dict[str, Any], row: dict[str, Any]) -> SweepPoint:
    documents = values["documents"][str(row["context"])]
    about = {"document_ids": documents["ids"], "document_targets": documents["targets"]}
    row |= {name: tuple(numbers) for name, numbers in about.items()} | {"document_nats": tuple(row["document_nats"])}
    return SweepPoint(**row)
