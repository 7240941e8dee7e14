"""Measure whether a causal language model leaks later tokens into earlier predictions.

Six perturbations of random tokens (:data:`CHECKS`), each with its largest effect on logits that it must not change. All but
*left padding* and *cached steps* also measure their *allowed* effect, on logits that they may change. A perturbation that does
not change even those cannot detect a leak, and counts as not measured.

Shapes: N rows, T positions, D channels, V tokens of vocabulary.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError, one_line
from contextwise.base.machine import memory
from contextwise.base.plugins import is_ours
from contextwise.evaluation.measures.causality.effects import (
    DIFFERS,
    LEAK,
    NONE,
    NOT_MEASURED,
    NOT_SEPARATED,
    Causality,
    Effect,
)
from contextwise.models.losses import evaluation_mode
from contextwise.models.variant.modeling import VariantForCausalLM

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest effect that counts as rounding, as a share of the largest logit (for gradients: of the largest allowed gradient).

Whole rows, padded rows and pieces go through kernels that add up in different orders, so rounding depends on the layout.
"""

ALL_CUTS = 32
"""Rows of up to this many tokens are cut at every position, longer rows around chunk borders."""
LONGEST = 1024
LOGITS_AT_ONCE = 2**26  # 256 MB in float32
REFUSALS = (NotImplementedError, TypeError, ValueError)
"""Errors by which a model, or a check on its behalf, refuses an input."""

Inputs = dict[str, torch.Tensor]


class Layout(NamedTuple):
    """Layout of a row, and the further inputs of the model, (1, T) each.

    ``first`` is the first column that is not padding, ``border`` the one at which the second of two packed documents begins.
    """

    name: str
    inputs: Inputs
    first: int = 0
    border: int = 0

    def inputs_of(self, rows: int) -> Inputs:
        """The inputs for a number of rows."""
        return {name: tensor.expand(rows, -1) for name, tensor in self.inputs.items()}


class Case(NamedTuple):
    """Effect in one row, with the fields of :class:`Effect`; its tolerance is a share of ``scale``."""

    largest: float
    scale: float
    affected: int
    changed: int | None
    detail: str
    allowed: float | None = None


class Rows:
    """A model in evaluation mode, and the rows of random tokens on which it is measured (:func:`measure_causality`)."""

    def __init__(
        self, model: Any, lengths: Sequence[int] | None, chunk_size: int | None, tolerance: float | None, seed: int
    ) -> None:
        self.model, self.name, config = model, type(model).__name__, model.config
        self.arguments = inspect.signature(model.forward).parameters
        weight = model.get_input_embeddings().weight
        self.vocabulary, self.device = int(weight.shape[0]), weight.device
        self.generator = torch.Generator().manual_seed(seed)
        if chunk_size is not None and not 1 <= chunk_size <= LONGEST // 2:
            raise ConfigError(f"chunk_size is {chunk_size}, but must be from 1 to {LONGEST // 2}")
        size = getattr(config, "chunk_size", None) if chunk_size is None else chunk_size
        self.chunk_size = size if isinstance(size, int) and 1 <= size <= LONGEST // 2 else 4
        self.lengths = _lengths(config, self.chunk_size, lengths)
        longest = self.lengths[-1]
        tokens = self.draw(2, longest)
        logits = self.logits(tokens)
        if logits.isnan().any():
            raise ConfigError(f"the logits of {self.name} are not all numbers (nan); check its weights")
        dtypes = {parameter.dtype for parameter in model.parameters()} | {self.logits_dtype}
        self.dtype = max(dtypes & set(TOLERANCE), key=lambda dtype: TOLERANCE[dtype])
        self.share = TOLERANCE[self.dtype] if tolerance is None else tolerance
        noise = float(gap(logits, self.logits(tokens)).max())
        if noise > self.share * scale(logits):
            raise ConfigError(
                f"{self.name} gives other logits each time it reads the same tokens (by {noise:.2g}), in evaluation "
                "mode too; switch that off before measuring"
            )
        self.refused: set[str] = set()
        for layout in self.layouts(longest):
            try:
                self.logits(tokens[:1], **layout.inputs)
            except REFUSALS:
                self.refused.add(layout.name)

    def takes(self, name: str) -> bool:
        """Whether the model's ``forward`` has this argument, or accepts any."""
        return name in self.arguments or any(p.kind is p.VAR_KEYWORD for p in self.arguments.values())

    def layouts(self, length: int) -> list[Layout]:
        """The layouts of a row that the model accepts: plain, left-padded, two documents packed."""
        pads, border = min(3, length - 2), length // 2
        layouts = [Layout("plain", {})]
        if pads > 0:
            layouts.append(Layout("left-padded", self.padding([pads], length), first=pads))
        layouts.append(Layout("packed", {"position_ids": positions([border, length - border])}, border=border))
        return [layout for layout in layouts if layout.name not in self.refused]

    def padding(self, pads: list[int], length: int) -> Inputs:
        """Mask, and positions as ``generate()`` derives them, of rows with ``pads`` columns of left padding: (N, T) each."""
        mask = (torch.arange(length) >= torch.tensor(pads)[:, None]).long()
        inputs = {"attention_mask": mask}
        if self.takes("position_ids"):
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        return inputs

    def padded_batch(self, length: int) -> tuple[list[int], torch.Tensor, Inputs]:
        """Rows of one batch with different left padding: the padding of each, the tokens, and the further inputs."""
        pads = sorted({pad for pad in (0, 1, 2, 3, self.chunk_size) if pad < length})
        return pads, self.draw(len(pads), length), self.padding(pads, length)

    def cuts(self, length: int, layout: Layout) -> list[int]:
        """Positions of the cuts: all positions of a short row, else around its ends and its chunk borders."""
        low = layout.first + 1
        if length <= ALL_CUTS:
            return list(range(low, length))
        near = {low, length - 1}
        for origin in {0, layout.first, layout.border}:
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

    def at_once(self, length: int) -> int:
        """Number of rows whose logits fit into memory, at most 16."""
        return max(1, min(16, LOGITS_AT_ONCE // (length * self.vocabulary)))

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


def future_tokens(rows: Rows) -> Iterator[Case]:
    """Replace all tokens from a cut on; no logits before the cut may change. A leak is traced to the last cut that shows it.

    Cuts are at, before and after each chunk border (short rows are cut everywhere), in plain, left-padded and packed rows.
    """
    for length in rows.lengths:
        column = torch.arange(length)
        for layout in rows.layouts(length):
            tokens = rows.draw(1, length)
            other = rows.other(tokens)
            cuts = rows.cuts(length, layout)
            cut = torch.tensor(cuts)[:, None]
            changes, sizes = [], []
            for replaced in torch.where(column >= cut, other, tokens).split(rows.at_once(length)):
                logits = rows.logits(torch.cat([tokens, replaced]), **layout.inputs_of(len(replaced) + 1))
                changes.append(gap(logits[1:], logits[:1]))
                sizes.append(scale(logits[:1, layout.first :]))
            change = torch.cat(changes)
            past = change.where((column < cut) & (column >= layout.first), 0)
            affected = int(past.amax(0).argmax())
            leaking = (past[:, affected] > rows.share * sizes[0]).nonzero()
            row = int(leaking.max() if len(leaking) else past[:, affected].argmax())
            allowed = float(change.where(column >= cut, 0).max())
            detail = f"{layout.name} row of {length} tokens"
            yield Case(float(past[row, affected]), sizes[0], affected, cuts[row], detail, allowed)


def gradients(rows: Rows) -> Iterator[Case]:
    """Differentiate the logits of each past position by all input embeddings; the gradients of later ones must be zero."""
    for length in rows.lengths:
        for layout in rows.layouts(length):
            tokens = rows.draw(1, length).to(rows.device)
            embeds = rows.model.get_input_embeddings()(tokens).detach()
            try:
                rows.run(inputs_embeds=embeds)
            except (TypeError, AttributeError) as error:  # ids that are None have no shape
                raise NotImplementedError(f"it takes no inputs_embeds ({one_line(error)})") from None
            past = torch.tensor(rows.cuts(length, layout)) - 1
            for batch in past.split(rows.at_once(length)):
                yield _gradient(rows, embeds, layout, batch.tolist())


def _gradient(rows: Rows, embeds: torch.Tensor, layout: Layout, past: list[int]) -> Case:
    """Differentiate a random weighting of the logits at each past position by the embeddings (1, T, D), one row each."""
    count, length = len(past), embeds.shape[1]
    with torch.enable_grad():
        leaf = embeds.expand(count, -1, -1).clone().requires_grad_()
        chosen = rows.logits_of(rows.run(inputs_embeds=leaf, **layout.inputs_of(count)))[range(count), past]
        if not chosen.requires_grad:
            raise NotImplementedError("its logits carry no gradient")
        weight = torch.randn(chosen.shape, generator=rows.generator).to(chosen)
        total = (chosen.masked_fill(chosen.isinf(), 0) * weight).sum()
        (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)
    size = gradient.float().abs().amax(-1).cpu().nan_to_num(nan=torch.finfo(torch.float32).max)
    later = torch.arange(length) > torch.tensor(past)[:, None]
    beyond, allowed = size.where(later, 0), float(size.where(~later, 0).max())
    row, position = divmod(int(beyond.argmax()), length)
    return Case(float(beyond.max()), allowed, past[row], position, f"{layout.name} row of {length} tokens", allowed)


def left_padding(rows: Rows) -> Iterator[Case]:
    """Compare each row of a left-padded batch with the same row alone, without padding."""
    for length in rows.lengths:
        pads, tokens, inputs = rows.padded_batch(length)
        logits = rows.logits(tokens, **inputs)
        for row, pad in enumerate(pads):
            alone = rows.logits(tokens[row : row + 1, pad:])[0]
            change = gap(logits[row, pad:], alone)
            detail = f"row of {length} columns, {pad} of them padding"
            yield Case(float(change.max()), scale(alone), pad + int(change.argmax()), None, detail)


def tokens_under_the_mask(rows: Rows) -> Iterator[Case]:
    """Replace the tokens of the padding; the allowed effect is that of the same replacement without a mask."""
    for length in rows.lengths:
        pads, tokens, inputs = rows.padded_batch(length)
        real = inputs["attention_mask"].bool()
        replaced = torch.where(real, tokens, rows.other(tokens))
        logits = rows.logits(tokens, **inputs)
        change = gap(logits, rows.logits(replaced, **inputs)).where(real, 0)
        unmasked = gap(rows.logits(tokens), rows.logits(replaced)).where(real, 0)
        row, position = divmod(int(change.argmax()), length)
        detail = f"row of {length} columns, {pads[row]} of them padding"
        yield Case(float(change.max()), scale(logits[real]), position, None, detail, float(unmasked.max()))


def packed_neighbours(rows: Rows) -> Iterator[Case]:
    """Replace one of three documents in a row, where ``position_ids`` restart; the logits of those after it must not change."""
    for length in rows.lengths:
        bounds = [0, length // 3, 2 * length // 3 + 1, length]
        documents = [end - start for start, end in pairwise(bounds)]
        inputs = {"position_ids": positions(documents)}
        tokens = rows.draw(1, length)
        logits = rows.logits(tokens, **inputs)
        column = torch.arange(length)
        for start, end in pairwise(bounds[:-1]):
            inside = (column >= start) & (column < end)
            # One row per call: attention kernels for packed rows accept no batches.
            replaced = torch.where(inside, rows.other(tokens), tokens)
            change = gap(logits, rows.logits(replaced, **inputs))[0]
            after = change.where(column >= end, 0)
            detail = f"row of {length} tokens, documents of {', '.join(map(str, documents))}"
            allowed = float(change.where(inside, 0).max())
            yield Case(float(after.max()), scale(logits), int(after.argmax()), start, detail, allowed)


def cached_steps(rows: Rows) -> Iterator[Case]:
    """Read rows in pieces with a cache, in padded batches too, and compare with the full pass.

    The pieces are a prompt and single tokens, single tokens alone, or several tokens per call.
    """
    for length in rows.lengths:
        prompt = max(1, length // 2, length - ALL_CUTS)
        schedules = {tuple(range(prompt, length)), tuple(range(1, length, max(3, length // 8)))}
        if length <= ALL_CUTS:
            schedules.add(tuple(range(1, length)))
        tokens = rows.draw(2, length)
        for starts in sorted(schedules):
            yield _cached(rows, tokens, {}, starts)
        if "left-padded" not in rows.refused:
            pads, tokens, inputs = rows.padded_batch(length)
            # Each row's first token is in the prompt: generate() does not accept empty rows.
            yield _cached(rows, tokens, inputs, range(max(prompt, pads[-1] + 1), length))


def _cached(rows: Rows, tokens: torch.Tensor, inputs: Inputs, starts: Iterable[int]) -> Case:
    """Read the columns up to the next of ``starts`` in one call each, and compare with the full pass."""
    length = tokens.shape[1]
    full = rows.logits(tokens, **inputs)
    real = inputs["attention_mask"].bool() if inputs else torch.ones_like(tokens, dtype=torch.bool)
    bounds = [0, *starts, length]
    past: dict[str, Any] = {}
    logits = []
    for start, end in pairwise(bounds):
        extra = {name: x[:, 0 if name == "attention_mask" else start : end] for name, x in inputs.items()}
        output = rows.run(input_ids=tokens[:, start:end], use_cache=True, **extra, **past)
        if getattr(output, "past_key_values", None) is None:
            raise NotImplementedError("it returns no past_key_values")
        past = {"past_key_values": output.past_key_values}
        logits.append(rows.logits_of(output).cpu())
        if logits[-1].shape[1] != end - start:  # some recurrent models take the mask of the new tokens alone
            raise NotImplementedError("it takes no mask of the cached tokens")
    change = gap(torch.cat(logits, 1), full).where(real, 0).amax(0)
    affected = int(change.argmax())
    changed = max(bound for bound in bounds if bound <= affected)
    layout = "left-padded" if inputs else "plain"
    detail = f"{layout} rows of {length} tokens, {bounds[1]} in the first call, {len(bounds) - 1} calls"
    return Case(float(change.max()), scale(full[real]), affected, changed, detail)


CHECKS = (future_tokens, gradients, left_padding, tokens_under_the_mask, packed_neighbours, cached_steps)


def measure_causality(
    model: PreTrainedModel,
    *,
    lengths: Sequence[int] | None = None,
    chunk_size: int | None = None,
    packed: bool | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    checks: Sequence[Callable[[Rows], Iterator[Case]]] = CHECKS,
) -> Causality:
    """Perturb what a model must not see, and measure the largest effect on its logits.

    The model is unchanged afterwards: its mode, parameters and gradients, and the state of the random generators. An error
    that the model raises reaches the caller, unless it is its way of refusing an input (a ``ValueError``, ``TypeError``
    or ``NotImplementedError``): then that perturbation is not measured.

    What is found in float32 is measured again in float64, with the same tolerance, where the memory is enough: rounding of a
    deep model may be larger than the tolerance, and is gone there.

    Args:
        model: any decoder-only causal language model of transformers.
        lengths: lengths of the rows in tokens; by default four, at and around multiples of the chunk.
        chunk_size: period of the borders to look at; by default ``model.config.chunk_size`` if it exists, else 4.
        packed: whether it is a leak if a packed document sees those before it; by default for models of this package, which
            guarantee that it does not. (Seeing a *later* document is always a leak.)
        tolerance: largest effect that counts as rounding, as a share of the largest logit; by default that of the number
            format (:data:`TOLERANCE`).
        checks: the perturbations.

    Raises:
        ConfigError: this is not a causal language model, its logits are not numbers or vary from call to call, or an argument
            is out of range.
    """
    name = type(model).__name__
    if getattr(getattr(model, "config", None), "is_encoder_decoder", True):
        raise ConfigError(f"{name} is no decoder of transformers; give a loaded decoder-only causal language model")
    if packed is None:
        packed = any(is_ours(type(module).__module__) for module in model.modules())
    with _open_gates(model, seed) as gates_opened, torch.inference_mode(False), torch.no_grad():
        rows = Rows(model, lengths, chunk_size, tolerance, seed)
        effects = tuple(_effect(check, rows, packed) for check in checks)
        found = any(effect.outcome in (LEAK, DIFFERS) for effect in effects)
        if found and tolerance is None and rows.dtype == torch.float32 and _room_for_doubles(model):
            # Code that works in float32 alone keeps what was found there.
            with suppress(RuntimeError, ConfigError, *REFUSALS), _in_float64(model):
                exact = Rows(model, lengths, chunk_size, TOLERANCE[torch.float32], seed)
                again = tuple(_effect(check, exact, packed) for check in checks)
                measured = {effect.name for effect in again if effect.outcome != NOT_MEASURED}
                if all(effect.name in measured for effect in effects if effect.outcome != NOT_MEASURED):
                    rows, effects = exact, again
    return Causality(name, str(rows.dtype).removeprefix("torch."), effects, gates_opened)


def _room_for_doubles(model: PreTrainedModel) -> bool:
    needed = 8 * sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    return 2 * needed < (memory().available if model.device.type == "cpu" else torch.cuda.mem_get_info(model.device)[0])


@contextmanager
def _in_float64(model: PreTrainedModel) -> Iterator[None]:
    """Have the parameters and buffers of a model in float64; they are as before on exit."""
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.double()
        yield
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


def _effect(check: Callable[[Rows], Iterator[Case]], rows: Rows, packed: bool) -> Effect:
    """The worst case of a perturbation, and its outcome."""
    name = check.__name__.replace("_", " ")
    try:
        cases = list(check(rows))
    except REFUSALS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Effect(name, NOT_MEASURED, detail=f"the model refused: {reason}")
    case = max(cases, key=lambda case: case.largest / max(case.scale, 1e-30))
    tolerance, outcome = rows.share * case.scale, NONE
    allowed = max((each.allowed for each in cases if each.allowed is not None), default=None)
    if case.largest > tolerance:
        outcome = NOT_SEPARATED if name == "packed neighbours" and not packed else LEAK
        outcome = DIFFERS if name == "cached steps" else outcome
    elif allowed is not None and allowed <= tolerance:
        return Effect(name, NOT_MEASURED, detail="it changes nothing at all, not even where it may")
    return Effect(name, outcome, case.largest, tolerance, allowed, case.affected, case.changed, case.detail)


@contextmanager
def _open_gates(model: Any, seed: int) -> Iterator[bool]:
    """Set evaluation mode and open zero gates, and restore both on exit; yields whether gates were opened.

    A gate that is still zero hides a leak of the context pathway. In a user's variant any weight that is zero may be a gate.
    """
    gate = getattr(getattr(model, "context", None), "gate", None)
    gate = model.model if isinstance(model, VariantForCausalLM) else gate
    named = gate.named_parameters() if isinstance(gate, torch.nn.Module) else ()
    closed = [p for name, p in named if not name.endswith("bias") and not p.any()]
    weights = [parameter.data for parameter in closed]
    generator = torch.Generator().manual_seed(seed)
    with evaluation_mode(model):
        try:
            for parameter in closed:
                parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter)
            yield bool(closed)
        finally:
            for parameter, weight in zip(closed, weights, strict=True):
                parameter.data = weight
