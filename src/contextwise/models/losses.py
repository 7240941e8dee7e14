"""Cross entropy over a large vocabulary without all logits in memory at once.

The logits of a training step (tokens x vocabulary) are by far its largest tensor. They are computed for a few hundred
positions at a time; the gradient with respect to hidden states and head is computed in the same pass as the loss, so no
piece is computed twice. ``benchmarks/linear_cross_entropy.py`` compares it with the full matrix and with torch's chunked
``linear_cross_entropy``, which is much slower on a CPU with a large vocabulary.

Shapes: N positions, D channels, V tokens in the vocabulary.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from contextwise.models.families import adapter
from contextwise.models.masks import (
    as_attention_mask,
    causal_mask,
    lengths_of_documents,
    prefix_attention,
    readable_without_sync,
    takes_masks,
)

IGNORED = -100
"""Targets with this value are ignored, as in torch and transformers."""


def rows_at_once(vocabulary: int, device: torch.device, least: int = 256) -> int:
    """Number of positions whose logits are computed together, at least ``least``: 8 MB of float32 on a CPU, 512 MB on a GPU."""
    elements = 2**21 if device.type == "cpu" else 2**27
    return max(least, elements // vocabulary)


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of products under autocast on a kind of device; None without autocast."""
    # torch's own question whether the device knows autocast ends a compiled graph before torch 2.13.
    known = device in ("cpu", "cuda") or torch.amp.is_autocast_available(device)
    return torch.get_autocast_dtype(device) if known and torch.is_autocast_enabled(device) else None


def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, needed: tuple[bool, bool]
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """The summed loss (), and its gradients in ``hidden`` and ``weight`` where they are needed; without autograd."""
    grad_hidden = torch.empty_like(hidden) if needed[0] else None
    grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    compute = autocast_dtype(hidden.device.type) or hidden.dtype
    matrix = weight.to(compute)
    rows = wide = rows_at_once(weight.shape[0], hidden.device)
    compiled = torch.compiler.is_compiling()
    if hidden.device.type == "cpu" and compute != torch.float32 and not compiled:
        # Of bf16 only as many rows are in float32 at a time as stay in the caches: half a MB for each thread.
        rows, wide = 2 * rows, max(1, 2**17 // weight.shape[0]) * torch.get_num_threads()
    rows = min(hidden.shape[0], rows)
    # All pieces share two buffers: on a CPU the first access to new memory costs more than the arithmetic on it.
    all_logits = hidden.new_empty((0 if compiled else rows, weight.shape[0]), dtype=compute)
    probabilities = torch.empty_like(all_logits[:wide], dtype=torch.float32)
    for start in range(0, hidden.shape[0], max(rows, 1)):
        x = hidden[start : start + rows].to(compute)
        y = targets[start : start + rows]
        counted = y.ne(IGNORED)
        index = y.where(counted, 0)[:, None]  # another negative id is out of range, as in torch
        if compiled:
            loss, grad = _fused_loss(x @ matrix.t(), index, counted)
        else:
            logits = torch.mm(x, matrix.t(), out=all_logits[: len(x)])
            loss, grad = _loss_in_pieces(logits, index, counted, probabilities, any(needed))
        total += loss
        # Rows that do not count are left out of the two products, which costs less than a pass over the gradient.
        counts = counted[:, None]
        if grad_hidden is not None:
            grad_hidden[start : start + rows] = (grad @ matrix) * counts
        if grad_weight is not None:
            if compute == torch.float32:
                grad_weight.addmm_(grad.t(), x * counts)
            else:
                grad_weight += grad.t() @ (x * counts)
    return total, (grad_hidden, grad_weight)


def _loss_in_pieces(
    logits: Tensor, index: Tensor, counted: Tensor, buffer: Tensor, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Sum of the losses of logits, and the gradient of all rows in their dtype; overwrites logits below float32.

    ``buffer`` is float32, for the probabilities of some rows at a time; of all rows if the logits are float32.
    """
    nats, low = torch.empty_like(counted, dtype=torch.float32), logits.dtype != torch.float32
    for start in range(0, len(logits), len(buffer)):
        part = slice(start, start + len(buffer))
        z, target = logits[part], index[part]
        if z.device.type == "cpu":
            z = z.float()  # as its softmax would do again; a GPU's reads bf16
        p = torch.softmax(z, -1, dtype=torch.float32, out=buffer[: len(z)])
        # The log of the partition function from the largest probability, which never underflows.
        nats[part] = z.amax(-1).float() - p.amax(-1).log() - z.gather(1, target)[:, 0].float()
        if gradient:
            p.scatter_add_(1, target, -torch.ones_like(target, dtype=torch.float32))
            if low:
                logits[part] = p
    return (nats * counted).sum(), logits if low else p


def _fused_loss(logits: Tensor, index: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the losses of logits, and the gradient of all rows in their dtype: two passes over the logits if compiled."""
    exact = logits.float()
    log_partition = exact.logsumexp(-1, keepdim=True)
    nats = (log_partition - exact.gather(1, index))[:, 0]
    is_target = torch.arange(logits.shape[1], device=logits.device) == index
    return (nats * counted).sum(), ((exact - log_partition).exp() - is_target.float()).to(logits.dtype)


class _LinearCrossEntropy(torch.autograd.Function):
    """Cross entropies of several ``hidden`` states with one head: their sum, and each.

    Gradients are computed in the forward pass. Those of the head are as large as its matrix: adding them immediately needs the
    memory of one; autograd would keep all.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, targets: list[Tensor], *hidden: Tensor) -> tuple[Tensor, Tensor]:
        ctx.needed = ctx.needs_input_grad[0], *ctx.needs_input_grad[2:]
        sums: list[Tensor] = []
        grads: list[Tensor | None] = [None] * len(ctx.needed)
        for i, (state, target) in enumerate(zip(hidden, targets, strict=True), start=1):
            total, (grads[i], grad) = _loss_and_gradients(state, weight, target, (ctx.needed[i], ctx.needed[0]))
            sums.append(total)
            if grad is not None:
                grads[0] = grad if (before := grads[0]) is None else before.add_(grad)
        ctx.save_for_backward(*(grad for grad in grads if grad is not None))
        ctx.dtypes = [tensor.dtype for tensor in (weight, *hidden)]
        sums_N = torch.stack(sums)
        ctx.mark_non_differentiable(sums_N)
        return sums_N.sum(), sums_N

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the saved gradients would count as constants
            raise RuntimeError("this loss is differentiable once; for second derivatives compute it from the logits")
        saved = iter(ctx.saved_tensors)
        weight, *hidden = (
            (next(saved) * grad_total).to(dtype) if needed else None
            for needed, dtype in zip(ctx.needed, ctx.dtypes, strict=True)
        )
        return weight, None, *hidden


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed cross entropy in nats of the head ``weight`` applied to ``hidden``.

    Args:
        hidden: (..., D).
        weight: (V, D), the vocabulary head.
        targets: (...) token ids, already shifted; -100 is ignored.

    Returns:
        A float32 scalar, differentiable once with respect to ``hidden`` and ``weight``.
    """
    return linear_cross_entropies([hidden], weight, [targets])[0]


def linear_cross_entropies(hidden: list[Tensor], weight: Tensor, targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of :func:`linear_cross_entropy` of several hidden states with one head, and that of each, (N,), detached."""
    hidden, targets = [x.reshape(-1, x.shape[-1]) for x in hidden], [y.reshape(-1) for y in targets]
    if not torch.compiler.is_compiling():
        return _LinearCrossEntropy.apply(weight, targets, *hidden)
    # torch 2.11 compiles a function of ours without its gradients, so here they are attached to the loss by a sum that is zero.
    sums = []
    for state, target in zip(hidden, targets, strict=True):
        with torch.no_grad():
            total, grads = _loss_and_gradients(state, weight, target, (state.requires_grad, weight.requires_grad))
        for tensor, grad in zip((state, weight), grads, strict=True):
            if grad is not None:
                slope = (tensor.float() * grad.float()).sum()
                total = total + (slope - slope.detach())
        sums.append(total)
    sums_N = torch.stack(sums)
    return sums_N.sum(), sums_N.detach()


def is_linear(head: Any) -> bool:
    """Whether a vocabulary head is torch's linear layer alone: an adapter, a hook or quantization computes other logits."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(head) is nn.Linear and "forward" not in vars(head) and not any(getattr(head, name) for name in hooks)


def head_loss(hidden: Tensor, head: Any, targets: Tensor) -> Tensor:
    """Summed cross entropy in nats of a vocabulary head: :func:`linear_cross_entropy`, or that of logits which are no product.

    Args:
        hidden: (..., D).
        targets: (...) token ids, already shifted; -100 is ignored.
    """
    if is_linear(head) and head.bias is None:
        return linear_cross_entropy(hidden, head.weight, targets)
    logits = head(hidden).flatten(0, -2).float()
    return nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def losses_of_heads(hidden: list[Tensor], heads: list[Any], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of :func:`head_loss` of several hidden states, each with its head, and that of each, (N,), detached."""
    first = heads[0]
    if is_linear(first) and first.bias is None and all(head is first for head in heads):
        return linear_cross_entropies(hidden, first.weight, targets)
    sums = torch.stack([head_loss(*each) for each in zip(hidden, heads, targets, strict=True)])
    return sums.sum(), sums.detach()


def kept_positions(logits_to_keep: int | Tensor) -> slice | Tensor:
    """Index of the positions whose logits are needed: this many last positions (0: all), or these indices."""
    return slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep


def final_hidden_states(model: PreTrainedModel, **inputs: Any) -> Tensor:
    """Compute the input of the vocabulary head, (B, T, D), of a stock transformers model or a model of this package.

    On an accelerator the blocks of a stock model are run one after another: the base model would read values to choose its
    mask.
    """
    if hasattr(model, "hidden_states"):
        return model.hidden_states(**inputs)
    ids, known = inputs.get("input_ids"), {"input_ids", "attention_mask", "position_ids"}
    own_way = (
        ids is not None and not readable_without_sync(ids) and takes_masks(model.config) and inputs.keys() <= known
    )
    if own_way and (family := adapter(model.config)) is not None:
        backbone, mask, positions = model.base_model, inputs.get("attention_mask"), inputs.get("position_ids")
        embeds = backbone.get_input_embeddings()(ids)
        mask = causal_mask(model.config, embeds, mask, positions, None)
        return family.norm(backbone, family.run_blocks(backbone, embeds, positions, mask)[0])
    if inputs.get("attention_mask") is None:
        inputs |= lengths_of_documents(inputs.get("position_ids"), model.config)
    return model.base_model(**inputs, use_cache=False).last_hidden_state


_plain_heads: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()


CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Settings of transformers' configurations that cap the logits."""


def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits equal head(hidden) but for rounding; some families scale or cap them. Measured once per model."""
    if model not in _plain_heads:
        head = model.get_output_embeddings()
        text = model.config.get_text_config()
        tokens = min(8, text.vocab_size, getattr(text, "max_position_embeddings", None) or 8)
        probe = torch.arange(tokens, device=model.device)[None]
        with torch.no_grad():
            expected = model(input_ids=probe, use_cache=False).logits
            try:
                logits = head(final_hidden_states(model, input_ids=probe))
                last_bits = 30 if expected.dtype == logits.dtype == torch.float32 else 2
                rounding = last_bits * torch.finfo(logits.dtype).eps * float(expected.abs().max())
                same = logits.shape == expected.shape and torch.allclose(
                    logits, expected.to(logits.dtype), atol=rounding, rtol=0
                )
            except (AttributeError, RuntimeError, TypeError):
                same = False
        # A cap of small logits is lost in rounding; those of later inputs are larger.
        capped = any(getattr(text, name, None) is not None for name in CAPS)
        _plain_heads[model] = same and not capped
    return _plain_heads[model]


@torch.no_grad()
def token_losses(
    model: PreTrainedModel,
    input_ids: Tensor,
    targets: Tensor,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    prefix: Tensor | None = None,
    **contexts: Tensor | None,
) -> Tensor:
    """Compute the loss of each target in nats, for any causal language model; logits are computed in pieces.

    Args:
        input_ids: (B, T).
        targets: (B, T), already shifted; positions with -100 get 0, and the head is not applied to them. Targets of a model on
            an accelerator may be on the CPU; if they are not, the head is applied to all positions, since choosing some would
            wait for the device.
        position_ids: (B, T) or None.
        attention_mask: (B, T) or None.
        prefix: (B, T), True at positions that see each other in both directions; in place of ``attention_mask``.
        contexts: further inputs of the model.

    Returns:
        (B, T) float32.
    """
    if prefix is not None:
        attention_mask = as_attention_mask(prefix_attention(prefix, position_ids), model)
    inputs = {"position_ids": position_ids, "attention_mask": attention_mask, **contexts}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    flat, device = targets.reshape(-1), input_ids.device
    known = readable_without_sync(flat)
    counted = flat.ne(IGNORED).nonzero()[:, 0] if known else torch.arange(len(flat), device=device)
    flat, counted = flat.to(device), counted.to(device)
    if has_plain_head(model):
        hidden = final_hidden_states(model, input_ids=input_ids, **inputs).flatten(0, 1)
        head = model.get_output_embeddings()
    else:
        hidden = model(input_ids=input_ids, use_cache=False, **inputs).logits.flatten(0, 1)
        head = nn.Identity()
    rows = rows_at_once(model.config.get_text_config().vocab_size, flat.device)
    losses = torch.zeros(flat.shape, dtype=torch.float32, device=flat.device)
    for piece in counted.split(rows):
        losses[piece] = nn.functional.cross_entropy(head(hidden[piece]).float(), flat[piece], reduction="none")
    return losses.view(targets.shape)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode; on exit, restore the mode of each module and the states of the random generators."""
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices={p.device for p in model.parameters() if p.is_cuda}):
        try:
            model.eval()
            yield
        finally:
            for module, training in modes.items():
                module.training = training
