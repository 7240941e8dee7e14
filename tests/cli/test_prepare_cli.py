"""The ``prepare`` command: its options, its table, its one-sentence errors."""

import gzip
import json
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from contextwise.base.errors import ContextwiseError
from contextwise.cli.start import prepare
from contextwise.data import Corpus

app = typer.Typer()
app.command()(prepare)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = random.Random(1)
    path = tmp_path / "texts.jsonl.gz"
    records = [
        {"body": " ".join(rng.choices(["red", "green", "blue"], k=200)), "mixed": [1, "x"][i % 2]}
        for i in range(60)
    ]
    lines = [json.dumps(record) for record in records] + ["not json", '{"body": ""}']
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def run(*arguments: object) -> str:
    """Run the command; what it wrote to standard error. Raises what it raises (main prints that)."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    assert result.stdout == ""
    return result.stderr


def test_all_options_and_the_table(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    options = [
        "--tokenizer",
        "train:300",
        "--out",
        out,
        "--text-field",
        "body",
        "--validation",
        "0.2",
        "--test",
        "0.1",
    ]
    run(source, *options, "--skip-bad", "--limit", "50")
    corpus = Corpus.open(out, "validation")
    counts = [corpus.manifest["splits"][name]["documents"] for name in ("train", "validation", "test")]
    assert sum(counts) == 50 and corpus.manifest["skipped"] == {"bad": 0, "empty": 0}
    printed = run(source, *options, "--skip-bad", "--overwrite")
    assert Corpus.open(out, "validation").manifest["skipped"] == {"bad": 1, "empty": 1}
    assert max(len(line) for line in printed.splitlines() if str(out) not in line) <= 80
    for name, count in Corpus.open(out).manifest["splits"].items():
        row = next(line for line in printed.splitlines() if f" {name} " in line)
        assert f"{count['tokens']:,}" in row and f"{count['bytes'] / count['tokens']:.2f}" in row
    assert "left out: 1 bad records, 1 empty texts" in printed and "MB/s" in printed
    assert "kept as JSON text: mixed" in printed


def test_several_sources(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"the text of {name}")
    run(
        tmp_path / "a.txt",
        tmp_path / "b.txt",
        "--tokenizer",
        "bytes",
        "--out",
        tmp_path / "out",
        "--validation",
        0,
    )
    assert Corpus.open(tmp_path / "out").column("path") == ["a.txt", "b.txt"]


def test_errors_are_those_that_main_prints(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ContextwiseError, match=r"texts\.jsonl\.gz:1: there is no field 'text'") as caught:
        run(source, "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert caught.value.exit_status == 2
    assert not (tmp_path / "out").exists()
