"""Progress of a training run in a log: lines at regular steps, with the time left."""

import time
from types import SimpleNamespace

import pytest

from contextwise.training.hooks import ProgressLine, line_every


@pytest.mark.parametrize(
    ("log_every", "step_seconds", "steps"),
    [(10, 0.5, 50), (10, 2.0, 10), (10, 0.001, 20_000), (7, 0.01, 3500), (1, 60, 1)],
)
def test_lines_are_at_round_steps_20_seconds_apart_or_more(log_every, step_seconds, steps):
    assert line_every(log_every, step_seconds) == steps


def test_a_log_has_regular_steps_and_the_time_left(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    line, settings = ProgressLine("run", 1200), SimpleNamespace(logging_steps=10)
    line.on_train_begin(settings, SimpleNamespace(global_step=1000), None)  # resumed
    for step in range(1010, 1201, 10):
        now[0] += 4
        row = {"kind": "train", "step": step, "loss": 2.5, "tokens_per_second": 1234.5}
        line.on_log(settings, SimpleNamespace(global_step=step), None, logs=row)
    line.on_train_end(settings, SimpleNamespace(global_step=1200), None)
    assert capsys.readouterr().err.splitlines() == [
        f"run: step {step:,} of 1,200, loss 2.500, 1,234 tok/s, about {left} s left"
        for step, left in ((1050, 60), (1100, 40), (1150, 20))
    ]
