"""``contextwise prepare``, as it is typed."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contextwise.data import Corpus
from small import write_rows


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A compressed file of 60 records, a line that is no JSON, and an empty text."""
    draw = random.Random(1)
    colors = (" ".join(draw.choices(["red", "green", "blue"], k=200)) for _ in range(60))
    records = [{"body": text, "mixed": [1, "x"][i % 2]} for i, text in enumerate(colors)]
    lines = [json.dumps(record) for record in records] + ["not json", '{"body": ""}']
    (tmp_path / "texts.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


def test_all_options_and_the_table(contextwise: Any, workplace: Path) -> None:
    command = "prepare texts.jsonl.gz --tokenizer train:300 --out corpus --text-field body --validation 0.2 --test 0.1"
    command += " --skip-bad"
    assert contextwise(f"{command} --limit 50")[0] == 0
    corpus = Corpus.open(workplace / "corpus", "validation")
    counts = [corpus.manifest["splits"][name]["documents"] for name in ("train", "validation", "test")]
    assert sum(counts) == 50 and corpus.manifest["skipped"] == {"bad": 0, "empty": 0}
    status, printed, errors = contextwise(f"{command} --overwrite")
    assert (status, "MB/s" in errors) == (0, False) and max(map(len, printed.splitlines())) <= 80
    assert printed.endswith("corpus: corpus\n")
    manifest = Corpus.open(workplace / "corpus").manifest
    assert manifest["skipped"] == {"bad": 1, "empty": 1}
    for name, count in manifest["splits"].items():
        row = next(line for line in printed.splitlines() if f" {name} " in line)
        assert f"{count['tokens']:,}" in row and f"{count['bytes'] / count['tokens']:.2f}" in row
    assert "left out: bad records 1, empty texts 1" in printed and "MB/s" in printed
    assert "kept as JSON text: mixed" in printed
    status, output, printed = contextwise(f"{command} --overwrite --deduplicate 0.3 --json")
    assert status == 0 and "MB/s" not in printed
    values, corpus = json.loads(output), Corpus.open(workplace / "corpus")
    assert (values["path"], values["fingerprint"]) == ("corpus", corpus.fingerprint)
    assert {name: split["tokens"] for name, split in values["splits"].items()} == {
        name: split["tokens"] for name, split in corpus.manifest["splits"].items()
    }
    assert (values["skipped"], values["columns_as_json"]) == ({"bad": 1, "empty": 1}, ["mixed"])
    assert values["deduplicated"]["left_out"] == corpus.manifest["deduplicated"]["left_out"] > 0
    assert [each["name"] for each in values["overlaps"]] == ["validation", "test"]


def test_the_field_with_the_text_is_named_among_many(contextwise: Any, workplace: Path) -> None:
    """By its option: the message is for the command line."""
    row = {f"count_{i}": i for i in range(17)} | {"title": "short", "body": "the text itself, which is longer"}
    write_rows(workplace / "news.jsonl", [row] * 30)
    pq.write_table(pa.Table.from_pylist([row] * 30), workplace / "news.parquet")
    command = "prepare news.jsonl --tokenizer bytes --out out"
    contextwise.refused(command, "(fields: 'body', 'title', 'count_0', 'count_1',")
    contextwise.refused(command, "--text-field names another); fix it, or set --skip-bad to leave out such records")
    contextwise.refused(command.replace("jsonl", "parquet"), "its columns are 'body', 'title', 'count_0', 'count_1',")
    assert contextwise(f"{command} --text-field body")[0] == 0
    contextwise.refused(command, "choose another folder, or set --overwrite to replace a corpus")
