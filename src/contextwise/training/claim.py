"""Whose run folder it is, and where the run goes on."""

from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import PartialState

from contextwise.base.environment import describe_environment
from contextwise.base.errors import CheckpointError, ContextwiseError
from contextwise.base.files import PARTIAL, read_json, write_json
from contextwise.base.runs import RunFolder
from contextwise.data.corpus import Corpus
from contextwise.training import checkpoints
from contextwise.training.recipe import Recipe, with_newer_settings


def fingerprints(corpora: dict[str, Corpus]) -> dict[str, str]:
    """What identifies the training data; kept in every checkpoint."""
    return {name: corpus.fingerprint for name, corpus in corpora.items()}


class ClaimedRun:
    """The run folder, claimed and locked by the first process; the others learn whether that went well."""

    def __init__(self, run: RunFolder, recipe: Recipe, processes: PartialState) -> None:
        self.run, self.recipe, self.processes = run, recipe, processes
        self.lock = run.locked()

    def __enter__(self) -> None:
        problem: list[ContextwiseError | None] = [None]
        if self.processes.is_main_process:
            try:
                self._claim()
            except ContextwiseError as error:
                problem[0] = error
        if self.processes.num_processes > 1:
            dist.broadcast_object_list(problem, src=0)
        if problem[0] is not None:
            raise problem[0]

    def _claim(self) -> None:
        if not self.run.recipe_file.exists() and self.run.path.exists():
            self.run.claim(self.recipe.resolved())
        self.lock.__enter__()
        self.run.claim(self.recipe.resolved(), with_newer_settings)
        if not self.run.environment_file.exists():
            write_json(self.run.environment_file, describe_environment(), "the environment")
        for leftover in self.run.checkpoints.glob(f"*{PARTIAL}*"):
            checkpoints.discard(leftover)

    def __exit__(self, *problem: Any) -> None:
        if self.processes.is_main_process:
            self.lock.__exit__(*problem)


def find_checkpoint(
    run: RunFolder, corpora: dict[str, Corpus], processes: PartialState, verify: bool
) -> Path | None:
    """The checkpoint to go on from, and the metrics cut back to it; the same for every process.

    Args:
        corpora: all that is trained on, by what it is for.
        verify: whether to compare the corpora with their hashes first.
    """
    found: list[Any] = [None, None]
    if processes.is_main_process:
        try:
            for corpus in corpora.values() if verify else ():
                corpus.verify()
            checkpoint = checkpoints.latest_sound(run.checkpoints)
            if checkpoint is not None:
                state = read_json(checkpoint / checkpoints.STATE, "the checkpoint")
                for name, now in fingerprints(corpora).items():
                    if state["fingerprints"].get(name) != now:
                        raise CheckpointError(
                            f"the corpus {corpora[name].path} is not the one that {run.path} was trained on so far "
                            "(its content hash differs); put that one back, or start another run with --out"
                        )
            run.rewind_metrics(checkpoints.step_of(checkpoint) if checkpoint is not None else 0)
            found[0] = str(checkpoint) if checkpoint is not None else None
        except ContextwiseError as error:
            found[1] = error
    if processes.num_processes > 1:
        dist.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    return Path(found[0]) if found[0] else None
