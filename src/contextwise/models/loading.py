"""Open any language model: a run of ours, a folder, or a name on the Hub."""

import contextlib
import importlib
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contextwise.base.errors import CheckpointError
from contextwise.base.hub import hub_problem
from contextwise.models.kinds import kind_of

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)


def model_folder(path_or_name: str | Path) -> str:
    """The folder to load from: ``RUN/model`` for a run folder, else what was given.

    Raises:
        CheckpointError: a run that has not finished, or a folder that holds no model.
    """
    path = Path(path_or_name)
    if not path.exists():
        # "owner/name" may be a name on the Hub; what begins like a path, or lies in a folder that is there, is none.
        parts = path.parts
        if (
            path.is_absolute()
            or len(parts) > 2
            or parts[0] in ("..", "~")
            or (len(parts) == 2 and path.parent.is_dir())
        ):
            raise CheckpointError(f"there is no run and no model at {path_or_name}")
        return str(path_or_name)
    if (path / "model" / "config.json").exists():
        return str(path / "model")
    if (path / "config.json").exists():
        return str(path)
    if (path / "recipe.yaml").exists():
        raise CheckpointError(f"the run {path} has no model yet; finish it with the command that started it")
    raise CheckpointError(f"{path} holds no model: neither config.json nor model/config.json is there")


def load_config(path_or_name: str | Path) -> PreTrainedConfig:
    """Configuration of a causal language model, without its weights.

    Raises:
        CheckpointError: there is no such model, or its configuration cannot be read.
    """
    folder = model_folder(path_or_name)
    check_reachable(folder)
    _register_models()
    try:
        return AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise CheckpointError(
            f"no configuration could be loaded from {path_or_name}: {failure_reason(folder, error)}"
        ) from error


def _register_models() -> None:
    """Let transformers' Auto classes know the models of this package, which import this module themselves."""
    with contextlib.suppress(
        ModuleNotFoundError
    ):  # in a standalone export this module lies beside one model alone
        importlib.import_module("contextwise.models.spec").register_models()


def check_reachable(folder: str) -> None:
    """Refuse a name on the Hub that neither the local cache nor the Hub can provide, before its clients retry for a minute.

    Raises:
        CheckpointError: it is no folder, not in the cache, and the Hub cannot be reached.
    """
    if Path(folder).exists() or isinstance(try_to_load_from_cache(folder, "config.json"), str):
        return
    problem = hub_problem()
    if problem:
        raise CheckpointError(f"there is no run and no model at {folder}, and {problem}")


def failure_reason(folder: str, error: Exception) -> str:
    """Why nothing could be loaded from there, on one line."""
    if not Path(folder).exists():
        return "there is no such folder, and the Hub could not provide it"
    if "ignore_mismatched_sizes" in str(error):
        return (
            "its weights have other shapes than its config.json says; export it again, or give the config.json that belongs "
            "to it"
        )
    return " ".join(str(error).split())[:300]


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that ``AutoModelForCausalLM`` makes of a configuration.

    Raises:
        CheckpointError: a configuration of something else than a causal language model.
    """
    classes = AutoModelForCausalLM._model_mapping
    if type(config) not in classes or kind_of(config) != "decoder":
        what = {"decoder": "another thing"}.get(kind_of(config), f"an {kind_of(config)}")
        raise CheckpointError(
            f"a model of type {config.model_type!r} is {what}, but a causal language model is needed here"
        )
    return classes[type(config)]


def load_model(
    path_or_name: str | Path, dtype: torch.dtype | None = None, device: str | torch.device | None = None
) -> PreTrainedModel:
    """Load a causal language model for inference.

    Args:
        path_or_name: a run folder, a Hugging Face model folder, or a name on the Hub (needs a network).
        dtype: of the weights; as saved if None.
        device: where to put it; a GPU if there is one, if None.

    Raises:
        CheckpointError: there is no such model, it is damaged, or it is no causal language model.
    """
    model_class(load_config(path_or_name))
    return load_as(AutoModelForCausalLM, "causal language model", path_or_name, dtype, device)


def load_generating_model(
    path_or_name: str | Path, dtype: torch.dtype | None = None, device: str | torch.device | None = None
) -> PreTrainedModel:
    """Load a decoder or an encoder-decoder for inference; arguments as :func:`load_model` has them.

    Raises:
        CheckpointError: there is no such model, it is damaged, or it is an encoder.
    """
    if kind_of(load_config(path_or_name)) != "encoder-decoder":
        return load_model(path_or_name, dtype=dtype, device=device)
    return load_as(AutoModelForSeq2SeqLM, "encoder-decoder", path_or_name, dtype, device)


def load_as(
    loader: Any,
    what: str,
    path_or_name: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> Any:
    """Load a model with a class that has ``from_pretrained``; ``what`` says in an error what it was to be.

    Raises:
        CheckpointError: there is no such model, or it is damaged.
    """
    folder = model_folder(path_or_name)
    _register_models()
    try:
        # Weights are taken from safetensors only: nothing that could run code is unpickled.
        model = loader.from_pretrained(folder, dtype=dtype or "auto", use_safetensors=True)
    except Exception as error:
        raise CheckpointError(
            f"no {what} could be loaded from {path_or_name}: {failure_reason(folder, error)}"
        ) from error
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def load_tokenizer(path_or_name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that lies with a model.

    Raises:
        CheckpointError: there is none.
    """
    folder = model_folder(path_or_name)
    check_reachable(folder)
    # transformers would make an empty tokenizer of the model's kind where there is none.
    if Path(folder).is_dir() and not any((Path(folder) / name).exists() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"no tokenizer lies with the model {path_or_name}; save it there with tokenizer.save_pretrained"
        )
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        raise CheckpointError(f"no tokenizer could be loaded from {path_or_name}") from error
