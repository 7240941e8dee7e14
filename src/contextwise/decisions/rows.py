"""Losses of the held-out documents of runs, as any training script writes them: rows of files, or of a data frame.

A row is a document of a run, or a part of one: ``arm``, ``seed``, ``document``, ``tokens`` and ``nats`` (summed over the
tokens), and where known ``bytes``, ``step`` and the number of the ``part``. In place of ``tokens`` and ``nats`` a row may have
``correct`` (0 to 1, a question), or ``loss`` alone: the mean of a run, without documents.

Shapes: N documents.
"""

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from contextwise.base.errors import ConfigError, DataError, did_you_mean, misspelt, one_line
from contextwise.base.estimates import LARGEST, listed
from contextwise.base.files import expanded
from contextwise.base.hashes import content_key

LEAST_NATS = 0.1
"""Mean nats per token or byte below which they are noted: means given as sums have a thousandth, copied text a hundredth."""
TEXTS, NUMBERS = ("arm", "document", "part"), ("tokens", "nats", "correct", "loss", "bytes")
COLUMNS = (*TEXTS, "seed", "step", *NUMBERS)
WHOLE_RUN = ""  # the document of a row that is the mean of a run
KINDS = {".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"}
JSON_LINES, TABLES = {".jsonl", ".jsonl.gz", ".ndjson"}, {".csv", ".csv.gz", ".tsv", ".tsv.gz"}
ROWS = {*JSON_LINES, *TABLES, ".parquet"}
"""Endings of files of rows."""
_LABEL = re.compile(r"([^=/]+):(\d+)=(.+)")
_NAME = re.compile(r"(.+?)[-_.](?:s|seed)[-_]?(\d+)")
_ENDING = re.compile(r"(\.(jsonl|ndjson|csv|tsv|parquet))?(\.gz)?$", re.IGNORECASE)
_LARGEST_ROW = 2**28
"""Bytes that Arrow reads at a time: a row may hold the text of a document, and rows in errors count from the last block."""
Run = tuple[str, int]
"""Arm and seed."""


@dataclass(frozen=True)
class RunLabel:
    """A path, with the arm and the seed that were given for it, or that its name says."""

    path: Path
    arm: str | None = None
    seed: int | None = None
    given: bool = False


NO_LABEL = RunLabel(Path())


def run_label(source: str) -> RunLabel:
    """The path of a source, and its run."""
    if (match := _LABEL.fullmatch(source)) and not Path(source).exists():
        return RunLabel(Path(match[3]), match[1], int(match[2]), given=True)
    path = Path(source)
    match = _NAME.fullmatch(_ENDING.sub("", path.name))
    return RunLabel(path, match[1], int(match[2])) if match else RunLabel(path)


@dataclass(frozen=True)
class Losses:
    """Losses of the documents that all runs have."""

    values: dict[Run, np.ndarray]  # (N,) summed nats of each document; of questions 1 - ``correct``
    sizes: (
        np.ndarray
    )  # (N,) tokens of each document, or its bytes where ``unit`` says so; ones for questions and whole runs
    documents: list[str]  # names; none where each run is one number
    unit: str  # of a loss: ``nats per token``, ``nats per byte``, ``errors per question`` or ``loss``
    notes: list[str] = field(default_factory=list)  # what was left out

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


def read_losses(sources: Any) -> Losses:
    """Read the rows of files or folders of files, an Arrow table, a data frame or a mapping of columns, and pair them.

    The label of a file, ``ARM:SEED=PATH``, goes before the arm and the seed of its rows; rows without them have those that the
    name of the file says: ``ARM-s3``. Of rows with steps
    those of the last step of each run are taken.
    """
    table = pa.concat_tables(_tables(sources), promote_options="permissive")
    return _paired(*_last_steps(table.to_pandas()))


def _tables(sources: Any) -> list[pa.Table]:
    """The checked rows of each source."""
    if isinstance(sources, str | Path):
        sources = [sources]
    if isinstance(sources, Sequence) and sources and all(isinstance(each, str | Path) for each in sources):
        labels = map(run_label, [file for source in sources for file in _files(str(expanded(source)))])
        return [_checked(_read(each.path), str(each.path), each) for each in labels]
    if isinstance(sources, Sequence) and not sources:
        raise ConfigError("there are no losses; give files with a row for each held-out document of a run")
    return [_checked(_table(sources), "the table")]


def _files(source: str) -> list[str]:
    """The files of rows in a folder, or those of a pattern; else the source."""
    folder = Path(source)
    if glob.has_magic(source) and not folder.exists() and (found := sorted(glob.glob(source))):  # noqa: PTH207
        return found
    if not folder.is_dir():
        return [source]
    return [str(file) for file in sorted(folder.iterdir()) if _kind(file) in ROWS] or [source]


def _kind(file: Path) -> str:
    """The endings of a file that say what is in it."""
    return "".join(each.lower() for each in file.suffixes if each.lower() in KINDS or each.lower() == ".gz")


def _table(rows: Any) -> pa.Table:
    """Rows in memory as an Arrow table of the columns that count."""
    try:
        if isinstance(rows, pd.DataFrame):
            rows = rows.reset_index() if set(rows.index.names) & set(COLUMNS) else rows
            _refuse_other_columns([*rows.columns])
            frame = rows[[name for name in COLUMNS if name in rows.columns]]
            names = {name: frame[name].astype(str) for name in ("document", "part") if name in frame}
            return pa.Table.from_pandas(frame.assign(**names), preserve_index=False)
        if isinstance(rows, Mapping):
            _refuse_other_columns([*rows])
            return pa.table({name: rows[name] for name in COLUMNS if name in rows})
        if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
            _refuse_other_columns([*dict.fromkeys(name for row in rows for name in row)])
            return pa.Table.from_pylist([{name: row[name] for name in COLUMNS if name in row} for row in rows])
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the rows are no table: {one_line(error)}; give each column one type and one length") from None
    raise DataError(
        f"losses are {type(rows).__name__}; give files, a data frame, an Arrow table, or rows or columns of values"
    )


def _refuse_other_columns(names: list[Any]) -> None:
    """Raise a DataError if a table has columns, but none that counts."""
    if names and not set(COLUMNS) & set(names):
        raise DataError(f"the table has none of the columns {listed([*COLUMNS])}; it has {listed([*map(str, names)])}")


def _read(path: Path) -> pa.Table:
    """The rows of a file."""
    kind = _kind(path)
    texts = pa.schema([(name, pa.string()) for name in TEXTS])
    try:
        if kind in JSON_LINES:
            import pyarrow.json

            whole = pyarrow.json.ReadOptions(block_size=_LARGEST_ROW)
            try:
                named = pyarrow.json.ParseOptions(explicit_schema=texts)
                return pyarrow.json.read_json(path, read_options=whole, parse_options=named)
            except pa.ArrowInvalid:  # names that are numbers
                return pyarrow.json.read_json(path, read_options=whole)
        if kind in TABLES:
            import pyarrow.csv

            with path.open("rb") as file:
                first = file.readline()
            if kind == ".csv" and b";" in first and b"," not in first:
                raise DataError(f"{path} has semicolons between its columns; write commas, and points in its numbers")
            split = pyarrow.csv.ParseOptions(delimiter="\t" if ".tsv" in kind else ",")
            return pyarrow.csv.read_csv(
                path,
                read_options=pyarrow.csv.ReadOptions(block_size=_LARGEST_ROW),
                parse_options=split,
                convert_options=pyarrow.csv.ConvertOptions(column_types=texts, null_values=[""]),
            )
        if kind == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path)
    except FileNotFoundError:
        hint = misspelt(path)
        raise DataError(
            f"there is no file {path}; give files with a row for each held-out document of a run{hint}"
        ) from None
    except (OSError, pa.ArrowException) as error:
        # Arrow counts from 0.
        why = re.sub(r"(?<=in row )\d+", lambda row: str(int(row[0]) + 1), one_line(error))
        raise DataError(
            f"{path} cannot be read: {why}; give a row for each document of a run, each column of one type"
        ) from None
    raise DataError(f"{path} is no file of losses; give .jsonl, .csv, .tsv or .parquet, or a folder of them")


def _checked(table: pa.Table, name: str, label: RunLabel = NO_LABEL) -> pa.Table:
    """The columns that count, in one type each, after their values were checked."""
    if twice := [column for column in COLUMNS if table.column_names.count(column) > 1]:
        raise DataError(f"{name} has the column {twice[0]} twice; remove one")
    # Arrow adds the columns of texts that a file of JSON Lines lacks.
    absent = {name for name in TEXTS if name in table.column_names and table[name].null_count == len(table)}
    columns = {column: table[column] for column in COLUMNS if column in table.column_names and column not in absent}
    for column, given in (("arm", label.arm), ("seed", label.seed)):
        if given is not None and (label.given or column not in columns):
            columns[column] = pa.array([given] * len(table))
    if not len(table):
        raise DataError(f"{name} has no rows; give a row for each held-out document of a run")
    measured: list[str] = [column for column in ("nats", "correct", "loss") if column in columns]
    value = measured[:1] or ["nats"]
    size = ["tokens"] if value == ["nats"] and "bytes" not in columns else []
    for needed in ("arm", "seed", *value, *size):
        if needed not in columns:
            present = [column for column in table.column_names if column not in absent]
            near = did_you_mean(needed, present, " ").strip()
            found = f"it has {listed(sorted(map(str, present)))}"
            how = "; or label the file: ARM:SEED=PATH" if needed in ("arm", "seed") else ""
            other = "" if needed != "nats" or measured else ", loss or correct"
            raise DataError(f"{name} has no column {needed}{other}; {found}{'; ' * bool(near)}{near}{how}")
    if len(measured) > 1:
        raise DataError(f"{name} has {listed(measured)}; give one of these columns")
    if measured != ["loss"] and "document" not in columns:
        raise DataError(
            f"{name} has no column document, by which runs are paired; for means of whole runs give loss alone"
        )
    if measured == ["loss"]:
        columns["document"] = pa.array([WHOLE_RUN] * len(table))
    checked = {column: _converted(values, column, name) for column, values in columns.items()}
    # Rows that turn out to be wrong beside others are named by their file.
    return pa.table(checked).append_column("file", pa.array([name] * len(table), pa.string()))


def _converted(values: Any, column: str, name: str) -> pa.ChunkedArray:
    """A column as text, whole numbers or finite numbers that are not negative."""
    values = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    below = " below the header" if _kind(Path(name)) in TABLES else ""
    wanted = pa.string() if column in TEXTS else pa.int64() if column in ("seed", "step") else pa.float64()

    def refuse(bad: Any, why: str) -> None:
        row = pc.index(bad, True).as_py()
        if row >= 0:
            shown = "missing" if (value := values[row].as_py()) is None else repr(value)
            raise DataError(f"{name}: {column} is {shown} in row {row + 1}{below}, but must be {why}")

    if column == "part":
        values = values.cast(pa.string()).fill_null("")
    refuse(values.is_null(), "given")
    whole = column in ("seed", "step")
    if whole and not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DataError(f"{name}: {column} is {values[0].as_py()!r} in row 1{below}, but must be a whole number")
    try:
        converted = values.cast(wanted)
    except pa.ArrowException:
        what = "text" if column in TEXTS else "a whole number" if whole else "a number"
        numbers = pd.to_numeric(values.to_pandas(), errors="coerce")
        odd = int((numbers % 1 != 0 if whole else numbers.isna()).argmax()) if column not in TEXTS else 0
        raise DataError(
            f"{name}: {column} is {values[odd].as_py()!r} in row {odd + 1}{below}, but must be {what}"
        ) from None
    if column in TEXTS:
        converted = pc.utf8_normalize(converted, "NFC")  # names of files come in other forms from some systems
    if column == "arm":
        refuse(pc.equal(pc.utf8_trim_whitespace(converted), ""), "a name")
    if column in NUMBERS:
        refuse(pc.invert(pc.is_finite(converted)), "a finite number")
        refuse(pc.greater(converted, LARGEST), f"at most {LARGEST:g}")
        least = {"tokens": 1, "bytes": 1}.get(column, 0)
        refuse(pc.less(converted, least), f"{least} or more")
        if column == "correct":
            refuse(pc.greater(converted, 1), "from 0 to 1")
    return converted


def _last_steps(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of the last step of each run; what is to be noted of them."""
    if "step" not in rows:
        return rows, []
    if rows["step"].isna().any():
        raise DataError("some rows have a step, others none; give all of them one, or leave the column out")
    last = rows.groupby(["arm", "seed"])["step"].transform("max")
    ends = sorted(last.unique())
    first = rows.loc[last.idxmin()]
    note = (
        f"The runs end at different steps: {listed([f'{each:,}' for each in ends[:6]])} "
        f"({_named((first['arm'], first['seed']))} at {ends[0]:,})."
    )
    return rows[rows["step"] == last], [note] if len(ends) > 1 else []


def _runs(rows: pd.DataFrame) -> list[Run]:
    """The runs: arms in the order in which they come, seeds ascending."""
    arms = list(dict.fromkeys(rows["arm"]))
    runs = {(str(arm), int(seed)) for arm, seed in zip(rows["arm"], rows["seed"], strict=True)}
    return sorted(runs, key=lambda run: (arms.index(run[0]), run[1]))


def _paired(rows: pd.DataFrame, notes: list[str]) -> Losses:
    """Keep the documents, or parts of them, that all runs have, and sum the parts of each document."""
    measured = [column for column in ("nats", "correct", "loss") if column in rows]
    if len(measured) > 1:
        raise DataError(f"some files have {measured[0]}, others {measured[1]}; give one of these columns in all")
    (value,) = measured
    sizes = [name for name in ("tokens", "bytes") if value == "nats" and name in rows and rows[name].notna().all()]
    if value == "nats" and not sizes:
        raise DataError("some rows have no tokens, others no bytes; give one of these columns in all")
    rows = rows.assign(part=rows["part"].fillna("") if "part" in rows else "")
    again = rows[rows.duplicated(["arm", "seed", "document", "part"])]
    if len(again):
        first = again.iloc[0]
        run = _named((first["arm"], first["seed"]))
        what = f"document {_shown(first['document'], first['part'])} of {run}" if first["document"] else run
        key = ["arm", "seed", "document", "part"]
        files = rows.loc[(rows[key] == first[key]).all(axis=1), "file"].unique()
        raise DataError(
            f"{what} occurs twice, in {listed(list(files))}; remove the copy, or number the parts of a document in a column "
            "part, and the steps of a run in a column step"
        )
    runs = _runs(rows)
    # A row for each part of a document, in the order of their names; a column for each value of each run.
    wide = rows.pivot(index=["document", "part"], columns=["arm", "seed"], values=[value, *sizes]).sort_index()
    common = wide[value].notna().all(axis=1)
    if not common.any():
        counts = wide[value].notna().sum()
        fewest = f"{_named(counts.idxmin())} has {counts.min():,} of {len(wide):,}"
        raise DataError(f"no document is in all runs ({fewest}); name the documents alike in each, as by their content")
    if left := int((~common).sum()):
        what = "parts of documents" if rows["part"].any() else "documents"
        example, counts = _shown(*wide.index[~common][0]), wide[value].notna().sum()
        fewest = f"{_named(counts.idxmin())} has the fewest, {counts.min():,}"
        lack = f"which some runs lack: {example}, for one; {fewest}"
        notes = [*notes, f"{left:,} of {len(wide):,} {what} are left out, {lack}."]
    wide = wide[common]
    document_of_row, documents = pd.factorize(wide.index.get_level_values("document"))

    def summed(column: str) -> dict[Run, np.ndarray]:
        """Run -> the sum over the parts of each document."""
        return {run: np.bincount(document_of_row, weights=wide[column, *run]) for run in runs}

    values, parts = summed(value), np.bincount(document_of_row).astype(float)
    if value == "loss":
        return Losses(values, parts, [], "loss", notes)
    if value == "correct":
        errors = {run: parts - correct for run, correct in values.items()}
        return Losses(errors, parts, list(documents), "errors per question", notes)
    for size in sizes:
        first_size, *others = (found := summed(size)).values()
        if all(np.array_equal(first_size, other) for other in others):
            if size == "bytes" and "tokens" in sizes:
                notes.append("The arms' tokens differ, so losses are per byte.")
            mean = float(np.mean([nats.sum() for nats in values.values()]) / first_size.sum())
            if mean < LEAST_NATS:
                notes.append(
                    f"The losses are only {mean:.2g} nats per {size[:-1]}: if the column nats has means, give the sum over the "
                    f"{size} of each document."
                )
            return Losses(values, first_size, list(documents), f"nats per {size[:-1]}", notes)
    size, found = sizes[0], summed(sizes[0])
    one, other = runs[0], next(run for run in runs if not np.array_equal(found[run], found[runs[0]]))
    at = int(np.flatnonzero(found[other] != found[one])[0])
    counted = f"{found[one][at]:,.15g} {size} in {_named(one)}, {found[other][at]:,.15g} in {_named(other)}"
    same = "bytes must be those of the document, the same in all"
    fix = same if "bytes" in sizes else "give the column bytes in all files"
    raise DataError(f"document {_shown(documents[at])} has {counted}: nats per token do not compare; {fix}")


def _shown(document: str, part: str = "") -> str:
    return one_line(f"{document}, part {part}" if part else document, 60)


def _named(run: Run) -> str:
    return f"seed {run[1]} of {run[0]}"
