"""Settings of sampling from a model, which are checked without torch."""

from dataclasses import dataclass
from typing import Any

from contextwise.base.errors import ConfigError

LOWEST_TEMPERATURE = 1e-3
"""Logits that are divided by less overflow in half precision."""


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token; raises ConfigError for a value out of range.

    Attributes:
        temperature: divides the logits; below 1 favours likely tokens.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the likeliest tokens that together have this probability only.
        seed: the same seed produces the same text on the same machine.
        greedy: always choose the likeliest token; the other settings then have no effect.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.temperature == 0:
            object.__setattr__(self, "greedy", True)
        elif not LOWEST_TEMPERATURE <= self.temperature <= 1 / LOWEST_TEMPERATURE:
            raise ConfigError(
                f"the temperature is {self.temperature}, but must be 0, for the likeliest token, or lie between "
                f"{LOWEST_TEMPERATURE} and {1 / LOWEST_TEMPERATURE:g}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top-k is {self.top_k}, but must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p is {self.top_p}, but must lie between 0 and 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"the seed is {self.seed}, but must be a whole number from 0 on")

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``generate()``; they override the model's own sampling settings."""
        if self.greedy:
            return {"do_sample": False, "num_beams": 1}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return {"do_sample": True, "num_beams": 1, **drawn}
