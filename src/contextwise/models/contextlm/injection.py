"""Injections of a predicted context into the hidden states (ContextLM, Section 2.2.3, Eq. 5).

Every form returns the term that is added to h. The gated forms and the projection are zero-initialized: the model then
starts identical to its backbone. Plain addition is the paper's form; small models stall with it, because a context
accumulates the gradient of w tokens, grows first, and dominates the token in the next norm.

Shapes: contexts are (..., D), n is the number of layers before which the context is injected.
"""

import torch
from torch import nn
from torch.nn import functional


class Injection(nn.Module):
    """Base class of the forms with parameters; ``weight`` is initialized to ``initial``."""

    initial = 0.0

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, self.initial))


class Gate(Injection):
    """``g * c``: one learned factor per channel, zero-initialized. (n, D) parameters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width)

    def forward(self, context: torch.Tensor, layer: int) -> torch.Tensor:
        return context * self.weight[layer]


class ScalarGate(Gate):
    """``g * c`` with one factor for all channels, zero-initialized. (n, 1) parameters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, 1)


class NormGate(Gate):
    """``g * rms(c)``: a gate on the context scaled to root mean square 1."""

    def forward(self, context: torch.Tensor, layer: int) -> torch.Tensor:
        return functional.rms_norm(context, context.shape[-1:]) * self.weight[layer]


class NormAddition(NormGate):
    """``g * rms(c)`` with factors initialized to 0.02, the scale of a new embedding."""

    initial = 0.02


class Projection(Injection):
    """``W c`` with one matrix per injected layer, zero-initialized. (n, D, D) parameters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width, width)

    def forward(self, context: torch.Tensor, layer: int) -> torch.Tensor:
        return functional.linear(context, self.weight[layer])


class PlainAddition(nn.Module):
    """``c`` unchanged: the paper's element-wise addition."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()

    def forward(self, context: torch.Tensor, layer: int) -> torch.Tensor:
        return context


INJECTIONS: dict[str, type[nn.Module]] = {
    "gate": Gate,
    "scalar_gate": ScalarGate,
    "norm_gate": NormGate,
    "projection": Projection,
    "add": PlainAddition,
    "norm_add": NormAddition,
}
