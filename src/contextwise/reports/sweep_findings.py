"""The results of a sweep in sentences."""

import math
from collections.abc import Sequence

from contextwise.analysis.optimum import Cell, Landscape, Optimum
from contextwise.base.estimates import count, duration
from contextwise.data.document_lengths import DocumentLengths, in_tokens, token_count
from contextwise.reports.sweep_data import SweepData

UNIT_NAMES = {"flops": "FLOPs", "seconds": "training time", "gpu_hours": "GPU-hours", "tokens": "tokens"}


def budget_words(unit: str, budget: float) -> str:
    """A budget in words: 1.3 × 10¹⁵ FLOPs, 12.5 min, 3.2 GPU-hours, 8.19M tokens."""
    if unit == "flops":
        power = math.floor(math.log10(budget))
        digits = f"{budget / 10**power:.1f}"
        if digits == "10.0":
            digits, power = "1.0", power + 1
        return f"{digits} × 10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))} FLOPs"
    if unit == "seconds":
        return f"{duration(budget) if budget >= 10 else f'{budget:.2g} s'} of training"
    return f"{budget:.3g} GPU-hours" if unit == "gpu_hours" else f"{count(budget)} tokens"


def sentences_at(landscape: Landscape, step: int, planned: dict[str, list[int]]) -> list[str]:
    """The overall optimum at one budget, that of each size, and what was not measured."""
    cells, optima = landscape.cells[step], landscape.optima[step]
    sentences = [_overall(landscape.overall[step])]
    sentences += [_size(size, optima.get(size), cells) for size in planned]
    measured, missing = {(cell.size, cell.context) for cell in cells}, []
    for size, contexts in planned.items():
        lacking = [context for context in contexts if (size, context) not in measured]
        missing += [f"{size} with {_list(lacking)}"] if lacking else []
    if missing:
        sentences.append(f"Not measured at this budget, and not drawn: {'; '.join(missing)}.")
    return [sentence for sentence in sentences if sentence]


def _overall(best: Optimum | None) -> str:
    if best is None:
        return "No size was measured with two contexts at this budget, so there is no optimum."
    pair = f"{best.cell.size} with a context of {in_tokens(best.cell.context)}"
    if best.decided:
        return f"Overall optimum: {pair}, {_loss(best.cell)}."
    return (
        f"The lowest loss measured is that of {pair}, {_loss(best.cell)}, but no overall optimum is drawn: not all that is "
        "next to it was measured at this budget."
    )


def _size(size: str, best: Optimum | None, cells: list[Cell]) -> str:
    if best is None:
        return ""
    if not best.decided:
        contexts = [context for context in best.unmeasured if isinstance(context, int)]
        return (
            f"{size}: lowest at {in_tokens(best.cell.context)}, but {_list(contexts)} was not measured at this budget, so no "
            "optimum is circled."
        )
    others = [cell for cell in cells if cell.size == size and cell is not best.cell]
    second = min(others, key=lambda cell: cell.loss)
    edge = f"; it is the {best.edge} that was tried, the true optimum may be beyond" if best.edge else ""
    behind = second.loss - best.cell.loss
    return f"{size}: {in_tokens(best.cell.context)} is best, {in_tokens(second.context)} is {behind:.4f} behind{edge}."


def _loss(cell: Cell) -> str:
    error = "" if cell.standard_error is None else f" ± {cell.standard_error:.4f}"
    return f"{cell.loss:.4f}{error} nats per token"


def sweep_verdict(data: SweepData) -> list[str]:
    """The optimum at the largest budget, how it changes with the budget, and what the sweep cannot show."""
    landscape = data.landscapes[0]
    step = landscape.last_decided
    best = landscape.overall[step]
    sentences, limits = [], []
    if len(data.contexts) == 1:
        context = in_tokens(data.contexts[0])
        limits.append(
            f"This sweep has one training context ({context}), so there is no optimum to look for: sweep several."
        )
    if len(data.sizes) == 1:
        (size,) = data.sizes
        limits.append(f"This sweep has one model size ({size}), so larger ones were not compared.")
    if best is not None and best.decided:
        sentences.append(
            f"With {budget_words(landscape.unit, landscape.budgets[step])}, the largest budget at which the optimum and its "
            f"neighbours were all measured, {best.cell.size} trained with a context of {in_tokens(best.cell.context)} "
            f"reaches the lowest best-context loss, {_loss(best.cell)}."
        )
        if len(data.sizes) > 1 and best.cell.size == list(data.sizes)[-1]:
            sentences.append(
                f"{best.cell.size} is the largest size that was tried; a larger one may be better."
            )
    elif len(data.contexts) > 1:
        sentences.append("At no budget were the overall optimum and all its neighbours measured.")
    sentences += [moved for size in data.sizes if (moved := _moves(landscape, size))]
    return [" ".join(some) for some in (sentences, limits) if some]


def _moves(landscape: Landscape, size: str) -> str:
    """How the optimal context of a size changes with the budget."""
    contexts = landscape.contexts[size]
    decided = [(context, landscape.budgets[i]) for i, context in enumerate(contexts) if context is not None]
    if len(decided) < 2:
        return ""
    (first, low), (last, high) = (
        (in_tokens(context), budget_words(landscape.unit, budget))
        for context, budget in (decided[0], decided[-1])
    )
    if first == last:
        return f"The optimal context of {size} is {first} both at {low} and at {high}."
    return f"The optimal context of {size} goes from {first} at {low} to {last} at {high}."


def window_words(landscape: Landscape) -> str:
    """The window of the smoothing, in words."""
    if len(landscape.budgets) < 2:
        return "one budget"
    ratio = (landscape.budgets[1] / landscape.budgets[0]) ** landscape.reach
    steps = f"{2 * landscape.reach + 1} of {len(landscape.budgets)} steps"
    return f"{steps}, from the budget divided by {ratio:.2f} to {ratio:.2f} times it"


def missing_sentences(data: SweepData) -> list[str]:
    """Which runs are missing, unfinished or failed, and measurements that were left out."""
    sentences = []
    for kind, meaning in (
        ("failed", "failed"),
        ("unfinished", "are unfinished, and are drawn as far as they got"),
        ("missing", "have not begun"),
    ):
        runs = [state.run.id for state in data.states if state.state == kind]
        if runs:
            sentences.append(f"{len(runs)} of {len(data.states)} runs {meaning}: {', '.join(runs)}.")
    finished = {state.run.id for state in data.states if state.state == "finished"}
    silent = finished - {point.run for point in data.points}
    if silent:
        sentences.append(f"{len(silent)} finished runs measured no curve: {', '.join(sorted(silent))}.")
    if data.dropped:
        sentences.append(f"{data.dropped} measurements had a loss that is no number, and are left out.")
    return sentences


def corpus_sentences(meter: DocumentLengths, contexts: Sequence[int]) -> list[str]:
    """Which of a sweep's training contexts the documents of the corpus are long enough for."""
    rewards = [meter.reward(context) for context in contexts]
    enough = [reward for reward in rewards if reward.enough]
    too_long = [reward for reward in rewards if not reward.enough]
    sentences = []
    if enough:
        longest = enough[-1]
        sentences.append(
            f"The corpus rewards training contexts up to {in_tokens(longest.context)} of this sweep: {longest.preceded:.1%} "
            f"of the tokens have {in_tokens(longest.half)} or more before them."
        )
    if too_long:
        sentences.append(
            f"Longer than this corpus can reward: {_list([reward.context for reward in too_long])} "
            f"({in_tokens(too_long[0].context)}: {too_long[0].shortfall})."
        )
    return sentences


def _list(contexts: Sequence[int]) -> str:
    return ", ".join(token_count(context) for context in contexts)
