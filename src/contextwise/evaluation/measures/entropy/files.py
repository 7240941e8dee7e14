"""A measurement of ``contextwise entropy`` on disk: ``summary.json``, ``spectra.parquet``, ``losses.parquet``, features."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_directory, read_json, sha256_file, write_json
from contextwise.evaluation.measures.entropy.state import ContextState
from contextwise.evaluation.scoring.truncated import Targets
from contextwise.models.loading import model_folder

KIND = "entropy"
SUMMARY, SPECTRA, LOSSES, FEATURES = (
    "summary.json",
    "spectra.parquet",
    "losses.parquet",
    "features.safetensors",
)
Contexts = dict[int, ContextState]
_NEEDED = {"model", "corpus", "contexts", "losses", "differences", "notes"}


@dataclass(frozen=True)
class Measurement:
    """A finished measurement. ``summary`` is the content of ``summary.json``."""

    path: Path
    summary: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> "Measurement":
        """Open the folder of a measurement.

        Raises:
            DataError: it holds none, or a damaged one.
        """
        if not is_measurement(path):
            raise DataError(
                f"{path} holds no measurement of intrinsic entropy; make one with: contextwise entropy MODEL --corpus CORPUS"
            )
        summary = read_json(path / SUMMARY, "the summary of the measurement")
        if not isinstance(summary, dict) or summary.get("kind") != KIND or not summary.keys() >= _NEEDED:
            raise DataError(
                f"{path / SUMMARY} is not the summary of a measurement of intrinsic entropy; remove that folder and measure "
                "again"
            )
        return cls(path, summary)

    @property
    def contexts(self) -> list[int]:
        """The contexts measured, the shortest first."""
        return list(self.summary["contexts"])

    def losses(self) -> dict[int, float]:
        """Context -> mean loss in nats."""
        return {int(context): loss["value"] for context, loss in self.summary["losses"].items()}

    def spectra(self) -> dict[int, np.ndarray]:
        """Context -> (D,) eigenvalues, the largest first.

        Raises:
            DataError: the table cannot be read.
        """
        table = self._table(SPECTRA)
        context, values = table["context"].to_numpy(), table["eigenvalue"].to_numpy()
        return {length: values[context == length] for length in self.contexts}

    def targets(self) -> pa.Table:
        """One row a target and context: ``context``, ``document``, ``position``, ``nats``."""
        return self._table(LOSSES)

    def features(self, context: int) -> torch.Tensor:
        """(K, D) features that were kept at a context.

        Raises:
            DataError: they cannot be read.
        """
        try:
            with safe_open(self.path / FEATURES, "pt") as file:
                return file.get_tensor(str(context))
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"the features {self.path / FEATURES} cannot be read ({str(error)[:120]}); "
                f"remove {self.path} and run contextwise entropy again"
            ) from None

    def _table(self, name: str) -> pa.Table:
        try:
            return pq.read_table(self.path / name)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"the table {self.path / name} cannot be read ({' '.join(str(error).split())[:120]}); "
                f"remove {self.path} and run contextwise entropy again"
            ) from None


def is_measurement(path: Path) -> bool:
    """Whether the folder holds a measurement."""
    return (path / SUMMARY).is_file() and (path / SPECTRA).is_file()


def check_destination(path: Path, source: str | None, fingerprint: str) -> None:
    """See to it that a measurement may be written to ``path``.

    Args:
        source: the model; None where the place itself is that model's.

    Raises:
        ConfigError: the place holds something else: other files, or a measurement of another model or other data.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_measurement(path):
        raise ConfigError(
            f"{path} holds something that is no measurement of intrinsic entropy; give another place with --out"
        )
    there = Measurement.open(path).summary
    if source is not None and Path(there["model"]).resolve() != Path(source).resolve():
        other = f"another model, {there['model']}"
    elif there["corpus"]["fingerprint"] != fingerprint:
        other = f"other data, {there['corpus']['path']}"
    else:
        return
    raise ConfigError(
        f"{path} holds a measurement of {other}; give another place with --out, or remove that folder"
    )


def finished_measurement(path: Path, key: str, contexts: list[int]) -> Measurement | None:
    """The measurement that is already at ``path``, if it is of the same content and contexts (:func:`content_key`)."""
    if not is_measurement(path):
        return None
    there = Measurement.open(path)
    return there if there.summary.get("key") == key and there.contexts == contexts else None


def content_key(source: str, model: PreTrainedModel, settings: dict[str, Any]) -> str:
    """SHA-256 of what decides a measurement: the model's files, the data and the settings."""
    folder = Path(model_folder(source))
    if folder.is_dir():
        files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
        content: Any = {file.name: sha256_file(file) for file in files}
    else:  # a name on the Hub: the commit that it was loaded from
        content = [source, getattr(model.config, "_commit_hash", None)]
    return hashlib.sha256(json.dumps([content, settings], sort_keys=True).encode()).hexdigest()


def write_measurement(
    path: Path, summary: dict[str, Any], targets: Targets, found: Mapping[int, ContextState]
) -> Measurement:
    """Write a measurement, complete or not at all; one that is already at ``path`` is replaced.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    with atomic_directory(path, "the measurement", replace=True) as folder:
        pq.write_table(_losses(targets, found), folder / LOSSES, compression="zstd")
        pq.write_table(_spectra(found), folder / SPECTRA, compression="zstd")
        (folder / FEATURES).write_bytes(
            save({str(length): state.kept.contiguous() for length, state in found.items()})
        )
        write_json(folder / SUMMARY, summary, "the measurement")
    return Measurement(path, summary)


def _losses(targets: Targets, found: Mapping[int, ContextState]) -> pa.Table:
    return pa.concat_tables(
        pa.table(
            {
                "context": pa.array(np.full(len(targets), context, np.int32)),
                "document": pa.array(targets.document),
                "position": pa.array(targets.position),
                "nats": pa.array(state.nats),
            }
        )
        for context, state in sorted(found.items())
    )


def _spectra(found: Mapping[int, ContextState]) -> pa.Table:
    return pa.concat_tables(
        pa.table(
            {
                "context": pa.array(np.full(len(values), context, np.int32)),
                "index": pa.array(np.arange(1, len(values) + 1, dtype=np.int32)),
                "eigenvalue": pa.array(values),
            }
        )
        for context, values in ((c, state.eigenvalues) for c, state in sorted(found.items()))
        if values is not None
    )
