"""Load language models from run folders, model folders or the Hub."""

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contextwise.base.errors import CheckpointError, misspelt
from contextwise.base.machine import torch_device
from contextwise.base.pretrained import PACKAGED, failure_reason, from_pretrained, refuse_unreachable
from contextwise.base.trust import trust
from contextwise.models.folders import model_folder
from contextwise.models.prefix import with_prefix
from contextwise.models.rope import forget_lengths
from contextwise.objectives.kind import Kind


def kind_of(config: PreTrainedConfig) -> Kind:
    """Return the kind of a model; encoders have a masked language model in transformers and do not generate."""
    if config.is_encoder_decoder:
        return "encoder-decoder"
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    return "encoder" if masked and not getattr(config, "is_decoder", False) else "decoder"


Device = str | torch.device | None
LARGEST = {"layer": 10_000, "head": 10_000, "expert": 10_000, "labels": 1_000_000}
"""Largest numbers in a configuration, by a part of their names."""
SMALLEST = {"n_": 0, "num_": 0, "n_head": 1, "num_attention_heads": 1, "vocab_size": 1}
"""Smallest ones, by the beginnings of their names; a layer may be counted from the last one."""
GENERATION = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id"}
GENERATION |= {"do_sample", "temperature", "top_k", "top_p"}
"""Settings of ``generation_config.json`` that are used; with others ``generate()`` may want arguments or give other outputs."""
WHOLE = {"BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"}
"""safetensors' types of whole numbers."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("spiece.model", "vocab.json", "vocab.txt"),
)


def load_config(path_or_name: str | Path) -> PreTrainedConfig:
    """Load the configuration of a model, without its weights; CheckpointError if that fails."""
    folder = model_folder(path_or_name)
    refuse_unreachable(folder)
    _check_sizes(folder)
    try:
        return from_pretrained(AutoConfig, folder)
    except Exception as error:
        reason = _failure_reason(folder, error)
        raise CheckpointError(f"no configuration could be loaded from {path_or_name}: {reason}") from error


def _check_sizes(folder: str) -> None:
    """Refuse a configuration of a folder with numbers that no model has: building as many layers would take hours."""
    try:
        values = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # transformers says why, or reads it from the Hub
        return
    pending = [values]
    while pending:
        each = pending.pop()
        for name, value in each.items() if isinstance(each, dict) else ():
            limit = min((most for part, most in LARGEST.items() if part in name), default=math.inf)
            least = max((low for start, low in SMALLEST.items() if name.startswith(start)), default=-math.inf)
            if isinstance(value, int) and not least <= value <= limit:
                may = f"{limit:,} at most" if value > limit else f"{least} at least"
                raise CheckpointError(f"{folder}/config.json sets {name} to {value}; it may be {may}")
            pending.append(value)


def _failure_reason(folder: str, error: Exception) -> str:
    """Describe on one line why loading failed."""
    if not Path(folder).exists():
        return f"there is no such folder, and the Hub could not provide it{misspelt(folder, PACKAGED)}"
    if "ignore_mismatched_sizes" in str(error):
        fix = "export it again, or use the config.json that belongs to it"
        return f"the shapes of its weights do not match its config.json; {fix}"
    if unknown := re.search(r"model type `(.*?)`.* does not recognize", str(error)):
        return f"its model_type {unknown[1]!r} is unknown; install the package that offers it, or a newer transformers"
    return failure_reason(error)


def generates(config: PreTrainedConfig) -> bool:
    """Whether ``AutoModelForCausalLM`` has a class for a configuration: its own, or one of the model's code, if trusted."""
    theirs = trust.remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return theirs or type(config) in AutoModelForCausalLM._model_mapping


def check_generates(config: PreTrainedConfig) -> None:
    """Raise a CheckpointError for the configuration of a model that is no causal language model."""
    kind = kind_of(config)
    if kind != "decoder" or not generates(config):
        what = "" if kind == "decoder" else f" ({kind})"
        raise CheckpointError(
            f"a model of type {config.model_type!r}{what} is not a causal language model, which is required"
        )


def load_model(path_or_name: str | Path, dtype: torch.dtype | None = None, device: Device = None) -> PreTrainedModel:
    """Load a causal language model for inference.

    Args:
        path_or_name: a run folder, a Hugging Face model folder, or a name on the Hub (needs a network).
        dtype: data type of the weights; by default as saved.
        device: device of the model; by default a GPU if available.

    Raises:
        CheckpointError: the model does not exist, is damaged, or is not a causal language model.
    """
    check_generates(load_config(path_or_name))
    return load_as(AutoModelForCausalLM, "causal language model", path_or_name, dtype, device)


def load_generating_model(
    path_or_name: str | Path, dtype: torch.dtype | None = None, device: Device = None
) -> PreTrainedModel:
    """Load a decoder or an encoder-decoder for inference; arguments and errors as for :func:`load_model`."""
    if kind_of(load_config(path_or_name)) != "encoder-decoder":
        return load_model(path_or_name, dtype=dtype, device=device)
    return load_as(AutoModelForSeq2SeqLM, "encoder-decoder", path_or_name, dtype, device)


def load_as(
    loader: Any, what: str, path_or_name: str | Path, dtype: torch.dtype | None = None, device: Device = None
) -> Any:
    """Load a model with a class that has ``from_pretrained``; ``what`` names the type of model in errors."""
    model, missing, unexpected = _loaded(loader, what, path_or_name, dtype, device)
    _check_complete(path_or_name, missing, unexpected)
    return model


def load_without_heads(
    loader: Any, what: str, path_or_name: str | Path, dtype: torch.dtype | None = None, device: Device = None
) -> tuple[Any, list[str]]:
    """Load a model whose folder may have other heads, and the names of weights that it lacks, which have random values.

    The weights of its pooler may be missing too.
    """
    model, missing, unexpected = _loaded(loader, what, path_or_name, dtype, device)
    parts = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    def of_backbone(names: list[str]) -> list[str]:
        return [name for name in names if name.removeprefix(f"{model.base_model_prefix}.").split(".")[0] in parts]

    _check_complete(path_or_name, of_backbone(missing), of_backbone(unexpected))
    return model, missing


def _check_complete(path_or_name: str | Path, missing: list[str], unexpected: list[str]) -> None:
    """Raise a CheckpointError that names the weights that a model's folder lacks, or that do not belong to the model."""
    problems = [
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' * (len(names) > 3)} {what}"
        for names, what in ((missing, "missing"), (unexpected, "not part of the model"))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"the weights of {path_or_name} do not match its config.json: {'; '.join(problems)}; export or download it "
            "again, or use the config.json that belongs to it"
        )


def _loaded(
    loader: Any, what: str, path_or_name: str | Path, dtype: torch.dtype | None, device: Device
) -> tuple[Any, list[str], list[str]]:
    """Load a model whose files are intact; also returns the names of missing and of unexpected weights."""
    folder, device = model_folder(path_or_name), torch_device("auto" if device is None else device)
    try:
        # Weights are loaded from safetensors only: unpickling could run code.
        model, info = from_pretrained(
            loader, folder, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        reason = _failure_reason(folder, error)
        raise CheckpointError(f"no {what} could be loaded from {path_or_name}: {reason}") from error
    if lost := [name for name, weight in model.named_parameters() if weight.is_meta]:
        raise CheckpointError(f"no {what} could be loaded from {path_or_name}: no file holds the weights {lost[0]}")
    _check_finite(model, path_or_name)
    _check_whole_numbers(model, Path(folder))
    _use_ordinary_outputs(model)
    forget_lengths(model)
    return with_prefix(model).to(device).eval(), sorted(info["missing_keys"]), sorted(info["unexpected_keys"])


def _check_finite(model: PreTrainedModel, source: str | Path) -> None:
    """Raise a CheckpointError if a weight is not a finite number."""
    for name, weight in model.named_parameters():
        if type(weight) is not torch.nn.Parameter:  # of a library's quantization
            continue
        if weight.is_floating_point() and weight.numel() and not torch.stack(weight.aminmax()).isfinite().all():
            raise CheckpointError(
                f"the weights {name} of {source} hold numbers that are not finite; train or download it again"
            )


def _check_whole_numbers(model: PreTrainedModel, folder: Path) -> None:
    """Raise a CheckpointError if a file holds whole numbers for a weight that was loaded as another type.

    transformers loads quantized weights by their values where the configuration does not name the quantization.
    """
    floating = {name for name, weight in model.named_parameters() if weight.is_floating_point()}
    for file in sorted(folder.glob("*.safetensors")):
        whole: set[str] = set()
        with contextlib.suppress(SafetensorError, OSError), safe_open(file, "pt") as tensors:  # others were not read
            whole = {name for name in tensors.keys() if tensors.get_slice(name).get_dtype() in WHOLE}  # noqa: SIM118
        whole -= {name for name in whole if not {name, f"{model.base_model_prefix}.{name}"} & floating}
        if whole:
            raise CheckpointError(
                f"the weights {min(whole)} in {file} are whole numbers, and config.json has no quantization_config that says "
                "what they stand for; save the model in a type of floating point"
            )


def _use_ordinary_outputs(model: PreTrainedModel) -> None:
    """Reset settings of a stranger's model that change what ``forward()`` and ``generate()`` take and return."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.config.return_dict = True
    settings = getattr(model, "generation_config", None)
    for name in (name for name in GENERATION if name.endswith("_token_id")):
        value = getattr(settings, name, None)
        if not all(each is None or type(each) is int for each in (value if isinstance(value, list) else [value])):
            raise CheckpointError(f"the model's generation_config.json sets {name} to {value!r}, which is no token id")
    for name in vars(settings) if settings is not None else ():
        if not name.startswith("_") and name not in (*GENERATION, "transformers_version"):
            setattr(settings, name, None)


def load_tokenizer(path_or_name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a model's folder; CheckpointError if the folder has no tokenizer, or it cannot be loaded."""
    folder = model_folder(path_or_name)
    refuse_unreachable(folder)
    # transformers would create an empty tokenizer of the model's type if there is none.
    if Path(folder).is_dir() and not any((Path(folder) / name).exists() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"the model {path_or_name} has no tokenizer; save it to the model's folder with tokenizer.save_pretrained"
        )
    try:
        tokenizer = from_pretrained(AutoTokenizer, folder)
        tokenizer("a")  # settings of a wrong type are an error here, not when it is loaded
        return tokenizer
    except Exception as error:
        reason = failure_reason(error)
        raise CheckpointError(f"no tokenizer could be loaded from {path_or_name}: {reason}") from error
