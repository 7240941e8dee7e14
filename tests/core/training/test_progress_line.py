"""Progress of a training run in a log: lines with the step, the loss, the speed and the time left."""

from types import SimpleNamespace

from contextwise.base import progress
from contextwise.training.hooks import ProgressLine


def test_a_log_has_steps_losses_and_the_time_left(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    line = ProgressLine("run", 1200)
    line.on_train_begin(None, SimpleNamespace(global_step=1000), None)  # resumed
    for step in range(1010, 1201, 10):
        now[0] += 4
        line.on_step_end(None, SimpleNamespace(global_step=step), None)
        row = {"kind": "train", "step": step, "loss": 2.5, "tokens_per_second": 1234.5}
        line.on_log(None, None, None, logs=row)
        line.on_log(None, None, None, logs=row | {"kind": "validation"})
    line.on_train_end(None, None, None)
    lines = capsys.readouterr().err.splitlines()
    assert [each.split(", about")[0] for each in lines] == [
        f"run: {step:,} of 1,200 steps, loss 2.500, 1,234 tok/s" for step in (1050, 1100, 1150)
    ]
    assert all(each.endswith("left") for each in lines)
