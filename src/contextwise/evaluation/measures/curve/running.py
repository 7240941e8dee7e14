"""Measure the contextwise loss curve of one model on one corpus: check that they fit, score, read off, write."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from transformers import PreTrainedModel

from contextwise.base.config import Settings
from contextwise.base.environment import describe_environment
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.estimates import CONFIDENCE
from contextwise.base.intervals import RESAMPLES
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.evaluation.measures.curve.passes import running_pass, truncated_pass
from contextwise.evaluation.measures.curve.readings import DEFAULT_WORTH, curve_measures
from contextwise.evaluation.measures.curve.results import ContextwiseCurve, write_curve
from contextwise.evaluation.measures.curve.sums import CurveSums
from contextwise.evaluation.measures.curve.unfinished import Unfinished, model_digest
from contextwise.evaluation.measures.curve.windows import whole_windows
from contextwise.evaluation.opening import (
    LARGEST_DEFAULT_CONTEXT,
    default_destination,
    is_run,
    label,
    open_model,
    positions,
    subject,
    tell_of_contexts,
)
from contextwise.evaluation.results import check_destination, is_curve
from contextwise.evaluation.scoring.truncated import choose_targets
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS
from contextwise.models.rope import Rope, extend_positions, rotary_modules

DEFAULT_SAMPLES = 2048


class CurveSettings(Settings):
    """How a curve is measured.

    Attributes:
        mode: ``running``, one pass over windows; ``truncated``, the same targets at every context.
        context: tokens of a window, or the longest context. By default the training context; for a model that is no run,
            the most that it was trained for, but no more than 1024.
        contexts: visible tokens of the truncated mode; by default the powers of two up to ``context``.
        samples: targets of the truncated mode.
        seed: of their choice.
        worth: nats that the next doubling of an effective context brings at most.
        rope: how rotary positions are extended.
        rope_factor: of the extension; context / training context if not given.
        limit_documents: only the first so many documents.
    """

    mode: Literal["running", "truncated"] = "running"
    context: int | None = Field(None, ge=1)
    contexts: list[int] | None = Field(None, min_length=1)
    samples: int = Field(DEFAULT_SAMPLES, ge=1)
    seed: int = Field(0, ge=0)
    worth: float = Field(DEFAULT_WORTH, gt=0)
    rope: Rope = "none"
    rope_factor: float | None = Field(None, ge=1)
    limit_documents: int | None = Field(None, ge=1)


def measure_contextwise(
    source: str | Path,
    corpus: Corpus,
    settings: CurveSettings | None = None,
    *,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ContextwiseCurve:
    """Measure how much of its context a model uses, and write the curve beside the model's run.

    The same call goes on where one that was stopped had been.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        corpus: the documents (one split of a corpus).
        batch_tokens: positions of one batch; 16384 by default. A longer window is a batch of its own.
        dtype, device: as :func:`contextwise.evaluation.evaluate_model` takes them.
        out: where to write; by default ``RUN/evaluation/CORPUS-SPLIT-contextwise``, or
            ``evaluation/MODEL/CORPUS-SPLIT-contextwise`` for a model that is no run; with ``-truncated`` in that mode.
        should_stop: asked after each batch.

    Raises:
        ConfigError: a setting is out of range, or the model has no positions for it; or ``out`` holds something else.
        DataError: the corpus does not fit the model, or has no document that is long enough.
        CheckpointError: there is no such model, or its losses are not finite.
        Interrupted: ``should_stop`` said so; what is done is kept.
    """
    started = time.monotonic()
    source, settings = str(source), settings or CurveSettings()
    if batch_tokens is not None and batch_tokens < 1:
        raise ConfigError(f"--batch-tokens is {batch_tokens}; it must be at least 1")
    in_run = out is None and is_run(source)
    name = f"{label(corpus)}-contextwise" + ("-truncated" if settings.mode == "truncated" else "")
    out = out or default_destination(source, name)
    check_destination(out, corpus.fingerprint, None if in_run else source, is_curve, "a contextwise curve")
    corpus.verify()
    model = open_model(source, corpus, dtype, device)
    tell_of_contexts(source, model)
    digest, about = model_digest(model), subject(source, model, corpus)
    trained = trained_context(source, model)
    context = longest_context(source, model, settings, trained)
    contexts = truncated_contexts(settings, context)
    factor = prepared_positions(source, model, settings, context, trained)
    decides = settings.model_dump(exclude={"worth", "rope_factor"})
    decides |= {"context": context, "contexts": contexts, "rope_factor": factor, "trained_context": trained}
    unfinished = Unfinished(
        out, {"weights": digest, "corpus": corpus.fingerprint, "split": corpus.split, **decides}
    )
    try:
        sums = _scored(
            model,
            corpus,
            settings,
            context,
            contexts,
            trained,
            unfinished,
            batch_tokens=batch_tokens or DEFAULT_BATCH_TOKENS,
            should_stop=should_stop,
        )
    except CheckpointError:
        unfinished.remove()  # nothing goes on from a damaged model
        raise
    bins, measures = curve_measures(sums, settings.worth)
    summary = {
        **about,
        "label": name,
        "settings": {**decides, "worth": settings.worth},
        "documents": len(sums.documents),
        "targets": int(sums.targets.sum()),
        "bins": bins,
        "measures": measures,
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    curve = write_curve(out, summary, sums)
    unfinished.remove()
    return curve


def _scored(
    model: PreTrainedModel,
    corpus: Corpus,
    settings: CurveSettings,
    context: int,
    contexts: list[int] | None,
    trained: int | None,
    unfinished: Unfinished,
    **options: Any,
) -> CurveSums:
    if contexts is None:
        plan = whole_windows(corpus, context, settings.limit_documents)
        return running_pass(model, corpus, plan, trained, unfinished, **options)
    documents = (
        corpus if settings.limit_documents is None else FirstDocuments(corpus, settings.limit_documents)
    )
    targets = choose_targets(documents, context, settings.samples, settings.seed)
    return truncated_pass(model, corpus, targets, contexts, unfinished, **options)


class FirstDocuments:
    """The first documents of a corpus, to choose targets from."""

    def __init__(self, corpus: Corpus, count: int) -> None:
        self.corpus, self.end_of_text = corpus, corpus.end_of_text
        self.lengths = corpus.lengths[:count]

    def document(self, index: int, /) -> Any:
        """Token ids of one document."""
        return self.corpus.document(index)


def trained_context(source: str, model: PreTrainedModel) -> int | None:
    """Tokens of a training window: the run's own, else what the model's configuration says; None if neither does."""
    context = RunFolder(source).recipe().get("data", {}).get("context") if is_run(source) else None
    return context if isinstance(context, int) else positions(model)


def longest_context(source: str, model: PreTrainedModel, settings: CurveSettings, trained: int | None) -> int:
    """The longest context that is measured.

    Raises:
        ConfigError: settings that contradict each other.
    """
    if settings.contexts is not None:
        if settings.mode == "running":
            raise ConfigError(
                "--contexts is of the truncated mode; give --mode truncated too, or --context alone"
            )
        if settings.context is not None:
            raise ConfigError("--context is given together with --contexts; leave one of the two out")
        if min(settings.contexts) < 1:
            raise ConfigError(f"--contexts holds {min(settings.contexts)}; each must be at least 1")
        return max(settings.contexts)
    if settings.context is not None:
        return settings.context
    if is_run(source) and trained is not None:
        return trained
    return min(trained or LARGEST_DEFAULT_CONTEXT, LARGEST_DEFAULT_CONTEXT)


def truncated_contexts(settings: CurveSettings, context: int) -> list[int] | None:
    """Visible tokens of the truncated mode, ascending; None in the running mode."""
    if settings.mode == "running":
        return None
    if settings.contexts is not None:
        return sorted(set(settings.contexts))
    return [*(2**i for i in range((context - 1).bit_length())), context]


def prepared_positions(
    source: str, model: PreTrainedModel, settings: CurveSettings, context: int, trained: int | None
) -> float | None:
    """Give the model positions for the longest context; returns the factor of the extension, None without one.

    Raises:
        ConfigError: it has none, or cannot be extended.
    """
    if rotary_modules(model) or settings.rope != "none" or settings.rope_factor is not None:
        return extend_positions(model, context, settings.rope, settings.rope_factor, trained)
    limit = positions(model)
    if limit is not None and context > limit:
        raise ConfigError(
            f"a context of {context:,} tokens is longer than the {limit:,} positions that {source} has learned; give at most "
            f"{limit:,}, or a model with rotary positions"
        )
    return None
