"""``contextwise generate --prefix --suffix`` and ``contextwise infill``, as they are typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contextwise.base.runs import RunFolder
from contextwise.data import prepare_corpus
from contextwise.evaluation.kernel import Result, results_of
from filling import LETTERS, middle, write_run

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that were taught a pattern, holes in files, and a corpus."""
    folder = tmp_path_factory.mktemp("infill")
    for kind in ("gpt2", "t5"):
        write_run(folder / "runs" / kind, kind)
    rows = [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": a,
            "suffix": b,
            "canonical_solution": middle(a, b),
            "test": "1 / 0",
        }
        for i, (a, b) in enumerate((a, b) for a in LETTERS for b in LETTERS)
    ]
    (folder / "holes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [{"text": "a first line\n" + f"{i}\n" * 30} for i in range(8)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    prepare_corpus(folder / "texts.jsonl", "bytes", folder / "corpus", validation=0.0)
    return folder


@pytest.mark.parametrize("run", ["runs/gpt2", "runs/t5"])
def test_generate_prints_the_middle_alone(contextwise: Typed, run: str) -> None:
    got = contextwise("generate", run, "--prefix", "a", "--suffix", "c", "--greedy", "--max-new-tokens", 20)
    assert got == (0, "<AC>\n", "")


def test_generate_prints_the_whole_text_in_either_order(contextwise: Typed) -> None:
    options = ("--greedy", "--max-new-tokens", 20, "--whole", "--num-samples", 2)
    got = contextwise("generate", "runs/gpt2", "--prefix", "b", "--suffix", "d", "--spm", *options)
    assert got == (0, "b<BD>d\n--------\nb<BD>d\n", "")


def test_generate_says_what_it_left_out(contextwise: Typed) -> None:
    status, _, errors = contextwise("generate", "runs/gpt2", "--suffix", "x" * 100)
    assert status == 0
    assert "the middle ends after 32 tokens at most" in errors
    assert "the last 71 tokens of the suffix were left out" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "runs/gpt2", "text", "--prefix", "a"], "a prompt is given together with --prefix"),
        (["generate", "runs/gpt2", "text", "--suffix", ""], "a prompt is given together with --prefix"),
        (["generate", "runs/gpt2", "text", "--whole"], "--whole is of use with a hole to fill only"),
        (["generate", "runs/gpt2", "--spm"], "--spm is of use with a hole to fill only"),
        (["generate", "runs/t5", "--prefix", "a", "--spm"], "SPM is an order of a decoder's input"),
        (["generate", "runs/gpt2/model", "--prefix", "a"], "it has no tokens <|fim_prefix|>"),
        (["generate", "runs/none/at/all", "--prefix", "a"], "there is no run and no model at"),
        (["infill", "runs/gpt2", "nowhere"], "there is no corpus at nowhere"),
        (["infill", "runs/gpt2", "corpus"], "no split 'validation'; it has train"),
        (["infill", "runs/gpt2", "holes.jsonl", "--context", "65"], "the model has only 64 positions"),
        (["infill", "runs/gpt2", "holes.jsonl", "--batch-tokens", "0"], "--batch-tokens is 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_and_status_2(
    contextwise: Typed, arguments: list[str], message: str
) -> None:
    status, output, errors = contextwise(*arguments)
    assert status == 2 and message in " ".join(errors.split())
    assert output == "" and errors.startswith("error: ") and "Traceback" not in errors


@pytest.mark.parametrize("run", ["runs/gpt2", "runs/t5"])
def test_evaluate_prints_a_table_and_writes_json(contextwise: Typed, workplace: Path, run: str) -> None:
    status, output, errors = contextwise("infill", run, "holes.jsonl", "--max-new-tokens", 9)
    assert (status, errors) == (0, "") and max(map(len, output.splitlines())) <= 80
    (result,) = results_of(RunFolder(workplace / run).evaluation)
    summary = result.summary
    words = " ".join(output.split())
    assert summary["exact_match"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert f"{run} on holes: 16 holes in 16 documents, prompted as {summary['form']}" in words
    assert "exact match 1.0000 [1.0000, 1.0000]" in words and "edit similarity 1.0000" in words
    assert f"written to {run}/evaluation/{result.path.name}/" in words


def test_evaluate_reads_lines_of_a_corpus(contextwise: Typed, workplace: Path) -> None:
    options = ("--split", "train", "--max-new-tokens", 6, "--limit", 5, "--out", "lines")
    status, output, _ = contextwise("infill", "runs/gpt2", "corpus", *options, "--json")
    summary = json.loads(output)
    assert status == 0 and summary == json.loads((workplace / "lines" / "summary.json").read_text())
    assert (summary["documents"], summary["label"]) == (5, "corpus-train")
    holes = Result.open(workplace / "lines").rows_of("holes")
    assert [row["expected"] for row in holes] == ["0", "1", "2", "3", "4"]
    assert summary["shortened"] == 5  # documents of 73 tokens, 64 positions
    status, output, _ = contextwise("infill", "runs/gpt2", "corpus", *options)
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    assert "In 5 the text did not fit, and the 55 tokens around the hole were read." in " ".join(
        output.split()
    )
