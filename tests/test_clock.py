"""A wall clock that jumps: no result, time or choice depends on it."""

import ast
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contextwise.base.runs import RunFolder
from contextwise.training import Recipe, train
from golden import TIMES, weights_hash
from small import EXACT, loss_rows, recipe_values, save_model, small_gpt2, write_rows

SOURCES = Path(__file__).parents[1] / "src"
WALL_CLOCK = {"time", "time_ns", "strftime", "localtime", "gmtime", "now", "today", "utcnow", "ctime"}
SHOWN = {
    "contextwise/experiments/executors.py": {"strftime"},  # a line of a log
    "contextwise_papers/item.py": {"now"},  # the day in a report
    "contextwise_papers/contextlm/answers.py": {"time"},  # a field of MT-Bench's files
}
"""Where the wall clock is read: for people, or where a wrong one costs time alone."""
NEWER = {"contextwise/base/hashes.py", "contextwise/evaluation/kernel/subject.py"}
"""Files that read times of files: whether one has changed, not which is newer."""


@pytest.mark.long
def test_the_wall_clock_is_read_to_be_shown_alone() -> None:
    clocks: dict[str, set[str]] = {}
    states = set()
    for file in SOURCES.rglob("*.py"):
        name = file.relative_to(SOURCES).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            if node.attr in WALL_CLOCK and ast.unparse(node.value) in ("time", "datetime", "date"):
                clocks.setdefault(name, set()).add(node.attr)
            if node.attr in ("st_mtime", "st_mtime_ns", "st_ctime_ns"):
                states.add(name)
    assert clocks == SHOWN
    assert states == NEWER


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Call: from now on the wall clock jumps by up to a year, or to 1970, each time that it is read, and in another zone."""
    real, real_ns = time.time, time.time_ns

    def jump(seed: int) -> None:
        draw = random.Random(seed)

        def distance() -> float:
            return draw.choice([0, draw.uniform(-1, 1) * 365 * 86_400, -real() + 10])

        monkeypatch.setattr(time, "time", lambda: real() + distance())
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(distance() * 1e9))
        monkeypatch.setenv("TZ", draw.choice(["Pacific/Kiritimati", "Pacific/Pago_Pago"]))
        time.tzset()

    yield jump
    monkeypatch.undo()
    time.tzset()


def seconds_in(value: Any) -> list[float]:
    """All times in a JSON value."""
    if isinstance(value, dict):
        own = [each for name, each in value.items() if "second" in name and isinstance(each, int | float)]
        return own + [time for each in value.values() for time in seconds_in(each)]
    return [time for each in value for time in seconds_in(each)] if isinstance(value, list) else []


def test_work_may_take_no_time(
    contextwise, corpus_folder: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a coarse clock; the loss was said to be no finite number, and the speed was 0."""
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: 5.0)
    (workplace / "a.txt").write_text("some words")
    status, _, errors = contextwise("prepare a.txt --tokenizer bytes --out prepared")
    assert status == 0, errors
    run = train(Recipe.model_validate(recipe_values(corpus_folder, workplace / "run", steps=2, save_every=2)))
    assert {row[name] for row in run.metrics("train") for name in ("tokens_per_second", "flops_per_second")} == {None}
    assert run.summary()["tokens_per_second"] is None
    status, _, errors = contextwise("report run")
    assert status == 0, errors


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_results_are_those_of_a_clock_that_stands(
    contextwise, corpus_folder: Path, workplace: Path, jumping: Callable, seed: int
) -> None:
    values = recipe_values(corpus_folder, Path("unused"), steps=3, save_every=1, evaluate_every=2, **EXACT)
    shared = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
    shared["training"] = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16}
    (workplace / "recipe.yaml").write_text(yaml.safe_dump({**values, "output": "unused"}))
    trial = {"corpus": str(corpus_folder), "arms": ["gpt2", "pm"], "recipe": shared, "tokens": 128, "seeds": 2}
    (workplace / "trial.yaml").write_text(yaml.safe_dump(trial | {"rates": "fixed", "equal": "tokens"}))
    save_model(workplace / "model", small_gpt2())
    write_rows(workplace / "losses.jsonl", loss_rows("ab", 3, range(6)))
    outcomes = []
    for name in ("whole", "jumping"):
        for command in (
            f"train recipe.yaml --out {name}/run",
            f"evaluate model --corpus {corpus_folder} --limit 2 --out {name}/loss",
            f"trial trial.yaml --out {name}/trial",
            f"decide losses.jsonl --out {name}/decision",
        ):
            status, _, errors = contextwise(command)
            assert status == 0, errors
        texts = {path: json.loads(path.read_text()) for path in (workplace / name).rglob("*.json")}
        assert min(seconds_in(list(texts.values()))) >= 0
        assert all(row["seconds"] >= 0 for row in RunFolder(workplace / name / "run").metrics())
        summary = texts[workplace / name / "loss" / "summary.json"]
        decided = [texts[workplace / name / each / "result.json"] for each in ("trial", "decision")]
        outcomes.append(
            (
                weights_hash(workplace / name / "run" / "model"),
                {key: value for key, value in summary.items() if key not in {*TIMES, "sha256"}},
                [{key: each[key] for key in ("comparisons", "losses")} for each in decided],
            )
        )
        jumping(seed)
    assert outcomes[0] == outcomes[1]
