"""Tables with the text in one column: Parquet files, folders that ``save_to_disk`` wrote, datasets on the Hub."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextwise.base.errors import DataError, misspelt, one_line
from contextwise.base.machine import hub_problem
from contextwise.data.input_files import damaged, readable
from contextwise.data.sources.files import FileSource
from contextwise.data.sources.source import Record, Source, as_record, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 64  # rows that are in memory as Python objects at a time: they may be whole books
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(:[\w.-]+){0,2}")


class Parquet(FileSource):
    """Rows of Parquet files."""

    kind = "parquet"
    suffixes = (".parquet",)

    def records_of(self, path: Path, text_field: str) -> Iterator[Record]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                yield from _records(file.iter_batches(batch_size=ROWS), str(path), text_field)
        except pa.ArrowException as error:
            raise damaged(path, error) from None


class DatasetRows(Source):
    """Rows of a Hugging Face dataset: in a folder (kind ``dataset``) or on the Hub (``hub``)."""

    def __init__(self, kind: str, name: str, dataset: Any) -> None:
        super().__init__(name)
        self.kind, self.dataset = kind, dataset

    def records(self, text_field: str) -> Iterator[Record]:
        import pyarrow as pa

        try:
            with readable(Path(self.name)):
                # The "arrow" format leaves images and sounds undecoded.
                tables = self.dataset.with_format("arrow").iter(batch_size=ROWS)
                yield from _records(tables, self.name, text_field)
        except pa.ArrowException as error:
            raise damaged(Path(self.name), error) from None


def open_saved(folder: Path) -> DatasetRows | None:
    """Open a folder that ``save_to_disk`` wrote; None if it is another folder."""
    if not (folder / "dataset_dict.json").exists() and not (folder / "state.json").exists():
        return None
    if (folder / "dataset_dict.json").exists() and (folder / "manifest.json").exists():
        raise DataError(f"{folder} is a corpus that is already prepared; give the text that it was made from")
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:
        reason = one_line(error)
        raise DataError(f"{folder} is not a dataset that save_to_disk wrote, or it is damaged: {reason}") from None
    if isinstance(dataset, datasets.DatasetDict):
        names = sorted(dataset)
        if "train" not in dataset and len(names) > 1:
            raise DataError(
                f"{folder} has no split 'train' but {', '.join(names)}; give {folder}/{names[0]}, for example"
            )
        dataset = dataset["train" if "train" in dataset else names[0]]
    return DatasetRows("dataset", folder.resolve().name, dataset)


def open_hub(given: str, limit: int | None) -> DatasetRows:
    """Load ``NAME``, ``NAME:CONFIG`` or ``NAME:CONFIG:SPLIT`` (``train`` by default), or stream it if there is a ``limit``."""
    absent = f"there is no file or folder {given} here, and"
    if problem := hub_problem():
        raise DataError(f"{absent} {problem}{misspelt(given)}")
    import datasets

    name, _, rest = given.partition(":")
    config, _, split = rest.partition(":")
    try:
        streaming = limit is not None
        dataset = datasets.load_dataset(name, config or None, split=split or "train", streaming=streaming)
    except Exception as error:
        reason = one_line(error, 300)
        raise DataError(f"{absent} the Hub did not give that dataset: {reason}") from None
    return DatasetRows("hub", given, dataset)


def _records(tables: "Iterable[pa.Table | pa.RecordBatch]", name: str, text_field: str) -> Iterator[Record]:
    """Convert the rows of consecutive parts of a table to documents."""
    count = 0
    for table in tables:
        names = table.schema.names
        try:
            values = {column: array.to_pylist() for column, array in zip(names, table.columns, strict=True)}
        except Exception as error:  # a time zone that is unknown here, a time beyond the year 9999
            why = f"{name} holds a value that Python does not have ({one_line(error)})"
            raise DataError(f"{why}; change it, or leave its column out") from None
        check_columns(name, names, text_field, values)
        texts = values.pop(text_field)
        for row, text in enumerate(texts):
            count += 1
            others = {column: some[row] for column, some in values.items()}
            yield as_record(text, others, f"{name} row {count:,}", f"the column {text_field!r}")
