"""The part of ``contextwise evaluate`` behind ``--infill``: how well a model fills holes."""

from pathlib import Path
from typing import Any

from contextwise.base.config import validate
from contextwise.cli.measuring import run_measure


def evaluate_holes(
    model: str, data: Path, split: str, seed: int, limit: int | None, as_json: bool, **options: Any
) -> None:
    """Fill the holes of a file or corpus, print and write the scores."""
    from contextwise.evaluation.measures.infill import Infill

    given = {name: options.pop(name) for name in ("spm", "max_new_tokens", "context")}
    given |= {"file": data, "split": split, "seed": seed, "limit": limit}
    run_measure(model, validate(Infill, given, "the command"), None, split, as_json, **options)
