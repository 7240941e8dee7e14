"""A sweep from its file to finished runs; started again, it goes on."""

import contextlib
from collections.abc import Iterator

from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.models.sizes import readable_count
from contextwise.sweeps.drive import Executor, drive
from contextwise.sweeps.folder import Sweep
from contextwise.sweeps.grid import SweepRecipe
from contextwise.sweeps.live import LiveTable
from contextwise.sweeps.local import LocalExecutor
from contextwise.sweeps.planning import notes, planned
from contextwise.training.signals import StopRequest


@contextlib.contextmanager
def claimed(settings: SweepRecipe) -> Iterator[Sweep]:
    """The sweep's folder with settings, plan and a recipe for each run, held by this process; nothing is started.

    Raises:
        ConfigError, DataError, CheckpointError: the input is at fault, or another process holds the folder.
    """
    wanted, recipes = planned(settings)
    for note in notes(wanted.plan):
        say(f"note: {note}")
    with RunFolder(settings.folder).locked():
        yield Sweep.claim(settings, recipes, wanted.plan, wanted.corpus)


def run_sweep(settings: SweepRecipe) -> Sweep:
    """Run a sweep to its end, or go on with it.

    1. Check every run against the corpus, and count what it costs.
    2. Claim the folder: settings, plan, a recipe for each run.
    3. Start the runs that have not finished, on this machine or on a Ray cluster; try failed ones again.

    Returns:
        The finished sweep.

    Raises:
        ConfigError, DataError, CheckpointError: the input is at fault; nothing was started.
        TrainingError: some runs failed, all others have finished.
        Interrupted: a signal asked to stop; all is saved.
    """
    with StopRequest().listening() as stop, claimed(settings) as sweep:
        left = [state for state in sweep.states() if state.state != "finished"]
        if not left:
            say(f"{sweep.path} is finished already: nothing to do")
            return sweep
        say(
            f"{settings.name}: {len(left)} of {len(sweep.plan)} runs to do, {sweep.flops:.2e} FLOPs and "
            f"{readable_count(sum(run.tokens for run in sweep.plan))} tokens in all"
        )
        with LiveTable(sweep) as table:
            drive(sweep, _executor(sweep, settings), settings.executor.retries, stop, table)
    return sweep


def _executor(sweep: Sweep, settings: SweepRecipe) -> Executor:
    chosen = settings.executor
    if chosen.kind == "ray":
        from contextwise.sweeps.ray_cluster import RayExecutor

        return RayExecutor(sweep, chosen.address, chosen.cpus, chosen.gpus, chosen.retries)
    return LocalExecutor(sweep, chosen.jobs, chosen.threads)
