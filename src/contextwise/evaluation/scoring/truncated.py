"""Losses and features of the same targets with contexts truncated to each length.

A loss measured over windows confounds the effect of a longer context with the choice of tokens that have one. Here the targets
are chosen once, each with at least the longest context before it in its document, and each is predicted once per context
length l, from the nearest l tokens only (intrinsic entropy, Section 2.2.2). A start token precedes them where
one is given.

So a target costs l tokens at each l. *Bands* cost 8: the targets are chosen in blocks of consecutive tokens, and a window of l
tokens predicts up to l/8 of them, which see between 7l/8 + 1 and l tokens. Below 16 tokens a band is one target.

Legend of shapes: B windows in a batch, W targets of a window, D channels, V tokens in the vocabulary, N targets.
"""

import inspect
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.evaluation.kernel.subject import DEFAULT_BATCH_TOKENS, positions
from contextwise.evaluation.scoring.windows import Documents, check_ids, evaluating, not_finite, vocabulary_size
from contextwise.models.masks import as_attention_mask, prefix_attention
from contextwise.models.prefix import reads_prefix

Features = Literal["last"] | int | None


@dataclass(frozen=True)
class Targets:
    """Tokens to predict, in the order of the corpus: the document's index, and the number of tokens before it; (N,) int64.

    They come in blocks of ``block`` consecutive tokens, a power of two; 1 for targets that are predicted alone.
    """

    document: np.ndarray
    position: np.ndarray
    block: int = 1

    def band(self, context: int) -> int:
        """Targets of a window of ``context`` tokens: a power of two, at most an eighth of it and at most a block."""
        return min(self.block, power_of_two(max(1, context // 8)))

    def __len__(self) -> int:
        return len(self.position)


def power_of_two(limit: int) -> int:
    """The largest power of two up to ``limit``, which is at least 1."""
    return 1 << limit.bit_length() - 1


@dataclass(frozen=True)
class TruncatedBatch:
    """Targets ``start`` to ``stop`` (not included), predicted by windows of ``context`` tokens.

    ``nats`` are (stop - start,) float32. ``features``, (B, D), are the hidden states from which they are predicted, on the
    model's device, if requested.
    """

    context: int
    start: int
    stop: int
    nats: np.ndarray
    features: torch.Tensor | None


def choose_targets(
    corpus: Documents, longest: int, samples: int, seed: int, limit: int | None = None, block: int = 1
) -> Targets:
    """Draw ``samples`` targets without replacement from the tokens with at least ``longest`` before them in their document.

    If fewer are eligible, all of them are used. ``block`` draws whole blocks of so many consecutive tokens, a power of two up
    to a 32nd of ``longest``, of which the last has ``longest`` tokens before it.
    """
    check_longest(corpus, longest, limit)
    lengths = np.asarray(corpus.lengths[:limit], dtype=np.int64)
    first = longest - block + 1
    eligible = np.maximum(0, lengths - first) // block
    totals = np.cumsum(eligible)
    draw, count = np.random.default_rng(seed), int(totals[-1])
    chosen = np.sort(draw.choice(count, size=min(-(-samples // block), count), replace=False)).astype(np.int64)
    document = np.searchsorted(totals, chosen, side="right").astype(np.int64)
    start = (chosen - (totals - eligible)[document]) * block + first
    return Targets(np.repeat(document, block), (start[:, None] + np.arange(block)).ravel(), block)


def check_longest(corpus: Documents, longest: int, limit: int | None = None, positions: int | None = None) -> None:
    """Raise a DataError if no document is longer than a context, with the model's ``positions`` if those are too few, too."""
    lengths = np.asarray(corpus.lengths[:limit])
    if longest >= (longest_document := int(lengths.max(initial=0))):
        few = (
            f", and the model has positions for {positions:,}" if positions is not None and longest > positions else ""
        )
        raise DataError(
            f"no document has a token with {longest:,} tokens before it: the longest of the {len(lengths):,} documents has "
            f"{longest_document:,} tokens{few}; give shorter contexts, or a corpus of longer documents"
        )


def truncated_passes(
    model: PreTrainedModel,
    corpus: Documents,
    targets: Targets,
    contexts: Sequence[int],
    *,
    start: int | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    features: Features = None,
    done: Mapping[int, int] | None = None,
) -> Generator[TruncatedBatch, None, None]:
    """Predict every target from the nearest l tokens, for each l of ``contexts``; batches in the order of the targets.

    All targets, or the last of each block, need the longest context before them. ``start`` is the id of a token before every
    window, which takes a position. ``features`` are ``last``, the input of the vocabulary head, or a number i, the input of
    block i, as in transformers' ``hidden_states``. ``done`` maps a context to its targets that are skipped.
    """
    before = [] if start is None else [start]
    limit, longest = positions(model.config), max(contexts)
    if features is not None and targets.block > 1:
        raise ConfigError(
            f"features are of targets alone, but these are in blocks of {targets.block}; choose blocks of 1"
        )
    if limit is not None and longest + len(before) > limit:
        what = "a context" if start is None else "a start token and a context"
        raise ConfigError(
            f"{what} of {longest:,} tokens do{'es' * (start is None)} not fit the model, which has {limit:,} positions; give "
            f"contexts of at most {limit - len(before):,}{', or --no-bos' * len(before)}"
        )
    rows_of_logits = max(1, (2**24 if model.device.type == "cpu" else 2**27) // vocabulary_size(model))
    device = next(model.parameters()).device
    with evaluating(model):
        for context in contexts:
            band = targets.band(context)
            rows = max(1, min(batch_tokens // context, rows_of_logits // band))
            for start in range((done or {}).get(context, 0), len(targets), rows * band):
                stop = min(start + rows * band, len(targets))
                # The last target of each window; its row is the visible tokens, and the target after them.
                document_B, end_B = (
                    array[start + band - 1 : stop : band] for array in (targets.document, targets.position)
                )
                tokens_BT = np.empty((len(end_B), len(before) + context + 1), dtype=np.int64)
                for row_T, document, end in zip(tokens_BT, document_B.tolist(), end_B.tolist(), strict=True):
                    row_T[: len(before)] = before
                    row_T[len(before) :] = corpus.document(document)[end - context : end + 1]
                check_ids(model, tokens_BT, document_B)
                nats_BW, features_BD = predict_last(model, torch.from_numpy(tokens_BT).to(device), features, band)
                batch = TruncatedBatch(context, start, stop, nats_BW.flatten().cpu().numpy(), features_BD)
                quantity, finite_B = "loss", np.isfinite(batch.nats)
                if finite_B.all() and features_BD is not None:
                    quantity, finite_B = "feature", torch.isfinite(features_BD).all(dim=1).cpu().numpy()
                if not finite_B.all():
                    worst = start + int(finite_B.argmin())
                    location = f"token {int(targets.position[worst])} of document {int(targets.document[worst])}"
                    visible = f"with {context - band + 1 + worst % band:,} tokens visible"
                    raise not_finite(f"the model's {quantity} is not finite at {location}, {visible}")
                yield batch


@torch.inference_mode()
def predict_last(
    model: PreTrainedModel, tokens_BT: torch.Tensor, layer: Features, band: int = 1
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Losses (B, W) float32 of the last ``band`` tokens of each row, and the features (B, D) of the very last prediction."""
    options: dict[str, Any] = {"use_cache": False}
    visible_BT = tokens_BT[:, :-1]
    if reads_prefix(model.config):  # what the first of the targets sees
        prefix_T = torch.arange(visible_BT.shape[1], device=visible_BT.device) <= visible_BT.shape[1] - band
        options["attention_mask"] = as_attention_mask(prefix_attention(prefix_T.expand_as(visible_BT)), model)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = band
    if isinstance(layer, int):
        options["output_hidden_states"] = True
    watched = model.get_output_embeddings() if layer == "last" else None
    caught: list[torch.Tensor] = []

    def catch(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].dim() == 3:
            caught.append(inputs[0][:, -1].clone())

    handle = None if watched is None else watched.register_forward_pre_hook(catch)
    try:
        output = model(input_ids=visible_BT, **options)
    finally:
        if handle is not None:
            handle.remove()
    logits, targets_BW = output.logits[:, -band:].flatten(0, 1).float(), tokens_BT[:, -band:]
    nats_BW = torch.nn.functional.cross_entropy(logits, targets_BW.flatten(), reduction="none").view_as(targets_BW)
    if layer is None:
        return nats_BW, None
    if isinstance(layer, int) and (states := getattr(output, "hidden_states", None)):
        if layer >= len(states):
            raise ConfigError(
                f"the layer is {layer}, but the model has hidden states 0 (the embeddings) to {len(states) - 1} (what its "
                "head reads)"
            )
        return nats_BW, states[layer][:, -1].clone()
    if not caught:
        raise CheckpointError(
            "the model returns no hidden states, so it has no features to measure; use a model of transformers "
            "that returns them (output_hidden_states)"
        )
    return nats_BW, caught[-1]
