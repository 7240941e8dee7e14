"""Scoring pass over a corpus: the loss of every token, with the number of tokens visible to its prediction.

1. Each document becomes one sequence: end-of-text, then its tokens. Position j of the sequence predicts token
   j of the document, so that the first token is scored too. A corpus without an end-of-text token starts with
   its first token, which is then not scored.
2. The sequence is cut into windows of ``context`` positions that start every ``stride`` positions. The first
   window scores all its targets, each later one its last ``stride`` targets only (fewer at the document's
   end). So each target is scored once, and sees at least ``context - stride`` tokens, or all that precede it
   in its document. With ``full_windows`` the last window of a document reaches back to ``context`` positions; with a stride
   of ``context``, these are the windows of lm-evaluation-harness's ``loglikelihood_rolling``.
3. Windows of similar length from many documents are padded on the right into one batch. The models are causal,
   so what follows a position cannot change it, and no attention mask is needed.

Legend of shapes: B windows in a batch, T positions of the longest of them, N targets in the corpus.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError, DataError, NotFiniteError
from contextwise.base.progress import interruption, say
from contextwise.evaluation.kernel.subject import DEFAULT_BATCH_TOKENS
from contextwise.evaluation.kernel.work import Work
from contextwise.evaluation.scoring.scores import Scores, numbered
from contextwise.models import token_losses
from contextwise.models.losses import IGNORED, evaluation_mode
from contextwise.models.prefix import reads_prefix
from contextwise.models.rope import forget_lengths, same_frequencies_up_to


class Documents(Protocol):
    """A corpus for the scoring pass: ``lengths`` without end-of-text, whose id, if any, is ``end_of_text``."""

    @property
    def lengths(self) -> np.ndarray: ...

    @property
    def end_of_text(self) -> int | None: ...

    def document(self, index: int, /) -> np.ndarray: ...


class Texts:
    """Documents in memory, without end-of-text."""

    end_of_text = None

    def __init__(self, documents: Sequence[np.ndarray]) -> None:
        self.documents, self.lengths = documents, np.array([len(document) for document in documents])

    def document(self, index: int, /) -> np.ndarray:
        return self.documents[index]


@dataclass(frozen=True)
class Plan:
    """Windows of a scoring pass; all arrays are (windows,) int64.

    ``start`` is the position in the document's sequence at which the window starts, ``length`` its number of positions,
    and ``skip`` the number of its first targets that an earlier window scores.
    """

    document: np.ndarray
    start: np.ndarray
    length: np.ndarray
    skip: np.ndarray

    def chosen(self, windows: np.ndarray) -> "Plan":
        """The plan of some of the windows, by index or mask."""
        return Plan(self.document[windows], self.start[windows], self.length[windows], self.skip[windows])


def plan_windows(targets: np.ndarray, context: int, stride: int, full_windows: bool = False) -> Plan:
    """Cut documents with ``targets`` (documents,) targets each into windows, in the order of the documents.

    With ``full_windows`` every window of a document with more than ``context`` targets has ``context`` positions.
    """
    if context < 1:
        raise ConfigError(f"the context is {context} tokens; it must be at least 1")
    if not 1 <= stride <= context:
        raise ConfigError(f"the stride is {stride} tokens; it must be between 1 and the context, {context}")
    targets = np.asarray(targets, dtype=np.int64)
    beyond_first = np.maximum(targets - context, 0)
    windows = (targets > 0) + -(-beyond_first // stride)
    document = np.repeat(np.arange(len(targets)), windows)
    index = numbered(windows)
    start = index * stride
    length = np.minimum(context, targets[document] - start)
    skip = np.where(index > 0, context - stride, 0)
    back = np.where(full_windows & (index > 0), context - length, 0)
    return Plan(document, start - back, length + back, skip + back)


def batches(lengths: np.ndarray, batch_tokens: int, mixed_up_to: float = math.inf) -> Iterator[np.ndarray]:
    """Group rows of these lengths into batches, by index: at most ``batch_tokens`` positions, padded, or one row.

    The longest are first, so that a batch that exceeds the memory fails within seconds; rows longer than ``mixed_up_to`` share
    a batch only with rows of their own length (:func:`~contextwise.models.rope.same_frequencies_up_to`).
    """
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        batch = order[first : first + max(1, batch_tokens // longest)]
        if longest > mixed_up_to:
            batch = batch[lengths[batch] == longest]
        yield batch
        first += len(batch)


@contextlib.contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Set a model's evaluation mode, in which an input's frequencies depend on it alone, and restore its mode on exit."""
    handles = forget_lengths(model)
    try:
        with evaluation_mode(model):
            yield
    finally:
        for handle in handles:
            handle.remove()


def score_documents(
    model: PreTrainedModel,
    corpus: Documents,
    context: int,
    stride: int,
    *,
    full_windows: bool = False,
    limit: int | None = None,
    **options: Any,
) -> Scores:
    """Score every token of the corpus (of its first ``limit`` documents, if given), each from windows as above.

    ``options`` are those of :func:`score_windows`.
    """
    lengths = np.asarray(corpus.lengths[:limit], dtype=np.int64)
    first_position = 0 if corpus.end_of_text is not None else 1
    targets = np.maximum(lengths - first_position, 0)
    plan = plan_windows(targets, context, stride, full_windows)
    if not len(plan.document):
        raise DataError("there is no token to score: the documents are empty, or hold one token and no end-of-text")
    nats, sizes = score_windows(model, corpus, plan, **options), plan.length - plan.skip
    # End-of-text, the first token of a document's first window, does not count as visible.
    visible = plan.skip + 1 - ((plan.start == 0) & (first_position == 0))
    return Scores(targets, nats, (np.repeat(visible, sizes) + numbered(sizes)).astype(np.int32), first_position)


def score_windows(
    model: PreTrainedModel,
    corpus: Documents,
    plan: Plan,
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    on_progress: Callable[[int], None] | None = None,
    further: Callable[[np.ndarray], dict[str, torch.Tensor]] | None = None,
    work: Work | None = None,
    part: str = "scores",
) -> np.ndarray:
    """Losses (N,) float32 of the targets of windows, one window after the other.

    ``on_progress`` gets the number of targets of each batch. ``further`` returns the further inputs of the model, such as
    contexts, for the documents (B,) of a batch. ``work`` keeps the finished part, under the name ``part``; a later call resumes
    it.
    """
    sizes, total = plan.length - plan.skip, len(plan.document)
    stops, in_order = np.cumsum(sizes), np.argsort(-plan.length, kind="stable")  # of the batches
    state = {"nats": np.zeros(stops[-1], np.float32), "done": np.zeros(1, np.int64)}
    saved = None if work is None else work.resumed(part, state)
    if saved is not None and 0 < saved["done"][0] <= total:
        state = saved
        say(f"resuming a stopped measurement: {state['done'][0]:,} of {total:,} windows are done")
    before, rest = np.split(in_order, state["done"])
    if on_progress is not None:
        on_progress(int(sizes[before].sum()))
    with evaluating(model), torch.inference_mode():
        for batch in batches(plan.length[rest], batch_tokens, same_frequencies_up_to(model)):
            if work is None or state["done"][0] == len(before):  # else it is checked behind each batch
                interruption.check("scoring was stopped")
            rows = rest[batch]
            inputs = {} if further is None else further(plan.document[rows])
            for nats_T, window in zip(window_losses(model, corpus, plan, rows, **inputs), rows, strict=True):
                scored = nats_T[plan.skip[window] : plan.length[window]]
                state["nats"][stops[window] - len(scored) : stops[window]] = scored
            if on_progress is not None:
                on_progress(int(sizes[rows].sum()))
            state["done"] += len(rows)
            if work is not None and state["done"][0] < total:
                work.checkpoint(part, lambda: state, f"after {state['done'][0]:,} of {total:,} windows")
    return state["nats"]


def window_losses(
    model: PreTrainedModel, corpus: Documents, plan: Plan, rows: np.ndarray, **further: torch.Tensor
) -> np.ndarray:
    """Loss in nats of the targets of the windows ``rows``: (B, T) float32, 0 at positions that are not scored."""
    lengths, skips, end = plan.length[rows], plan.skip[rows], corpus.end_of_text
    input_ids_BT = np.zeros((len(rows), int(lengths.max())), np.int64)
    targets_BT = np.full_like(input_ids_BT, IGNORED)
    for number, window in enumerate(rows):
        first, count, skip = int(plan.start[window]) - int(end is not None), int(lengths[number]), int(skips[number])
        tokens = corpus.document(int(plan.document[window]))[max(first, 0) : first + count + 1].astype(np.int64)
        tokens = tokens if end is None or first >= 0 else np.append(end, tokens)
        input_ids_BT[number, :count] = tokens[:-1]
        targets_BT[number, skip:count] = tokens[skip + 1 :]
    check_ids(model, np.hstack([input_ids_BT, targets_BT]), plan.document[rows])
    device = next(model.parameters()).device
    if reads_prefix(model.config) and skips.max() > 0:  # a prefix of one token is causal
        prefix_BT = np.arange(input_ids_BT.shape[1]) <= skips[:, None]
        further |= {"prefix": torch.from_numpy(prefix_BT).to(device)}
    losses_BT = token_losses(model, torch.from_numpy(input_ids_BT).to(device), torch.from_numpy(targets_BT), **further)
    nats_BT = np.where(targets_BT == IGNORED, np.float32(0), losses_BT.float().cpu().numpy())
    finite_BT = np.isfinite(nats_BT)
    if not finite_BT.all():
        number, column = np.argwhere(~finite_BT)[0]
        position = int(plan.start[rows[number]] + column) + int(corpus.end_of_text is None)
        document = int(plan.document[rows[number]])
        raise not_finite(f"the model's loss is not finite at token {position} of document {document}")
    return nats_BT


def vocabulary_size(model: PreTrainedModel) -> int:
    """Rows of the model's input embedding."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def check_tokens(largest: int, model: PreTrainedModel) -> int:
    """The number of tokens that a model knows; a CheckpointError if its tokenizer's token ``largest`` is not among them."""
    known = vocabulary_size(model)
    if largest >= known:
        raise CheckpointError(
            f"the tokenizer makes the token {largest}, but the model knows only {known:,}: the tokenizer is not this model's; "
            "save the model's own with it"
        )
    return known


def not_finite(what: str) -> NotFiniteError:
    """The error of a loss or feature that is not finite."""
    return NotFiniteError(f"{what}: its weights are damaged, or its number format is too narrow (try float32)")


def check_ids(model: PreTrainedModel, ids_BT: np.ndarray, documents_B: np.ndarray) -> None:
    """Raise DataError if a token id is outside the model's vocabulary."""
    vocabulary = vocabulary_size(model)
    rows_N, columns_N = (((ids_BT < 0) & (ids_BT != IGNORED)) | (ids_BT >= vocabulary)).nonzero()
    if len(rows_N):
        worst = rows_N[0], columns_N[0]
        raise DataError(
            f"document {int(documents_B[worst[0]])} holds token id {int(ids_BT[worst])}, but the model's vocabulary has "
            f"{vocabulary} tokens; use the corpus that was prepared with the model's tokenizer"
        )
