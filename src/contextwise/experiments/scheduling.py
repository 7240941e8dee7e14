"""Scheduling: which run of a set is started next, and what is reported meanwhile."""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable

from contextwise.base.errors import ContextwiseError, DivergedError, Interrupted, TrainingError
from contextwise.base.estimates import counted
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.experiments.executors import Executor
from contextwise.experiments.folder import PlannedRun, RunSetFolder

POLL_SECONDS = 0.2
REFRESH_SECONDS = 2.0


def schedule(folder: RunSetFolder, executor: Executor) -> None:
    """Train all runs; a run starts after the runs that it is made from.

    In this process they are trained in the order of the plan; elsewhere the most expensive is the first, so that the last ones
    end together. A branch starts as soon as its trunk has the checkpoint where it begins to decay. Where runs fail, all others
    finish first, except those that are made from a failed one.
    """
    try:
        # In this process each run shows a bar of its own.
        bar = contextlib.nullcontext(lambda **_: None) if executor.here else progress_bar("runs", 100, "% of the FLOPs")
        with bar as show:
            errors = _train(folder, executor, show)
    finally:
        executor.close()
    states, total = folder.count(), len(folder.plan)
    finished, failed = states["finished"], states["failed"]
    if interruption.requested and finished < total:
        raise Interrupted(
            f"stopped by {interruption.signal}: {finished} of {total} runs are finished, the others have saved their progress; "
            "run the same command again to resume"
        )
    if errors and not folder.status_command:
        raise min(errors, key=lambda error: isinstance(error, DivergedError))
    if failed:
        failures = {state.run.id: state.failure for state in folder.states() if state.failure}
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


def _train(folder: RunSetFolder, executor: Executor, show: Callable[..., None]) -> list[Exception]:
    """Start and watch; the errors of runs that failed in this process. ``show``: of a progress bar in percent."""
    errors = list[Exception]()
    todo = [run for run in folder.plan if not folder.run_folder(run.id).finished]
    waiting = deque(todo if executor.here else sorted(todo, key=lambda run: -run.flops))
    unfinished = {run.id for run in todo}
    states = {run.id: folder.state(run) for run in folder.plan}
    reported, stopping, last_read = set[str](), False, time.monotonic()

    def startable() -> list[PlannedRun]:
        return [run for run in waiting if folder.may_start(run.id, unfinished)]

    while executor.busy or (startable() and not interruption.requested):
        for run in [] if interruption.requested else startable():
            if not executor.has_room:
                break
            if executor.start(run):
                waiting.remove(run)
                step = folder.state(run).step
                if not executor.here:  # where training itself says so
                    say(f"{run.id}: " + (f"resumed from about step {step}" if step else "started"))
            elif run.id not in reported:
                reported.add(run.id)
                say(f"{run.id}: another process is training it; waiting for that")
        ended = executor.poll()
        for run, outcome in ended:
            if folder.run_folder(run.id).finished:
                unfinished.discard(run.id)
                folder.clear_failure(run.id)
                loss = folder.state(run).loss  # that only runs with a context curve have
                if loss is not None or not executor.here:
                    say(f"{run.id}: finished" + ("" if loss is None else f", best-context loss {loss:.4f}"))
            elif not interruption.requested:
                folder.note_failure(run.id, outcome.reason)
                errors += [] if outcome.error is None else [outcome.error]
                say(f"{run.id}: failed: {outcome.reason}")
            states[run.id] = folder.state(run)
        if interruption.requested and not stopping:
            stopping = True
            say(f"stopping ({interruption.signal}): the runs save what they have")
            executor.stop()
        if time.monotonic() - last_read >= REFRESH_SECONDS:
            last_read, running = time.monotonic(), executor.running()
            states |= {run.id: folder.state(run) for run in folder.plan if run.id in running}
            counts = Counter("running" if name in running else state.state for name, state in states.items())
            done = sum(state.share * state.run.own_flops for state in states.values())
            note = ", ".join(f"{counts[name]} {name}" for name in ("finished", "running", "failed") if counts[name])
            show(done=100 * done / folder.flops, note=f"{note} of {counted(len(states), 'run')}")
        if not ended:
            time.sleep(POLL_SECONDS)
    return errors
