"""Lock the run folder, and find the checkpoint that a run continues from."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import PartialState

from contextwise.base.errors import CheckpointError, ContextwiseError
from contextwise.base.files import PARTIAL, read_json, write_json
from contextwise.base.machine import describe_environment
from contextwise.base.runs import RunFolder
from contextwise.data.corpus import Corpus
from contextwise.training import checkpoints
from contextwise.training.recipe import Recipe, with_newer_settings


def fingerprints(corpora: dict[str, Corpus]) -> dict[str, str]:
    """The content hashes of the training data, which every checkpoint keeps."""
    return {name: corpus.fingerprint for name, corpus in corpora.items()}


def in_first_process(processes: PartialState, function: Callable[[], Any]) -> Any:
    """Call ``function`` in the first process; all processes get its result, or raise its error."""
    result: list[Any] = [None, None]
    if processes.is_main_process:
        try:
            result[0] = function()
        except ContextwiseError as error:
            result[1] = error
    if processes.num_processes > 1:
        dist.broadcast_object_list(result, src=0)
    if result[1] is not None:
        raise result[1]
    return result[0]


@contextlib.contextmanager
def run_lock(run: RunFolder, recipe: Recipe, processes: PartialState) -> Iterator[None]:
    """Lock the run folder while the block runs, and write the recipe into it if it has none.

    Raises:
        ConfigError: another process trains the run, or the folder contains another run.
    """
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            stack.enter_context(run.locked())
            run.write_recipe(recipe.resolved(), with_newer_settings)
            if not run.environment_file.exists():
                write_json(run.environment_file, describe_environment(), "the environment")
            for leftover in run.checkpoints.glob(f"*{PARTIAL}*"):
                checkpoints.discard(leftover)

        in_first_process(processes, lock)
        yield


def find_checkpoint(
    run: RunFolder, corpora: dict[str, Corpus], processes: PartialState, verify: bool
) -> Path | None:
    """Find the newest intact checkpoint, the same in every process, and remove the metrics after it.

    Args:
        corpora: the training corpora, by role.
        verify: whether to compare the corpora with their hashes first.

    Raises:
        CheckpointError: all checkpoints are damaged, or the newest was trained on other data.
    """

    def find() -> Path | None:
        for corpus in corpora.values() if verify else ():
            corpus.verify()
        checkpoint = checkpoints.latest_sound(run.checkpoints)
        if checkpoint is not None:
            recorded = read_json(checkpoint / checkpoints.STATE, "the checkpoint")["fingerprints"]
            for name, fingerprint in fingerprints(corpora).items():
                if recorded.get(name) != fingerprint:
                    raise CheckpointError(
                        f"the corpus {corpora[name].path} is not the one that {run.path} was trained on so far "
                        "(its content hash differs); restore that corpus, or choose another run folder"
                    )
        run.rewind_metrics(checkpoints.step_of(checkpoint) if checkpoint is not None else 0)
        return checkpoint

    return in_first_process(processes, find)
