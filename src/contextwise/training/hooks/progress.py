"""The progress display of a run: one live line on a terminal, or a line every 20 seconds in a log."""

import time
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from contextwise.base.progress import console, say

LINE_EVERY_SECONDS = 20.0


class ProgressLine(TrainerCallback):
    """Displays step, loss, tokens/s and remaining time, in the first process only."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps = name, steps
        self.text = "loss   –    "
        self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn(f"{name[:24]:<12}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.task = self.bar.add_task(
            self.name, total=self.steps, completed=state.global_step, text=self.text
        )
        self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update(self.task, completed=state.global_step, text=self.text)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not logs or logs["kind"] != "train":
            return
        self.text = f"loss {logs['loss']:.3f}  {logs['tokens_per_second']:,.0f} tok/s"
        if not console.is_terminal and time.monotonic() - self.last_line >= LINE_EVERY_SECONDS:
            self.last_line = time.monotonic()
            say(f"{self.name}: step {logs['step']}/{self.steps}  {self.text}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.stop()
