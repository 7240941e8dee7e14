"""The hidden states of any layer of any text model: encoders, decoders (ContextLM, too), the encoder of an encoder-decoder.

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

_NO_LIMIT = 10**9  # what tokenizers without a limit of their own say is far above this


def text_kind(config: PreTrainedConfig) -> Kind:
    """The kind of a model that reads text; an encoder that was cut out of an encoder-decoder counts as one of those.

    Raises:
        CheckpointError: a model of something else than text.
    """
    kind = kind_of(config)
    if kind == "encoder" or (kind == "decoder" and type(config) in AutoModelForCausalLM._model_mapping):
        return kind
    if type(config) in AutoModelForSeq2SeqLM._model_mapping:
        return "encoder-decoder"
    raise CheckpointError(
        f"a model of type {config.model_type!r} is no encoder, decoder or encoder-decoder of text, which is needed here"
    )


def load_text_model(
    path_or_name: str | Path, dtype: torch.dtype | None = None, device: str | torch.device | None = None
) -> PreTrainedModel:
    """Load what hidden states are read from: a causal language model, an encoder, or an encoder-decoder.

    Args:
        path_or_name: a run folder, a Hugging Face model folder, or a name on the Hub (needs a network).
        dtype: of the weights; as saved if None.
        device: where to put it; a GPU if there is one, if None.

    Raises:
        CheckpointError: there is no such model, it is damaged or incomplete, or it does not read text.
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
    # A pooler or a decoder that is not there has been made up, and is not read here; any other weight must be there.
    missing = {key: key.split(".")[0] for key in sorted(info["missing_keys"])}
    needed = [key for key, part in missing.items() if part not in ("pooler", "decoder")]
    if needed:
        raise CheckpointError(f"the model {path_or_name} lacks weights, {needed[0]} for one; fetch it again")
    if "pooler" in missing.values():
        model.pooler = None
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def position_limit(model: Any) -> int | None:
    """Tokens that the model has positions for; None if nothing limits them."""
    limits = [
        getattr(part, "max_position_embeddings", None)
        for part in (model.config, model.config.get_text_config())
    ]
    limit = next((limit for limit in limits if limit is not None), None)
    for name, module in model.named_modules():
        # RoBERTa and its kin count positions from the one behind padding's.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.num_embeddings - module.padding_idx - 1
    return limit


def usual_limit(model: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The most tokens that model and tokenizer are made for; None if neither sets a limit."""
    own = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    return min((limit for limit in (position_limit(model), own) if limit is not None), default=None)


class Layer:
    """Reads the output of one layer.

    Layer 0 is what the first block reads (in a ContextLM that injects there: with the context added), layer i the output of
    block i, and the last layer what the model's head reads, behind the final norm where there is one. A multi-token model is
    read as far as its next-token head.

    Args:
        model: any text model of transformers or of this package; of an encoder-decoder the encoder is read.
        number: which layer; None for the last.

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
                f"the layer is {number}, but this model has the layers 0 (its embeddings) to {self.last}; name one of those"
            )

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, T, D) of tokens (B, T) that are padded on the right; what stands at padding means nothing."""
        if self.blocks is not None:
            # In a causal model nothing reaches back from the padding behind a row, and without a mask all rows are alike.
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
        with _caught(blocks, self.number) as states:
            final_hidden_states(self.model, input_ids=input_ids)
        return states[0]


def _layer_count(config: Any) -> int:
    count = getattr(config, "num_hidden_layers", None)
    return count if count is not None else config.get_text_config().num_hidden_layers


@contextmanager
def _caught(blocks: list[nn.Module], number: int) -> Iterator[list[torch.Tensor]]:
    """What the first block is given (0), or what block ``number`` gives, of one forward pass."""
    states: list[torch.Tensor] = []

    def given(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        states.append(arguments[0])

    def gives(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    hook = (
        blocks[0].register_forward_pre_hook(given)
        if number == 0
        else blocks[number - 1].register_forward_hook(gives)
    )
    try:
        yield states
    finally:
        hook.remove()
