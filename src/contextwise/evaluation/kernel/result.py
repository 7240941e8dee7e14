"""A result on disk: a folder with ``summary.json`` and the tables beside it, complete or absent."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from contextwise.base.errors import ConfigError, DataError, one_line
from contextwise.base.estimates import Estimate, counted
from contextwise.base.files import atomic_directory, atomic_write, check_nothing_else, read_json, write_json
from contextwise.base.hashes import MANIFEST, damage, seal, sealed_files
from contextwise.base.schemas import parse_json
from contextwise.base.views import Viewed

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY = "summary.json"


@dataclass(frozen=True, repr=False)
class Result(Viewed):
    """A finished measurement; ``summary`` is the content of ``summary.json`` in the folder ``path``."""

    path: Path
    summary: dict[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.absolute())  # wherever the process goes

    @classmethod
    def open(cls, path: str | Path, measure: str | None = None) -> Self:
        """Open the folder of a result.

        Raises:
            DataError: it holds no result, a damaged one, or one that is not of ``measure``.
        """
        path = Path(path)
        what = f"result of contextwise measure {measure}" if measure else "result of a measurement"
        if not is_result(path):
            why = "is a run" if (path / SUMMARY).is_file() else f"has no {SUMMARY}"
            raise DataError(f"{path} holds no {what}: it {why}")
        summary = _summary(path, f"the summary of the {what}")
        if measure is not None and summary["measure"] != measure:
            raise DataError(f"{path} holds a result of contextwise measure {summary['measure']}, not of {measure}")
        return cls(path, summary)

    @property
    def measure(self) -> str:
        """Name of the measure."""
        return self.summary["measure"]

    @property
    def answer(self) -> str:
        """Measure, model and data, with the loss where there is one."""
        data = self.summary.get("label")
        line = f"{self.measure} of {Path(self.summary['model']).name}{f' on {data}' if data else ''}"
        loss = self.summary.get("loss")
        if isinstance(loss, dict) and loss.get("value") is not None:
            documents = counted(self.summary["documents"], "document")
            line += f": loss {Estimate.from_dict(loss):.4f} nats per token, over {documents}"
        return line

    def table_of(self, name: str) -> "pa.Table":
        """The table ``NAME.parquet``; raises DataError if it is missing or damaged."""
        import pyarrow.parquet as pq

        return self._read(f"{name}.parquet", pq.read_table)

    def rows_of(self, name: str) -> list[dict[str, Any]]:
        """The rows of ``NAME.jsonl``; raises DataError if the file is missing or damaged."""
        content = self._read(f"{name}.jsonl", Path.read_bytes)
        return [parse_json(line) for line in content.decode().split("\n") if line]

    def _read(self, name: str, read: Callable[[Path], Any]) -> Any:
        """What ``read`` makes of a file of the result; raises DataError if the file is missing or damaged."""
        file = self.path / name
        _check_unchanged(self.path, name)
        try:
            return read(file)
        except (OSError, ValueError, RuntimeError) as error:  # of a file that is as it was written: rare
            reason = one_line(error, 120)
            raise DataError(f"{file} cannot be read ({reason}); remove {self.path} and measure again") from None


def _summary(path: Path, what: str) -> dict[str, Any]:
    """The summary in the folder of a result; a DataError if it is damaged."""
    _check_unchanged(path, SUMMARY)
    return read_json(path / SUMMARY, what, f"remove {path} and measure again")


def _check_unchanged(path: Path, name: str) -> None:
    """Raise a DataError if a file of a result is not what was written."""
    if (problem := damage(path, alone=name)) is not None:
        raise DataError(f"the result {path} is damaged: {problem}; remove it and measure again")


def is_result(path: str | Path) -> bool:
    """Whether ``path`` is the folder of a result, not of a run."""
    return (Path(path) / SUMMARY).is_file() and not (Path(path) / "recipe.yaml").is_file()


def column_or_none(table: "pa.Table", name: str) -> Any:
    """A column as an array; None if it has missing values."""
    return None if table[name].null_count else table[name].to_numpy()


def results_of(folder: Path, measure: str | None = None) -> list[Result]:
    """The results below ``folder`` (the ``home`` of a subject), by name; only those of ``measure`` if given."""
    results = []
    for summary in sorted(folder.glob(f"*/{SUMMARY}")):
        if summary.parent.name.startswith(".") or ".partial-" in summary.parent.name:
            continue
        content = _summary(summary.parent, "the summary of a result")
        if measure in (None, content["measure"]):
            results.append(Result(summary.parent, content))
    return results


def finished(path: Path, key: str, overwrite: bool = False, result: type[Result] = Result) -> Result | None:
    """The result at ``path`` if it answers the same question, None if the folder is free; else a ConfigError."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    try:
        existing = result.open(path)
    except DataError as error:
        raise ConfigError(f"{error}; choose another folder for the result") from None
    if existing.summary["key"] == key:
        return existing
    if overwrite:
        if (path / MANIFEST).is_file():
            check_nothing_else(path, sealed_files(path) | {MANIFEST})
        return None
    raise ConfigError(
        f"{path} holds another result of contextwise measure {existing.measure} (of {existing.summary['model']}, "
        f"{existing.summary.get('label') or 'other settings'}); choose another folder, or overwrite it"
    )


def write_result(
    path: Path, summary: dict[str, Any], files: Mapping[str, Any], overwrite: bool = False, held: bool = False
) -> None:
    """Write a result, complete or not at all; ``held``: this process holds ``path`` already.

    A :class:`pyarrow.Table` among the files becomes ``NAME.parquet``, a list of rows ``NAME.jsonl``; text, bytes and a
    dictionary (as JSON) are written to a file of exactly that name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_directory(path, "the result", replace=overwrite, held=held) as folder:
        for name, content in files.items():
            if isinstance(content, pa.Table):
                pq.write_table(content, folder / f"{name}.parquet", compression="zstd")
            elif isinstance(content, list):
                lines = "".join(json.dumps(row) + "\n" for row in content)
                atomic_write(folder / f"{name}.jsonl", lines, "the result")
            elif isinstance(content, dict):
                write_json(folder / name, content, "the result")
            else:
                atomic_write(folder / name, content, "the result")
        write_json(folder / SUMMARY, summary, "the result")
        seal(folder)
