"""Evaluate one model on one corpus: check that they fit, score, summarise, write."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedModel

from contextwise.base.environment import describe_environment
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import CONFIDENCE
from contextwise.base.intervals import RESAMPLES
from contextwise.base.memory import keep_freed_memory
from contextwise.base.progress import progress_bar, say
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.evaluation.metrics import measures
from contextwise.evaluation.results import Evaluation, check_destination, write_evaluation
from contextwise.evaluation.scoring.windows import (
    DEFAULT_BATCH_TOKENS,
    Scores,
    score_documents,
    vocabulary_size,
)
from contextwise.models import load_model
from contextwise.models.tokenizers import check_tokenizer, corpus_tokenizer_hash

LARGEST_DEFAULT_CONTEXT = 1024
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def evaluate_model(
    source: str | Path,
    corpus: Corpus,
    *,
    context: int | None = None,
    stride: int | None = None,
    limit_documents: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Score every token of a corpus with a model, and write the evaluation beside the model's run.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        corpus: the documents (one split of a corpus).
        context: positions of a window. By default the context that the run was trained with; for a model that
            is no run, the most that it allows, but no more than 1024.
        stride: how far a window starts from the one before it; every target sees ``context - stride`` tokens
            at least, or all that precede it. By default half the context.
        limit_documents: score only that many documents, the first ones.
        batch_tokens: positions of one batch, padding included; 16384 by default.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto``: float32 on the CPU, else as the model was
            saved.
        device: a torch device, or ``auto``: a GPU if there is one.
        out: where to write; by default ``RUN/evaluation/CORPUS-SPLIT``, or ``evaluation/MODEL/CORPUS-SPLIT``
            for a model that is no run.
        should_stop: asked before each batch.

    Raises:
        ConfigError: an option is out of range, or ``out`` holds something else.
        DataError: the corpus and the model have different tokenizers, the corpus's files changed, or there is
            nothing to score.
        CheckpointError: there is no such model, or its losses are not finite.
        Interrupted: ``should_stop`` said so; nothing was written.
    """
    started = time.monotonic()
    source = str(source)
    out = checked_destination(out, source, corpus, label(corpus))
    model = open_model(source, corpus, dtype, device)
    if model.config.model_type == "cue":
        raise ConfigError(
            f"{source} is a CUE model, which reads single sentences with their contexts; score it with "
            "contextwise.evaluation.measures.sentences.evaluate_sentences"
        )
    context = _context(source, model, context)
    stride = max(1, context // 2) if stride is None else stride
    with progress_bar(
        f"evaluate {Path(source).name}", int(np.sum(corpus.lengths[:limit_documents])), "tokens"
    ) as advance:
        scores = score_documents(
            model,
            corpus,
            context,
            stride,
            limit_documents=limit_documents,
            batch_tokens=DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens,
            on_progress=advance,
            should_stop=should_stop,
        )
    documents = documents_table(corpus, scores)
    summary = {
        **subject(source, model, corpus),
        "context": context,
        "stride": stride,
        "first_token_scored": scores.first_position == 0,
        **totals(documents),
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    return write_evaluation(out, summary, documents, scores.table())


def label(corpus: Corpus) -> str:
    """Name of an evaluation on this corpus: the corpus folder's name and the split."""
    return f"{Path(corpus.path).resolve().name}-{corpus.split}"


def is_run(source: str) -> bool:
    """Whether the model is given as the folder of a training run."""
    return RunFolder(source).recipe_file.is_file()


def default_destination(source: str, label: str) -> Path:
    """Where an evaluation goes that is given no place."""
    if is_run(source):
        return RunFolder(source).evaluation / label
    return Path("evaluation") / (Path(source).name or "model") / label


def checked_destination(out: Path | None, source: str, corpus: Corpus, label: str) -> Path:
    """Where an evaluation on a corpus goes, once that place is free and the corpus's files are as they were.

    Raises:
        ConfigError: the place holds something else.
        DataError: the corpus's files changed.
    """
    in_run = out is None and is_run(source)
    out = out or default_destination(source, label)
    check_destination(out, corpus.fingerprint, None if in_run else source)
    corpus.verify()
    return out


def trained_on(source: str, corpus: Corpus) -> bool:
    """Whether ``source`` is a finished run that was trained on these very documents."""
    run = RunFolder(source)
    return run.finished and run.summary().get("corpus", {}).get("fingerprint") == corpus.fingerprint


def open_model(source: str, corpus: Corpus, dtype: str, device: str) -> PreTrainedModel:
    """Load the model, and refuse a corpus whose token ids mean something else to it, or nothing.

    Raises:
        CheckpointError: there is no such model.
        ConfigError: no such device or dtype.
        DataError: the tokenizers differ, or the corpus has more tokens in its vocabulary than the model.
    """
    model = model_on_device(source, dtype, device)
    check_tokenizer(source, vocabulary_size(model), corpus)
    return model


def model_on_device(source: str, dtype: str, device: str) -> PreTrainedModel:
    """Load a model to evaluate it; ``dtype`` and ``device`` as :func:`evaluate_model` takes them.

    Raises:
        CheckpointError: there is no such model.
        ConfigError: no such device or dtype.
    """
    place = chosen_device(device)
    if place.type == "cpu":
        keep_freed_memory()
    return load_model(source, dtype=chosen_dtype(dtype, place), device=place)


def tell_of_contexts(source: str, model: PreTrainedModel, what: str = "is measured") -> None:
    """Say of a CUE model that it goes without contexts, where it is used as any other model; ``what`` is done with it."""
    if model.config.model_type == "cue":
        say(f"note: {source} is a CUE model; it {what} without contexts")


def subject(source: str, model: PreTrainedModel, corpus: Corpus) -> dict[str, Any]:
    """What is evaluated on what, as it stands in ``summary.json``."""
    return {
        "label": label(corpus),
        "model": source,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "corpus": {
            "path": str(corpus.path),
            "fingerprint": corpus.fingerprint,
            "split": corpus.split,
            "tokenizer_hash": corpus_tokenizer_hash(corpus.path),
        },
    }


def documents_table(corpus: Corpus, scores: Scores) -> pa.Table:
    """One row a document: ``document``, its hash, ``tokens`` (targets), ``bytes``, ``words``, ``nats``."""
    count = len(scores.targets)

    def known(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.nulls(count, kind) if values is None else pa.array(values[:count], kind)

    hashes = corpus.column("document_hash") if "document_hash" in corpus.columns else None
    return pa.table(
        {
            "document": pa.array(np.arange(count, dtype=np.int32)),
            "document_hash": known(hashes, pa.string()),
            "tokens": pa.array(scores.targets),
            "bytes": known(corpus.bytes, pa.int64()),
            "words": known(corpus.words, pa.int64()),
            "nats": pa.array(scores.document_sums()),
        }
    )


def totals(documents: pa.Table) -> dict[str, Any]:
    """Counts and measures of a table of documents, as they stand in ``summary.json``."""
    columns = {name: column_or_none(documents, name) for name in ("tokens", "bytes", "words")}
    return {
        "documents": documents.num_rows,
        **{name: None if values is None else int(values.sum()) for name, values in columns.items()},
        **measures(
            documents["nats"].to_numpy(), documents["tokens"].to_numpy(), columns["words"], columns["bytes"]
        ),
    }


def column_or_none(documents: pa.Table, name: str) -> np.ndarray | None:
    """A column as an array; None where the corpus did not know its values."""
    return None if documents[name].null_count else documents[name].to_numpy()


def _context(source: str, model: PreTrainedModel, context: int | None) -> int:
    """The context to score with; the model's own is the upper limit."""
    limit = positions(model)
    if context is not None:
        if limit is not None and context > limit:
            raise ConfigError(
                f"--context is {context}, but {source} has only {limit} positions; give at most {limit}"
            )
        return context
    trained = RunFolder(source).recipe().get("data", {}).get("context") if is_run(source) else None
    if isinstance(trained, int):
        return trained
    return min(limit or LARGEST_DEFAULT_CONTEXT, LARGEST_DEFAULT_CONTEXT)


def positions(model: PreTrainedModel) -> int | None:
    """How many positions the model's configuration allows; None if it sets no limit."""
    config: Any = model.config
    for part in (config, getattr(config, "backbone_config", None), config.get_text_config()):
        limit = getattr(part, "max_position_embeddings", None)
        if limit is not None:
            return int(limit)
    return None


def chosen_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"--device is {name!r}, which this machine does not have; give cpu, or leave it out"
        ) from None
    return device


def chosen_dtype(name: str, device: torch.device) -> torch.dtype | None:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise ConfigError(f"--dtype is {name!r}; it must be one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
