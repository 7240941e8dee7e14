"""Exact match and edit similarity, and what an evaluation of infilling writes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.intervals import ratios
from contextwise.base.runs import RunFolder
from contextwise.evaluation.kernel import Result, measure
from contextwise_papers.objectives.infill import Infill
from contextwise_papers.objectives.infill.filling import Filling, Infiller
from contextwise_papers.objectives.infill.tasks import Task, edit_similarity, exact_match, scores
from filling import LETTERS, middle, write_run
from measured import stopped_and_resumed
from small import run_summary, write_rows


def common(a: str, b: str) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for place, y in enumerate(b):
            row.append(before[place] + 1 if x == y else max(row[-1], before[place + 1]))
    return row[-1]


@settings(max_examples=200)
@given(a=st.text("abc ", max_size=12), b=st.text("abc ", max_size=12))
def test_edit_similarity_is_twice_the_common_part_over_both(a: str, b: str) -> None:
    a, b = a.rstrip(), b.rstrip()
    expected = 2 * common(a, b) / (len(a) + len(b)) if a + b else 1.0
    assert edit_similarity(a + " \n", b + "\t") == pytest.approx(expected)
    assert (edit_similarity(a, b) == 1.0) == exact_match(a, b)


def test_worked_examples() -> None:
    assert edit_similarity("    return x", "    return y") == pytest.approx(22 / 24)
    assert exact_match("    x = 1\n", "    x = 1") and not exact_match("x = 1", " x = 1")
    assert edit_similarity("", "abc") == 0.0


def test_intervals_are_over_documents() -> None:
    """Two holes of one document count together, as the sums over documents have it."""
    tasks = [Task(f"{d}/{i}", str(d), "", "", "yes") for d in range(18) for i in range(1 + d % 3)]
    fillings = [Filling("yes" if int(task.document) % 9 in (0, 2, 6, 8) else "no", True) for task in tasks]
    result, rows = scores(tasks, fillings)
    assert (result["documents"], result["holes"], result["unfinished"]) == (18, 36, 0)
    sums, sizes = np.tile([1, 0, 3, 0, 0, 0, 1, 0, 3], 2), np.tile([1, 2, 3], 6)
    expected = ratios(sums, {"holes": sizes})["holes"].to_dict()
    assert {name: result["exact_match"][name] for name in ("value", "low", "high")} == pytest.approx(
        {name: expected[name] for name in ("value", "low", "high")}
    )
    assert [row["exact_match"] for row in rows][:2] == [True, False]


def test_intervals_of_shares_stay_between_0_and_1_and_have_a_width() -> None:
    def found(*filled: str) -> dict[str, Any]:
        tasks = [Task(str(i), str(i), "", "", "yes") for i in range(len(filled))]
        return scores(tasks, [Filling(text, True) for text in filled])[0]["exact_match"]

    most = found(*["yes"] * 7, "no")
    assert most["value"] == 0.875 and most["low"] < 0.6 and most["high"] == 1.0 and most["method"] == "t"
    every = found(*["yes"] * 8)  # Wilson's interval of 8 of 8
    assert every["value"] == every["high"] == 1.0 and every["low"] == pytest.approx(8 / (8 + 1.959964**2))
    assert "low" not in found("yes") or found("yes")["low"] is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "taught", "gpt2")


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pattern that the model was taught; in the last two tasks something else is expected."""
    pairs = [(a, b) for a in LETTERS for b in LETTERS]
    rows = [
        {
            "task_id": f"{a}{b}",
            "prompt": a,
            "suffix": b,
            "canonical_solution": middle(a, b) if i < len(pairs) - 2 else "<??>",
        }
        for i, (a, b) in enumerate(pairs)
    ]
    file = tmp_path_factory.mktemp("holes") / "pattern.jsonl"
    write_rows(file, rows)
    return file


def test_a_taught_model_is_scored_as_it_fills(run: Path, pattern: Path) -> None:
    done = measure(run, Infill(file=pattern), batch_tokens=500)
    assert done.path.parent == run / "evaluation" and done.path.name.startswith("infill-pattern-")
    summary = done.summary
    assert summary == Result.open(done.path, "infill").summary and summary["form"] == "PSM"
    assert summary["exact_match"]["value"] == pytest.approx(14 / 16)
    # Of "<CD>" and "<??>" two of four characters are the same.
    assert summary["edit_similarity"]["value"] == pytest.approx((14 + 2 * 0.5) / 16)
    assert summary["exact_match"]["low"] < 14 / 16 < summary["exact_match"]["high"]
    assert summary["shortened"] == summary["unfinished"] == 0
    # Rows stay in the order of the tasks, whatever the batches were.
    rows = done.rows_of("holes")
    assert [row["task"] for row in rows] == [f"{a}{b}" for a in LETTERS for b in LETTERS]
    assert [row["filled"] for row in rows] == [middle(a, b) for a in LETTERS for b in LETTERS]


def test_prompts_of_one_length_are_filled_together_where_frequencies_follow_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"task_id": str(n), "prompt": "A" * n, "suffix": "B", "canonical_solution": "C"} for n in (1, 2, 2, 3)]
    file, asked = tmp_path / "holes.jsonl", list[list[int]]()
    write_rows(file, rows)

    def filled(infiller: Infiller, prompts: list[Any]) -> list[Filling]:
        asked.append([len(prompt.ids) for prompt in prompts])
        return [Filling("C", True)] * len(prompts)

    monkeypatch.setattr(Infiller, "fill", filled)
    measure(run, Infill(file=file), out=tmp_path / "mixed")
    assert len(asked) == 1
    asked.clear()
    monkeypatch.setattr("contextwise_papers.objectives.infill.tasks.same_frequencies_up_to", lambda model: 0)
    measure(run, Infill(file=file), out=tmp_path / "alike")
    assert sorted(map(len, asked)) == [1, 1, 2] and all(len(set(lengths)) == 1 for lengths in asked)


def test_the_other_order_is_another_result(run: Path, pattern: Path) -> None:
    done = measure(run, Infill(file=pattern, spm=True), batch_tokens=30)
    assert done.path != measure(run, Infill(file=pattern), batch_tokens=30).path
    assert done.summary["form"] == "SPM"
    assert done.summary["exact_match"]["value"] == pytest.approx(14 / 16)


def test_other_holes_under_the_same_name_are_another_result(run: Path, pattern: Path, tmp_path: Path) -> None:
    first = measure(run, Infill(file=pattern))
    fewer = tmp_path / pattern.name
    fewer.write_text("".join(pattern.read_text().splitlines(keepends=True)[:4]))
    second = measure(run, Infill(file=fewer))
    assert second.path != first.path and second.summary["holes"] == 4


def test_training_on_the_documents_is_noted(run: Path, pattern: Path, tmp_path: Path) -> None:
    fingerprint = measure(run, Infill(file=pattern)).summary["data"]["fingerprint"]
    RunFolder(run).write_summary(run_summary(corpus={"path": "corpus", "fingerprint": fingerprint}))
    try:
        notes = measure(run, Infill(file=pattern), out=tmp_path / "noted").summary["notes"]
    finally:
        (run / "summary.json").unlink()
    assert notes == ["the run was trained on these very documents; they are not held out"]


def test_a_stopped_evaluation_resumes(run: Path, pattern: Path, tmp_path: Path, stop_at) -> None:
    stopped_and_resumed(lambda out: measure(run, Infill(file=pattern), batch_tokens=64, out=out), tmp_path, stop_at, 3)
