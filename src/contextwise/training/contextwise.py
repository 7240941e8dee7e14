"""The contextwise loss curve along a run: one run gives the best-context loss at every smaller budget.

Trainers log one average loss, which ranks models of different training contexts wrongly (context scaling, Section 2). Here the
loss is measured at each number of visible tokens, on held-out windows that are the same at every step and end in the same
targets for every training context (:mod:`contextwise.data.windows.last_tenth`).
"""

from typing import Any

import numpy as np
import torch

from contextwise.base.errors import ConfigError
from contextwise.data.corpus import Corpus
from contextwise.data.windows import stack
from contextwise.data.windows.last_tenth import LastTenthWindows, last_tenth_length, log_bins
from contextwise.training.recipe import Recipe


def contextwise_windows(recipe: Recipe, kind: str) -> LastTenthWindows | None:
    """The windows that a run measures its curve on; None if the recipe asks for no curve.

    Args:
        kind: of the model.

    Raises:
        ConfigError: the model is no decoder, or the corpus has no split to measure on.
        DataError: no held-out document is as long as the longest context.
    """
    settings = recipe.training
    if not settings.contextwise_every:
        return None
    if kind != "decoder":
        raise ConfigError(
            f"training.contextwise_every asks for the loss at each context, which a model of this kind ({kind}) does not "
            "have; set it to 0"
        )
    split = recipe.data.validation_split
    held_out = Corpus.open(recipe.data.corpus, split=split)
    if held_out.split != split:
        raise ConfigError(
            f"training.contextwise_every needs held-out documents, and {held_out.path} has no split {split!r}; set it to 0, or "
            "prepare a corpus with one"
        )
    return LastTenthWindows(
        held_out, recipe.data.context, settings.contextwise_longest, settings.contextwise_tokens
    )


class CurveSums:
    """Sums of losses by position of the window, and over the last tenth of the positions by document.

    Args:
        windows: that are measured.

    Attributes:
        positions: (context,) float64, nats summed over windows.
        documents: (documents measured,) float64, nats of the last tenth, summed over a document's windows.
    """

    def __init__(self, windows: LastTenthWindows) -> None:
        self.windows = windows
        self.names, self.place = np.unique(windows.documents, return_inverse=True)
        self.positions = torch.zeros(windows.context, dtype=torch.float64)
        self.documents = torch.zeros(len(self.names), dtype=torch.float64)

    def add(self, rows: range, nats_BT: torch.Tensor) -> None:
        """Add the losses of the windows ``rows``."""
        nats_BT = nats_BT.double().cpu()
        self.positions += nats_BT.sum(0)
        tails = nats_BT[:, -last_tenth_length(self.windows.context) :].sum(1)
        self.documents.index_add_(0, torch.from_numpy(self.place[rows.start : rows.stop]), tails)

    def row(self) -> dict[str, Any]:
        """What ``metrics.jsonl`` keeps.

        ``visible``: lower edges of logarithmic bins of visible tokens (the first input counted); ``loss``: mean of each bin;
        ``best_context_loss``: mean of the last tenth, with its ``standard_error`` over documents (None with one document).
        """
        context = self.windows.context
        count = len(self.windows)
        edges = log_bins(context)
        sums = np.add.reduceat(self.positions.numpy(), edges[:-1] - 1)
        targets = np.bincount(self.place) * last_tenth_length(context)
        mean = float(self.documents.sum()) / targets.sum()
        documents = len(targets)
        error = None
        if documents > 1:  # of a ratio of two sums over documents
            residuals = self.documents.numpy() - mean * targets
            error = float(np.sqrt(documents / (documents - 1) * (residuals**2).sum()) / targets.sum())
        return {
            "context": context,
            "visible": edges[:-1].tolist(),
            "loss": (sums / np.diff(edges) / count).tolist(),
            "best_context_loss": mean,
            "standard_error": error,
            "targets": int(targets.sum()),
            "documents": documents,
        }


def measure_curve(trainer: Any, windows: LastTenthWindows) -> dict[str, Any]:
    """The curve of the trainer's model, over all its processes.

    Args:
        trainer: a :class:`contextwise.training.trainer.PretrainingTrainer`.
    """
    rank, world = trainer.args.process_index, trainer.accelerator.num_processes
    batch = max(1, trainer.args.per_device_train_batch_size)
    sums = CurveSums(windows)
    model = trainer.model_wrapped
    model.eval()
    with torch.no_grad():
        for start in range(0, len(windows), batch * world):
            first = min(start + rank * batch, len(windows))
            mine = range(first, min(first + batch, len(windows)))
            # A process without windows of its own takes part with one that does not count: sharded models need all.
            items = [windows[i] for i in mine] or [windows[0]]
            inputs = trainer._prepare_inputs(stack(items))
            with trainer.compute_loss_context_manager():
                nats = model(inputs["input_ids"], inputs["labels"], per_token=True)
            if mine:
                sums.add(mine, nats)
    if world > 1:
        shared = torch.cat([sums.positions, sums.documents]).to(trainer.args.device, trainer.wide)
        torch.distributed.all_reduce(shared)
        shared = shared.cpu().double()
        sums.positions, sums.documents = shared[: windows.context], shared[windows.context :]
    count = sum(parameter.numel() for parameter in trainer.unwrapped(model).parameters())
    return {"parameters": count, **sums.row()}
