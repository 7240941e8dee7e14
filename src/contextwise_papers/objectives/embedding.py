"""Text embeddings: one vector per text, pooled from a model's hidden states (objectives, Sections 6.2.1 and 6.2.2).

The state at [CLS], the mean over all tokens except padding, or for a causal model the last token, the only one that depends
on the whole text. Without further training none of these is a semantic embedding.

Shapes: N texts, B texts of a batch, T positions, D channels.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.files import atomic_file, exclusive
from contextwise.measures import positions
from contextwise.models import final_hidden_states, load_config, load_model
from contextwise.models.loading import Device, generates, kind_of, load_without_heads
from contextwise.models.rope import same_frequencies_up_to
from contextwise.models.tokenizers import Frame
from contextwise.objectives import Kind
from contextwise.settings import CheckpointError, ConfigError, DataError

_NO_LIMIT = 10**9  # tokenizers without a limit report a length far above this


def text_kind(config: PreTrainedConfig) -> Kind:
    """The kind of a text model, an encoder or a decoder; CheckpointError for another model."""
    kind = kind_of(config)
    if kind == "encoder" or (kind == "decoder" and generates(config)):
        return kind
    raise CheckpointError(
        f"a model of type {config.model_type!r} is not supported; use an encoder or a decoder of text"
    )


def load_text_model(
    path_or_name: str | Path, dtype: torch.dtype | None = None, device: Device = None
) -> PreTrainedModel:
    """Load a decoder or an encoder to compute hidden states; arguments and errors as for :func:`load_model`."""
    if text_kind(load_config(path_or_name)) == "decoder":
        return load_model(path_or_name, dtype=dtype, device=device)
    model, missing = load_without_heads(AutoModel, "model", path_or_name, dtype, device)
    if any(name.split(".")[0] == "pooler" for name in missing):
        model.pooler = None
    return model


def position_limit(model: Any) -> int | None:
    """The number of positions of a model; None if unlimited."""
    for name, module in model.named_modules():
        # RoBERTa and similar models count positions from the one after padding's.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.num_embeddings - module.padding_idx - 1
    return positions(model.config)


def last_states(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The hidden states (B, T, D) that a model's head reads, of right-padded tokens (B, T); meaningless at padding."""
    inputs = {"input_ids": input_ids}
    if not hasattr(model, "blocks"):  # in ours, which are causal, right padding does not affect the tokens before it
        inputs["attention_mask"] = attention_mask
    if text_kind(model.config) == "decoder":
        return final_hidden_states(model, **inputs)
    return model.base_model(**inputs).last_hidden_state


Pooling = Literal["cls", "mean", "last"]
DEFAULT_POOLING: dict[Kind, Pooling] = {"encoder": "mean", "decoder": "last"}
"""The mean for encoders: it needs no sentence-pair objective, which most encoders after
BERT dropped (Section 6.2.2). The last token for decoders: the early tokens of a causal model do not depend on the rest of
the text."""

BATCHES_AT_ONCE = 64  # batches of texts that are tokenized and sorted by length together
ONE_SHAPE_TOKENS = 256
"""Tokens of a batch whose shape depends on the length of its texts alone: as fast on a CPU as larger batches, within 10%."""


class Embedder:
    """Embeds texts as vectors.

    Args:
        model: an encoder or a decoder, in evaluation mode.
        pooling: ``cls``, ``mean`` or ``last``; by default that of the model's kind.
        batch_size: texts per forward pass, padded to the longest; the vectors depend on it in their last bits only. None: a
            vector depends on its text alone, to the last bit, because texts of each length have batches of one shape.
        max_tokens: length to which longer texts are cut (``was_cut``), special tokens included; by default the model's limit.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: Pooling | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
    ) -> None:
        kind = text_kind(model.config)
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.pooling: Pooling = pooling or DEFAULT_POOLING[kind]
        self.frame = Frame.of(tokenizer, kind)
        if self.pooling not in get_args(Pooling):
            raise ConfigError(f"the pooling is {self.pooling!r}; choose cls, mean or last")
        if self.pooling == "cls" and kind == "decoder":
            raise ConfigError(
                "the pooling is cls, but in a decoder the first token does not see the text; choose last or mean"
            )
        if self.pooling == "cls" and tokenizer.cls_token_id not in self.frame.around(tokenizer("").input_ids):
            raise ConfigError(
                "the pooling is cls, but the tokenizer adds no [CLS] token before a text; choose mean or last"
            )
        self.max_tokens = self._limit(max_tokens)
        self.was_cut: list[bool] = []

    @property
    def _special(self) -> int:
        """The number of special tokens of a text."""
        return len(self.frame) + self.tokenizer.num_special_tokens_to_add()

    def _limit(self, max_tokens: int | None) -> int | None:
        """The length to which texts are truncated: as given, or the smaller limit of model and tokenizer."""
        limit = position_limit(self.model)
        if max_tokens is None:
            tokenizer_limit = self.tokenizer.model_max_length
            limits = (limit, tokenizer_limit if tokenizer_limit < _NO_LIMIT else None)
            return min((each for each in limits if each is not None), default=None)
        if limit is not None and max_tokens > limit:
            raise ConfigError(
                f"max tokens is {max_tokens}, but the model has positions for {limit}; choose at most {limit}"
            )
        if max_tokens <= self._special:
            raise ConfigError(
                f"max tokens is {max_tokens}, which leaves no space for text beside {self._special} special tokens; "
                f"choose at least {self._special + 1}"
            )
        return max_tokens

    @torch.no_grad()
    def blocks(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Embed texts in order, and yield the vectors of one group of texts at a time: float32, (group, D)."""
        left, mixed_up_to = iter(texts), same_frequencies_up_to(self.model)
        while group := list(islice(left, BATCHES_AT_ONCE * (self.batch_size or 64))):
            tokens = self.tokens(group)
            order = np.argsort([-len(ids) for ids in tokens], kind="stable")
            kinds = [max(mixed_up_to if self.batch_size else 0, len(ids)) for ids in tokens]
            alike = [list(each) for _, each in groupby(order, kinds.__getitem__)]
            vectors_ND = np.concatenate(
                [vectors for each in alike for vectors in self._batches([tokens[i] for i in each])]
            )
            if not np.isfinite(vectors_ND).all():
                raise ConfigError(
                    f"a vector is not finite: {str(self.model.dtype).removeprefix('torch.')} is not precise enough for "
                    "this model, or its weights are damaged; try float32"
                )
            yield vectors_ND[np.argsort(order)]

    def _batches(self, tokens: list[list[int]]) -> Iterator[np.ndarray]:
        """Pool texts that a batch may have together, (B, D) of each batch."""
        size = self.batch_size or max(1, ONE_SHAPE_TOKENS // len(tokens[0]))
        for start in range(0, len(tokens), size):
            batch = tokens[start : start + size]
            filled = batch if self.batch_size else [*batch, *batch[:1] * (size - len(batch))]
            yield self._vectors(filled)[: len(batch)]

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, truncated, with special tokens."""
        seen = len(self.was_cut)
        for i, text in enumerate(texts, start=seen + 1):
            if not text or text.isspace():
                raise DataError(f"text {i:,} is empty; remove it")
        limit = None if self.max_tokens is None else self.max_tokens - len(self.frame)
        tokens: list[list[int]] = []
        for i, (text, ids) in enumerate(zip(texts, self.tokenizer(texts, verbose=False).input_ids, strict=True)):
            if not ids:
                raise DataError(f"text {seen + i + 1:,} has no tokens; remove it")
            self.was_cut.append(limit is not None and len(ids) > limit)
            cut = self.was_cut[-1]
            tokens.append(self.tokenizer(text, truncation=True, max_length=limit).input_ids if cut else ids)
        highest, vocabulary = max(chain(*tokens)), self.model.get_input_embeddings().num_embeddings
        if highest >= vocabulary:
            raise ConfigError(
                f"the tokenizer produces the token {highest}, but the model has only {vocabulary} tokens; "
                "use the tokenizer that belongs to the model"
            )
        return [self.frame.around(ids) for ids in tokens]

    def _vectors(self, tokens: list[list[int]]) -> np.ndarray:
        """Pool one batch of texts: (B, D), float32."""
        device = self.model.device
        # Any token can pad on the right: nothing attends to it, and earlier positions do not change.
        ids_BT = pad_sequence([torch.tensor(ids) for ids in tokens], batch_first=True)
        lengths_B = torch.tensor([len(ids) for ids in tokens])
        real_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        states_BTD = last_states(self.model, ids_BT.to(device), real_BT.long().to(device)).float()
        if self.pooling == "mean":
            kept_BTD = states_BTD.masked_fill(~real_BT.to(device)[..., None], 0.0)
            vectors_BD = kept_BTD.sum(1) / lengths_B.to(device)[:, None]
        else:
            first = self.tokenizer.cls_token_id
            at = [len(ids) - 1 if self.pooling == "last" else ids.index(first) for ids in tokens]
            positions_B = torch.tensor(at)
            vectors_BD = states_BTD[torch.arange(len(tokens), device=device), positions_B.to(device)]
        return vectors_BD.cpu().numpy()


def normalized(vectors_ND: np.ndarray) -> np.ndarray:
    """Vectors scaled to length 1, in their precision; a vector of zeros stays one."""
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=-1, keepdims=True), 1e-12)


def write_vectors(path: Path, vectors_ND: np.ndarray) -> None:
    """Write vectors as float32 to a ``.npy`` file, atomically."""
    vectors_ND = np.ascontiguousarray(vectors_ND, "<f4")
    with exclusive(path, "the vectors", wait=True), atomic_file(path, "the vectors") as file:
        # numpy.save does not notice that the last bytes of a real file found no room on the disk.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(vectors_ND))
        file.write(vectors_ND.data)
