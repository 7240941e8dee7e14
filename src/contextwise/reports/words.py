"""What a comparison comes to, in sentences: which model is better, by how much, and at what cost."""

from contextwise.base.estimates import Estimate
from contextwise.comparison.comparison import UNITS, Comparison, Difference, Group
from contextwise.evaluation.tables import count


def verdict(comparison: Comparison) -> list[str]:
    """The comparison's result in two paragraphs: the losses, and the costs.

    The model with the lowest held-out loss is set against each of the others that it was compared to.
    """
    best = lowest(comparison)
    return [" ".join(_losses(comparison, best)), " ".join(_costs(comparison, best))]


def lowest(comparison: Comparison) -> Group:
    """The group with the lowest loss, in the comparison's unit."""
    return min(comparison.groups, key=lambda group: _loss(group, comparison).value)


def _loss(group: Group, comparison: Comparison) -> Estimate:
    """In bits per byte if that is the unit: nats per token mean something else for each tokenizer."""
    per_byte = group.bits_per_byte if comparison.unit == UNITS["byte"] else None
    return per_byte or group.loss


def _losses(comparison: Comparison, best: Group) -> list[str]:
    concerned = [found for found in comparison.differences if best.name in (found.group, found.reference)]
    clear = [found for found in concerned if _excludes_zero(found.difference)]
    unclear = [found for found in concerned if found not in clear]
    opening = (
        f"{best.name} has the lowest held-out loss, {_loss(best, comparison).value:.4f} {comparison.unit}"
    )
    sentences = [f"{opening}."]
    if clear:
        several = any(len(group.seeds) > 1 for group in comparison.groups)
        basis = "documents and seeds" if several else "documents"
        gains = _and([f"{_other(found, best)}'s by {_size(found.difference)}" for found in clear])
        sentences = [
            f"{opening}: lower than {gains} {comparison.unit} "
            f"(95% intervals over {basis}, paired by document)."
        ]
    for found in unclear:
        pair = f"{found.group} − {found.reference} = {found.difference.value:+.4f}"
        if found.difference.low is None or found.difference.high is None:
            sentences.append(f"{pair} {found.unit}; one document allows no interval.")
            continue
        ends = f"[{found.difference.low:+.4f}, {found.difference.high:+.4f}]"
        sentences.append(
            f"{'But between' if clear else 'Between'} {best.name} and {_other(found, best)} no difference is "
            f"shown: the interval contains zero ({pair} {ends} {found.unit})."
        )
    return sentences


def _excludes_zero(difference: Estimate) -> bool:
    return difference.low is not None and difference.high is not None and difference.low * difference.high > 0


def _other(found: Difference, best: Group) -> str:
    return found.reference if found.group == best.name else found.group


def _size(difference: Estimate) -> str:
    """A difference whose interval excludes zero, and the interval, both without sign."""
    ends = sorted(abs(end) for end in (difference.low, difference.high) if end is not None)
    return f"{abs(difference.value):.4f} [{ends[0]:.4f}, {ends[1]:.4f}]"


def _costs(comparison: Comparison, best: Group) -> list[str]:
    """Parameters, training speed and generation of the best model, relative to each of the others."""
    others = [group for group in comparison.groups if group is not best]
    parameters = _and([f"{count(group.parameters)} of {group.name}" for group in others])
    sentences = [f"{best.name} has {count(best.parameters)} parameters, against {parameters}."]
    facts = []
    speeds = _ratios(best.tokens_per_second, {group.name: group.tokens_per_second for group in others})
    if speeds:
        facts.append(
            "trains at " + _and([f"{ratio:.2f} times the speed of {name}" for name, ratio in speeds])
        )
    times = _ratios(best.ms_per_token, {group.name: group.ms_per_token for group in others})
    if times:
        relative = _and([f"{ratio:.2f} times that of {name}" for name, ratio in times])
        facts.append(f"takes {best.ms_per_token:.2f} ms for a generated token, {relative}")
    if facts:
        sentences.append(f"It {', and '.join(facts)}.")
    return sentences


def _ratios(value: float | None, others: dict[str, float | None]) -> list[tuple[str, float]]:
    """``value`` over each of the others; nothing if one of them is not known."""
    known = {name: other for name, other in others.items() if other}
    return (
        [(name, value / other) for name, other in known.items()]
        if value and len(known) == len(others)
        else []
    )


def _and(parts: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
