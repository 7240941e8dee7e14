"""From a plan to finished runs: what is started next, what is tried again, and what is said of it."""

import time
from collections import Counter, deque
from typing import Protocol

from contextwise.base.errors import ContextwiseError, Interrupted, TrainingError
from contextwise.sweeps.folder import PlannedRun, Sweep
from contextwise.sweeps.live import LiveTable
from contextwise.sweeps.process import Outcome
from contextwise.training.signals import StopRequest

POLL_SECONDS = 0.2


class Executor(Protocol):
    """Runs runs."""

    @property
    def has_room(self) -> bool:
        """Whether another run can be started now."""

    def running(self) -> set[str]:
        """Ids of the runs that were started and have not ended; those that wait for a place elsewhere not counted."""

    def start(self, run: PlannedRun) -> bool:
        """Start a run; False if somebody else is training it, so that it must wait."""

    def poll(self) -> list[tuple[PlannedRun, Outcome]]:
        """The runs that ended since the last call."""

    def stop(self) -> None:
        """Ask all runs to save and end."""

    def close(self) -> None:
        """Leave nothing behind."""

    @property
    def busy(self) -> bool:
        """Whether any run has been started and has not ended."""


def drive(sweep: Sweep, executor: Executor, retries: int, stop: StopRequest, table: LiveTable) -> None:
    """Bring every run of the sweep to its end, the most expensive ones first.

    Args:
        retries: how often a run that failed is tried again.

    Raises:
        Interrupted: asked to stop; all is saved.
        TrainingError: some runs failed. All others have finished.
    """
    todo = [run for run in sweep.plan if not sweep.run_folder(run.id).finished]
    waiting = deque(sorted(todo, key=lambda run: -run.flops))
    attempts: Counter[str] = Counter()
    stopping = False
    try:
        while executor.busy or (waiting and not stop):
            if not stop:
                _start(waiting, executor, table)
            for run, outcome in executor.poll():
                attempts[run.id] += 1
                if sweep.run_folder(run.id).finished:
                    sweep.clear_failure(run.id)
                    table.finished(run)
                elif not stop:
                    sweep.note_failure(run.id, outcome.reason)
                    again = outcome.worth_another and attempts[run.id] <= retries
                    table.failed(run, outcome.reason, again)
                    if again:
                        waiting.append(run)
            if stop and not stopping:
                stopping = True
                table.say(f"stopping ({stop.name}): the runs save what they have")
                executor.stop()
            table.update(executor.running())
            time.sleep(POLL_SECONDS)
    finally:
        executor.close()
    _conclude(sweep, stop)


def _start(waiting: deque[PlannedRun], executor: Executor, table: LiveTable) -> None:
    for _ in range(len(waiting)):
        if not executor.has_room:
            return
        run = waiting.popleft()
        if executor.start(run):
            table.started(run)
        else:
            table.waits(run)
            waiting.append(run)


def _conclude(sweep: Sweep, stop: StopRequest) -> None:
    count = sweep.count()
    total, finished, failed = len(sweep.plan), count["finished"], count["failed"]
    if stop and finished < total:
        raise Interrupted(
            f"stopped by {stop.name}: {finished} of {total} runs are finished, the others are saved as far as they got; "
            "the same command goes on"
        )
    if failed:
        reasons = [state.failure.reason for state in sweep.states() if state.failure]
        same = "" if len(set(reasons)) > 1 else f" ({reasons[0]})"
        raise TrainingError(
            f"{failed} of {total} runs failed{same}; contextwise sweep --status {sweep.path} lists them, their logs are in "
            f"{sweep.path / 'logs'}, and the same command tries them again"
        )
    if finished < total:
        raise ContextwiseError(f"{total - finished} of {total} runs of {sweep.path} have not finished")
