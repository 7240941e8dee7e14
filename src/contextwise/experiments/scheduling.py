"""Scheduling: which run of a set is started next, which is tried again, and what is reported."""

import time
from collections import Counter, deque

from contextwise.base.errors import ContextwiseError, Interrupted, TrainingError
from contextwise.base.progress import interruption
from contextwise.experiments.executors import Executor, ExecutorSettings, LocalExecutor
from contextwise.experiments.folder import PlannedRun, RunSetFolder
from contextwise.experiments.progress import LiveTable

POLL_SECONDS = 0.2


def train_planned(folder: RunSetFolder, settings: ExecutorSettings) -> None:
    """Train every run of the plan that has not finished, on the executor that the settings name.

    Raises:
        ConfigError: the executor cannot be used.
        Interrupted, TrainingError: as :func:`schedule`.
    """
    with LiveTable(folder) as table:
        schedule(folder, executor_of(folder, settings), settings.retries, table)


def executor_of(folder: RunSetFolder, settings: ExecutorSettings) -> Executor:
    """The executor that the settings name."""
    if settings.kind == "ray":
        from contextwise.experiments.ray_executor import RayExecutor

        return RayExecutor(folder, settings.address, settings.cpus, settings.gpus, settings.retries)
    return LocalExecutor(folder, settings.jobs, settings.threads)


def schedule(folder: RunSetFolder, executor: Executor, retries: int, table: LiveTable) -> None:
    """Train all runs, the most expensive first; a run starts after the runs that it is made from.

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
    try:
        while executor.busy or (_startable(folder, waiting, unfinished) and not interruption.requested):
            if not interruption.requested:
                _start(folder, waiting, unfinished, executor, table)
            for run, outcome in executor.poll():
                attempts[run.id] += 1
                if folder.run_folder(run.id).finished:
                    unfinished.discard(run.id)
                    folder.clear_failure(run.id)
                    table.finished(run)
                elif not interruption.requested:
                    folder.note_failure(run.id, outcome.reason)
                    again = outcome.may_be_retried and attempts[run.id] <= retries
                    table.failed(run, outcome.reason, again)
                    if again:
                        waiting.append(run)
            if interruption.requested and not stopping:
                stopping = True
                table.say(f"stopping ({interruption.signal}): the runs save what they have")
                executor.stop()
            table.update(executor.running())
            time.sleep(POLL_SECONDS)
    finally:
        executor.close()
    _report(folder)


def _startable(folder: RunSetFolder, waiting: deque[PlannedRun], unfinished: set[str]) -> list[PlannedRun]:
    """The waiting runs whose parents have finished."""
    return [run for run in waiting if unfinished.isdisjoint(folder.parents(run.id))]


def _start(
    folder: RunSetFolder,
    waiting: deque[PlannedRun],
    unfinished: set[str],
    executor: Executor,
    table: LiveTable,
) -> None:
    for run in _startable(folder, waiting, unfinished):
        if not executor.has_room:
            return
        if executor.start(run):
            waiting.remove(run)
            table.started(run)
        else:
            table.waits(run)


def _report(folder: RunSetFolder) -> None:
    """Raise the error of a set that has not finished."""
    count = folder.count()
    total, finished, failed = len(folder.plan), count["finished"], count["failed"]
    if interruption.requested and finished < total:
        raise Interrupted(
            f"stopped by {interruption.signal}: {finished} of {total} runs are finished, the others have saved their progress; "
            "run the same command again to resume"
        )
    if failed:
        reasons = [state.failure.reason for state in folder.states() if state.failure]
        same = "" if len(set(reasons)) > 1 else f" ({reasons[0]})"
        raise TrainingError(
            f"{failed} of {total} runs failed{same}; contextwise sweep --status {folder.path} lists them, their logs are in "
            f"{folder.path / 'logs'}; run the same command again to retry them"
        )
    if finished < total:
        raise ContextwiseError(f"{total - finished} of {total} runs of {folder.path} have not finished")
