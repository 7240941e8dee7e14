"""How a predicted context is added to the hidden states (ContextLM, Section 2.2.3, Eq. 5).

Every form gives what is added to h. The gated forms and the projection start at zero: the model then computes exactly what
its backbone computes. Plain addition is the form that the paper prints; small models stall with it, because a context
gathers the gradient of w tokens, grows first, and drowns the token in the next norm.

Shapes: contexts are (..., D), n is the number of places where the context is injected.
"""

import torch
from torch import nn
from torch.nn import functional


class Injection(nn.Module):
    """Base of the forms with parameters; ``weight`` starts at ``initial``."""

    initial = 0.0

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, self.initial))


class Gate(Injection):
    """``g * c``: one learned factor for each channel, zero at the start. (n, D) parameters."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__(places, width)

    def forward(self, context: torch.Tensor, place: int) -> torch.Tensor:
        return context * self.weight[place]


class ScalarGate(Gate):
    """``g * c`` with one factor for all channels, zero at the start. (n, 1) parameters."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__(places, 1)


class NormGate(Gate):
    """``g * rms(c)``: a gate on the context scaled to root mean square 1."""

    def forward(self, context: torch.Tensor, place: int) -> torch.Tensor:
        return functional.rms_norm(context, context.shape[-1:]) * self.weight[place]


class NormAddition(NormGate):
    """``g * rms(c)`` whose factors start at 0.02, the scale of a fresh embedding: a norm before adding."""

    initial = 0.02


class Projection(Injection):
    """``W c`` with a matrix for each place, zero at the start. (n, D, D) parameters."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__(places, width, width)

    def forward(self, context: torch.Tensor, place: int) -> torch.Tensor:
        return functional.linear(context, self.weight[place])


class PlainAddition(nn.Module):
    """``c`` as it is: the paper's element-wise addition."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()

    def forward(self, context: torch.Tensor, place: int) -> torch.Tensor:
        return context


INJECTIONS: dict[str, type[nn.Module]] = {
    "gate": Gate,
    "scalar_gate": ScalarGate,
    "norm_gate": NormGate,
    "projection": Projection,
    "add": PlainAddition,
    "norm_add": NormAddition,
}
