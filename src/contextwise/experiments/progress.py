"""The progress of a run set: a live table on a terminal, a line now and then in a log."""

import time
from collections.abc import Container, Iterable, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from contextwise.base.progress import console, say
from contextwise.experiments.folder import PlannedRun, RunSetFolder, RunState
from contextwise.models.sizes import readable_count

REFRESH_SECONDS = 2.0
LINE_EVERY_SECONDS = 60.0
_STYLES = {"finished": "green", "running": "cyan", "failed": "red"}


def readable_time(seconds: float) -> str:
    """4000 -> '1h07'."""
    minutes = round(seconds / 60)
    return f"{minutes // 60}h{minutes % 60:02d}" if minutes >= 60 else f"{minutes}min" if minutes else "<1min"


def dash(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def state_table(states: Iterable[RunState], running: dict[str, float | None]) -> Table:
    """A table with one row for each run.

    Args:
        running: ids of the runs that are being trained, with the seconds that each still needs, if known.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold", no_wrap=False)
    table.add_column("state")
    for name in ("step", "tok/s", "loss", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    for state in states:
        shown = _shown_state(state, running)
        left = running.get(state.run.id)
        table.add_row(
            state.run.id,
            Text(shown, style=_STYLES.get(shown, "")),
            f"{state.step or 0}/{state.run.steps}",
            dash(state.tokens_per_second, ",.0f"),
            dash(state.loss, ".4f"),
            readable_time(left) if left is not None else "–",
        )
    return table


def _shown_state(state: RunState, running: Container[str]) -> str:
    return "running" if state.run.id in running and state.state != "finished" else state.state


class LiveTable:
    """The states of the runs while they are trained.

    Args:
        folder: of the run set, whose metrics are read every few seconds.
    """

    def __init__(self, folder: RunSetFolder) -> None:
        self.folder = folder
        self.states = {run.id: folder.state(run) for run in folder.plan}
        self.begin, self.done_before = time.monotonic(), self._done()
        self.waiting: set[str] = set()
        self.started_at: dict[str, tuple[float, int]] = {}
        self.last_read = self.last_line = time.monotonic()
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveTable":
        if console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        say(text)

    def started(self, run: PlannedRun) -> None:
        step = self._read(run).step or 0
        self.started_at[run.id] = time.monotonic(), step
        if not console.is_terminal:
            say(f"{run.id}: " + (f"resumed from about step {step}" if step else "started"))

    def waits(self, run: PlannedRun) -> None:
        """Another process is training it; reported once."""
        if run.id not in self.waiting:
            self.waiting.add(run.id)
            say(f"{run.id}: another process is training it; waiting for that")

    def finished(self, run: PlannedRun) -> None:
        state = self._read(run)
        if not console.is_terminal:
            say(f"{run.id}: finished, best-context loss {dash(state.loss, '.4f')}")

    def failed(self, run: PlannedRun, reason: str, again: bool) -> None:
        self._read(run)
        say(f"{run.id}: failed: {reason}" + ("; it is tried again" if again else ""))

    def update(self, running: set[str]) -> None:
        """Read the metrics of the running runs again, every few seconds, and show the table."""
        now = time.monotonic()
        if now - self.last_read < REFRESH_SECONDS:
            return
        self.last_read = now
        for run in self.folder.plan:
            if run.id in running:
                self._read(run)
        if console.is_terminal:
            self.live.update(self._table(running), refresh=True)
        elif now - self.last_line >= LINE_EVERY_SECONDS:
            self.last_line = now
            say(self.summary(running))

    def _read(self, run: PlannedRun) -> RunState:
        self.states[run.id] = self.folder.state(run)
        return self.states[run.id]

    def _table(self, running: set[str]) -> Group:
        order = {"failed": 1, "unfinished": 2, "missing": 2, "finished": 3}
        rows = sorted(self.states.values(), key=lambda s: 0 if s.run.id in running else order[s.state])
        room = max(4, console.height - 4)
        table = state_table(rows[:room], {name: self._left(name) for name in running})
        return Group(table, Text(self.summary(running)))

    def _left(self, name: str) -> float | None:
        """Seconds that a running run still needs, from its pace since it was started."""
        state = self.states[name]
        if name not in self.started_at or state.step is None:
            return None
        since, first = self.started_at[name]
        taken = state.step - first
        return (time.monotonic() - since) / taken * (state.run.steps - state.step) if taken > 0 else None

    def _done(self) -> float:
        return sum(state.share * state.run.flops for state in self.states.values())

    def summary(self, running: set[str]) -> str:
        """One line: counts, share of the work, time left."""
        shown = [_shown_state(state, running) for state in self.states.values()]
        count = {name: shown.count(name) for name in ("finished", "running", "failed")}
        waiting = len(shown) - sum(count.values())
        done, elapsed = self._done(), time.monotonic() - self.begin
        pace = (done - self.done_before) / elapsed
        left = (
            f", about {readable_time((self.folder.flops - done) / pace)} left"
            if pace > 0 and done < self.folder.flops
            else ""
        )
        parts = [f"{number} {name}" for name, number in {**count, "waiting": waiting}.items() if number]
        runs = f"{len(shown)} run{'s' * (len(shown) != 1)}"
        return f"{runs}: {', '.join(parts)}; {done / self.folder.flops:.0%} of the work done{left}"


def plan_table(states: Sequence[RunState]) -> Table:
    """A table of the runs with what each is, what it costs, and how far it is."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    for name in ("params", "lr", "tokens", "FLOPs", "done", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for state in states:
        run = state.run
        table.add_row(
            run.id,
            readable_count(run.parameters),
            f"{run.learning_rate:.2g}",
            readable_count(run.tokens),
            f"{run.flops:.2e}",
            "failed" if state.state == "failed" else f"{state.share:.0%}",
            dash(state.loss, ".4f"),
        )
    return table
