"""The metrics of a run: tokens, operations and seconds so far, losses, and the rows of ``metrics.jsonl``."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from contextwise.base.errors import DivergedError

# Dense bf16 matrix throughput, FLOP/s, from the manufacturers' datasheets (half of what they print for sparse matrices); for
# model FLOPs utilization. The first name in a GPU's own counts: "H100" alone is the SXM module ("NVIDIA H100 80GB HBM3"). A
# GPU of a laptop, or of the series D, is slower than its namesake.
PEAK_FLOPS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12,
    "H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L4": 121e12,
    "A10": 125e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12, "B200": 2250e12, "GH200": 989e12,
}  # fmt: skip


def peak_flops(gpu: str | None) -> float | None:
    """Peak FLOP/s of a GPU by its name; None if unknown, or without a GPU."""
    found = (name for name in PEAK_FLOPS if gpu and re.search(rf"\b{name}\b(?! (D|Laptop)\b)", gpu))
    return next((PEAK_FLOPS[name] for name in found), None)


COST = ("tokens", "input_tokens", "target_tokens", "flops", "seconds")
"""Keys of a row of ``metrics.jsonl`` about the run so far."""


@dataclass
class Sums:
    """Sums over the steps since the last row."""

    steps: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    targets: int = 0
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class MetricsState:
    """What a checkpoint keeps of the metrics."""

    steps: int = 0
    seconds: float = 0.0
    input_tokens: int = 0  # so far, without padding, including those of an encoder-decoder's decoder
    target_tokens: int = 0
    trunk: dict[str, Any] | None = None  # from which this run branched off: path, step, tokens, FLOPs and seconds
    since: Sums = field(default_factory=Sums)  # sums since the last row
    norm: float = 0.0  # of the newest gradient


@dataclass(kw_only=True)
class RunMetrics(MetricsState):
    """Cumulative tokens, operations and training seconds, and the losses since the last row."""

    examples_per_step: int
    example_tokens: int  # tokens of an example: `data.context`
    # Of each stage: its examples, and the operations of one of them, forward and backward, without the vocabulary head.
    example_flops: Sequence[tuple[int, float]]
    flops_per_target: float  # of the vocabulary head, per target token
    peak: float | None  # total peak FLOP/s of all accelerators
    clock: float | None = None  # when training time began to count; None while it does not

    @property
    def tokens(self) -> int:
        return self.steps * self.examples_per_step * self.example_tokens

    @property
    def flops(self) -> float:
        return self._flops_before(self.steps) + self.target_tokens * self.flops_per_target

    def _flops_before(self, step: int) -> float:
        """Operations of the first steps without the vocabulary head."""
        examples, flops = step * self.examples_per_step, 0.0
        for stage, each in self.example_flops:
            flops += min(examples, stage) * each
            examples = max(0, examples - stage)
        return flops

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None

    def start_clock(self) -> None:
        """Count the time from now on as training time (including data loading, excluding evaluation and saving)."""
        self.clock = time.perf_counter()

    def stop_clock(self) -> None:
        if self.clock is not None:
            spent = time.perf_counter() - self.clock
            self.seconds += spent
            self.since.seconds += spent
            self.clock = None

    def add_step(self, loss: float, norm: float, inputs: int, targets: int, parts: dict[str, float]) -> None:
        """Add a step that is about to be taken: the minimized loss in nats, the norm of the gradient, and numbers of tokens.

        ``parts`` is the mean loss of each part of an objective with several parts, the token loss first.
        """
        self.steps += 1
        self.input_tokens += inputs
        self.target_tokens += targets
        since, self.norm = self.since, norm
        since.steps += 1
        since.loss += loss
        since.targets += targets
        for name, value in parts.items():
            since.parts[name] = since.parts.get(name, 0.0) + value

    def training_row(self, step: int, learning_rate: float) -> dict[str, Any]:
        """The row of the steps since the last one; resets the sums."""
        since = self.since
        seconds = since.seconds
        first = self.steps - since.steps
        examples = since.steps * self.examples_per_step
        flops = self._flops_before(self.steps) - self._flops_before(first) + since.targets * self.flops_per_target
        self.since = Sums()
        steps = max(1, since.steps)
        losses: dict[str, Any] = {"loss": since.loss / steps}
        if since.parts:
            # `loss` is the token loss in every run, so that runs can be compared; `objective` is the minimized loss.
            parts = {name: loss / steps for name, loss in since.parts.items()}
            losses = {"loss": parts["tokens"], "objective": losses["loss"], "parts": parts}
        rates = {
            "grad_norm": self.norm,
            "learning_rate": learning_rate,
            "tokens_per_second": examples * self.example_tokens / seconds if seconds else None,  # of a coarse clock
            "flops_per_second": flops / seconds if seconds else None,
            "mfu": flops / seconds / self.peak if seconds and self.peak else None,
        }
        return self.row("train", step, losses | rates)

    def row(self, kind: str, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """A row of ``metrics.jsonl``: the cost of the run so far, and values; a :class:`DivergedError` if one is not finite."""
        try:
            json.dumps(values, allow_nan=False)
        except ValueError:
            raise DivergedError(
                f"the {kind} loss at step {step} is not a finite number; a lower training.learning_rate or a longer warm-up is "
                "the usual fix, in another run folder"
            ) from None
        return {"kind": kind, "step": step, **{name: getattr(self, name) for name in COST}, **values}

    def branch(self, trunk: str) -> None:
        """Note that all steps so far are those of the run ``trunk``."""
        self.trunk = {
            "path": trunk,
            "step": self.steps,
            "tokens": self.tokens,
            "flops": self.flops,
            "seconds": self.seconds,
        }

    def state(self) -> dict[str, Any]:
        """The :class:`MetricsState` that a checkpoint keeps, as JSON."""
        whole = asdict(self)
        return {each.name: whole[each.name] for each in fields(MetricsState)}

    def restore(self, state: Any) -> None:
        """Inverse of :meth:`state`."""
        for name, value in state.items():
            setattr(self, name, value)
        self.since = Sums(**state["since"])
