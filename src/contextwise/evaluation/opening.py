"""Opening models for the measurements that do not yet use :mod:`contextwise.evaluation.kernel`."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError
from contextwise.base.memory import keep_freed_memory
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus
from contextwise.evaluation.results import check_destination
from contextwise.evaluation.scoring.windows import vocabulary_size
from contextwise.models import load_model
from contextwise.models.loading import load_config
from contextwise.models.tokenizers import check_tokenizer, corpus_tokenizer_hash

LARGEST_DEFAULT_CONTEXT = 1024


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def is_cue(source: str | Path) -> bool:
    """Whether a model takes contexts beside its tokens."""
    return load_config(source).model_type == "cue"


def trained_on(source: str, corpus: Corpus) -> bool:
    """Whether ``source`` is a finished run that was trained on these very documents."""
    run = RunFolder(source)
    return run.finished and run.summary().get("corpus", {}).get("fingerprint") == corpus.fingerprint


def trained_context(source: str, model: PreTrainedModel) -> int | None:
    """Tokens of a training window: the run's own, else what the configuration says; None if neither does."""
    context = RunFolder(source).recipe().get("data", {}).get("context") if is_run(source) else None
    return context if isinstance(context, int) else positions(model)
