"""The two ways to score: at each position of running windows, and the same targets at each context. Both can be stopped."""

import time

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import DataError, Interrupted
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.data.windows.last_tenth import last_tenth_length
from contextwise.evaluation.kernel import Work
from contextwise.evaluation.measures.curve.sums import CurveSums, RunningSums, truncated_sums
from contextwise.evaluation.scoring.truncated import Targets, truncated_passes
from contextwise.evaluation.scoring.windows import Documents, Plan, batches, plan_windows, window_losses

SECONDS_BETWEEN_SAVES = 30.0
PART = "sums"


class _Saver:
    """Saves the finished part of a pass now and then, and when the process is asked to stop."""

    def __init__(self, work: Work, total: int, unit: str) -> None:
        self.work, self.total, self.unit = work, total, unit
        self.saved = time.monotonic()

    def load(self, like: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The part that an earlier, stopped pass has saved; None unless it has the names, shapes and types of ``like``."""
        kept = self.work.load(PART)
        if kept is None or kept.keys() != like.keys():
            return None
        same = all(kept[n].shape == like[n].shape and kept[n].dtype == like[n].dtype for n in like)
        return kept if same and all(np.isfinite(array).all() for array in kept.values()) else None

    def resume(self, done: int) -> None:
        """Report that the pass begins behind ``done``."""
        say(f"resuming a stopped measurement: {done:,} of {self.total:,} {self.unit} are done")

    def after(self, done: int, arrays: dict[str, np.ndarray]) -> None:
        """Call after each batch.

        Raises:
            Interrupted: the process was asked to stop; what is done is kept.
        """
        if done >= self.total:
            return
        stop = interruption.requested
        if stop or time.monotonic() - self.saved > SECONDS_BETWEEN_SAVES:
            self.work.save(PART, arrays)
            self.saved = time.monotonic()
        if stop:
            raise Interrupted(f"the measurement was stopped after {done:,} of {self.total:,} {self.unit}")


def running_pass(
    model: PreTrainedModel,
    corpus: Documents,
    plan: Plan,
    trained: int | None,
    work: Work,
    *,
    batch_tokens: int,
) -> CurveSums:
    """Score whole windows, each position with the tokens before it in its window.

    Args:
        plan: windows of one length (:func:`whole_windows`).
        trained: training context, for the last tenth of it.

    Raises:
        DataError: a token id is beyond the model's vocabulary.
        CheckpointError: a loss is not finite.
        Interrupted: the process was asked to stop; what is done is kept.
    """
    context, total = int(plan.length[0]), len(plan.document)
    sums = RunningSums(plan.document, context, last_tenth(context, trained))
    saver = _Saver(work, total, "windows")
    kept = saver.load(sums.state)
    if kept is not None and 0 < int(kept["done"]) <= total:
        sums.state.update(kept)
        saver.resume(sums.done)
    left = np.arange(sums.done, total)
    rest = Plan(plan.document[left], plan.start[left], plan.length[left], plan.skip[left])
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), progress_bar("curve", total * context, "tokens") as advance:
            advance(sums.done * context)
            for rows in batches(rest, batch_tokens):
                for nats_T in window_losses(model, corpus, rest, rows):
                    sums.add(nats_T)
                advance(len(rows) * context)
                saver.after(sums.done, sums.state)
    finally:
        model.train(was_training)
    return sums.finish()


def truncated_pass(
    model: PreTrainedModel,
    corpus: Documents,
    targets: Targets,
    contexts: list[int],
    work: Work,
    *,
    batch_tokens: int,
) -> CurveSums:
    """Score the same targets at every context, only the nearest tokens visible. Raises as :func:`running_pass` does.

    Args:
        contexts: visible tokens, ascending.
    """
    count = len(targets)
    state: dict[str, np.ndarray] = {
        "nats": np.zeros((len(contexts), count), np.float32),
        "done": np.zeros(len(contexts), np.int64),
    }
    saver = _Saver(work, len(contexts) * count, "predictions")
    kept = saver.load(state)
    if (
        kept is not None
        and kept["done"].any()
        and (kept["done"] >= 0).all()
        and (kept["done"] <= count).all()
    ):
        state = kept
        saver.resume(int(state["done"].sum()))
    done = {context: int(state["done"][i]) for i, context in enumerate(contexts)}
    with progress_bar("curve", float(np.sum(contexts)) * count, "tokens") as advance:
        advance(sum(context * number for context, number in done.items()))
        for batch in truncated_passes(model, corpus, targets, contexts, batch_tokens=batch_tokens, done=done):
            place = contexts.index(batch.context)
            state["nats"][place, batch.start : batch.stop] = batch.nats
            state["done"][place] = batch.stop
            advance((batch.stop - batch.start) * batch.context)
            saver.after(int(state["done"].sum()), state)
    return truncated_sums(targets.document, contexts, state["nats"])


def whole_windows(corpus: Documents, context: int, limit: int | None = None) -> Plan:
    """Windows of ``context`` targets, one behind the other, in each document that is long enough; the rest is left out.

    Position t of a window (from 1) predicts the token behind t visible ones. Where the corpus has an end-of-text token, it
    stands at the beginning of each document, and counts as visible.

    Raises:
        ConfigError: the context is not positive.
        DataError: no document is long enough.
    """
    lengths = np.asarray(corpus.lengths[:limit], dtype=np.int64)
    targets = np.maximum(lengths - int(corpus.end_of_text is None), 0)
    if context > int(targets.max(initial=0)):
        longest = int(lengths.max(initial=0))
        raise DataError(
            f"no document is long enough for a context of {context:,} tokens: the longest of the {len(lengths):,} documents "
            f"has {longest:,}; give a shorter context, or a corpus of longer documents"
        )
    plan = plan_windows(targets, context, context)
    whole = plan.length == context
    return Plan(plan.document[whole], plan.start[whole], plan.length[whole], plan.skip[whole])


def last_tenth(context: int, trained: int | None) -> tuple[int, int]:
    """Ends of the last 10% of the training context, in visible tokens; of the window where that is shorter or alone."""
    high = min(context, trained or context)
    return high - last_tenth_length(high) + 1, high
