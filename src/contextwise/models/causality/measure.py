"""Measure whether a causal language model leaks later tokens into earlier predictions.

Six perturbations on random tokens, each with the largest effect that it has where it may have none:

1. *future tokens*: the tokens from a cut on are replaced; no logits before the cut may change. Cuts lie at, before and
   behind each chunk border (short rows are cut everywhere), in plain, left-padded and packed rows.
2. *gradients*: the gradient of each position's logits to all later input embeddings is zero.
3. *left padding*: a row of a left-padded batch gets the logits that it gets alone.
4. *tokens under the mask*: which tokens stand in the padding changes nothing.
5. *packed neighbours*: where ``position_ids`` begin again inside a row, no document reaches the ones behind it.
6. *cached steps*: a row read in pieces, with a key-value cache, gives the logits of the full pass.

All but 3 and 6 also measure their *allowed* effect, on logits that they may change. A perturbation that does not change even
those could not detect anything, and counts as not measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from contextwise.models.causality.effects import LEAK, NONE, NOT_MEASURED, NOT_SEPARATED, Causality, Effect
from contextwise.models.causality.perturbations import PERTURBATIONS, worst
from contextwise.models.causality.rows import REFUSALS, NotApplicable, Rows, refusal


def measure_causality(
    model: PreTrainedModel,
    *,
    lengths: Sequence[int] | None = None,
    chunk_size: int | None = None,
    packed: bool | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Causality:
    """Perturb what a model must not see, and measure the largest effect on its logits.

    The model is unchanged afterwards: its mode, parameters and gradients, and the state of the random generators. An error
    that the model raises reaches the caller, unless it is its way of refusing an input (a ``ValueError``, ``TypeError``
    or ``NotImplementedError``): then that perturbation is not measured.

    Args:
        model: any decoder-only causal language model of transformers, a compiled one too.
        lengths: of the rows, in tokens; by default four, at and around multiples of the chunk.
        chunk_size: period of the borders to look at; by default ``model.config.chunk_size`` where there is one, else 4.
        packed: whether a packed document that sees the ones before it is a leak. By default for models of this package,
            which promise that it does not. (Seeing a *later* one is always a leak.)
        tolerance: largest effect that counts as rounding, as a share of the largest logit; by default
            :data:`~contextwise.models.causality.TOLERANCE`.
        seed: of the tokens.

    Raises:
        ConfigError: this is no causal language model, its logits are not numbers or vary from call to call, or an argument
            is out of range.
    """
    rows = Rows(model, lengths, chunk_size, tolerance, seed)
    if packed is None:
        packed = any(type(module).__module__.startswith("contextwise.") for module in rows.inner.modules())
    with _left_as_found(model, seed) as gates_opened, torch.inference_mode(False), torch.no_grad():
        rows.prepare()
        effects = tuple(_effect(name, rows, packed) for name in PERTURBATIONS)
    return Causality(rows.name, str(rows.dtype).removeprefix("torch."), effects, gates_opened)


def _effect(name: str, rows: Rows, packed: bool) -> Effect:
    """The worst case of one perturbation, and what it means."""
    try:
        cases = list(PERTURBATIONS[name](rows))
    except NotApplicable as reason:
        return Effect(name, NOT_MEASURED, detail=str(reason))
    except REFUSALS as error:
        return Effect(name, NOT_MEASURED, detail=refusal(error))
    case = worst(cases)
    tolerance = rows.share * case.scale
    allowed = max((each.allowed for each in cases if each.allowed is not None), default=None)
    if case.largest > tolerance:
        outcome = NOT_SEPARATED if name == "packed neighbours" and not packed else LEAK
    elif allowed is not None and allowed <= tolerance:
        return Effect(name, NOT_MEASURED, detail="it changes nothing at all, not even where it may")
    else:
        outcome = NONE
    return Effect(name, outcome, case.largest, tolerance, allowed, case.affected, case.changed, case.detail)


@contextmanager
def _left_as_found(model: Any, seed: int) -> Iterator[bool]:
    """Evaluation mode and opened gates inside, everything as it was outside; yields whether gates were opened.

    A gate that is still zero hides the whole context pathway, so that a leak behind it would show up only with training.
    """
    modes = {module: module.training for module in model.modules()}
    gate = getattr(getattr(model, "context", None), "gate", None)
    closed = [p for p in gate.parameters() if not p.any()] if isinstance(gate, torch.nn.Module) else []
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
