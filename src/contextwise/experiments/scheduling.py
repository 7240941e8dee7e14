"""Scheduling: which run of a set is started next, which is tried again, and what is reported meanwhile.

A terminal shows a live table, a log gets a line now and then.
"""

import time
from collections import Counter, deque
from collections.abc import Container, Iterable

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from contextwise.base.errors import ContextwiseError, Interrupted, TrainingError
from contextwise.base.estimates import counted, duration, written
from contextwise.base.progress import console, interruption, say
from contextwise.experiments.executors import Executor, ExecutorSettings
from contextwise.experiments.folder import PlannedRun, RunSetFolder, RunState

POLL_SECONDS = 0.2
REFRESH_SECONDS = 2.0
LINE_EVERY_SECONDS = 60.0
_STYLES = {"finished": "green", "running": "cyan", "failed": "red"}


def train_planned(folder: RunSetFolder, settings: ExecutorSettings) -> None:
    """Train every run of the plan that has not finished, on the executor of these settings."""
    with LiveTable(folder) as table:
        schedule(folder, settings.executor(folder), settings.retries, table)


def schedule(folder: RunSetFolder, executor: Executor, retries: int, table: "LiveTable") -> None:
    """Train all runs, the most expensive first; a run starts after the runs that it is made from.

    A branch starts as soon as its trunk has the checkpoint where it begins to decay.

    Args:
        retries: how often a run that failed is tried again.

    Raises:
        Interrupted: asked to stop; the runs have saved what they have.
        TrainingError: some runs failed. All others have finished, except those that are made from a failed one.
    """
    todo = [run for run in folder.plan if not folder.run_folder(run.id).finished]
    waiting = deque(sorted(todo, key=lambda run: -run.flops))
    unfinished = {run.id for run in todo}
    attempts: Counter[str] = Counter()
    stopping = False

    def startable() -> list[PlannedRun]:
        return [run for run in waiting if folder.may_start(run.id, unfinished)]

    try:
        while executor.busy or (startable() and not interruption.requested):
            for run in [] if interruption.requested else startable():
                if not executor.has_room:
                    break
                if executor.start(run):
                    waiting.remove(run)
                    table.started(run)
                else:
                    table.waits(run)
            for run, outcome in executor.poll():
                attempts[run.id] += 1
                if folder.run_folder(run.id).finished:
                    unfinished.discard(run.id)
                    folder.clear_failure(run.id)
                    table.finished(run)
                elif not interruption.requested:
                    folder.note_failure(run.id, outcome.reason)
                    again = outcome.may_be_retried and attempts[run.id] <= retries
                    again = again and not folder.run_folder(run.id).diverged
                    table.failed(run, outcome.reason, again)
                    if again:
                        waiting.append(run)
            if interruption.requested and not stopping:
                stopping = True
                say(f"stopping ({interruption.signal}): the runs save what they have")
                executor.stop()
            table.update(executor.running())
            time.sleep(POLL_SECONDS)
    finally:
        executor.close()
    states, total = folder.count(), len(folder.plan)
    finished, failed = states["finished"], states["failed"]
    if interruption.requested and finished < total:
        raise Interrupted(
            f"stopped by {interruption.signal}: {finished} of {total} runs are finished, the others have saved their progress; "
            "run the same command again to resume"
        )
    if failed:
        failures = {state.run.id: state.failure.reason for state in folder.states() if state.failure}
        reasons = list(failures.values())
        diverged = sum(folder.run_folder(run).diverged for run in failures)
        others = f"the {failed - diverged} that did not diverge" if diverged else "them"
        blocked = total - finished - failed
        same = "" if len(set(reasons)) > 1 else f" ({reasons[0]})"
        listed = f"{folder.status_command} lists them, " if folder.status_command else ""
        raise TrainingError(
            f"{failed} of {total} runs failed{same}; {listed}their logs are in {folder.path / 'logs'}"
            + f"; {counted(blocked, 'other')} cannot start without them" * bool(blocked)
            + f"; run the same command again to retry {others}" * (diverged < failed)
        )
    if finished < total:
        raise ContextwiseError(f"{total - finished} of {total} runs of {folder.path} have not finished")


class LiveTable:
    """The states of the runs while they are trained; their metrics are read every few seconds."""

    def __init__(self, folder: RunSetFolder) -> None:
        self.folder = folder
        self.states = {run.id: folder.state(run) for run in folder.plan}
        self.begin, self.done_before = time.monotonic(), self._done()
        self.waiting: set[str] = set()
        self.started_at: dict[str, tuple[float, int]] = {}
        self.spent = list[tuple[float, float]]()
        """Of each run that finished: seconds, and those of its training steps."""
        self.last_read = self.last_line = time.monotonic()
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveTable":
        if console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.live.stop()

    def started(self, run: PlannedRun) -> None:
        step = self._read(run).step or 0
        trunk = round(run.steps * run.trunk_tokens / run.tokens)
        self.started_at[run.id] = time.monotonic(), max(step, trunk)
        if not console.is_terminal:
            say(f"{run.id}: " + (f"resumed from about step {step}" if step else "started"))

    def waits(self, run: PlannedRun) -> None:
        """Another process is training it; reported once."""
        if run.id not in self.waiting:
            self.waiting.add(run.id)
            say(f"{run.id}: another process is training it; waiting for that")

    def finished(self, run: PlannedRun) -> None:
        state = self._read(run)
        since, first = self.started_at[run.id]
        if state.tokens_per_second:
            seconds = time.monotonic() - since
            training = run.tokens * (1 - first / run.steps) / state.tokens_per_second
            self.spent.append((seconds, min(seconds, training)))
        if not console.is_terminal:
            # Only runs that have a context curve have this loss.
            loss = "" if state.loss is None else f", best-context loss {state.loss:.4f}"
            say(f"{run.id}: finished{loss}")

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
            order = {"failed": 1, "unfinished": 2, "missing": 2, "finished": 3}
            rows = sorted(self.states.values(), key=lambda s: 0 if s.run.id in running else order[s.state])
            room = max(4, console.height - 4)
            table = state_table(rows[:room], {name: self._left(name) for name in running})
            self.live.update(Group(table, Text(self.summary(running))), refresh=True)
        elif now - self.last_line >= LINE_EVERY_SECONDS:
            self.last_line = now
            say(self.summary(running))

    def _read(self, run: PlannedRun) -> RunState:
        self.states[run.id] = self.folder.state(run)
        return self.states[run.id]

    def _left(self, name: str) -> float | None:
        """Seconds that a running run still needs, from its pace since it was started."""
        state = self.states[name]
        if name not in self.started_at or state.step is None:
            return None
        since, first = self.started_at[name]
        taken = state.step - first
        return (time.monotonic() - since) / taken * (state.run.steps - state.step) if taken > 0 else None

    def _done(self) -> float:
        return sum(state.share * state.run.own_flops for state in self.states.values())

    def summary(self, running: set[str]) -> str:
        """One line: counts, share of the work, time left."""
        shown = [_shown_state(state, running) for state in self.states.values()]
        counts = {name: shown.count(name) for name in ("finished", "running", "failed")}
        counts["waiting"] = len(shown) - sum(counts.values())
        parts = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        done, total = self._done(), self.folder.flops
        pace, left = (done - self.done_before) / max(1e-9, time.monotonic() - self.begin), ""
        if pace > 0 and done < total:
            # Start-up and measuring cost about the same for each run, training steps what their FLOPs cost.
            seconds, training = map(sum, zip((1e-9, 1e-9), *self.spent, strict=True))
            others = (seconds - training) / max(1, len(self.spent)) / max(1, counts["running"])
            unfinished = counts["running"] + counts["waiting"]
            left = f", about {duration((total - done) / pace * training / seconds + unfinished * others)} left"
        return f"{counted(len(shown), 'run')}: {parts}; {done / total:.0%} of the FLOPs done{left}"


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
            Text(state.run.id),
            Text(shown, style=_STYLES.get(shown, "")),
            f"{state.step or 0}/{state.run.steps}",
            written(state.tokens_per_second, ",.0f"),
            written(state.loss, ".4f"),
            written(left, "duration"),
        )
    return table


def _shown_state(state: RunState, running: Container[str]) -> str:
    return "running" if state.run.id in running and state.state != "finished" else state.state
