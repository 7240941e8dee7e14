"""An evaluation on disk: ``summary.json``, ``documents.parquet`` and ``tokens.parquet`` in one folder."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_directory, read_json, write_json

SUMMARY, DOCUMENTS, TOKENS = "summary.json", "documents.parquet", "tokens.parquet"
CURVE = "curve.parquet"


@dataclass(frozen=True)
class Measured:
    """A finished measurement of another kind; ``summary`` is the content of ``summary.json`` in the folder ``path``."""

    path: Path
    summary: dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation. ``summary`` is the content of ``summary.json``."""

    path: Path
    summary: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> "Evaluation":
        """Open the folder of an evaluation.

        Raises:
            DataError: it holds no evaluation, or a damaged one.
        """
        if not is_evaluation(path):
            raise DataError(
                f"{path} holds no evaluation; make one with: contextwise evaluate MODEL --corpus CORPUS"
            )
        return cls(path, read_json(path / SUMMARY, "the summary of the evaluation"))

    @cached_property
    def documents(self) -> pa.Table:
        """One row a document: ``document``, ``document_hash``, ``tokens``, ``bytes``, ``words``, ``nats``."""
        return read_table(self.path / DOCUMENTS)

    def tokens(self) -> pa.Table:
        """One row a scored target: ``document``, ``position``, ``visible``, ``nats``."""
        return read_table(self.path / TOKENS)


def read_table(file: Path) -> pa.Table:
    """A Parquet file of an evaluation.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"the table {file} cannot be read ({' '.join(str(error).split())[:120]}); "
            "run contextwise evaluate again"
        ) from None


def is_evaluation(path: Path) -> bool:
    """Whether the folder holds an evaluation of every token."""
    return (path / SUMMARY).is_file() and (path / DOCUMENTS).is_file() and not (path / CURVE).is_file()


def is_curve(path: Path) -> bool:
    """Whether the folder holds a contextwise loss curve."""
    return all((path / name).is_file() for name in (SUMMARY, DOCUMENTS, CURVE))


def check_destination(
    path: Path,
    fingerprint: str,
    model: str | None,
    is_same: Callable[[Path], bool] = is_evaluation,
    what: str = "an evaluation",
) -> None:
    """See to it that an evaluation on the data ``fingerprint`` may be written to ``path``.

    Args:
        is_same: whether a folder holds ``what`` is to be written; only that is replaced.
        model: path or name of the model that an evaluation already there must be of; None inside the model's
            own run.

    Raises:
        ConfigError: the place holds something else: other files, or an evaluation of another model or on
            other data.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_same(path):
        raise ConfigError(f"{path} holds something that is not {what}; give another place with --out")
    there = read_json(path / SUMMARY, "the summary of the evaluation")
    other_model = model is not None and Path(there["model"]).resolve() != Path(model).resolve()
    if other_model or there["corpus"]["fingerprint"] != fingerprint:
        other = (
            f"another model, {there['model']}" if other_model else f"other data, {there['corpus']['path']}"
        )
        raise ConfigError(
            f"{path} holds {what} of {other}; give another place with --out, or remove that folder"
        )


def write_evaluation(
    path: Path, summary: dict[str, Any], documents: pa.Table, tokens: pa.Table
) -> Evaluation:
    """Write an evaluation, complete or not at all; one that is already at ``path`` is replaced.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    write_tables(path, summary, {DOCUMENTS: documents, TOKENS: tokens})
    return Evaluation(path, summary)


def write_tables(path: Path, summary: dict[str, Any], tables: dict[str, pa.Table]) -> None:
    """Write a summary and the tables beside it, complete or not at all; a folder that is already at ``path`` is replaced.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    with atomic_directory(path, "the evaluation", replace=True) as folder:
        for name, table in tables.items():
            pq.write_table(table, folder / name, compression="zstd")
        write_json(folder / SUMMARY, summary, "the evaluation")
