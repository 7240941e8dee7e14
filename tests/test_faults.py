"""Every write may fail: one sentence, what was there is unchanged, and the next call succeeds; so after a power failure."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from contextwise.base.files import PARTIAL
from faults import (
    COMMANDS,
    POWER_FAILS,
    Disk,
    fresh,
    no_file_above,
    small_demo,
    tree,
    until_power_fails,
    write_template,
)
from processes import _FORKS

SAME_BYTES = ("out/corpus/", "run/model/", "out/v.npy", "out/shared/")
"""Files that two runs of a command write alike; others hold times."""
LONG = ("trial", "sweep", "demo")
MARKS = dict.fromkeys((*LONG, "reproduce", "curve"), pytest.mark.slow)  # a curve is written as an evaluation is
MANY = [pytest.param(name, marks=MARKS.get(name, ())) for name in COMMANDS]
POWER = ("prepare", "train", "report again")
"""Commands whose power fails in each test run: they write a folder, a run and a file. A process of its own takes seconds."""


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
    """An undisturbed command: the files after it, their sizes, and the number of its operations."""

    files: dict[str, str]
    sizes: list[int]
    operations: int


@pytest.fixture(scope="module")
def wholes() -> dict[str, Whole]:
    """The undisturbed commands so far, by name."""
    return {}


@pytest.fixture
def whole(contextwise: Callable, template: Path, tmp_path: Path, name: str, wholes: dict[str, Whole]) -> Whole:
    """The undisturbed command of a test."""
    if name not in wholes:
        folder = contextwise.folder = fresh(template, tmp_path / "whole")
        with Disk(folder).installed() as disk:
            status, _, errors = contextwise(COMMANDS[name])
        assert status == 0, errors
        sizes = sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()})
        wholes[name] = Whole(tree(folder), sizes, len(disk.operations))
    return wholes[name]


def same(files: dict[str, str], expected: dict[str, str]) -> None:
    """The same files, of the same content where it does not depend on the time."""
    assert files.keys() == expected.keys()
    for name in files:
        if any(part in name for part in SAME_BYTES):
            assert files[name] == expected[name], name


def finished(contextwise: Callable, folder: Path, command: str, expected: dict[str, str], outcome: tuple) -> None:
    """After a command that may have failed: one sentence, nothing lost or left over, and the same command succeeds."""
    status, _, errors = outcome
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    allowed = (0, 1, 2) if command.startswith("plan sweep") else (0, 2)  # 1: the sweep ended, but a run of it failed
    assert status in allowed and "Traceback" not in errors and "error: unexpected" not in errors, errors
    if status:
        assert len(lines) == 1, errors
        assert not [path for path in folder.rglob("*") if PARTIAL in path.name], errors
        status, _, errors = contextwise(command)
        assert status == 0, errors
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
            # A single file is replaced, and cannot be had back, when the folder is synced.
            if outcome[0] and (name, failed) != ("report again", "fsync /old"):
                now = tree(folder)
                assert {file: now.get(file) for file in before} == before, failed
            finished(contextwise, folder, command, whole.files, outcome)


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
        if outcome[0]:
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
        process = _FORKS.Process(target=until_power_fails, args=(folder, command.split(), number))
        process.start()
        process.join()
        assert process.exitcode == POWER_FAILS
        status, _, errors = contextwise(command)
        assert status == 0, errors
        same(tree(folder), whole.files)
