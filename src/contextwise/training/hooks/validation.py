"""Validation during training: the mean loss of fixed examples, distributed over the processes."""

from collections.abc import Iterator
from typing import Any

import torch

from contextwise.training.batches import collate


def shared_batches(trainer: Any, examples: Any) -> Iterator[tuple[range, dict[str, torch.Tensor]]]:
    """Yield this process's batches of ``examples``: their indices, and the inputs on its device.

    Sharded models need all processes in every round: a process without examples in a round runs the first example with an
    empty range of indices.
    """
    rank, world = trainer.args.process_index, trainer.accelerator.num_processes
    count, batch = len(examples), max(1, trainer.args.per_device_train_batch_size)
    for start in range(0, count, batch * world):
        first = min(start + rank * batch, count)
        rows = range(first, min(first + batch, count))
        yield rows, trainer._prepare_inputs(collate([examples[i] for i in rows] or [examples[0]]))


def mean_loss(trainer: Any, examples: Any) -> float | None:
    """Mean loss of all examples, in nats per target; None if a stop was requested.

    Args:
        trainer: a :class:`contextwise.training.trainer.PretrainingTrainer`.
    """
    total = torch.zeros(2, dtype=torch.float64)
    model = trainer.model_wrapped
    model.eval()
    with torch.no_grad():
        for rows, inputs in shared_batches(trainer, examples):
            if trainer.stop_requested():
                return None
            with trainer.compute_loss_context_manager():
                trainer.compute_loss(model, inputs)
            if rows:
                total += trainer.part_sums(model)[:, 0].cpu()
    total = trainer.sum_over_processes(total)
    return (total[0] / total[1]).item()
