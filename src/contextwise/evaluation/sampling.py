"""Settings of sampling from a model, which are checked without torch."""

from dataclasses import dataclass
from typing import Any

from contextwise.base.errors import ConfigError

LOWEST_TEMPERATURE = 1e-3
"""Logits that are divided by less overflow in half precision; below it the likeliest token is taken."""


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token; raises ConfigError for a temperature or seed out of range.

    ``temperature`` divides the logits: below 1 it favours likely tokens. Tokens are drawn from the ``top_k`` likeliest, or from
    the likeliest that together have the probability ``top_p``. With ``greedy`` the likeliest token is always chosen.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    greedy: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 1 / LOWEST_TEMPERATURE:
            raise ConfigError(f"the temperature is {self.temperature}, but must lie between 0 and 1000")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"the seed is {self.seed}, but must be a whole number from 0 on")

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``generate()``; they override the model's own sampling settings."""
        if self.greedy or self.temperature < LOWEST_TEMPERATURE:
            return {"do_sample": False, "num_beams": 1}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return {"do_sample": True, "num_beams": 1, **drawn}
