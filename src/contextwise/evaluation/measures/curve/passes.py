"""The two ways to score: at each position of running windows, and the same targets at each context. Both can be stopped."""

import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import Interrupted
from contextwise.base.progress import progress_bar, say
from contextwise.evaluation.measures.curve.sums import CurveSums, RunningSums, truncated_sums
from contextwise.evaluation.measures.curve.unfinished import Unfinished
from contextwise.evaluation.measures.curve.windows import last_tenth
from contextwise.evaluation.scoring.truncated import Targets, truncated_passes
from contextwise.evaluation.scoring.windows import Documents, Plan, batches, window_losses

SECONDS_BETWEEN_SAVES = 30.0


class _Keeper:
    """Saves the part that is done now and then, and when asked to stop."""

    def __init__(
        self, unfinished: Unfinished, total: int, unit: str, should_stop: Callable[[], bool] | None
    ) -> None:
        self.unfinished, self.total, self.unit, self.should_stop = unfinished, total, unit, should_stop
        self.saved = time.monotonic()

    def begin(self, like: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """What an earlier, stopped scoring has left."""
        return self.unfinished.load(like)

    def go_on(self, done: int) -> None:
        """Say that the work begins behind ``done``."""
        say(f"going on where a stopped scoring was: {done:,} of {self.total:,} {self.unit} are done")

    def after(self, done: int, arrays: dict[str, np.ndarray]) -> None:
        """Call after each batch.

        Raises:
            Interrupted: the scoring was asked to stop; what is done is kept.
        """
        if done >= self.total:
            return
        stop = self.should_stop is not None and self.should_stop()
        if stop or time.monotonic() - self.saved > SECONDS_BETWEEN_SAVES:
            self.unfinished.save(arrays)
            self.saved = time.monotonic()
        if stop:
            raise Interrupted(
                f"scoring was stopped after {done:,} of {self.total:,} {self.unit}; they are kept in "
                f"{self.unfinished.path}: run the same command again to go on"
            )


def running_pass(
    model: PreTrainedModel,
    corpus: Documents,
    plan: Plan,
    trained: int | None,
    unfinished: Unfinished,
    *,
    batch_tokens: int,
    should_stop: Callable[[], bool] | None = None,
) -> CurveSums:
    """Score whole windows, each position with the tokens before it in its window.

    Args:
        plan: windows of one length (:func:`whole_windows`).
        trained: training context, for the last tenth of it.

    Raises:
        DataError: a token id is beyond the model's vocabulary.
        CheckpointError: a loss is not finite.
        Interrupted: ``should_stop`` said so; what is done is kept.
    """
    context, total = int(plan.length[0]), len(plan.document)
    sums = RunningSums(plan.document, context, last_tenth(context, trained))
    keeper = _Keeper(unfinished, total, "windows", should_stop)
    kept = keeper.begin(sums.state)
    if kept is not None and 0 < int(kept["done"]) <= total:
        sums.state.update(kept)
        keeper.go_on(sums.done)
    left = np.arange(sums.done, total)
    rest = Plan(plan.document[left], plan.start[left], plan.length[left], plan.skip[left])
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), progress_bar("contextwise", total * context, "tokens") as advance:
            advance(sums.done * context)
            for rows in batches(rest, batch_tokens):
                for nats_T in window_losses(model, corpus, rest, rows):
                    sums.add(nats_T)
                advance(len(rows) * context)
                keeper.after(sums.done, sums.state)
    finally:
        model.train(was_training)
    return sums.finish()


def truncated_pass(
    model: PreTrainedModel,
    corpus: Documents,
    targets: Targets,
    contexts: list[int],
    unfinished: Unfinished,
    *,
    batch_tokens: int,
    should_stop: Callable[[], bool] | None = None,
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
    keeper = _Keeper(unfinished, len(contexts) * count, "predictions", should_stop)
    kept = keeper.begin(state)
    if (
        kept is not None
        and kept["done"].any()
        and (kept["done"] >= 0).all()
        and (kept["done"] <= count).all()
    ):
        state = kept
        keeper.go_on(int(state["done"].sum()))
    done = {context: int(state["done"][i]) for i, context in enumerate(contexts)}
    with progress_bar("contextwise", float(np.sum(contexts)) * count, "tokens") as advance:
        advance(sum(context * number for context, number in done.items()))
        for batch in truncated_passes(model, corpus, targets, contexts, batch_tokens=batch_tokens, done=done):
            place = contexts.index(batch.context)
            state["nats"][place, batch.start : batch.stop] = batch.nats
            state["done"][place] = batch.stop
            advance((batch.stop - batch.start) * batch.context)
            keeper.after(int(state["done"].sum()), state)
    return truncated_sums(targets.document, contexts, state["nats"])
