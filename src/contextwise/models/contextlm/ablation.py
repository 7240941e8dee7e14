"""Switch off the predicted context of a ContextLM: the same weights, without what the gate adds."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.pathway import ContextPathway


def context_pathway(model: nn.Module) -> ContextPathway | None:
    """The context pathway of a model, or of the ContextLM inside it; None if it has none."""
    return next((module for module in model.modules() if isinstance(module, ContextPathway)), None)


@contextlib.contextmanager
def without_context(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block no context is added to the hidden states, in any form of injection and at any layer.

    The weights and the token encoder are unchanged. Positions before w - 1, which otherwise add ``c_init = h_0``, add
    nothing either (ContextLM, Eq. 5 with every context zero).

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
