"""Discoveries of many trials or decisions: which changes to keep, with few false ones among those that are kept."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contextwise.base.errors import CheckpointError, ConfigError, Problem
from contextwise.base.estimates import Estimate
from contextwise.base.files import read_sealed_json
from contextwise.comparison.decided import RESULT
from contextwise.comparison.sequential import Decision, discoveries


@dataclass(frozen=True)
class TriedChange:
    """A comparison of a trial.

    Attributes:
        evidence: e-value of the arm being better than the reference at the newest look; 0 where its loss is not lower, or is
            equivalent.
        kept: whether it is among the discoveries.
    """

    trial: str
    arm: str
    reference: str
    budget: int
    difference: Estimate
    seeds: int
    decision: Decision
    evidence: float
    kept: bool


def tried_changes(folder: Path, rate: float = 0.1) -> list[TriedChange]:
    """The comparisons of all trials in a folder, those with the most evidence first; one with the same numbers counts once.

    Args:
        rate: the false discovery rate: the expected share of changes without a gain among those that are kept.

    Raises:
        CheckpointError: the folder holds no trial that was looked at.
        DataError: a result is damaged.
    """
    if not 0 < rate < 1:
        raise ConfigError(Problem("but must be between 0 and 1", "false_discoveries", rate))
    files = sorted(folder.glob(f"*/{RESULT}"))
    if not files:
        raise CheckpointError(f"{folder} holds no trial or decision that was looked at; give the folder of several")
    rows, seen = [], []
    for file in files:
        result = read_sealed_json(file, "the result of a trial or decision", "make it again")
        for comparison in result["comparisons"]:
            if comparison["looks"] not in seen:
                seen.append(comparison["looks"])
                rows.append(_row(file.parent.name, comparison))
        rows += _without_looks(file.parent.name, result)
    kept = discoveries([row.evidence for row in rows], rate)
    changes = [replace(row, kept=each) for row, each in zip(rows, kept, strict=True)]
    return sorted(changes, key=lambda row: -row.evidence)


def _without_looks(trial: str, result: dict[str, Any]) -> list[TriedChange]:
    """Changes of a trial whose first run diverged: they were tried, and have no evidence."""
    compared = {(each["arm"], each["budget"]) for each in result["comparisons"]}
    return [
        TriedChange(
            trial, each["arm"], result["reference"], each["budget"], Estimate(math.nan), 0, "undecided", 0.0, False
        )
        for each in result.get("lengths", [])
        if each["arm"] != result["reference"] and (each["arm"], each["budget"]) not in compared
    ]


def _row(trial: str, comparison: dict[str, Any]) -> TriedChange:
    """The row of a comparison that is not yet among the discoveries."""
    looks = comparison["looks"]
    difference = Estimate.from_dict(looks[-1]["fixed"])
    return TriedChange(
        trial=trial,
        arm=comparison["arm"],
        reference=comparison["reference"],
        budget=comparison["budget"],
        difference=difference,
        seeds=len(looks),
        decision=comparison["decision"],
        evidence=looks[-1]["evidence"] if difference.value < 0 and comparison["decision"] != "equivalent" else 0.0,
        kept=False,
    )
