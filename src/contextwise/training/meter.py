"""Counts what a run has spent and what it got for it: tokens, operations, seconds, loss."""

import time
from typing import Any

# Dense bf16 matrix throughput, FLOP/s, as the makers state it; for model FLOPs utilisation.
PEAK_FLOPS = {
    "H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L4": 121e12,
    "A10": 125e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12, "B200": 2250e12,
}  # fmt: skip


def peak_flops(gpu: str | None) -> float | None:
    """Peak of a GPU by its name, or None if it is not known (or there is none)."""
    return next((flops for name, flops in PEAK_FLOPS.items() if gpu and name in gpu), None)


class Meter:
    """Cumulative tokens, operations and training seconds, and the losses since the last row.

    Args:
        tokens_per_step: over all processes.
        flops_per_token: forward and backward.
        peak: FLOP/s of all the machine's accelerators together, or None.
    """

    def __init__(self, tokens_per_step: int, flops_per_token: float, peak: float | None) -> None:
        self.tokens_per_step, self.flops_per_token, self.peak = tokens_per_step, flops_per_token, peak
        self.steps = 0
        self.seconds = 0.0
        self._since: dict[str, Any] = _nothing()
        self._norm = 0.0
        self._clock: float | None = None

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_step

    @property
    def flops(self) -> float:
        return self.tokens * self.flops_per_token

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def start_clock(self) -> None:
        """From here on time counts as training (reading data included; evaluating and saving not)."""
        self._clock = time.perf_counter()

    def stop_clock(self) -> None:
        if self._clock is not None:
            spent = time.perf_counter() - self._clock
            self.seconds += spent
            self._since["seconds"] += spent
            self._clock = None

    def add_step(self, loss: float, norm: float, heads: list[float] | None = None) -> None:
        """A step is about to be taken: its mean loss (nats per target) and gradient norm.

        Args:
            heads: mean loss of each head, where a model predicts several tokens; the first is the next token's.
        """
        self.steps += 1
        since = self._since
        since["steps"] += 1
        since["loss"] += loss
        if heads:
            since["heads"] = [a + b for a, b in zip(since["heads"] or [0.0] * len(heads), heads, strict=True)]
        self._norm = norm

    def row(self, step: int, learning_rate: float) -> dict[str, Any]:
        """The row of the steps since the row before; begins a new count."""
        since = self._since
        seconds = since["seconds"] or float("nan")
        speed = since["steps"] * self.tokens_per_step / seconds
        self._since = _nothing()
        steps = max(1, since["steps"])
        losses: dict[str, Any] = {"loss": since["loss"] / steps}
        if since["heads"]:
            # `loss` is the next token's in every run, so that runs can be compared; what was minimised stands beside it.
            heads = [loss / steps for loss in since["heads"]]
            losses = {"loss": heads[0], "objective": losses["loss"], "head_losses": heads}
        return {
            "kind": "train",
            "step": step,
            **self._spent(),
            **losses,
            "grad_norm": self._norm,
            "learning_rate": learning_rate,
            "tokens_per_second": speed,
            "flops_per_second": speed * self.flops_per_token,
            "mfu": speed * self.flops_per_token / self.peak if self.peak else None,
        }

    def validation_row(self, step: int, loss: float) -> dict[str, Any]:
        return {"kind": "validation", "step": step, **self._spent(), "loss": loss}

    def _spent(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "flops": self.flops, "seconds": self.seconds}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"steps": self.steps, "seconds": self.seconds, "since": self._since, "norm": self._norm}

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        self.steps, self.seconds = state["steps"], state["seconds"]
        self._since, self._norm = _nothing() | state["since"], state["norm"]


def _nothing() -> dict[str, Any]:
    """The sums since the last row, before any step."""
    return {"steps": 0, "seconds": 0.0, "loss": 0.0, "heads": []}
