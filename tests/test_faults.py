"""Every write may fail: one sentence, what was there is unchanged, and the next call succeeds; so after a power failure."""

import inspect
import json
import random
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contextwise.base.files import PARTIAL
from contextwise.cli.commands import groups, points, verb_of
from faults import POWER_FAILS, Disk, fresh, no_file_above, tree, until_power_fails
from golden import TIMES
from processes import forked, type_command
from writing_commands import COMMANDS, LINES, READING, small_demo, write_template

SAME_BYTES = (
    "old/stopped/model/",
    "out/corpus/",
    "run/model/",
    "out/v.npy",
    "out/c.npy",
    "out/shared/",
    "out/recipes/",
)
"""Files that two runs of a command write alike; others hold times."""
LONG = ("trial", "sweep", "transfer", "demo")
SLOW = (
    *LONG,
    "reproduce",
    "curve",
    "attention",
    "entropy",
    "tasks",
    "recipes",
)  # a curve is written as an evaluation is
MARKS = dict.fromkeys(SLOW, pytest.mark.slow)
MANY = [pytest.param(name, marks=MARKS.get(name, ())) for name in COMMANDS]
POWER = ("prepare", "train", "report again")
"""Commands whose power fails in each test run: they write a folder, a run and a file. A process of its own takes seconds."""

AT_ONCE = ("prepare", "train", "evaluate", "decide")
"""Commands of which three are started at once in each test run."""


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_demo():
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    write_template(folder)
    return folder


def chosen(name: str, count: int, number: int, every: bool) -> list[int]:
    """The operations that fail: all, or some drawn ones, the same in each run; of long commands 12 instead of all."""
    number = number if not every else 12 if name in LONG else count
    return sorted(random.Random(count).sample(range(1, count + 1), min(number, count)))


class Whole(NamedTuple):
    """An undisturbed command: the files after it, their sizes, its numbers, and the numbers of its operations."""

    files: dict[str, str]
    sizes: list[int]
    numbers: dict[str, Any]
    operations: int
    readings: int


@pytest.fixture(scope="module")
def wholes() -> dict[str, Whole]:
    """The undisturbed commands so far, by name."""
    return {}


@pytest.fixture
def whole(contextwise: Callable, template: Path, tmp_path: Path, name: str, wholes: dict[str, Whole]) -> Whole:
    """The undisturbed command of a test."""
    if name not in wholes:
        counts: list[int] = []
        for reads in (True, False):
            folder = contextwise.folder = fresh(template, tmp_path / "whole")
            with Disk(folder, reads=reads).installed() as disk:
                status, _, errors = contextwise(LINES[name])
            assert status == 0, errors
            counts.append(len(disk.operations))
        sizes = sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()})
        wholes[name] = Whole(tree(folder), sizes, numbers(folder), counts[1], counts[0])
    return wholes[name]


def numbers(folder: Path) -> dict[str, Any]:
    """The summaries in a folder, without times, machines and the folder's own path."""
    dropped = {*TIMES, "sha256", "digest", "hardware"}
    summaries = {path: json.loads(path.read_text().replace(str(folder), "")) for path in folder.rglob("summary.json")}
    return {
        path.relative_to(folder).as_posix(): {name: value for name, value in summary.items() if name not in dropped}
        for path, summary in summaries.items()
    }


def same(files: dict[str, str], expected: dict[str, str]) -> None:
    """The same files, of the same content where it does not depend on the time."""
    assert files.keys() == expected.keys()
    for name in files:
        if any(part in name for part in SAME_BYTES):
            assert files[name] == expected[name], name


def finished(
    contextwise: Callable, folder: Path, command: str, expected: dict[str, str], outcome: tuple, reads: bool = False
) -> None:
    """After a command that may have failed: one sentence, nothing lost or left over, and the same command succeeds.

    With ``reads``, of a disk that cannot be read, the sentence may be that of an unexpected error.
    """
    status, _, errors = outcome
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    # 1: the sweep ended, but a run of it failed
    allowed = (0, 1, 2) if reads or command.startswith("plan sweep") else (0, 2)
    assert status in allowed and "Traceback" not in errors, errors
    assert reads or "error: unexpected" not in errors, errors
    if status:
        assert len(lines) == 1, errors
        assert not [path for path in folder.rglob("*") if PARTIAL in path.name], errors
        status, _, errors = contextwise(command)
        assert status == 0 or "already exists" in errors, errors  # it had been written
    same(tree(folder), expected)


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MANY)
def test_every_operation_on_files_may_fail(
    contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool
) -> None:
    command, before = COMMANDS[name], tree(template)
    for number in chosen(name, whole.operations, 2, every):
        for stays in (False, True) if every else (bool(number % 2),):
            folder = contextwise.folder = fresh(template, tmp_path / "faulty")
            with Disk(folder, number, stays).installed() as disk:
                outcome = contextwise(command)
            failed = disk.operations[number - 1]
            # A single file is replaced, and cannot be had back, when the folder is synced; a run that resumes has gone on.
            if outcome[0] and (name, failed) != ("report again", "fsync /old") and name != "resume":
                now = tree(folder)
                assert {file: now.get(file) for file in before} == before, failed
            finished(contextwise, folder, command, whole.files, outcome)


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*MANY, *READING])
def test_the_disk_may_fail_once(
    contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool
) -> None:
    """At any reading, listing, writing or syncing: a command that ends well has the result of an undisturbed one."""
    command = LINES[name]
    for number in chosen(name, whole.readings, 3, every):
        folder = contextwise.folder = fresh(template, tmp_path / "faulty")
        with Disk(folder, number, reads=True).installed() as disk:
            outcome = contextwise(command)
        finished(contextwise, folder, command, whole.files, outcome, reads=True)
        assert numbers(folder) == whole.numbers, disk.operations[number - 1]


def test_every_verb_has_its_command_here() -> None:
    """Those that write nothing have no option that names a file to write."""
    verbs = {typed: point.value for typed, point in points().items()}
    ours = {
        name: {verbs[verb_in(line)] for line in lines.values()} for name, lines in (("w", COMMANDS), ("r", READING))
    }
    assert set(verbs.values()) == ours["w"] | ours["r"] | {verbs["model serve"]}
    assert not ours["w"] & ours["r"]
    for line in READING.values():
        found = verb_of(verb_in(line))
        assert found and not {"out", "csv", "html", "table", "copy"} & set(inspect.signature(found[1]).parameters)


def verb_in(line: str) -> str:
    words = line.split()
    return " ".join(words[:2]) if words[0] in groups() else words[0]


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MANY)
def test_no_file_may_grow(contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool) -> None:
    command, before = COMMANDS[name], tree(template)
    limits = sorted({limit for size in whole.sizes for limit in (size - 1, size // 2) if limit >= 0})
    limits = limits if every and name not in LONG else [40, 3000]
    for limit in limits:
        folder = contextwise.folder = fresh(template, tmp_path / "faulty")
        with no_file_above(limit):
            outcome = contextwise(command)
        if outcome[0] and name != "resume":
            now = tree(folder)
            assert {file: now.get(file) for file in before} == before, limit
        finished(contextwise, folder, command, whole.files, outcome)


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        name if name in POWER else pytest.param(name, marks=[pytest.mark.slow, MARKS.get(name, pytest.mark.slow)])
        for name in COMMANDS
        if name != "demo"  # whose size the process does not know
    ],
)
def test_after_a_power_failure_the_same_command_succeeds(
    contextwise, template: Path, tmp_path: Path, whole: Whole, name: str, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    for number in chosen(name, whole.operations, 1, every):
        monkeypatch.chdir(tmp_path)  # the folder of the command before this one is removed
        folder = contextwise.folder = fresh(template, tmp_path / "faulty")
        process = forked(until_power_fails, folder, shlex.split(command), number)
        process.join()
        assert process.exitcode == POWER_FAILS
        status, _, errors = contextwise(command)
        assert status == 0, errors
        same(tree(folder), whole.files)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS if name != "demo"],
)
def test_three_at_once_have_one_result(template: Path, tmp_path: Path, whole: Whole, name: str) -> None:
    """One does the work, or they share it; one that ends without the result says that another process has it."""
    folder, words = fresh(template, tmp_path / "shared"), shlex.split(COMMANDS[name])
    logs = [tmp_path / f"log {number}" for number in range(3)]
    processes = [forked(type_command, folder, words, log) for log in logs]
    for process in processes:
        process.join()
    texts = [log.read_text() for log in logs]
    assert 0 in [process.exitcode for process in processes], texts
    for process, text in zip(processes, texts, strict=True):
        assert "Traceback" not in text and "unexpected" not in text, text
        assert process.exitcode == 0 or (process.exitcode == 2 and ("another process" in text or "exists" in text)), (
            text
        )
    assert not [path for path in folder.rglob("*") if PARTIAL in path.name]
    same(tree(folder), whole.files)
    assert numbers(folder) == whole.numbers
