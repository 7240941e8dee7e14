"""Validation while training: the mean loss of fixed examples, shared out over the processes."""

from collections.abc import Iterator
from typing import Any

import torch

from contextwise.training.batches import collate


def shared_batches(trainer: Any, examples: Any) -> Iterator[tuple[range, dict[str, torch.Tensor]]]:
    """This process's batches of ``examples``: which they are, and the inputs on its device.

    A process without examples of its own in a round takes part with the first one, which does not count (its range is empty):
    sharded models need all processes.
    """
    rank, world = trainer.args.process_index, trainer.accelerator.num_processes
    count, batch = len(examples), max(1, trainer.args.per_device_train_batch_size)
    for start in range(0, count, batch * world):
        first = min(start + rank * batch, count)
        rows = range(first, min(first + batch, count))
        yield rows, trainer._prepare_inputs(collate([examples[i] for i in rows] or [examples[0]]))


def mean_loss(trainer: Any, examples: Any) -> float | None:
    """Mean loss of all examples, in nats per target; None where the run was asked to stop.

    Args:
        trainer: a :class:`contextwise.training.trainer.PretrainingTrainer`.
    """
    total = torch.zeros(2, dtype=torch.float64)
    model = trainer.model_wrapped
    model.eval()
    with torch.no_grad():
        for rows, inputs in shared_batches(trainer, examples):
            if trainer.asked_to_stop():
                return None
            with trainer.compute_loss_context_manager():
                trainer.compute_loss(model, inputs)
            if rows:
                total += trainer.part_sums(model)[:, 0].cpu()
    total = trainer.sum_over_processes(total)
    return (total[0] / total[1]).item()
