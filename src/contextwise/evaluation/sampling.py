"""Settings of sampling from a model, which are checked without torch."""

from dataclasses import dataclass
from typing import Any

from contextwise.base.errors import ConfigError

LOWEST_TEMPERATURE = 1e-3
"""Logits that are divided by less overflow in half precision; below it the likeliest token is taken."""
LIMITS = {"temperature": (0, 1000), "top_k": (1, 2**31), "top_p": (1e-6, 1), "seed": (0, 2**63 - 1)}


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token; raises ConfigError for a value out of range.

    ``temperature`` divides the logits: below 1 it favours likely tokens. Tokens are drawn from the ``top_k`` likeliest, or from
    the likeliest that together have the probability ``top_p``. With ``greedy`` the likeliest token is always chosen.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    greedy: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"the {name} is {value}, but must lie between {low} and {high}")

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``generate()``; they override the model's own sampling settings."""
        if self.greedy or self.temperature < LOWEST_TEMPERATURE:
            return {"do_sample": False, "num_beams": 1}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return {"do_sample": True, "num_beams": 1, **drawn}
