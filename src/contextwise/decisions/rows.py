"""Losses of the held-out documents of runs, as any training script writes them: rows of files, or of a data frame.

A row is a document of a run, or a part of one: ``arm``, ``seed``, ``document``, ``tokens`` and ``nats`` (summed over the
tokens), and where known ``bytes``, ``step`` and the number of the ``part``. In place of ``tokens`` and ``nats`` a row may have
``correct`` (0 to 1, a question), or ``loss`` alone: the mean of a run, without documents.

Shapes: N documents.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contextwise.base.errors import ConfigError, DataError, did_you_mean, one_line
from contextwise.base.estimates import listed
from contextwise.base.hashes import content_key
from contextwise.decisions.logs import RunLabel, inspect_rows, lm_eval_rows, run_label

TEXTS, NUMBERS = ("arm", "document", "part"), ("tokens", "nats", "correct", "loss", "bytes")
COLUMNS = (*TEXTS, "seed", "step", *NUMBERS)
WHOLE_RUN = ""  # the document of a row that is the mean of a run
Run = tuple[str, int]
"""Arm and seed."""


@dataclass(frozen=True)
class Losses:
    """Losses of the documents that all runs have.

    Attributes:
        values: run -> (N,) summed nats of each document; of questions 1 - ``correct``.
        sizes: (N,) tokens of each document, or its bytes where ``unit`` says so; ones for questions and whole runs.
        documents: their names; none where each run is one number.
        unit: of a loss: ``nats per token``, ``nats per byte``, ``errors per question`` or ``loss``.
        notes: what was left out.
    """

    values: dict[Run, np.ndarray]
    sizes: np.ndarray
    documents: list[str]
    unit: str
    notes: list[str] = field(default_factory=list)

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for arm, _ in self.values))

    def seeds(self, arm: str) -> list[int]:
        """The seeds of an arm, ascending."""
        return sorted(seed for name, seed in self.values if name == arm)

    @property
    def content(self) -> str:
        """Hash of the documents' names and sizes."""
        return content_key(documents=self.documents, sizes=self.sizes.tolist())

    def digest(self, run: Run) -> str:
        """Hash of the losses of a run."""
        return content_key(losses=self.values[run].tolist())


def read_losses(sources: Any, step: int | None = None) -> Losses:
    """Read the rows of files, folders of logs, an Arrow table, a data frame or a mapping of columns, and pair them.

    Args:
        sources: a file or folder may be labelled, ``ARM:SEED=PATH``, where its rows or logs name no arm and seed.
        step: of the rows to take, where they have steps; by default the last of each run.

    Raises:
        ConfigError, DataError: a column is missing or a value out of range, rows occur twice, or runs do not pair.
    """
    tables = _tables(sources)
    return _paired(_last_steps(pa.concat_tables(tables, promote_options="permissive"), step))


def _tables(sources: Any) -> list[pa.Table]:
    """The checked rows of each source."""
    if isinstance(sources, pa.Table):
        return [_checked(sources, "the table")]
    if isinstance(sources, Mapping):
        return [_checked(pa.table(dict(sources)), "the table")]
    if hasattr(sources, "columns") and hasattr(sources, "iloc"):
        return [_checked(pa.Table.from_pandas(sources, preserve_index=False), "the data frame")]
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    if not paths:
        raise ConfigError("there are no losses; give files with a row for each held-out document of a run")
    return [_checked(_read(path, label), str(path), label) for path, label in map(run_label, map(str, paths))]


def _read(path: Path, label: RunLabel | None) -> pa.Table:
    """The rows of a file, or of the logs of lm-evaluation-harness or Inspect."""
    if path.is_dir() or path.suffix == ".eval" or path.name.startswith("samples_"):
        return lm_eval_rows(path, label) if path.suffix != ".eval" else inspect_rows(path, label)
    kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    try:
        if kind in (".jsonl", ".jsonl.gz", ".ndjson"):
            import pyarrow.json

            return pyarrow.json.read_json(path)
        if kind in (".csv", ".csv.gz", ".tsv", ".tsv.gz"):
            import pyarrow.csv

            split = pyarrow.csv.ParseOptions(delimiter="\t" if ".tsv" in kind else ",")
            return pyarrow.csv.read_csv(path, parse_options=split)
        if kind == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path, columns=None)
        if kind == ".json":
            return inspect_rows(path, label)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; give files with a row for each held-out document of a run") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}") from None
    raise DataError(
        f"{path} is no file of losses; give .jsonl, .csv, .tsv or .parquet, a folder of lm_eval --log_samples, or a log "
        "of Inspect"
    )


def _checked(table: pa.Table, name: str, label: RunLabel | None = None) -> pa.Table:
    """The columns that count, in one type each, after their values were checked."""
    columns = {column: table[column] for column in COLUMNS if column in table.column_names}
    if label is not None:
        for column, value in zip(("arm", "seed"), label, strict=True):
            columns.setdefault(column, pa.array([value] * len(table)))
    if not len(table):
        raise DataError(f"{name} has no rows")
    measured: list[str] = [column for column in ("nats", "correct", "loss") if column in columns]
    value = measured[:1] or ["nats"]
    size = ["tokens"] if value == ["nats"] and "bytes" not in columns else []
    for needed in ("arm", "seed", *value, *size):
        if needed not in columns:
            near = did_you_mean(needed, table.column_names, " ").strip()
            found = f"it has {listed(sorted(map(str, table.column_names)))}"
            how = "; or label the file: ARM:SEED=PATH" if needed in ("arm", "seed") else ""
            raise DataError(f"{name} has no column {needed}; {found}{'; ' * bool(near)}{near}{how}")
    if len(measured) > 1:
        raise DataError(f"{name} has {listed(measured)}; give one of these columns")
    if measured != ["loss"] and "document" not in columns:
        raise DataError(
            f"{name} has no column document, by which runs are paired; for means of whole runs give loss alone"
        )
    if measured == ["loss"]:
        columns["document"] = pa.array([WHOLE_RUN] * len(table))
    checked = {column: _converted(values, column, name) for column, values in columns.items()}
    return pa.table(checked)


def _converted(values: Any, column: str, name: str) -> pa.ChunkedArray:
    """A column as text, whole numbers or finite numbers that are not negative."""
    values = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    wanted = pa.string() if column in TEXTS else pa.int64() if column in ("seed", "step") else pa.float64()

    def refuse(bad: Any, why: str) -> None:
        row = pc.index(bad, True).as_py()
        if row >= 0:
            raise DataError(f"{name}: {column} is {values[row].as_py()!r} in row {row + 1}, but must be {why}")

    refuse(values.is_null(), "given")
    try:
        converted = values.cast(wanted)
    except pa.ArrowException:
        raise DataError(
            f"{name}: {column} is {values.type}, but must be {'text' if column in TEXTS else 'numbers'}"
        ) from None
    if column in NUMBERS:
        refuse(pc.invert(pc.is_finite(converted)), "a finite number")
        least = {"tokens": 1, "bytes": 1}.get(column, 0)
        refuse(pc.less(converted, least), f"{least} or more")
        if column == "correct":
            refuse(pc.greater(converted, 1), "from 0 to 1")
    return converted


def _last_steps(table: pa.Table, step: int | None) -> pa.Table:
    """The rows of the given step, or of the last one of each run."""
    if "step" not in table.column_names:
        if step is not None:
            raise ConfigError(f"step is {step}, but the rows have no column step; leave it out")
        return table
    steps = table["step"].fill_null(0)  # of files without one
    table = table.set_column(table.schema.get_field_index("step"), "step", steps)
    if step is not None:
        chosen = table.filter(pc.equal(table["step"], step))
        if not len(chosen):
            steps = pc.min_max(table["step"]).as_py()
            raise DataError(f"no row has step {step}; the steps are {steps['min']} to {steps['max']}")
        return chosen
    last = table.group_by(["arm", "seed"], use_threads=False).aggregate([("step", "max")])
    joined = table.join(last, ["arm", "seed"])
    return joined.filter(pc.equal(joined["step"], joined["step_max"])).drop_columns(["step_max"])


def _paired(table: pa.Table) -> Losses:
    """Sum the parts of each document, and keep the documents that all runs have."""
    measured = [column for column in ("nats", "correct", "loss") if column in table.column_names]
    if len(measured) > 1:
        raise DataError(f"some files have {measured[0]}, others {measured[1]}; give one of these columns in all")
    (value,) = measured
    sizes = [column for column in ("tokens", "bytes") if column in table.column_names and value == "nats"]
    sizes = [column for column in sizes if not table[column].null_count]
    if value == "nats" and not sizes:
        raise DataError("some rows have no tokens, others no bytes; give one of these columns in all")
    _refuse_twice(table, value)
    keys = ["arm", "seed", "document"]
    sums = table.group_by(keys, use_threads=False).aggregate(
        [(name, "sum") for name in (value, *sizes)] + [("document", "count")]
    )
    arm_names, arms = _numbered(sums["arm"])
    names, documents = _numbered(sums["document"])
    rank = np.empty(len(names), dtype=int)
    rank[np.argsort(names.astype(str), kind="stable")] = np.arange(len(names))
    seeds = sums["seed"].to_numpy()
    order = np.lexsort((rank[documents], seeds, arms))
    arms, seeds, documents = arms[order], seeds[order], documents[order]
    columns = {name: sums[f"{name}_sum"].to_numpy()[order] for name in (value, *sizes)}
    parts = sums["document_count"].to_numpy()[order]
    change = np.flatnonzero((arms[1:] != arms[:-1]) | (seeds[1:] != seeds[:-1])) + 1
    limits = [0, *change.tolist(), len(arms)]
    slices = [slice(start, stop) for start, stop in itertools.pairwise(limits)]
    runs: dict[Run, slice] = {(str(arm_names[arms[each.start]]), int(seeds[each.start])): each for each in slices}
    counts = np.zeros(len(names), dtype=int)
    for each in slices:
        counts[documents[each]] += 1
    common = counts == len(slices)
    if not common.any():
        raise DataError("no document is in all runs; name the documents alike in each, as by their content")
    notes = []
    if left := int((~common).sum()):
        example = str(names[np.flatnonzero(~common)[0]])
        notes.append(
            f"{left:,} of {len(names):,} documents are left out, which some runs lack: {one_line(example, 60)}, for one."
        )
    kept = {run: each.start + np.flatnonzero(common[documents[each]]) for run, each in runs.items()}
    in_order = list(runs)
    documents_kept = [str(name) for name in names[documents[kept[in_order[0]]]]]
    _refuse_other_parts({run: parts[rows] for run, rows in kept.items()}, documents_kept)
    values = {run: columns[value][kept[run]].astype(float) for run in in_order}
    if value != "nats":
        ones = np.ones(len(documents_kept))
        if value == "loss":
            return Losses(values, ones, [], "loss", notes)
        errors = {run: parts[kept[run]] - correct for run, correct in values.items()}
        return Losses(errors, parts[kept[in_order[0]]].astype(float), documents_kept, "errors per question", notes)
    for size in sizes:
        found = {run: columns[size][kept[run]] for run in in_order}
        if all(np.array_equal(found[run], found[in_order[0]]) for run in in_order):
            if size == "bytes" and "tokens" in sizes:
                notes.append("The arms' tokens differ, so losses are per byte.")
            return Losses(values, found[in_order[0]], documents_kept, f"nats per {size[:-1]}", notes)
    size = sizes[0]
    found = {run: columns[size][kept[run]] for run in in_order}
    first, other = in_order[0], next(run for run in in_order if not np.array_equal(found[run], found[in_order[0]]))
    at = int(np.flatnonzero(found[other] != found[first])[0])
    counted = f"{found[first][at]:,.0f} {size} in {_named(first)}, {found[other][at]:,.0f} in {_named(other)}"
    raise DataError(
        f"document {one_line(documents_kept[at], 60)} has {counted}: nats per token do not compare across tokenizers; give the "
        "column bytes, which is the same for all"
    )


def _numbered(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct texts of a column in the order in which they come, and the number of each row's text among them."""
    encoded = column.combine_chunks().dictionary_encode()
    return np.array(encoded.dictionary.to_pylist(), dtype=object), np.asarray(encoded.indices)


def _refuse_twice(table: pa.Table, value: str) -> None:
    """Refuse a file that was given twice, and rows that were written twice."""
    keys = ["arm", "seed", "document", "part" if "part" in table.column_names else value]
    counted = table.group_by(keys, use_threads=False).aggregate([("document", "count")])
    twice = pc.index(pc.greater(counted["document_count"], 1), True).as_py()
    if twice >= 0:
        row = {name: counted[name][twice].as_py() for name in keys}
        what = f"document {one_line(row['document'], 60)} of " if row["document"] else ""
        raise DataError(
            f"{what}{_named((row['arm'], row['seed']))} occurs twice with {keys[-1]} {row[keys[-1]]}; remove the copy, or "
            "number the parts of a document in a column part"
        )


def _refuse_other_parts(parts: Mapping[Run, np.ndarray], documents: Sequence[str]) -> None:
    """Refuse documents that have more rows in one run than in another."""
    (first, reference), *others = parts.items()
    for run, counts in others:
        if not np.array_equal(counts, reference):
            at = int(np.flatnonzero(counts != reference)[0])
            what = f"document {one_line(documents[at], 60)}" if documents[at] else "the loss"
            raise DataError(
                f"{what} has {counts[at]:,} rows in {_named(run)}, but {reference[at]:,} in {_named(first)}; give each run the "
                "same parts of each document"
            )


def _named(run: Run) -> str:
    return f"seed {run[1]} of {run[0]}"
