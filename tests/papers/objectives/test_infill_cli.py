"""``contextwise model fill`` and ``contextwise measure infill``, as they are typed."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from contextwise.base.runs import RunFolder
from contextwise.data import prepare_corpus
from contextwise.evaluation.kernel import Result, results_of
from filling import LETTERS, middle, write_run
from small import write_rows


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that were taught a pattern, holes in files, and a corpus."""
    folder = tmp_path_factory.mktemp("infill")
    for kind in ("gpt2", "t5"):
        write_run(folder / "runs" / kind, kind)
    holes = [
        {"task_id": f"HumanEval/{i}", "prompt": a, "suffix": b, "canonical_solution": middle(a, b), "test": "1 / 0"}
        for i, (a, b) in enumerate(itertools.product(LETTERS, LETTERS))
    ]
    write_rows(folder / "holes.jsonl", holes)
    write_rows(folder / "texts.jsonl", ({"text": "a first line\n" + f"{i}\n" * 30} for i in range(8)))
    prepare_corpus(folder / "texts.jsonl", "bytes", folder / "corpus", validation=0.0)
    return folder


@pytest.mark.parametrize("run", ["runs/gpt2", "runs/t5"])
def test_fill_prints_the_middle_alone(contextwise: Any, run: str) -> None:
    result = contextwise(f"model fill {run} --prefix a --suffix c --greedy --max-new-tokens 20")
    assert result == (0, "<AC>\n", "")


def test_fill_asks_in_either_order(contextwise: Any) -> None:
    options = "--greedy --max-new-tokens 20 -n 2"
    result = contextwise(f"model fill runs/gpt2 --prefix b --suffix d --spm {options}")
    assert result == (0, "<BD>\n--------\n<BD>\n", "")
    status, output, _ = contextwise(f"model fill runs/gpt2 --prefix b --suffix d --spm {options} --json")
    assert (status, json.loads(output)) == (0, {"prefix": "b", "suffix": "d", "texts": ["<BD>"] * 2})


def test_fill_reports_what_it_left_out(contextwise: Any) -> None:
    status, _, errors = contextwise("model fill runs/gpt2 --suffix", "x" * 100)
    assert status == 0
    assert "the middle ends after 32 tokens at most" in errors
    assert "the last 71 tokens of the suffix were left out" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("model fill runs/gpt2 --spm", "there is no hole to fill; give --prefix, --suffix or both"),
        ("model fill runs/gpt2/model --prefix a", "it has no tokens <|fim_prefix|>"),
        ("measure infill runs/gpt2 corpus", "no split 'validation'; it has train; prepare it with --validation SHARE"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise: Any, command: str, message: str) -> None:
    contextwise.refused(command, message)


@pytest.mark.parametrize("run", ["runs/gpt2", "runs/t5"])
def test_infill_prints_a_table_and_writes_json(contextwise: Any, workplace: Path, run: str) -> None:
    words = contextwise.words(f"measure infill {run} holes.jsonl --max-new-tokens 9")
    (result,) = results_of(RunFolder(workplace / run).evaluation)
    summary = result.summary
    low = pytest.approx(16 / (16 + 1.959964**2))  # Wilson's interval of 16 of 16
    assert summary["exact_match"] == {"value": 1.0, "low": low, "high": 1.0, "method": "Wilson", "documents": 16}
    assert f"{run} on holes: 16 holes in 16 documents, prompted as {summary['form']}" in words
    assert "exact match 1.0000 [0.8064, 1.0000]" in words and "edit similarity 1.0000" in words
    assert f"written to {run}/evaluation/{result.path.name}/" in words


def test_infill_reads_lines_of_a_corpus(contextwise: Any, workplace: Path) -> None:
    command = "measure infill runs/gpt2 corpus --split train --max-new-tokens 6 --limit 5 --out lines"
    status, output, _ = contextwise(f"{command} --json")
    summary = json.loads(output)
    assert status == 0 and summary == json.loads((workplace / "lines" / "summary.json").read_text())
    assert (summary["documents"], summary["label"]) == (5, "corpus-train")
    holes = Result.open(workplace / "lines").rows_of("holes")
    assert [row["expected"] for row in holes] == ["0", "1", "2", "3", "4"]
    assert summary["shortened"] == 5  # documents of 73 tokens, 64 positions
    note = "In 5 the text did not fit, and the 55 tokens around the hole were read."
    assert note in contextwise.words(command)
