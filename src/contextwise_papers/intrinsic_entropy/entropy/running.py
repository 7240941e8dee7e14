"""The measurement of ``contextwise measure entropy``, and its files.

Legend of shapes: N targets, K kept features, B rows of a batch, D channels.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save

from contextwise.data import Corpus
from contextwise.evaluation.scoring.truncated import Targets, TruncatedBatch, choose_targets, truncated_passes
from contextwise.measures import Outcome, Subject, Work
from contextwise.report import progress_bar, say
from contextwise.settings import CheckpointError, ConfigError
from contextwise.stats import ratios

LEAST_PER_CHANNEL = 0.25
ULPS = 2.0
"""By how many units in the last place a feature may be wrong behind all layers of a model, in the mean."""


class RunningCovariance:
    """Covariance of features that come in batches, in 64-bit numbers whatever the model computes in.

    The sums are of features less the mean of the first batch, so that a mean that all batches share is not squared.
    """

    def __init__(self, sums: dict[str, torch.Tensor] | None = None) -> None:
        self.sums = sums or {}

    def add(self, features_BD: torch.Tensor) -> None:
        """Add features of any number format."""
        device = "cpu" if features_BD.device.type == "mps" else features_BD.device  # it has no 64-bit numbers
        x_BD = features_BD.to(device, torch.float64)
        if not self.sums:
            zeros_DD = x_BD.new_zeros(x_BD.shape[1], x_BD.shape[1])
            count = torch.zeros((), dtype=torch.long)
            self.sums = {"count": count, "origin": x_BD.mean(0), "sum": zeros_DD[0].clone(), "products": zeros_DD}
        self.sums = {name: value.to(device) for name, value in self.sums.items()}  # where they were read from a file
        x_BD = x_BD - self.sums["origin"]
        self.sums["count"] += len(x_BD)
        self.sums["sum"] += x_BD.sum(0)
        self.sums["products"].addmm_(x_BD.mT, x_BD)

    def mean(self) -> torch.Tensor:
        """(D,) float64."""
        return self.sums["origin"] + self.sums["sum"] / int(self.sums["count"])

    def eigenvalues(self) -> torch.Tensor:
        """(D,) float64 on the CPU, the largest first; negative ones, due to rounding, become zero."""
        count, sum_D = int(self.sums["count"]), self.sums["sum"]
        scatter_DD = torch.addr(self.sums["products"], sum_D, sum_D, alpha=-1 / count)
        return torch.linalg.eigvalsh(scatter_DD / (count - 1)).flip(0).clamp(min=0).cpu()


class ContextState:
    """Losses (``nats``), sums, kept features (K, D) and, once finished, eigenvalues of one context, of ``done`` targets so far.

    The arrays have their full size from the start: a small block for each batch would be allocated in memory that the batch's
    logits have freed, and the process would grow by the logits of a batch with each of them. ``kept_rows`` are ascending.
    ``saved`` are the :meth:`tensors` to continue from.
    """

    def __init__(
        self, context: int, samples: int, kept_rows: np.ndarray, saved: dict[str, torch.Tensor] | None = None
    ) -> None:
        self.context, self.kept_rows = context, kept_rows
        known = {"done": torch.tensor(0), "nats": torch.zeros(samples), "kept": torch.empty(len(kept_rows), 0)}
        if saved is not None and known.keys() <= saved.keys():
            known = dict(saved)
        self.done, self.nats, self.kept = int(known.pop("done")), known.pop("nats").numpy(), known.pop("kept")
        finished = known.pop("eigenvalues", None)
        self.eigenvalues: np.ndarray | None = None if finished is None else finished.numpy()
        self.running = RunningCovariance(known)

    def add(self, batch: TruncatedBatch) -> None:
        """Add the next batch."""
        assert batch.start == self.done and batch.features is not None
        if not self.done:
            self.kept = torch.empty(len(self.kept_rows), batch.features.shape[1], dtype=batch.features.dtype)
        self.running.add(batch.features)
        self.nats[batch.start : batch.stop] = batch.nats
        first, last = np.searchsorted(self.kept_rows, [batch.start, batch.stop])
        rows = torch.from_numpy(self.kept_rows[first:last] - batch.start)
        self.kept[first:last] = batch.features[rows.to(batch.features.device)].cpu()
        self.done = batch.stop

    def finish(self) -> bool:
        """Turn the sums into eigenvalues, and drop the sums; returns whether the features vary.

        Eigenvalues that are no larger than what rounding adds to each direction become zero: the squared error of a channel,
        :data:`ULPS` times the distance of numbers of the features' format.
        """
        self.eigenvalues = self.running.eigenvalues().numpy()
        mean_square = float(self.running.mean().square().sum()) + float(self.eigenvalues.sum())
        rounding = (ULPS * torch.finfo(self.kept.dtype).eps) ** 2 * mean_square / len(self.eigenvalues)
        self.running = RunningCovariance()
        varies = bool(self.eigenvalues[0] > 1e-12 * mean_square)
        self.eigenvalues[self.eigenvalues <= rounding] = 0
        return varies

    def tensors(self) -> dict[str, torch.Tensor]:
        """The whole state, as it is kept on disk."""
        finished = {} if self.eigenvalues is None else {"eigenvalues": torch.from_numpy(self.eigenvalues)}
        state = {"done": torch.tensor(self.done), "nats": torch.from_numpy(self.nats), "kept": self.kept}
        return state | finished | self.running.sums


def entropy_files(targets: Targets, states: dict[int, ContextState]) -> dict[str, Any]:
    """The tables of losses and spectra, and the kept features."""
    contexts = np.array(sorted(states), np.int32)
    nats = [states[context].nats for context in contexts]
    spectra = [np.asarray(states[context].eigenvalues) for context in contexts]
    width = len(spectra[0])
    losses = {
        "context": np.repeat(contexts, len(targets)),
        "document": np.tile(targets.document, len(contexts)),
        "position": np.tile(targets.position, len(contexts)),
        "nats": np.concatenate(nats),
    }
    eigenvalues = {
        "context": np.repeat(contexts, width),
        "index": np.tile(np.arange(1, width + 1, dtype=np.int32), len(contexts)),
        "eigenvalue": np.concatenate(spectra),
    }
    features = {str(length): state.kept for length, state in states.items()}
    return {"losses": pa.table(losses), "spectra": pa.table(eigenvalues), "features.safetensors": save(features)}


def measure_entropy(settings: Any, subject: Subject, corpus: Corpus, work: Work) -> Outcome:
    """The summary and the files of a measurement with the settings of :class:`.Entropy`."""
    targets = choose_targets(corpus, settings.contexts[-1], settings.samples, settings.seed)
    count, kept = len(targets), min(settings.density_samples, len(targets))
    rows = np.sort(np.random.default_rng([settings.seed, 1]).choice(count, size=kept, replace=False))
    states = measure_contexts(subject, corpus, work, targets, rows, settings)
    nats = {str(context): state.nats for context, state in states.items()}
    *shorter, longest = nats
    width = states[settings.contexts[0]].kept.shape[1]
    summary = {
        "samples": count,
        "documents": len(np.unique(targets.document)),
        "width": width,
        "kept": kept,
        "losses": {context: mean_nats(nats[context], targets) for context in nats},
        "differences": {c: mean_nats(nats[c] - nats[longest], targets) for c in shorter},
        "notes": [*notes(count, settings.samples, width), *hidden_by_rounding(states)],
    }
    return Outcome(summary, entropy_files(targets, states))


def measure_contexts(
    subject: Subject, corpus: Corpus, work: Work, targets: Targets, kept: np.ndarray, settings: Any
) -> dict[int, ContextState]:
    """Measure the targets at all contexts, and save the finished part from time to time.

    ``kept``: (K,) numbers of the targets whose features are kept, ascending.
    """
    model, contexts, layer = subject.model, settings.contexts, settings.layer
    states = {
        context: ContextState(context, len(targets), kept, work.load(f"context-{context}", torch=True))
        for context in contexts
    }
    total = len(targets) * len(states)
    done = {context: state.done for context, state in states.items()}
    if sum(done.values()):
        say(f"resuming: {sum(done.values()):,} of {total:,} predictions are done")
    ways: dict[str, Any] = {"start": corpus.window_start(settings.bos), "batch_tokens": subject.batch_tokens}
    passes = truncated_passes(model, corpus, targets, contexts, features=layer, done=done, **ways)
    with progress_bar("measure", total, "predictions") as advance, contextlib.closing(passes):
        advance(sum(done.values()))
        for batch in passes:
            assert batch.features is not None
            state = states[batch.context]
            width = batch.features.shape[1]
            if len(targets) < (least := math.ceil(LEAST_PER_CHANNEL * width)):
                raise ConfigError(
                    f"{len(targets):,} samples are too few for features of {width:,} channels: even features that vary alike "
                    "in all directions would then show eigenvalues of which the largest is nine times the smallest, and three "
                    f"of four are zero; set samples to {least:,} or more, better {width * 5:,}"
                )
            state.add(batch)
            if state.done == len(targets) and not state.finish():
                raise CheckpointError(
                    f"the features (layer {layer}) do not vary from sample to sample at a context of {state.context:,} "
                    "tokens, so they have no spectrum; choose another layer, or check the model"
                )
            where = f"at a context of {batch.context} tokens, after {batch.stop:,} targets"
            work.checkpoint(f"context-{state.context}", state.tensors, where, state.eigenvalues is not None)
            advance(batch.stop - batch.start, note=f"context {batch.context:,}")
    return states


def mean_nats(nats: np.ndarray, targets: Targets) -> dict[str, Any]:
    """Mean over targets, in nats, with its 95% interval over documents."""
    _, document = np.unique(targets.document, return_inverse=True)
    sums, counts = np.bincount(document, weights=nats), np.bincount(document)
    return ratios(sums, {"loss": counts})["loss"].to_dict()


def hidden_by_rounding(states: Mapping[int, ContextState]) -> list[str]:
    """A note where features in a format of 16 bits hide eigenvalues."""
    first = next(iter(states.values()))
    number_format, rank = str(first.kept.dtype).removeprefix("torch."), min(first.kept.shape[1], len(first.nats) - 1)
    hidden = rank - min(np.count_nonzero(np.asarray(state.eigenvalues)) for state in states.values())
    if hidden <= 0 or first.kept.element_size() > 2:
        return []
    return [
        f"In {number_format} rounding hides the smallest eigenvalues, up to {hidden:,} of {rank:,}, which count as zero; "
        "--dtype float32 shows them, if they are not zero."
    ]


def notes(samples: int, requested: int, width: int) -> list[str]:
    notes = []
    if samples < requested:
        notes.append(
            f"There are only {samples:,} tokens with the longest context before them, not {requested:,}: all of them were used."
        )
    if samples < 5 * width:
        zero = f" At most {samples - 1:,} can differ from zero." if samples <= width else ""
        notes.append(
            f"{samples:,} samples are few for {width:,} channels: small eigenvalues come out too small, large ones too large."
            f"{zero} Five times as many samples as channels ({5 * width:,}) or more are better."
        )
    return notes
