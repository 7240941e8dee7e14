"""Attention of models in one text, T positions, H heads; by one pass with eager attention, which alone returns its weights.

Source: ContextLM, Section 4.3 and Figure 5. The paper does not say how it normalises; here the sums over queries are kept, and
:func:`mean_received` divides by how many queries can see a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.evaluation.generation import start_token
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.scoring.windows import not_finite, vocabulary_size
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.tokenizers import model_tokenizer_hash

MOST_MODELS = 4
MOST_TOKENS = 1024
"""Limits of a readable figure, and of weights (layers x heads x T x T) that fit into memory."""
DEFAULT_CHUNK = 4


@dataclass(frozen=True)
class ModelReading:
    """Attention of one model: for each layer (H, T), a context predictor's left out, the weights summed over the queries.

    ``chunk_size`` is w of a ContextLM, else None.
    """

    source: str
    name: str
    layers: list[np.ndarray]
    chunk_size: int | None

    def received(self) -> np.ndarray:
        """(T,) attention received by each token, mean over the heads of each layer and over the layers."""
        return mean_received(np.mean([layer.mean(axis=0) for layer in self.layers], axis=0))


@dataclass(frozen=True)
class Reading:
    """A text, and the attention of each model in it.

    ``pieces`` of the tokens are together the text, after the token that begins it, if there is one (``has_start``).
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
    """Compute the attention of models in a text; ``context_chunk`` is by default that of the ContextLM among them, else 4."""
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


@torch.no_grad()
def read_with(model: PreTrainedModel, ids: Sequence[int], source: str, name: str) -> ModelReading:
    """Compute the attention of a loaded model, which keeps eager attention."""
    model.set_attn_implementation("eager")
    weights = model(torch.tensor([list(ids)], device=model.device), output_attentions=True, use_cache=False).attentions
    if not weights or any(weights_BHTT is None for weights_BHTT in weights):
        raise CheckpointError(
            f"{source} gives no attention weights: models of type {model.config.model_type} do not return them; give another"
        )
    layers = [weights_BHTT[0].float().sum(dim=-2).cpu().numpy() for weights_BHTT in weights]
    if not all(np.isfinite(layer).all() for layer in layers):
        raise not_finite(f"{source} gives attention weights that are not finite")
    pathway = context_pathway(model)
    return ModelReading(source, name, layers, None if pathway is None else pathway.chunk_size)


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
