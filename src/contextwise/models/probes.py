"""Probes, on short rows, whether a model has the loss of training and reads packed documents and prefixes as training asks.

Not all models use the positions or the mask that say so; some fail, others are trained causally on whole rows. A loss of some
positions has a gradient in the embeddings of exactly those tokens that they see. The model is unchanged afterwards: its modes,
its gradients, and the state of the random generator.

Shapes: B = 2 rows, T positions, D channels.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from contextwise.base.errors import ContextwiseError
from contextwise.models.losses import IGNORED, evaluation_mode
from contextwise.models.spec import Batch, pretraining_losses

ROWS, LENGTH, HALF = 2, 8, 4


@torch.no_grad()
def has_known_loss(model: Any) -> bool:
    """Whether training has the loss of the logits that a stock encoder or encoder-decoder computes by itself."""
    ids = _rows(model)
    given = {"labels": ids} if model.config.is_encoder_decoder else {}
    try:
        with evaluation_mode(model):
            out = model(input_ids=ids, **given)
            total = pretraining_losses(model, {"input_ids": ids, "labels": ids}).sums[0]
    except (AttributeError, TypeError, ValueError):
        return False
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(), reduction="sum")
    return torch.allclose(total, expected, rtol=1e-3)


def keeps_documents_apart(model: Any, prefix: bool = False) -> bool:
    """Whether the second of two packed documents, each with a ``prefix`` or not, does not see the first."""
    half_T = torch.arange(HALF).repeat(2)
    batch = {"position_ids": half_T[None]} | ({"prefix": half_T[None] < HALF // 2} if prefix else {})
    seen_T = _seen_from(model, batch, slice(HALF, LENGTH))
    return seen_T is not None and not seen_T[:HALF].any()


def reads_prefixes(model: Any) -> bool:
    """Whether the positions of a prefix see each other in both directions, and those behind it, and it, see none after them."""
    batch = {"prefix": torch.arange(LENGTH)[None] < HALF}
    first_T, behind_T = (_seen_from(model, batch, slice(at, at + 1)) for at in (0, HALF))
    if first_T is None or behind_T is None:
        return False
    return bool(first_T[1:HALF].any() and not first_T[HALF:].any() and not behind_T[HALF + 1 :].any())


def _seen_from(model: Any, batch: Batch, positions: slice) -> Tensor | None:
    """Which tokens (T,) the loss at positions of a row depends on; None if the model fails on such a batch."""
    ids = _rows(model)
    labels = torch.full_like(ids, IGNORED)
    labels[:, positions] = 0
    batch = {name: tensor.expand(ROWS, -1).to(ids.device) for name, tensor in batch.items()}
    batch |= {"input_ids": ids, "labels": labels}
    try:
        with evaluation_mode(model), _embeddings(model) as leaves, torch.enable_grad():
            total = pretraining_losses(model, batch).sums[0]
            gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    except ContextwiseError:
        raise
    except Exception:
        return None
    size_T = torch.stack([gradient.float().abs().amax((0, 2)) for gradient in gradients]).amax(0)
    return size_T != 0  # masked scores have probabilities of zero, and so have their gradients


def _rows(model: Any) -> Tensor:
    """Tokens (B, T), as different as the vocabulary allows."""
    ids = torch.arange(ROWS * LENGTH, device=model.get_input_embeddings().weight.device)
    return ids.view(ROWS, LENGTH) % model.config.get_text_config().vocab_size


@contextlib.contextmanager
def _embeddings(model: Any) -> Iterator[list[Tensor]]:
    """The outputs (B, T, D) of the token embedding, as leaves of the graph, in the order of its calls."""
    leaves: list[Tensor] = []

    def as_leaf(module: Any, given: Any, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1].clone()  # some models scale it in place

    hook = model.get_input_embeddings().register_forward_hook(as_leaf)
    try:
        yield leaves
    finally:
        hook.remove()
