"""A ledger of trials: which of many changes to keep, with few false discoveries among those that are kept."""

from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import CheckpointError, DataError
from contextwise.base.estimates import Estimate
from contextwise.base.files import read_json
from contextwise.comparison.sequential import Decision, discoveries
from contextwise.experiments.trial.trial import RESULT


@dataclass(frozen=True)
class LedgerRow:
    """A comparison of a trial.

    Attributes:
        evidence: e-value of the arm being better than the reference at the newest look; 0 where its loss is not lower.
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


def read_ledger(folder: Path, rate: float = 0.1) -> list[LedgerRow]:
    """The comparisons of all trials in a folder, those with the most evidence first.

    Args:
        rate: the false discovery rate: the expected share of changes without a gain among those that are kept.

    Raises:
        CheckpointError: the folder holds no trial that was looked at.
        DataError: a result is damaged.
    """
    files = sorted(folder.glob(f"*/{RESULT}"))
    if not files:
        raise CheckpointError(
            f"{folder} holds no trial that was looked at; give the folder of several trials"
        )
    rows = []
    for file in files:
        try:
            rows += [(file.parent.name, each) for each in read_json(file, "a trial's result")["comparisons"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{file} is no result of a trial: {error}") from None
    better = [
        each["looks"][-1]["evidence"] if each["looks"][-1]["fixed"]["value"] < 0 else 0.0 for _, each in rows
    ]
    ledger = [
        LedgerRow(
            trial,
            each["arm"],
            each["reference"],
            each["budget"],
            Estimate.from_dict(each["looks"][-1]["fixed"]),
            len(each["looks"]),
            each["decision"],
            value,
            kept,
        )
        for (trial, each), value, kept in zip(rows, better, discoveries(better, rate), strict=True)
    ]
    return sorted(ledger, key=lambda row: -row.evidence)
