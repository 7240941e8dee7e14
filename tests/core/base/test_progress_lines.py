"""Tests of what long work prints: a line now and then in a log, and once for all the processes of a launch."""

import io
from typing import Any

import pytest

from contextwise.base import progress
from contextwise.base.progress import progress_bar, quieten, say


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the bar reads, in its one element."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_in_a_log_long_work_prints_a_line_every_twenty_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("measure", 12_000, "predictions") as advance:
        for _ in range(12):
            clock[0] += 5
            advance(1000, note="context 8")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", about")[0] for line in lines] == [
        "measure: 4,000 of 12,000 predictions, context 8",
        "measure: 8,000 of 12,000 predictions, context 8",
    ]
    assert all(line.endswith(("left", "context 8")) for line in lines)


@pytest.mark.parametrize("resumed", [0, 40])
def test_the_time_left_is_that_of_steps_after_the_first(resumed: int, clock: list[float], capsys: Any) -> None:
    with progress_bar("train", 100, "steps") as advance:
        advance(done=resumed)
        for step in range(4):
            clock[0] += 2 if step else 60  # with its warm-up
            advance()
        clock[0] += 20
        advance(0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"train: {resumed + 1} of 100 steps"
    assert lines[1] == f"train: {resumed + 4} of 100 steps, about {'112 s' if resumed else '3.2 min'} left"


def test_work_whose_end_is_unknown_counts_only(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("tokenize", None) as advance:
        clock[0] += 20
        advance(done=1234.0)
    assert capsys.readouterr().err == "tokenize: 1,234\n"


def test_short_or_quiet_work_prints_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("measure", 10) as advance:
        clock[0] += 19
        advance(10)
    with quieten(), progress_bar("measure", 10) as advance:
        clock[0] += 60
        advance(10)
        say("hello")
    assert capsys.readouterr().err == ""


def test_only_the_first_process_of_a_launch_prints(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    say("hello")
    with progress_bar("measure", 10) as advance:
        clock[0] += 60
        advance(5)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    say("hello")
    assert capsys.readouterr().err == "hello\n"


def test_a_terminal_shows_whole_words_and_a_command_is_one_line(monkeypatch):
    message, lines = "a message of several words " * 4 + "ends here", {}
    for terminal in (True, False):
        shown = io.StringIO()
        console = progress.Terminal(file=shown, force_terminal=terminal, width=80, color_system=None)
        monkeypatch.setattr(progress, "console", console)
        progress.say(message)
        progress.say(message, command=True)
        lines[terminal] = [each.strip() for each in shown.getvalue().splitlines()]
    *wrapped, command = lines[True]
    assert len(wrapped) == 2 and " ".join(wrapped) == command == message
    assert lines[False] == [message, message]
