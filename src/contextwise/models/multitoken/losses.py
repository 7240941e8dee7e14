"""The loss of multi-token prediction (objectives, Section 6.2.6)::

    L_MTP = - sum over heads k = 1..n, sum over t = 1..T-k of log P_k(x_{t+k} | x_1 .. x_t)

Heads are scored one after another, each in pieces (:func:`~contextwise.models.losses.linear_cross_entropy`), so only one
piece of one head's logits is in memory at a time.

Shapes: B rows, T positions, D channels, V tokens in the vocabulary, n heads.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from contextwise.models.losses import IGNORED, linear_cross_entropy


class FutureLoss(NamedTuple):
    """Summed cross entropies of the heads, in nats."""

    total: torch.Tensor
    """Sum over all heads and positions: a float32 scalar, differentiable."""
    head_sums: torch.Tensor
    """Sum of each head: (n,), detached."""
    head_targets: torch.Tensor
    """Number of targets of each head: (n,)."""


def future_targets(
    next_BT: torch.Tensor, future_tokens: int, position_ids: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Compute the targets of all heads from those of the next-token head.

    Args:
        next_BT: token t+1 at each position t; -100 is ignored.
        future_tokens: n.
        position_ids: (B, T) or (1, T), for packed documents: heads 2..n then have no targets after the end of the current
            document (the next-token head always has those of ``next_BT``).

    Returns:
        n tensors (B, T): head i has token t+i at position t, and -100 at the last i-1 positions, whose targets are beyond
        the window.
    """
    length = next_BT.shape[1]

    def shifted(x: torch.Tensor, ahead: int, fill: int) -> torch.Tensor:
        return nn.functional.pad(x[:, ahead:], (0, min(ahead, length)), value=fill)

    targets = [shifted(next_BT, ahead, IGNORED) for ahead in range(future_tokens)]
    if position_ids is None:
        return targets
    # The index of the first token of each token's document identifies the document.
    start_BT = torch.arange(length, device=position_ids.device) - position_ids
    beyond = length + 1
    return [
        target.masked_fill(shifted(start_BT, ahead, beyond) != start_BT, IGNORED) if ahead else target
        for ahead, target in enumerate(targets)
    ]


class _SharedHead(torch.autograd.Function):
    """Summed cross entropy of several hidden states with one vocabulary matrix, one after another.

    Each call of ``linear_cross_entropy`` computes a gradient as large as the matrix. Adding them immediately needs the
    memory of one; autograd would keep all n until the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, targets: list[torch.Tensor], *states: torch.Tensor) -> Any:
        ctx.needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[2:])
        sums, grads = [], []
        grad_weight: torch.Tensor | None = None
        leaf_weight = weight.detach().requires_grad_(ctx.needed[0])
        for state, target, needed in zip(states, targets, ctx.needed[1:], strict=True):
            leaf = state.detach().requires_grad_(needed)
            with torch.enable_grad():
                loss = linear_cross_entropy(leaf, leaf_weight, target)
            sums.append(loss.detach())
            leaves = [x for x in (leaf, leaf_weight) if x.requires_grad]
            computed = list(torch.autograd.grad(loss, leaves)) if leaves else []
            if needed:
                grads.append(computed.pop(0))
            if computed:
                grad_weight = computed[0] if grad_weight is None else grad_weight.add_(computed[0])
        ctx.save_for_backward(*([] if grad_weight is None else [grad_weight]), *grads)
        head_sums = torch.stack(sums)
        ctx.mark_non_differentiable(head_sums)
        return head_sums.sum(), head_sums

    @staticmethod
    def backward(ctx: Any, grad_total: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        # Multiplication by a float32 scalar keeps each gradient's data type.
        weight, *states = (next(saved) * grad_total if needed else None for needed in ctx.needed)
        return weight, None, *states


def future_loss(
    states: list[torch.Tensor], weights: list[torch.Tensor], targets: list[torch.Tensor]
) -> FutureLoss:
    """Compute the loss of each head.

    Args:
        states: input of each head's vocabulary matrix, (B, T, D).
        weights: vocabulary matrix of each head, (V, D); the same object for all heads that share it.
        targets: targets of each head, from :func:`future_targets`.
    """
    counts = torch.stack([target.ne(IGNORED).sum() for target in targets])
    shared = all(weight is weights[0] for weight in weights)
    # The gradients inside _SharedHead would break a compiled graph, which keeps one gradient of the matrix per head.
    if shared and not torch.compiler.is_compiling():
        total, head_sums = _SharedHead.apply(weights[0], targets, *states)
        return FutureLoss(total, head_sums, counts)
    sums = torch.stack(
        [linear_cross_entropy(h, w, y) for h, w, y in zip(states, weights, targets, strict=True)]
    )
    return FutureLoss(sums.sum(), sums.detach(), counts)
