"""Hidden states of any layer of encoders, decoders (also ContextLM) and the encoder of encoder-decoders.

Shapes: B rows, T positions, D channels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.models.kinds import kind_of
from contextwise.models.loading import failure_reason, load_config, load_model, model_folder
from contextwise.models.losses import final_hidden_states
from contextwise.objectives.kind import Kind

_NO_LIMIT = 10**9  # tokenizers without a limit report a length far above this


def text_kind(config: PreTrainedConfig) -> Kind:
    """Return the kind of a text model; the encoder of an encoder-decoder, saved alone, counts as an encoder-decoder.

    Raises:
        CheckpointError: it is not a text model.
    """
    kind = kind_of(config)
    if kind == "encoder" or (kind == "decoder" and type(config) in AutoModelForCausalLM._model_mapping):
        return kind
    if type(config) in AutoModelForSeq2SeqLM._model_mapping:
        return "encoder-decoder"
    raise CheckpointError(
        f"a model of type {config.model_type!r} is not supported; use an encoder, decoder or encoder-decoder of text"
    )


def load_text_model(
    path_or_name: str | Path, dtype: torch.dtype | None = None, device: str | torch.device | None = None
) -> PreTrainedModel:
    """Load a causal language model, an encoder or an encoder-decoder to compute hidden states.

    Args:
        path_or_name: a run folder, a Hugging Face model folder, or a name on the Hub (needs a network).
        dtype: data type of the weights; by default as saved.
        device: device of the model; by default a GPU if available.

    Raises:
        CheckpointError: the model does not exist, is damaged or incomplete, or is not a text model.
    """
    if text_kind(load_config(path_or_name)) == "decoder":
        return load_model(path_or_name, dtype=dtype, device=device)
    folder = model_folder(path_or_name)
    try:
        model, info = AutoModel.from_pretrained(
            folder, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        raise CheckpointError(
            f"no model could be loaded from {path_or_name}: {failure_reason(folder, error)}"
        ) from error
    # A missing pooler or decoder was initialized at random, and is not used; any other missing weight is an error.
    missing = {key: key.split(".")[0] for key in sorted(info["missing_keys"])}
    required = [key for key, part in missing.items() if part not in ("pooler", "decoder")]
    if required:
        raise CheckpointError(
            f"the model {path_or_name} lacks weights such as {required[0]}; download it again"
        )
    if "pooler" in missing.values():
        model.pooler = None
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def position_limit(model: Any) -> int | None:
    """The number of positions of a model; None if unlimited."""
    limits = [
        getattr(part, "max_position_embeddings", None)
        for part in (model.config, model.config.get_text_config())
    ]
    limit = next((limit for limit in limits if limit is not None), None)
    for name, module in model.named_modules():
        # RoBERTa and similar models count positions from the one after padding's.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.num_embeddings - module.padding_idx - 1
    return limit


def usual_limit(model: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The smaller of the length limits of model and tokenizer; None if neither has one."""
    tokenizer_limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    limits = (position_limit(model), tokenizer_limit)
    return min((limit for limit in limits if limit is not None), default=None)


class Layer:
    """Computes the hidden states of one layer.

    Layer 0 is the input of the first block (with the context added, in a ContextLM that injects before it), layer i the
    output of block i, and the last layer the input of the model's head, after the final norm if there is one. In a
    multi-token model the last layer is the input of the next-token head.

    Args:
        model: any text model of transformers or of this package; for an encoder-decoder, its encoder is used.
        number: index of the layer; None for the last.

    Raises:
        ConfigError: the model has no such layer.
    """

    def __init__(self, model: Any, number: int | None = None) -> None:
        self.kind = text_kind(model.config)
        self.model = model.get_encoder() if self.kind == "encoder-decoder" else model
        self.blocks = getattr(model, "blocks", None)
        self.last = len(self.blocks) if self.blocks is not None else _layer_count(self.model.config)
        self.number = self.last if number is None else number
        if not 0 <= self.number <= self.last:
            raise ConfigError(
                f"the layer is {number}, but this model has the layers 0 (its embeddings) to {self.last}; choose one of them"
            )

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, T, D) of right-padded tokens (B, T); the states at padding are meaningless."""
        if self.blocks is not None:
            # In a causal model right padding does not affect the tokens before it, so no mask is needed.
            return self._of_blocks(input_ids, self.blocks)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.number < self.last:
            return self.model.base_model(**inputs, output_hidden_states=True).hidden_states[self.number]
        if self.kind == "decoder":
            return final_hidden_states(self.model, **inputs)
        return self.model.base_model(**inputs).last_hidden_state

    def _of_blocks(self, input_ids: torch.Tensor, blocks: list[nn.Module]) -> torch.Tensor:
        if self.number == self.last:
            return final_hidden_states(self.model, input_ids=input_ids)
        with _captured(blocks, self.number) as states:
            final_hidden_states(self.model, input_ids=input_ids)
        return states[0]


def _layer_count(config: Any) -> int:
    count = getattr(config, "num_hidden_layers", None)
    return count if count is not None else config.get_text_config().num_hidden_layers


@contextmanager
def _captured(blocks: list[nn.Module], number: int) -> Iterator[list[torch.Tensor]]:
    """Capture the input of the first block (0) or the output of block ``number`` during one forward pass."""
    states: list[torch.Tensor] = []

    def capture_input(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        states.append(arguments[0])

    def capture_output(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    hook = (
        blocks[0].register_forward_pre_hook(capture_input)
        if number == 0
        else blocks[number - 1].register_forward_hook(capture_output)
    )
    try:
        yield states
    finally:
        hook.remove()
