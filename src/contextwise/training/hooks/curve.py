"""The context curve along a run: the loss at each number of visible tokens, at every budget up to the run's own.

An average loss ranks models of different training contexts wrongly (context scaling, Section 2). The curve gives the loss at
each number of visible tokens, on held-out windows that are the same at every step and end with the same targets for every
training context (:mod:`contextwise.data.windows.last_tenth`).
"""

from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from contextwise.base.errors import ConfigError
from contextwise.data.corpus import Corpus
from contextwise.data.windows import LastTenthWindows, last_tenth_length, log_bins
from contextwise.training.hooks.validation import shared_batches
from contextwise.training.recipe import CorpusData, Recipe


def curve_windows(recipe: Recipe) -> LastTenthWindows | None:
    """Open the windows for a run's context curve; None if the recipe measures no curve.

    Raises:
        ConfigError: the model is not a decoder, or the corpus has no held-out split.
        DataError: no held-out document is as long as the longest context.
    """
    settings, kind = recipe.training, recipe.objective.kind
    assert isinstance(recipe.data, CorpusData)
    if not settings.curve_every:
        return None
    if kind != "decoder":
        raise ConfigError(
            f"training.curve_every measures the loss at each context, which does not apply to a model of this kind "
            f"({kind}); set it to 0"
        )
    split = recipe.data.validation_split
    held_out = Corpus.open(recipe.data.corpus, split=split)
    if held_out.split != split:
        raise ConfigError(
            f"training.curve_every needs held-out documents, and {held_out.path} has no split {split!r}; set it to 0, or "
            "prepare a corpus with one"
        )
    return LastTenthWindows(held_out, recipe.data.context, settings.curve_longest, settings.curve_tokens)


class CurveSums:
    """Sums of losses by position of the window, and over the last tenth of the positions by document.

    Args:
        windows: the windows that are measured.

    Attributes:
        positions: (context,) float64, nats summed over windows.
        documents: (documents,) float64, nats of the last tenth, summed over a document's windows.
    """

    def __init__(self, windows: LastTenthWindows) -> None:
        self.windows = windows
        self.names, self.document = np.unique(windows.documents, return_inverse=True)
        self.positions = torch.zeros(windows.context, dtype=torch.float64)
        self.documents = torch.zeros(len(self.names), dtype=torch.float64)

    def add(self, rows: range, nats_BT: torch.Tensor) -> None:
        """Add the losses of the windows ``rows``."""
        nats_BT = nats_BT.double().cpu()
        self.positions += nats_BT.sum(0)
        tails = nats_BT[:, -last_tenth_length(self.windows.context) :].sum(1)
        self.documents.index_add_(0, torch.from_numpy(self.document[rows.start : rows.stop]), tails)

    def row(self) -> dict[str, Any]:
        """The curve as a row of ``metrics.jsonl``.

        ``visible``: lower edges of logarithmic bins of visible tokens (including the first input); ``loss``: mean of each
        bin; ``best_context_loss``: mean of the last tenth, with ``standard_error`` over documents (None with one document).
        """
        context = self.windows.context
        count = len(self.windows)
        edges = log_bins(context)
        sums = np.add.reduceat(self.positions.numpy(), edges[:-1] - 1)
        targets = np.bincount(self.document) * last_tenth_length(context)
        mean = float(self.documents.sum()) / targets.sum()
        documents = len(targets)
        error = None
        if documents > 1:  # standard error of a ratio of two sums over documents
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


class ContextCurve(TrainerCallback):
    """Measures the curve of a trainer's model every ``every`` steps and at the end, over all its processes.

    Args:
        trainer: a :class:`contextwise.training.trainer.PretrainingTrainer`.
    """

    def __init__(self, trainer: Any, windows: LastTenthWindows, every: int) -> None:
        self.trainer, self.windows, self.every = trainer, windows, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Before the checkpoint of this step: a run that resumes from it does not measure this step again.
        if state.global_step % self.every == 0 or state.global_step == args.max_steps:
            self.trainer.record(self.trainer.metrics.curve_row(state.global_step, self.measure()))

    def measure(self) -> dict[str, Any]:
        """Measure the curve, and count the model's parameters."""
        trainer, sums = self.trainer, CurveSums(self.windows)
        model = trainer.model_wrapped
        model.eval()
        with torch.no_grad():
            for rows, inputs in shared_batches(trainer, self.windows):
                with trainer.compute_loss_context_manager():
                    nats = model(inputs["input_ids"], inputs["labels"], per_token=True)
                if rows:
                    sums.add(rows, nats)
        shared = trainer.sum_over_processes(torch.cat([sums.positions, sums.documents]))
        sums.positions, sums.documents = shared[: self.windows.context], shared[self.windows.context :]
        count = sum(parameter.numel() for parameter in trainer.unwrapped(model).parameters())
        return {"parameters": count, **sums.row()}
