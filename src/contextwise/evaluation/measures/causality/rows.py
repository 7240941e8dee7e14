"""Rows of random tokens for the measurement of a model, and the forward passes on them.

Shapes: N rows, T positions, V tokens of vocabulary.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contextwise.base.errors import ConfigError

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest effect that counts as rounding, as a share of the largest logit (for gradients: of the largest allowed gradient).

Whole rows, padded rows and pieces go through kernels that add up in different orders, so rounding depends on the form.
"""

ALL_CUTS = 32
"""Rows of up to this many tokens are cut at every position, longer rows around chunk borders."""
LONGEST = 1024
LOGITS_AT_ONCE = 2**26  # 256 MB in float32
REFUSALS = (NotImplementedError, TypeError, ValueError)  # raised by models that do not accept an input


class NotApplicable(Exception):
    """Raised if a perturbation does not apply to a model; the message is the reason."""


@dataclass(frozen=True)
class Form:
    """Layout of a row (``plain``, ``left-padded`` or ``packed``), and the further inputs of the model, (1, T) each.

    ``first`` is the first column that is not padding, ``border`` the one at which the second of two packed documents begins.
    """

    name: str
    inputs: dict[str, torch.Tensor]
    first: int = 0
    border: int = 0

    def of(self, rows: int) -> dict[str, torch.Tensor]:
        """The inputs for a number of rows."""
        return {name: tensor.expand(rows, -1) for name, tensor in self.inputs.items()}


class Rows:
    """Model, and the rows of tokens on which it is measured; the arguments are those of ``measure_causality``.

    ``inner`` is the uncompiled model.
    """

    def __init__(
        self, model: Any, lengths: Sequence[int] | None, chunk_size: int | None, tolerance: float | None, seed: int
    ) -> None:
        config: Any = getattr(model, "config", None)
        known = all(hasattr(model, name) for name in ("forward", "modules", "get_input_embeddings"))
        if not known or not hasattr(config, "is_encoder_decoder"):
            raise ConfigError(
                f"{type(model).__name__} is not a transformers model; give a loaded causal language model"
            )
        self.model = model
        self.inner: Any = getattr(model, "_orig_mod", model)
        self.name = type(self.inner).__name__
        if config.is_encoder_decoder:
            raise ConfigError(f"{self.name} is an encoder-decoder; give a decoder-only causal language model")
        if tolerance is not None and tolerance < 0:
            raise ConfigError(f"tolerance is {tolerance}, but must not be negative")
        self.arguments = inspect.signature(self.inner.forward).parameters
        weight = model.get_input_embeddings().weight
        self.vocabulary, self.device = int(weight.shape[0]), weight.device
        self.generator = torch.Generator().manual_seed(seed)
        if chunk_size is not None and not 1 <= chunk_size <= LONGEST // 2:
            raise ConfigError(f"chunk_size is {chunk_size}, but must be from 1 to {LONGEST // 2}")
        size = getattr(config, "chunk_size", None) if chunk_size is None else chunk_size
        self.chunk_size = size if isinstance(size, int) and 1 <= size <= LONGEST // 2 else 4
        self.lengths = _lengths(config, self.chunk_size, lengths)
        self.tolerance = tolerance
        self.refused: dict[str, str] = {}

    def prepare(self) -> None:
        """Determine the tolerance, and the forms of rows that the model accepts."""
        tokens = self.draw(2, self.lengths[-1])
        logits = self.logits(tokens)
        if logits.isnan().any():
            raise ConfigError(f"the logits of {self.name} are not all numbers (nan); check its weights")
        kinds = {parameter.dtype for parameter in self.inner.parameters()} | {self.logits_dtype}
        self.dtype = max(kinds & set(TOLERANCE), key=lambda kind: TOLERANCE[kind])
        self.share = TOLERANCE[self.dtype] if self.tolerance is None else self.tolerance
        noise = float(gap(logits, self.logits(tokens)).max())
        if noise > self.share * scale(logits):
            raise ConfigError(
                f"{self.name} gives other logits each time it reads the same tokens (by {noise:.2g}), in evaluation "
                "mode too; switch that off before measuring"
            )
        for form in list(self.forms(self.lengths[-1]))[1:]:
            try:
                self.logits(tokens[:1], **form.of(1))
            except REFUSALS as error:
                self.refused[form.name] = refusal(error)

    def takes(self, name: str) -> bool:
        """Whether the model's ``forward`` has this argument, or accepts any."""
        return name in self.arguments or any(p.kind is p.VAR_KEYWORD for p in self.arguments.values())

    def need(self, argument: str, form: str = "plain") -> None:
        """Raise NotApplicable, with the reason, if the model does not accept an argument or a form of rows."""
        if not self.takes(argument):
            raise NotApplicable(f"the model takes no {argument}")
        if form in self.refused:
            raise NotApplicable(self.refused[form])

    def forms(self, length: int) -> Iterator[Form]:
        """The layouts of a row that the model accepts: plain, left-padded, two documents packed."""
        yield Form("plain", {})
        pads, border = min(3, length - 2), length // 2
        if pads > 0 and self.takes("attention_mask") and "left-padded" not in self.refused:
            yield Form("left-padded", self.padding([pads], length), first=pads)
        if self.takes("position_ids") and "packed" not in self.refused:
            yield Form("packed", {"position_ids": positions([border, length - border])}, border=border)

    def padding(self, pads: list[int], length: int) -> dict[str, torch.Tensor]:
        """Mask, and positions as ``generate()`` derives them, of rows with ``pads`` columns of left padding: (N, T) each."""
        mask = (torch.arange(length) >= torch.tensor(pads)[:, None]).long()
        inputs = {"attention_mask": mask}
        if self.takes("position_ids"):
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        return inputs

    def padded_batch(self, length: int) -> tuple[list[int], torch.Tensor, dict[str, torch.Tensor]]:
        """Rows of one batch with different left padding: the padding of each, the tokens, and the further inputs."""
        self.need("attention_mask", "left-padded")
        pads = sorted({pad for pad in (0, 1, 2, 3, self.chunk_size) if pad < length})
        return pads, self.draw(len(pads), length), self.padding(pads, length)

    def cuts(self, length: int, form: Form) -> list[int]:
        """Positions of the cuts: all positions of a short row, else around its ends and its chunk borders."""
        low = form.first + 1
        if length <= ALL_CUTS:
            return list(range(low, length))
        near = {low, length - 1}
        for origin in {0, form.first, form.border}:
            borders = range(origin, length + self.chunk_size, self.chunk_size)
            near |= {border + step for border in borders for step in (-1, 0, 1)}
        return sorted(cut for cut in near if low <= cut < length)

    def draw(self, rows: int, length: int) -> torch.Tensor:
        """Draw random tokens (N, T)."""
        return torch.randint(0, self.vocabulary, (rows, length), generator=self.generator)

    def other(self, tokens: torch.Tensor) -> torch.Tensor:
        """Draw a different token for each token."""
        step = torch.randint(1, self.vocabulary, tokens.shape, generator=self.generator)
        return (tokens + step) % self.vocabulary

    def pieces(self, items: list[int], length: int) -> Iterator[list[int]]:
        """Split the items into groups of as many rows as fit into memory."""
        count = max(1, min(16, LOGITS_AT_ONCE // (length * self.vocabulary)))
        return (items[i : i + count] for i in range(0, len(items), count))

    def run(self, **inputs: Any) -> Any:
        """Run the model; tensors are moved to its device."""
        if self.takes("use_cache"):
            inputs.setdefault("use_cache", False)
        tensors = {k: v.to(self.device) for k, v in inputs.items() if isinstance(v, torch.Tensor)}
        return self.model(**inputs | tensors)

    def logits_of(self, output: Any) -> torch.Tensor:
        """Logits of an output in at least float32: (N, T, V); those of several heads are concatenated."""
        logits = getattr(output, "logits", None)
        if logits is None:
            raise ConfigError(f"{self.name} returns no logits; give a model with a language modelling head")
        self.logits_dtype = logits.dtype
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(2)

    def logits(self, tokens: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Logits of whole rows, on the CPU: (N, T, V)."""
        return self.logits_of(self.run(input_ids=tokens, **inputs)).cpu()


def gap(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Largest difference over the vocabulary: (..., V) -> (...). Tokens that both mask by -inf do not differ."""
    difference = (logits - others).abs().masked_fill(logits == others, 0)
    return difference.nan_to_num(nan=torch.finfo(difference.dtype).max).amax(-1)


def scale(logits: torch.Tensor) -> float:
    """Largest absolute finite logit."""
    return float(logits.abs().masked_fill(logits.isinf(), 0).max())


def positions(documents: Sequence[int]) -> torch.Tensor:
    """``position_ids`` (1, T) of documents of these lengths packed into one row."""
    return torch.cat([torch.arange(length) for length in documents])[None]


def refusal(error: Exception) -> str:
    """Format the first line of a model's error message."""
    return "the model refused: " + (str(error).strip().splitlines() or [type(error).__name__])[0]


def _lengths(config: Any, chunk_size: int, wanted: Sequence[int] | None) -> list[int]:
    """Lengths of the rows, ascending: those requested, or by default four at and around multiples of the chunk size."""
    limit = getattr(config, "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) and limit > 0 else LONGEST
    if wanted is not None:
        if not wanted or not all(2 <= length <= limit for length in wanted):
            raise ConfigError(
                f"lengths is {list(wanted)}, but must hold numbers from 2 to {limit} (the model's positions)"
            )
        return sorted(set(wanted))
    unit = chunk_size * -(-4 // chunk_size)  # 4 tokens or more, so that rows of small chunks have some length
    lengths = {max(3, chunk_size - 1), 2 * unit, 2 * unit + 1, 3 * unit + unit // 2}
    return sorted({min(length, limit, LONGEST) for length in lengths})
