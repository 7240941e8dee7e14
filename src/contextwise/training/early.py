"""Stop where the validation loss no longer falls, and keep the weights of where it was lowest.

When to stop is read off the validation rows of ``metrics.jsonl``, which are cut back to the checkpoint where a run goes on;
so a run that was killed stops where it would have stopped. Beside ``checkpoints/`` the run has ``best/step-N/``: the weights of
the lowest loss so far, and of the one before, which a run that goes on from an older checkpoint may need.
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
from contextwise.training.trainer import PretrainingTrainer

_KEPT = 2


class EarlyStopping(TrainerCallback):
    """Watches the validations of a run.

    Args:
        patience: validations without a lower loss after which training stops.

    Attributes:
        over: whether it has stopped the training.
    """

    def __init__(self, trainer: PretrainingTrainer, patience: int) -> None:
        self.trainer, self.patience, self.over = trainer, patience, False
        self.folder: Path = trainer.run.path / "best"

    @classmethod
    def of(cls, trainer: PretrainingTrainer, patience: int | None) -> "EarlyStopping | None":
        """Add it to a trainer that validates; None without patience, or without anything to validate on."""
        if patience is None or not trainer.validation:
            return None
        early = cls(trainer, patience)
        trainer.add_callback(early)
        return early

    def _best(self) -> tuple[int, int]:
        """The step of the lowest validation loss so far, and how many validations came after it; every process must ask."""
        found = [0, 0]
        if self.trainer.is_world_process_zero():  # which writes the rows: another might read them too early
            rows = self.trainer.run.metrics("validation")
            best = min(rows, key=lambda row: row["loss"])["step"]
            found = [best, sum(row["step"] > best for row in rows)]
        if self.trainer.accelerator.num_processes > 1:
            dist.broadcast_object_list(found, src=0)
        return found[0], found[1]

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best, since = self._best()
        if best == state.global_step:
            self._keep(best)
            control.should_save = (
                True  # what goes on from an older checkpoint would find the weights of another step
            )
        elif since >= self.patience:
            self.over = True
            control.should_training_stop = True
            # No checkpoint of this step: a run that is started again goes on from one before it, and stops here too.
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
        """The weights of the lowest validation loss, whole, on the CPU; of the last step where none were kept."""
        file = self.folder / f"step-{self._best()[0]}" / checkpoints.WEIGHTS
        return load_file(file) if file.exists() else self.trainer.whole_weights()
