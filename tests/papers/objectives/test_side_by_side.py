"""Runs of different objectives side by side."""

import json

import pytest
import yaml

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise_papers.objectives.side_by_side import side_by_side, validation_curve
from small import run_summary, write_rows


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


def test_validations_of_few_windows_and_of_a_run_that_stopped_early(tmp_path):
    """The loss of a run that stopped early is that of the weights that it exported; a few windows show nothing."""
    for folder, tokens in (("few", 1), ("early", 512)):
        run = RunFolder(tmp_path / folder)
        run.path.mkdir()
        training = {"patience": 1, "evaluation_tokens": tokens}
        recipe = {"name": folder, "data": {"context": 64}, "model": {"family": "gpt2"}, "training": training}
        run.recipe_file.write_text(yaml.safe_dump(recipe))
        run.write_summary(run_summary(validation_loss=4.0))
        rows = [
            {"kind": "validation", "step": step, "tokens": 100 * step, "seconds": 1.0, "loss": loss}
            for step, loss in ((10, 4.0), (11, 4.6))
        ]
        write_rows(run.metrics_file, rows)
    assert validation_curve(run, "tokens")[1].tolist() == [4.0, 4.0]
    with pytest.raises(DataError, match="1 window of 64 tokens while it trained, and fewer than 6 show nothing"):
        side_by_side([str(tmp_path / "few")])
