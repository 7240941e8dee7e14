"""Attention of models in one text, and each token's loss with and without the predicted context.

1. The text is tokenized once; the token that begins a document precedes it, as in training and scoring.
2. One pass with eager attention, the only implementation that returns its weights. A layer's weights are summed over their
   queries as soon as they are computed, so that only one layer's weights are in memory.
3. The loss of each token; for a ContextLM also with every injected context set to zero.

Source: ContextLM, Section 4.3 and Figure 5. The paper does not say how it normalises; here the sums over queries are kept, and
:func:`mean_received` divides by how many queries can see a token.

Shapes: T positions, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.evaluation.generation import start_token
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.scoring.windows import not_finite, vocabulary_size
from contextwise.models import token_losses
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.tokenizers import model_tokenizer_hash

MOST_MODELS = 4
MOST_TOKENS = 4096
"""Limits of a readable figure, and of weights (heads x T x T) that fit into memory."""
DEFAULT_CHUNK = 4
Received = Literal["mean", "sum"]
"""Attention that a token receives: the mean over the queries that can see it, or the sum."""


@dataclass(frozen=True)
class ModelReading:
    """Attention and losses of one model.

    Attributes:
        layers: for each layer (H, T), the attention weights of each token summed over the queries; T in all for each head.
            The blocks of a context predictor are left out.
        chunk_size: w of a ContextLM, else None.
        nats: (T,) loss of each token given those before it; nan for the first position.
        nats_without: the same with every injected context zero; None for a model that predicts no context.
    """

    source: str
    name: str
    parameters: int
    layers: list[np.ndarray]
    chunk_size: int | None
    nats: np.ndarray
    nats_without: np.ndarray | None

    @property
    def lens(self) -> np.ndarray | None:
        """(T,) nats by which a token's loss rises without the predicted context: positive where the context helped."""
        return None if self.nats_without is None else self.nats_without - self.nats

    def received(self, measure: Received = "mean") -> np.ndarray:
        """(T,) attention received by each token, mean over the heads of each layer and over the layers."""
        sums = np.mean([layer.mean(axis=0) for layer in self.layers], axis=0)
        return mean_received(sums) if measure == "mean" else sums


@dataclass(frozen=True)
class Reading:
    """A text, and the attention and losses of each model in it.

    Attributes:
        pieces: text of each token; together they are the text, after the token that begins it.
        ids: (T,) token ids.
        has_start: whether the first token precedes the text.
        chunk_size: tokens of a chunk in which attention is summed.
    """

    pieces: list[str]
    ids: list[int]
    has_start: bool
    chunk_size: int
    models: list[ModelReading]

    @property
    def chunks(self) -> np.ndarray:
        """(T,) the chunk of each position, counted from 0."""
        return np.arange(len(self.ids)) // self.chunk_size

    def chunk_sums(self, values: np.ndarray) -> np.ndarray:
        """(..., T) values summed over the tokens of each chunk, the unfinished last one included."""
        return np.add.reduceat(values, np.arange(0, values.shape[-1], self.chunk_size), axis=-1)


def mean_received(sums: np.ndarray) -> np.ndarray:
    """(..., T) sums over queries divided by how many queries can see each token: T - j for token j, itself included."""
    length = sums.shape[-1]
    return sums / (length - np.arange(length))


def read_with_models(
    sources: Sequence[str],
    text: str,
    *,
    context_chunk: int | None = None,
    start: bool = True,
    dtype: str = "auto",
    device: str = "auto",
) -> Reading:
    """Compute the attention and losses of models in a text.

    Args:
        sources: runs, Hugging Face model folders, or names on the Hub; one to four, with the same tokenizer.
        context_chunk: tokens of a chunk; by default that of the ContextLM among the models, else 4.
        start: put the token that begins a document before the text, if the tokenizer has one.
    """
    if not 1 <= len(sources) <= MOST_MODELS:
        raise ConfigError(f"{len(sources)} models are given; give one to {MOST_MODELS}")
    if context_chunk is not None and context_chunk < 1:
        raise ConfigError(f"context_chunk is {context_chunk}, but must be at least 1")
    subjects = [Subject(source, dtype=dtype, device=device) for source in sources]
    ids, pieces, has_start = _tokens(subjects, text, start)
    models = []
    for subject, name in zip(subjects, _names(subjects), strict=True):
        _check_fits(subject, ids, has_start)
        models.append(read_with(subject.model, ids, subject.source, name))
        del subject.model  # one model at a time
    sizes = {model.chunk_size: model.name for model in models if model.chunk_size is not None}
    if len(sizes) > 1 and context_chunk is None:
        (first, name), (second, other) = list(sizes.items())[:2]
        raise ConfigError(
            f"{name} has chunks of {first} tokens and {other} of {second}; choose with context_chunk which to show"
        )
    return Reading(pieces, ids, has_start, context_chunk or next(iter(sizes), DEFAULT_CHUNK), models)


@contextmanager
def without_context(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block no context is added to the hidden states, in any form of injection and at any layer.

    The weights, the token encoder and norms behind it are unchanged. Positions before w - 1, which otherwise add ``c_init``,
    add nothing either (ContextLM, Eq. 5 with every context zero).

    Raises:
        ConfigError: the model predicts no context.
    """
    pathway = context_pathway(model)
    if pathway is None:
        raise ConfigError(f"a {type(model).__name__} predicts no context that could be switched off")
    handle = pathway.gate.register_forward_hook(lambda module, inputs, added: torch.zeros_like(added))
    try:
        yield
    finally:
        handle.remove()


def read_with(model: PreTrainedModel, ids: Sequence[int], source: str, name: str) -> ModelReading:
    """Compute the attention and losses of a loaded model, which keeps eager attention."""
    model.set_attn_implementation("eager")
    input_ids = torch.tensor([list(ids)], device=model.device)
    pathway = context_pathway(model)
    sums = attention_sums(model, input_ids)
    if not sums:
        raise CheckpointError(
            f"{source} gives no attention weights: models of type {model.config.model_type} do not return them; give another"
        )
    inside = {id(module) for module in ([] if pathway is None else pathway.modules())}
    nats_without = None
    if pathway is not None:
        with without_context(model):
            nats_without = _losses(model, input_ids, source)
    return ModelReading(
        source,
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        layers=[received for module, received in sums if id(module) not in inside],
        chunk_size=None if pathway is None else pathway.chunk_size,
        nats=_losses(model, input_ids, source),
        nats_without=nats_without,
    )


@torch.no_grad()
def attention_sums(model: PreTrainedModel, input_ids: torch.Tensor) -> list[tuple[nn.Module | None, np.ndarray]]:
    """Attention weights of a model with eager attention, summed over the queries of ``input_ids`` (1, T).

    Each attention module in the order in which they run (None if unknown), and (H, T) float32; empty without weights.
    """
    stock: Any = model
    while hasattr(stock, "backbone"):  # the models here are compositions around a stock one
        stock = stock.backbone
    # The classes whose second output transformers records as attention weights; some families have no such table.
    recorded = (getattr(stock, "_can_record_outputs", None) or {}).get("attentions", [])
    recorded = recorded if isinstance(recorded, list) else [recorded]
    classes: list[Any] = [getattr(entry, "target_class", entry) for entry in recorded]
    sums: list[tuple[nn.Module | None, np.ndarray]] = []

    def take(module: nn.Module | None, inputs: Any, output: Any) -> None:
        weights_BHTT = output[1]
        if weights_BHTT is not None:
            sums.append((module, weights_BHTT[0].float().sum(dim=-2).cpu().numpy()))

    if not classes or not all(isinstance(kind, type) for kind in classes):
        for weights in model(input_ids, output_attentions=True, use_cache=False).attentions or ():
            take(None, None, (None, weights))
        return sums
    kinds: tuple[type[nn.Module], ...] = tuple(classes)
    modules = [module for module in model.modules() if isinstance(module, kinds)]
    handles = [module.register_forward_hook(take) for module in modules]
    try:
        model(input_ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return sums


def _losses(model: PreTrainedModel, input_ids: torch.Tensor, source: str) -> np.ndarray:
    nats = token_losses(model, input_ids[:, :-1], input_ids[:, 1:])[0].cpu().numpy()
    if not np.isfinite(nats).all():
        raise not_finite(f"{source} gives losses that are not finite")
    return np.concatenate([[np.nan], nats])


def _tokens(subjects: Sequence[Subject], text: str, start: bool) -> tuple[list[int], list[str], bool]:
    """Token ids, the text of each, and whether the first precedes the text."""
    if not text.strip():
        raise DataError("the text is empty; give some words")
    tokenizers, sources = [s.tokenizer for s in subjects], [s.source for s in subjects]
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}  # as documents are read
    every = [tokenizer(text, **options).input_ids for tokenizer in tokenizers]
    hashes = [model_tokenizer_hash(source) for source in sources]
    begins = [start_token(tokenizer) if start else None for tokenizer in tokenizers]
    for source, ids, digest, begin in zip(sources, every, hashes, begins, strict=True):
        if (ids, begin) != (every[0], begins[0]) or len({digest, hashes[0]} - {None}) > 1:
            raise ConfigError(
                f"{sources[0]} and {source} have different tokenizers, so their tokens cannot be compared; give models "
                "with the same one"
            )
    pieces, ids = token_pieces(tokenizers[0], every[0]), every[0]
    if begins[0] is not None:
        pieces, ids = [str(tokenizers[0].convert_ids_to_tokens(begins[0])), *pieces], [begins[0], *ids]
    if len(ids) < 2:
        raise DataError("the text is a single token, which has nothing to attend to; give a longer one")
    return ids, pieces, begins[0] is not None


def token_pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], before: int = 8) -> list[str]:
    """The text that each token adds; of the tokens of one character, the last adds all of it.

    Each is decoded with ``before`` tokens before it: some tokenizers leave out a space before the first token.
    """

    def decode(low: int, high: int) -> str:
        return tokenizer.decode(ids[low:high], clean_up_tokenization_spaces=False).rstrip("\ufffd")

    pieces, shown = [], 0
    for end in range(1, len(ids) + 1):
        low = max(0, min(shown, end - before))
        pieces.append(decode(low, end)[len(decode(low, shown)) :])
        shown = end if pieces[-1] else shown
    return pieces


def _check_fits(subject: Subject, ids: list[int], has_start: bool) -> None:
    source, limit, has = subject.source, subject.positions, f"the text has {len(ids):,} tokens"
    if limit is not None and len(ids) > limit:
        counted = " with the one that begins it" if has_start else ""
        raise DataError(f"{has}{counted}, but {source} has only {limit:,} positions; shorten the text")
    if len(ids) > MOST_TOKENS:
        raise DataError(f"{has}, but a page shows {MOST_TOKENS:,} at most; shorten it")
    vocabulary = vocabulary_size(subject.model)
    if max(ids) >= vocabulary:
        raise CheckpointError(
            f"the tokenizer of {source} gives token id {max(ids)}, but its model knows only {vocabulary}; save the tokenizer "
            "that the model was trained with beside it"
        )


def _names(subjects: Sequence[Subject]) -> list[str]:
    """Name of each model: a run's name, else its folder's; its source where two have the same name."""

    def name(subject: Subject) -> str:
        recipe = subject.run.recipe() if subject.run else {}
        path = Path(subject.source)
        return str(recipe.get("name") or path.resolve().name if path.exists() else subject.source)

    names = [name(subject) for subject in subjects]
    return [s.source if names.count(n) > 1 else n for n, s in zip(names, subjects, strict=True)]
