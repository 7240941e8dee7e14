"""Runs of different objectives side by side."""

import json

import pytest
import yaml

from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise_papers.objectives.side_by_side import side_by_side
from small import run_summary


def test_objectives_of_one_name_have_a_row_each(tmp_path):
    """A recipe named alike with another objective; and two seeds of the first."""
    runs = (("causal", "causal", 0, 3.0), ("causal-1", "causal", 1, 4.0), ("masked", "masked", 0, 6.0))
    for folder, objective, seed, loss in runs:
        run = RunFolder(tmp_path / folder)
        run.path.mkdir()
        recipe = {"name": "nano", "seed": seed, "objective": {"name": objective}, "model": {"family": "gpt2"}}
        run.recipe_file.write_text(yaml.safe_dump(recipe))
        counts = {"tokens": 100, "flops": 1e9, "steps": 10, "input_tokens": 100, "target_tokens": 90, "parameters": 5}
        run.write_summary(run_summary(name="nano", seed=seed, objective=objective, validation_loss=loss, **counts))
        row = {"kind": "validation", "step": 10, "tokens": 100, "flops": 1e9, "seconds": 1.0, "loss": loss}
        run.metrics_file.write_text(json.dumps(row) + "\n")
    with RunFolder(tmp_path / "masked").metrics_file.open("a") as file:  # its operations are not known
        file.write(json.dumps({"kind": "validation", "step": 11, "tokens": 110, "seconds": 1.0, "loss": 6.0}) + "\n")
    rows = side_by_side([str(tmp_path / folder) for folder, *_ in runs])["rows"]
    assert [(row["name"], row["objective"], row["seeds"], row["loss"]) for row in rows] == [
        ("nano (causal)", "causal", [0, 1], 3.5),
        ("nano (masked)", "masked", [0], 6.0),
    ]
    with pytest.raises(ConfigError, match="the same recipe with the same seed"):
        side_by_side([str(tmp_path / "causal"), f"{tmp_path}/masked/../causal"])
