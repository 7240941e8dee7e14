"""Measure whether a causal language model leaks later tokens into earlier predictions.

Six perturbations of random tokens (:data:`CHECKS`), each with its largest effect on logits that it must not change. All but
*left padding* and *cached steps* also measure their *allowed* effect, on logits that they may change. A perturbation that does
not change even those cannot detect a leak, and counts as not measured.

Shapes: N rows, T positions, D channels, V tokens of vocabulary.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from rich.console import Console, Group
from rich.text import Text
from transformers import PreTrainedModel

from contextwise.base.estimates import as_json
from contextwise.base.plugins import is_ours
from contextwise.base.tables import Column, Table
from contextwise.evaluation.measures.causality.rows import (
    ALL_CUTS,
    REFUSALS,
    Form,
    NotApplicable,
    Rows,
    gap,
    positions,
    refusal,
    scale,
)
from contextwise.models.variant.modeling import VariantForCausalLM

NONE, LEAK, NOT_SEPARATED, NOT_MEASURED = "none", "leak", "not separated", "not measured"
SENTENCES = {
    "future tokens": "the logits at position {affected} change by {largest} when the token at position {changed} does",
    "gradients": "the logits at position {affected} have a gradient of {largest} to the embedding at position {changed}",
    "left padding": "the logits at position {affected} of a padded row differ by {largest} from those of the row alone",
    "tokens under the mask": "the logits at position {affected} change by {largest} when the tokens of the padding do",
    "packed neighbours": "the logits at position {affected} change by {largest} when the document that begins at "
    "position {changed}, packed before theirs, does",
    "cached steps": "the logits at position {affected}, computed with a cache in the call that begins at position "
    "{changed}, differ by {largest} from the full pass",
}
"""Perturbation -> description of its effect."""


@dataclass(frozen=True)
class Effect:
    """Effect of a perturbation on logits that it must not change.

    Attributes:
        outcome: ``none``, ``leak``, ``not separated`` (packed documents see the documents before them, and the model does
            not claim otherwise) or ``not measured``.
        largest: largest absolute effect on logits (for gradients: largest absolute gradient); None if not measured.
        tolerance: largest effect that counts as rounding.
        allowed: largest effect of the same perturbation on logits that it may change; None if no such logits exist.
        affected: position of the changed logits, counted from the row's first column.
        changed: position of the (first) replaced token; None if it does not apply.
        detail: the row with the effect, or the reason why it was not measured.
    """

    name: str
    outcome: str
    largest: float | None = None
    tolerance: float | None = None
    allowed: float | None = None
    affected: int | None = None
    changed: int | None = None
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The position of the effect, or the reason why it was not measured."""
        if self.largest is None:
            return f"{self.name} ({self.outcome}): {self.detail}"
        description = SENTENCES[self.name].format(**asdict(self) | {"largest": _number(self.largest)})
        return f"{self.name} ({self.outcome}): {description} ({self.detail})"


@dataclass(frozen=True)
class Causality:
    """Result of :func:`measure_causality`.

    Attributes:
        architecture: name of the model's class.
        dtype: the coarsest floating-point type of its parameters and logits, which sets the tolerance.
        effects: the effect of each perturbation, in the order of :data:`SENTENCES`.
        gates_opened: whether the context's gates were all zero, which blocks the context; they were set to random values for
            the measurement and then restored.
    """

    architecture: str
    dtype: str
    effects: tuple[Effect, ...]
    gates_opened: bool = False

    IN_JSON: ClassVar = ("causal",)

    def __getitem__(self, name: str) -> Effect:
        return next(effect for effect in self.effects if effect.name == name)

    @property
    def leaks(self) -> tuple[Effect, ...]:
        """Effects that are leaks."""
        return tuple(effect for effect in self.effects if effect.outcome == LEAK)

    @property
    def causal(self) -> bool:
        """Whether no leak was found and at least the effect of future tokens could be measured."""
        return not self.leaks and self["future tokens"].outcome == NONE

    @property
    def verdict(self) -> str:
        """What was found, in a few words."""
        if self.leaks:
            return f"leaks ({', '.join(effect.name for effect in self.leaks)})"
        return "no leak found" if self.causal else "not measured"

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to JSON-ready data."""
        return as_json(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Causality":
        """Build the result from its JSON-ready data."""
        effects = tuple(Effect(**effect) for effect in content["effects"])
        return cls(content["architecture"], content["dtype"], effects, content["gates_opened"])

    def __rich__(self) -> Group:
        """The verdict, a table of the effects, and a sentence for each outcome other than ``none``, in 80 columns."""
        columns = [Column(name) for name in ("perturbation", "effect", "tolerance", "allowed")]
        columns.append(Column("outcome", align="left"))
        rows = [[e.name, *map(_number, (e.largest, e.tolerance, e.allowed)), e.outcome] for e in self.effects]
        notes = [effect.sentence for effect in self.effects if effect.outcome != NONE]
        if self.gates_opened:
            notes.append("the context's gates are all zero; random values showed what is behind them")
        return Group(
            Text(f"{self.architecture}, {self.dtype}: {self.verdict}"), Table("", columns, rows), *map(Text, notes)
        )

    def __str__(self) -> str:
        console = Console(file=(text := io.StringIO()), width=400)
        console.print(self)
        return text.getvalue()


def _number(value: float | None) -> str:
    """Format an effect with two digits; an exact zero is ``0``."""
    return "–" if value is None else "0" if value == 0 else f"{value:.2g}"


class Case(NamedTuple):
    """Effect in one kind of row, with the fields of :class:`Effect`; its tolerance is a share of ``scale``."""

    largest: float
    scale: float
    affected: int
    changed: int | None
    detail: str
    allowed: float | None = None


def worst(cases: Iterable[Case]) -> Case:
    """The case with the largest effect relative to its scale."""
    return max(cases, key=lambda case: case.largest / max(case.scale, 1e-30))


def future_tokens(rows: Rows) -> Iterator[Case]:
    """Replace all tokens from a cut on; no logits before the cut may change. A leak is then traced to one token.

    Cuts are at, before and after each chunk border (short rows are cut everywhere), in plain, left-padded and packed rows.
    """
    for length in rows.lengths:
        for form in rows.forms(length):
            tokens = rows.draw(1, length)
            other = rows.other(tokens)
            case = worst(_replaced(rows, tokens, other, form, rows.cuts(length, form), to_the_end=True))
            if case.largest > rows.share * case.scale:
                columns = list(range(case.affected + 1, length))
                single = worst(_replaced(rows, tokens, other, form, columns, to_the_end=False))
                case = single if single.largest > rows.share * single.scale else case
            yield case


def _replaced(
    rows: Rows, tokens: torch.Tensor, other: torch.Tensor, form: Form, cuts: list[int], to_the_end: bool
) -> Iterator[Case]:
    """Replace the tokens from each cut on, or only the token at the cut; the same batch holds an unchanged row."""
    length = tokens.shape[1]
    column = torch.arange(length)
    for piece in rows.pieces(cuts, length):
        cut = torch.tensor(piece)[:, None]
        replaced = torch.where((column >= cut) if to_the_end else (column == cut), other, tokens)
        logits = rows.logits(torch.cat([tokens, replaced]), **form.of(len(piece) + 1))
        change = gap(logits[1:], logits[:1])
        past = change.where((column < cut) & (column >= form.first), 0)
        row, position = divmod(int(past.argmax()), length)
        detail, allowed = f"{form.name} row of {length} tokens", float(change.where(column >= cut, 0).max())
        yield Case(float(past.max()), scale(logits[:1, form.first :]), position, piece[row], detail, allowed)


def gradients(rows: Rows) -> Iterator[Case]:
    """Differentiate the logits of each past position by all input embeddings; the gradients of later ones must be zero."""
    rows.need("inputs_embeds")
    if any(parameter.is_inference() for parameter in rows.inner.parameters()):
        raise NotApplicable("the model's weights were made in inference mode")
    for length in rows.lengths:
        for form in rows.forms(length):
            tokens = rows.draw(1, length).to(rows.device)
            embeds = rows.model.get_input_embeddings()(tokens).detach()
            past = [cut - 1 for cut in rows.cuts(length, form)]
            for piece in rows.pieces(past, length):
                yield _gradient(rows, embeds, form, piece)


def _gradient(rows: Rows, embeds: torch.Tensor, form: Form, past: list[int]) -> Case:
    """Differentiate a random weighting of the logits at each past position by the embeddings (1, T, D), one row each."""
    count, length = len(past), embeds.shape[1]
    with torch.enable_grad():
        leaf = embeds.expand(count, -1, -1).clone().requires_grad_()
        chosen = rows.logits_of(rows.run(inputs_embeds=leaf, **form.of(count)))[range(count), past]
        if not chosen.requires_grad:
            raise NotApplicable("the model's logits carry no gradient")
        weight = torch.randn(chosen.shape, generator=rows.generator).to(chosen)
        total = (chosen.masked_fill(chosen.isinf(), 0) * weight).sum()
        (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)
    size = gradient.float().abs().amax(-1).cpu().nan_to_num(nan=torch.finfo(torch.float32).max)
    later = torch.arange(length) > torch.tensor(past)[:, None]
    beyond = size.where(later, 0)
    row, position = divmod(int(beyond.argmax()), length)
    allowed = float(size.where(~later, 0).max())
    detail = f"{form.name} row of {length} tokens"
    return Case(float(beyond.max()), allowed, past[row], position, detail, allowed)


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
    rows.need("position_ids", "packed")
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
    rows.need("past_key_values")
    for length in rows.lengths:
        prompt = max(1, length // 2, length - ALL_CUTS)
        schedules = {tuple(range(prompt, length)), tuple(range(1, length, max(3, length // 8)))}
        if length <= ALL_CUTS:
            schedules.add(tuple(range(1, length)))
        tokens = rows.draw(2, length)
        for starts in sorted(schedules):
            yield _cached(rows, tokens, {}, starts)
        if rows.takes("attention_mask") and "left-padded" not in rows.refused:
            pads, tokens, inputs = rows.padded_batch(length)
            # Each row's first token is in the prompt: generate() does not accept empty rows.
            yield _cached(rows, tokens, inputs, range(max(prompt, pads[-1] + 1), length))


def _cached(rows: Rows, tokens: torch.Tensor, inputs: dict[str, torch.Tensor], starts: Iterable[int]) -> Case:
    """Read the columns up to the next of ``starts`` in one call each, and compare with the full pass."""
    length = tokens.shape[1]
    full = rows.logits(tokens, **inputs)
    real = inputs["attention_mask"].bool() if inputs else torch.ones_like(tokens, dtype=torch.bool)
    bounds = [0, *starts, length]
    past: dict[str, Any] = {}
    logits = []
    for start, end in pairwise(bounds):
        first = {"attention_mask": 0}
        extra = {name: x[:, first.get(name, start) : end] for name, x in inputs.items()}
        output = rows.run(input_ids=tokens[:, start:end], use_cache=True, **extra, **past)
        if getattr(output, "past_key_values", None) is None:
            raise NotApplicable("the model returns no past_key_values")
        past = {"past_key_values": output.past_key_values}
        logits.append(rows.logits_of(output).cpu())
        if logits[-1].shape[1] != end - start:  # some recurrent models take the mask of the new tokens alone
            raise NotApplicable("the model takes no mask of the cached tokens")
    change = gap(torch.cat(logits, 1), full).where(real, 0).amax(0)
    affected = int(change.argmax())
    changed = max(bound for bound in bounds if bound <= affected)
    form = "left-padded" if inputs else "plain"
    detail = f"{form} rows of {length} tokens, {bounds[1]} in the first call, {len(bounds) - 1} calls"
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

    Args:
        model: any decoder-only causal language model of transformers, a compiled one too.
        lengths: lengths of the rows in tokens; by default four, at and around multiples of the chunk.
        chunk_size: period of the borders to look at; by default ``model.config.chunk_size`` if it exists, else 4.
        packed: whether it is a leak if a packed document sees those before it; by default for models of this package, which
            guarantee that it does not. (Seeing a *later* document is always a leak.)
        tolerance: largest effect that counts as rounding, as a share of the largest logit; by default that of the number
            format (:data:`~contextwise.evaluation.measures.causality.rows.TOLERANCE`).
        checks: the perturbations.

    Raises:
        ConfigError: this is not a causal language model, its logits are not numbers or vary from call to call, or an argument
            is out of range.
    """
    rows = Rows(model, lengths, chunk_size, tolerance, seed)
    if packed is None:
        packed = any(is_ours(type(module).__module__) for module in rows.inner.modules())
    with _evaluation_mode(model, seed) as gates_opened, torch.inference_mode(False), torch.no_grad():
        rows.prepare()
        effects = tuple(_effect(check, rows, packed) for check in checks)
    return Causality(rows.name, str(rows.dtype).removeprefix("torch."), effects, gates_opened)


def _effect(check: Callable[[Rows], Iterator[Case]], rows: Rows, packed: bool) -> Effect:
    """The worst case of a perturbation, and its outcome."""
    name = check.__name__.replace("_", " ")
    try:
        cases = list(check(rows))
    except (NotApplicable, *REFUSALS) as error:
        reason = str(error) if isinstance(error, NotApplicable) else refusal(error)
        return Effect(name, NOT_MEASURED, detail=reason)
    case = worst(cases)
    tolerance, outcome = rows.share * case.scale, NONE
    allowed = max((each.allowed for each in cases if each.allowed is not None), default=None)
    if case.largest > tolerance:
        outcome = NOT_SEPARATED if name == "packed neighbours" and not packed else LEAK
    elif allowed is not None and allowed <= tolerance:
        return Effect(name, NOT_MEASURED, detail="it changes nothing at all, not even where it may")
    return Effect(name, outcome, case.largest, tolerance, allowed, case.affected, case.changed, case.detail)


@contextmanager
def _evaluation_mode(model: Any, seed: int) -> Iterator[bool]:
    """Set evaluation mode and open zero gates, and restore both on exit; yields whether gates were opened.

    A gate that is still zero disables the context pathway, so that a leak in it would become visible only with training. In a
    variant of the user's own any weight that is zero may be a gate.
    """
    modes = {module: module.training for module in model.modules()}
    gate = getattr(getattr(model, "context", None), "gate", None)
    gate = model.model if isinstance(model, VariantForCausalLM) else gate
    named = gate.named_parameters() if isinstance(gate, torch.nn.Module) else ()
    closed = [p for name, p in named if not name.endswith("bias") and not p.any()]
    weights = [parameter.data for parameter in closed]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices={p.device for p in model.parameters() if p.is_cuda}):
        try:
            model.eval()
            for parameter in closed:
                parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter)
            yield bool(closed)
        finally:
            for parameter, weight in zip(closed, weights, strict=True):
                parameter.data = weight
            for module, mode in modes.items():
                module.training = mode
