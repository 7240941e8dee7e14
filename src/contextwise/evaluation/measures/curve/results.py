"""A contextwise loss curve on disk: ``summary.json``, ``curve.parquet`` and ``documents.parquet`` in one folder."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from contextwise.base.errors import DataError
from contextwise.base.files import read_json
from contextwise.evaluation.measures.curve.sums import CurveSums
from contextwise.evaluation.results import CURVE, DOCUMENTS, SUMMARY, is_curve, read_table, write_tables


@dataclass(frozen=True)
class ContextwiseCurve:
    """A measured curve. ``summary`` is the content of ``summary.json``."""

    path: Path
    summary: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> "ContextwiseCurve":
        """Open the folder of a curve.

        Raises:
            DataError: it holds no curve, or a damaged one.
        """
        path = Path(path)
        if not is_curve(path):
            raise DataError(
                f"{path} holds no contextwise curve; make one with: contextwise evaluate MODEL --corpus CORPUS --contextwise"
            )
        summary = read_json(path / SUMMARY, "the summary of the curve")
        if not isinstance(summary, dict) or not {"bins", "measures", "settings"} <= summary.keys():
            raise DataError(f"{path / SUMMARY} is not the summary of a contextwise curve; measure it again")
        return cls(path, summary)

    @property
    def bins(self) -> list[dict[str, Any]]:
        """``visible_from``, ``visible_to``, ``loss``, ``low``, ``high``, ``targets`` of each bin, in order."""
        return self.summary["bins"]

    @property
    def measures(self) -> dict[str, Any]:
        """``best_context_loss``, ``last_tenth``, ``effective_context`` and ``average_loss``."""
        return self.summary["measures"]

    @cached_property
    def curve(self) -> pa.Table:
        """One row for each number of visible tokens: ``visible``, ``loss``, ``low``, ``high``, ``targets``."""
        return read_table(self.path / CURVE)

    @cached_property
    def documents(self) -> pa.Table:
        """One row for each document and bin: ``document``, ``bin`` (index in :attr:`bins`), ``nats``, ``targets``."""
        return read_table(self.path / DOCUMENTS)


def write_curve(path: Path, summary: dict[str, Any], sums: CurveSums) -> ContextwiseCurve:
    """Write a curve, complete or not at all; one that is already at ``path`` is replaced.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    write_tables(path, summary, {CURVE: curve_table(sums), DOCUMENTS: documents_table(sums)})
    return ContextwiseCurve(path, summary)


def curve_table(sums: CurveSums) -> pa.Table:
    """Loss at each number of visible tokens; its interval is null with one document."""
    low, high = sums.ends()
    return pa.table(
        {
            "visible": pa.array(sums.visible.astype(np.int32)),
            "loss": pa.array(sums.loss),
            "low": pa.array(low, mask=np.isnan(low)),
            "high": pa.array(high, mask=np.isnan(high)),
            "targets": pa.array(sums.targets),
        }
    )


def documents_table(sums: CurveSums) -> pa.Table:
    """Sums of each document in each bin: what a bootstrap over documents draws from."""
    documents, count = len(sums.documents), len(sums.bins)
    return pa.table(
        {
            "document": pa.array(np.repeat(sums.documents.astype(np.int32), count)),
            "bin": pa.array(np.tile(np.arange(count, dtype=np.int32), documents)),
            "nats": pa.array(sums.bin_nats.ravel()),
            "targets": pa.array(sums.bin_targets.ravel().astype(np.int64)),
        }
    )
