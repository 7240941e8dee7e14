"""The losses of the pretraining objectives, for each kind of model; the vocabulary head only where there is a target.

A batch is a dictionary of tensors as :mod:`contextwise.objectives.objective` describes them. Losses come as sums with their
counts, so that a step of several batches, on several processes, has the mean over all of its targets.

Shapes: B rows, T positions, U target positions of a decoder behind an encoder, D channels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask

from contextwise.base.errors import ConfigError
from contextwise.models.kinds import kind_of
from contextwise.models.losses import IGNORED, final_hidden_states, linear_cross_entropy
from contextwise.models.multitoken import MultiTokenForCausalLM

Batch = dict[str, torch.Tensor]


@dataclass
class Losses:
    """The losses of a batch, part by part. The first part is that of the tokens; what is minimised is the sum of all.

    Attributes:
        names: ``("tokens",)``; with a pair head ``("tokens", "pair")``; with n heads ``("tokens", "head_2", ..., "head_n")``;
            ``("sentences",)`` where a sentence is rebuilt as a whole.
        sums: nats, (P,), differentiable.
        counts: targets of each part, (P,).
    """

    names: tuple[str, ...]
    sums: torch.Tensor
    counts: torch.Tensor

    def minimised(self, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of all parts, the tokens' (of every head) over ``targets``, that of the pairs over the pairs.

        Args:
            targets: what to divide by, for a batch that is a share of a larger step; the batch's own targets, if not given.
        """
        targets = self.counts[0] if targets is None else targets
        # Every head's sum is divided by the number of the next token's targets (objectives, Section 6.2.6).
        divisors = [self.counts[i] if name == "pair" else targets for i, name in enumerate(self.names)]
        return sum(one / divisor.clamp(min=1e-6) for one, divisor in zip(self.sums, divisors, strict=True))  # type: ignore[return-value]


def pretraining_losses(model: Any, batch: Batch) -> Losses:
    """The losses of a batch.

    Args:
        model: a causal or masked language model, or an encoder-decoder, of transformers or of this package; or a model with a
            method ``pretraining_losses`` of its own.
        batch: ``input_ids``, ``labels`` and whatever else the objective's examples have.
    """
    if hasattr(model, "pretraining_losses"):
        return model.pretraining_losses(batch)
    kind = kind_of(model.config)
    if kind == "encoder":
        return _encoder_losses(model, batch)
    if kind == "encoder-decoder":
        return _encoder_decoder_losses(model, batch)
    return _decoder_losses(model, batch)


def _decoder_losses(model: Any, batch: Batch) -> Losses:
    labels, inputs = batch["labels"], {}
    if "position_ids" in batch:
        inputs["position_ids"] = batch["position_ids"]
    if "prefix" in batch:
        allowed = prefix_attention(batch["prefix"], batch.get("position_ids"))
        inputs["attention_mask"] = as_attention_mask(allowed, model)
    if model.training and isinstance(model, MultiTokenForCausalLM):
        found = model.multi_token_loss(batch["input_ids"], labels, **inputs)
        names = ("tokens", *(f"head_{i}" for i in range(2, len(found.head_sums) + 1)))
        # The heads' own sums are for the log; what is minimised carries the gradient.
        sums = found.head_sums + (found.total - found.total.detach()) / len(names)
        return Losses(names, sums, found.head_targets)
    hidden = final_hidden_states(model, input_ids=batch["input_ids"], **inputs)
    return _of_tokens(*_labelled(hidden, labels, dense="prefix" not in batch), model.get_output_embeddings())


def _encoder_losses(model: Any, batch: Batch) -> Losses:
    inputs = {name: batch[name] for name in ("token_type_ids", "position_ids") if name in batch}
    mask = batch.get("attention_mask")
    if "position_ids" in batch:
        mask = as_attention_mask(_same_document(batch["position_ids"])[:, None], model)
    out = model.base_model(input_ids=batch["input_ids"], attention_mask=mask, **inputs)
    hidden, labels = _labelled(out.last_hidden_state, batch["labels"], dense=False)
    head = model.cls.predictions
    losses = _of_tokens(head.transform(hidden), labels, head.decoder)
    if "pair_label" not in batch:
        return losses
    pair = nn.functional.cross_entropy(
        model.cls.seq_relationship(out.pooler_output).float(), batch["pair_label"], reduction="sum"
    )
    rows = losses.counts.new_full((), len(batch["pair_label"]))
    return Losses(
        ("tokens", "pair"), torch.stack([losses.sums[0], pair]), torch.stack([losses.counts[0], rows])
    )


def _encoder_decoder_losses(model: Any, batch: Batch) -> Losses:
    mask = batch.get("attention_mask")
    read = model.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    hidden = model.decoder(
        input_ids=model._shift_right(batch["labels"]),
        encoder_hidden_states=read,
        encoder_attention_mask=mask,
        use_cache=False,
    ).last_hidden_state
    if model.config.scale_decoder_outputs:
        hidden = hidden * model.config.d_model**-0.5
    return _of_tokens(hidden, batch["labels"], model.lm_head)


def _labelled(hidden: torch.Tensor, labels: torch.Tensor, dense: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Only the positions with a target, unless all have one: the head is the larger part of a small model's work."""
    if dense:
        return hidden, labels
    wanted = labels.ne(IGNORED)
    return hidden[wanted], labels[wanted]


def losses_of_tokens(hidden: torch.Tensor, labels: torch.Tensor, head: Any) -> Losses:
    """The losses of labels (B, T), already shifted, -100 where there is none, given hidden states (B, T, D) of a decoder."""
    return _of_tokens(*_labelled(hidden, labels, dense=False), head)


def _of_tokens(hidden: torch.Tensor, labels: torch.Tensor, head: Any) -> Losses:
    if head.bias is None:
        total = linear_cross_entropy(hidden, head.weight, labels)
    else:
        total = nn.functional.cross_entropy(
            head(hidden).flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
    return Losses(("tokens",), total[None], labels.ne(IGNORED).sum()[None])


def prefix_attention(prefix_BT: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
    """Which positions see which (objectives, Section 6.2.4): what stands before them, and within a prefix all of it.

    Args:
        prefix_BT: True at the positions of the prefix.
        position_ids: (B, T), where documents are packed and do not see each other.

    Returns:
        (B, 1, T, T) booleans, queries before keys.
    """
    length = prefix_BT.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=prefix_BT.device).tril()
    allowed = causal_TT | (prefix_BT[:, :, None] & prefix_BT[:, None, :])
    if position_ids is not None:
        allowed = allowed & _same_document(position_ids)
    return allowed[:, None]


def _same_document(position_ids: torch.Tensor) -> torch.Tensor:
    """(B, T, T): a document begins where positions begin again."""
    document = position_ids.eq(0).cumsum(1)
    return document[:, :, None] == document[:, None, :]


def as_attention_mask(allowed: torch.Tensor, model: Any) -> Any:
    """Booleans (B, 1, T, T), True: may see, as the model's attention takes them.

    Raises:
        ConfigError: it takes no masks of this form.
    """
    implementation = model.config._attn_implementation
    if implementation == "sdpa":
        return allowed
    if implementation == "eager":
        return torch.zeros_like(allowed, dtype=model.dtype).masked_fill(
            ~allowed, torch.finfo(model.dtype).min
        )
    if implementation == "flex_attention":
        rows, _, queries, keys = allowed.shape
        return create_block_mask(
            lambda row, _, query, key: allowed[row, 0, query, key],
            rows,
            None,
            queries,
            keys,
            str(allowed.device),
        )
    raise ConfigError(
        f"attention {implementation!r} takes no prefixes and no packed documents; use sdpa, flex_attention or eager"
    )
