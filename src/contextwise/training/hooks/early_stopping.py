"""Early stopping: stop when the validation loss no longer decreases, and keep the weights of the lowest loss.

The decision depends on the validation rows of ``metrics.jsonl``. A resumed run removes the rows after its checkpoint, so it
stops at the same step as an uninterrupted run. ``best/step-N/`` in the run folder contains the weights of the lowest loss so
far, and of the lowest before it, which a run that resumes from an older checkpoint may need.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import TrainerCallback

from contextwise.base.files import atomic_directory
from contextwise.base.progress import say
from contextwise.training import checkpoints

_KEPT = 2


class EarlyStopping(TrainerCallback):
    """Stops a run after ``patience`` validations without a lower loss.

    Args:
        trainer: a :class:`contextwise.training.trainer.PretrainingTrainer`.

    Attributes:
        over: whether training has been stopped.
    """

    def __init__(self, trainer: Any, patience: int) -> None:
        self.trainer, self.patience, self.over = trainer, patience, False
        self.folder: Path = trainer.run.path / "best"

    def _best(self) -> tuple[int, int]:
        """The step of the lowest validation loss so far, and the number of validations after it; every process must call it."""
        result = [0, 0]
        if (
            self.trainer.is_world_process_zero()
        ):  # it writes the rows; another process could read them too early
            rows = self.trainer.run.metrics("validation")
            best = min(rows, key=lambda row: row["loss"])["step"]
            result = [best, sum(row["step"] > best for row in rows)]
        if self.trainer.accelerator.num_processes > 1:
            dist.broadcast_object_list(result, src=0)
        return result[0], result[1]

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best, since = self._best()
        if best == state.global_step:
            self._keep(best)
            control.should_save = True  # a run resumed from an older checkpoint would overwrite these weights
        elif since >= self.patience:
            self.over = True
            control.should_training_stop = True
            # No checkpoint of this step: a restarted run resumes before it, and also stops at it.
            control.should_save = False
            if self.trainer.is_world_process_zero():
                say(
                    f"the validation loss was lowest at step {best}; training stops at step {state.global_step}"
                )

    def _keep(self, step: int) -> None:
        weights = self.trainer.whole_weights()
        if self.trainer.is_world_process_zero():
            target = self.folder / f"step-{step}"
            checkpoints.discard(target)
            with atomic_directory(target, "the best weights") as folder:
                checkpoints.write_weights(folder, weights)
            checkpoints.prune(self.folder, _KEPT)
        self.trainer.accelerator.wait_for_everyone()

    def best_weights(self) -> dict[str, torch.Tensor]:
        """The weights of the lowest validation loss, whole, on the CPU; those of the last step if none were kept."""
        file = self.folder / f"step-{self._best()[0]}" / checkpoints.WEIGHTS
        return load_file(file) if file.exists() else self.trainer.whole_weights()
