"""Callbacks of the trainer: the context curve, early stopping, and progress on the terminal."""

import contextlib
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file
from transformers import TrainerCallback

from contextwise.base.errors import CheckpointError
from contextwise.base.progress import progress_bar, say
from contextwise.data.windows import LastTenthWindows, last_tenth_length, log_bins
from contextwise.training import checkpoints
from contextwise.training.trainer import PretrainingTrainer


class ContextCurve(TrainerCallback):
    """Measures the loss at each number of visible tokens every ``every`` steps and at the end, over all processes.

    An average loss ranks models of different training contexts wrongly (context scaling, Section 2). The held-out windows are
    the same at every step and end with the same targets for every training context.
    """

    def __init__(self, trainer: PretrainingTrainer, windows: LastTenthWindows, every: int) -> None:
        self.trainer, self.windows, self.every = trainer, windows, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Before the checkpoint of this step: a run that resumes from it does not measure this step again.
        if state.global_step % self.every == 0 or state.global_step == args.max_steps:
            self.trainer.record(self.trainer.metrics.row("curve", state.global_step, self.measure()))

    def measure(self) -> dict[str, Any]:
        """Measure the curve as values of a row of ``metrics.jsonl``.

        ``visible``: lower edges of logarithmic bins of visible tokens (including the first input); ``loss``: mean of each
        bin; ``best_context_loss``: mean of the last tenth, with ``standard_error`` over documents (None with one document);
        ``document_nats`` and ``document_targets``: its sums over each document, with their indices ``document_ids``, to compare
        runs on the same documents.
        """
        trainer, context = self.trainer, self.windows.context
        model, tail = trainer.model_wrapped, last_tenth_length(context)
        names, document = np.unique(self.windows.documents, return_inverse=True)
        position_sums = torch.zeros(context, dtype=torch.float64)
        document_sums = torch.zeros(len(names), dtype=torch.float64)  # over the last tenth of each window
        model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for rows, inputs in trainer.shared_batches(self.windows):
                with trainer.compute_loss_context_manager():
                    nats_BT = model(inputs["input_ids"], inputs["labels"], per_token=True)
                if rows:
                    nats_BT = nats_BT.double().cpu()
                    position_sums += nats_BT.sum(0)
                    numbers = torch.from_numpy(document[rows.start : rows.stop])
                    document_sums.index_add_(0, numbers, nats_BT[:, -tail:].sum(1))
        sums = trainer.sum_over_processes(torch.cat([position_sums, document_sums]))
        position_sums, document_sums = sums[:context], sums[context:]
        edges = log_bins(context)
        losses = np.add.reduceat(position_sums.numpy(), edges[:-1] - 1) / np.diff(edges) / len(self.windows)
        targets = np.bincount(document) * tail
        mean = float(document_sums.sum()) / targets.sum()
        documents = len(targets)
        error = None
        if documents > 1:  # standard error of a ratio of two sums over documents
            residuals = document_sums.numpy() - mean * targets
            error = float(np.sqrt(documents / (documents - 1) * (residuals**2).sum()) / targets.sum())
        return {
            "parameters": sum(parameter.numel() for parameter in trainer.unwrapped(model).parameters()),
            "context": context,
            "visible": edges[:-1].tolist(),
            "loss": losses.tolist(),
            "best_context_loss": mean,
            "standard_error": error,
            "targets": int(targets.sum()),
            "documents": documents,
            "document_ids": names.tolist(),
            "document_nats": [round(nats, 4) for nats in document_sums.tolist()],
            "document_targets": targets.tolist(),
        }


class EarlyStopping(TrainerCallback):
    """Stops a run after ``patience`` validations without a lower loss, and keeps the weights of the lowest loss.

    The decision depends on the validation rows of ``metrics.jsonl``. A resumed run removes the rows after its checkpoint, so
    it stops at the same step as an uninterrupted run. Each lowest loss has a checkpoint (:func:`.checkpoints.prune_run`).
    """

    def __init__(self, trainer: PretrainingTrainer, patience: int) -> None:
        self.trainer, self.patience = trainer, patience
        self.over = False  # whether it has stopped the training

    def _best(self) -> tuple[int, int]:
        """The step of the lowest validation loss so far, and the number of validations after it; every process must call it."""
        result = [0, 0]
        # The first process writes the rows; another one could read them too early.
        if self.trainer.is_world_process_zero():
            rows = self.trainer.run.metrics("validation")
            best = min(rows, key=lambda row: row["loss"])["step"]
            result = [best, sum(row["step"] > best for row in rows)]
        broadcast_object_list(result)
        return result[0], result[1]

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best, since = self._best()
        if best == state.global_step:
            control.should_save = True
        elif since >= self.patience:
            self.over = control.should_training_stop = True
            # No checkpoint of this step: a restarted run resumes before it, and also stops at it.
            control.should_save = False
            if self.trainer.is_world_process_zero():
                say(f"the validation loss was lowest at step {best}; training stops at step {state.global_step}")

    def best_weights(self) -> dict[str, torch.Tensor]:
        """The weights of the lowest validation loss, whole, on the CPU; a CheckpointError if they are damaged or missing."""
        folder = self.trainer.run.checkpoints / f"step-{self._best()[0]}"
        problem = checkpoints.damaged(folder)
        if problem is not None:
            raise CheckpointError(
                f"the best weights {folder} are damaged: {problem}; remove the run folder, and train anew"
            )
        return {name.removeprefix("model."): each for name, each in load_file(folder / checkpoints.WEIGHTS).items()}


class ProgressLine(TrainerCallback):
    """Shows step, loss, tokens/s and time left (:func:`~contextwise.base.progress.progress_bar`)."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.shown = name, steps, contextlib.ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.advance = self.shown.enter_context(progress_bar(self.name, self.steps, "steps"))
        self.advance(done=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.advance(done=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and logs["kind"] == "train":
            speed = logs["tokens_per_second"]
            self.advance(0, note=f"loss {logs['loss']:.3f}" + (f", {speed:,.0f} tok/s" if speed else ""))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.shown.close()
