"""The table of sizes in docs/trial.md is computed here from committed results, whose intervals are those of the guide."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contextwise.base.estimates import count
from contextwise.comparison.sequential import half_widths, simultaneous

ROOT = Path(__file__).parents[1]
MOST = 20  # seeds of a trial, by default
MEASURED = {
    "answers-flops-131k-cpu": ("contextlm", "4 × 128 (`nano`)", "on one of two cores"),
    "answers-time-deep-cpu": ("behind", "8 × 64", "on one of two cores"),
    "answers-flops-longer-gpu": ("every", "4 × 128 (`nano`)", "20 at a time on one H100"),
    "answers-flops-deep-fresh-gpu": ("behind", "8 × 128", "15 at a time on one H200"),
}
"""Result -> the arm whose difference to GPT-2 is taken, layers × width, and where its runs were trained."""


def seeds_that_decide(difference: float, deviation: float) -> int:
    """The fewest seeds whose half width is at most a difference; one more than the most where there are none."""
    halves = half_widths(MOST) * deviation
    return next((seeds for seeds in range(4, MOST + 1) if halves[seeds - 1] <= difference), MOST + 1)


def typical(numbers: list[int]) -> str:
    """The median over the texts, and the largest in parentheses."""
    middle, last = (
        str(each) if each <= MOST else f"more than {MOST}" for each in (statistics.median(numbers), max(numbers))
    )
    return f"{middle} ({last})"


def deviations_of(name: str, arm: str) -> list[float]:
    """Of each text, the standard deviation over seeds of the difference to GPT-2."""
    found = []
    for trial in json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["trials"].values():
        ((tokens, own),) = trial["losses"][arm].items()
        pairs = zip(own, trial["losses"]["gpt2"][tokens], strict=False)  # up to the arm's decision
        found.append(statistics.stdev([a - b for a, b in pairs]))
    return found


def row(name: str) -> str:
    arm, shape, where = MEASURED[name]
    result = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    assert len(result["trials"]) == 5
    deviations, seconds, budgets, contexts = deviations_of(name, arm), [], set(), set()
    for trial in result["trials"].values():
        (tokens,) = trial["losses"][arm]
        (scoring,) = (each["scoring"] for each in trial["lengths"] if each["arm"] == arm)
        seconds.append(round(statistics.mean(trial["training_seconds"][arm][tokens]) + scoring))
        budgets.add(int(tokens))
        contexts.add(trial["unchanged"]["data.context"])
    (budget,), (context,) = budgets, contexts
    needed = [typical([seeds_that_decide(size, each) for each in deviations]) for size in (0.05, 0.02, 0.01)]
    cells: list[Any] = [
        f"[{shape}, context {context:,}](../benchmarks/results/{name}.json)",
        count(budget),
        f"{statistics.median(deviations):.4f} ({max(deviations):.4f})",
        *needed,
        f"{min(seconds)} to {max(seconds)} s, {where}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def test_the_table_of_sizes_is_that_of_the_results() -> None:
    guide = (ROOT / "docs/trial.md").read_text()
    for name in MEASURED:
        assert row(name) in guide, row(name)


def test_the_spread_of_another_arm_is_that_of_the_result() -> None:
    deviations = deviations_of("answers-flops-131k-cpu", "multitoken")
    assert (
        f"standard deviations of {min(deviations):.4f} to {max(deviations):.4f}."
        in (ROOT / "docs/trial.md").read_text()
    )


def test_the_difference_that_is_decided_is_that_of_the_table_of_factors() -> None:
    assert seeds_that_decide(0.0239, 0.01) == 4 and seeds_that_decide(0.0082, 0.01) == MOST
    assert seeds_that_decide(0.0080, 0.01) == MOST + 1


def test_the_speed_of_a_larger_model_is_that_of_the_result() -> None:
    shape = json.loads((ROOT / "benchmarks/results/gpu-fast-gpu.json").read_text())["shapes"]["GPT-2 124M"]
    speed = shape["tokens_per_second"]["contextwise: plain"]
    minutes = 1e9 / speed / 60
    assert f"{round(speed, -4):,.0f} tokens a second" in (ROOT / "docs/train.md").read_text()
    assert f"a billion tokens take {minutes:.0f} minutes" in (ROOT / "docs/train.md").read_text().replace("\n", " ")


def committed_trials() -> list[Any]:
    """Each trial of ``benchmarks/results`` that has intervals."""
    found = []
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        result = json.loads(path.read_text())
        named = result if isinstance(result.get("trials"), dict) else {"trials": {"": result}}
        for name, trial in named["trials"].items():
            if "comparisons" in trial and trial["seeds"] >= 4:
                found.append(pytest.param(trial, id=f"{path.stem}-{name}"))
    return found


@pytest.mark.parametrize("trial", committed_trials())
def test_the_intervals_of_committed_trials_are_those_of_the_guide(trial: dict[str, Any]) -> None:
    confidence = simultaneous(trial["confidence"], len(trial["comparisons"]))
    for each in trial["comparisons"]:
        own, reference = (trial["losses"][arm][str(each["budget"])] for arm in (each["arm"], each["reference"]))
        for look in each["looks"][3:]:
            seeds, shown = look["seeds"], look["fixed"]
            differences = np.array(own[:seeds]) - np.array(reference[:seeds])
            half = half_widths(seeds, confidence)[-1] * differences.std(ddof=1)
            expected = differences.mean() + half * np.array([0, -1, 1])
            assert [shown["value"], shown["low"], shown["high"]] == pytest.approx(expected, abs=1e-6)
