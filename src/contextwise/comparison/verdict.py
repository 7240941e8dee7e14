"""The result of a comparison in sentences: the better model, by how much, at what cost."""

from contextwise.base.estimates import Estimate, count, listed
from contextwise.comparison.comparison import Comparison, Difference, Group


def verdict(comparison: Comparison) -> list[str]:
    """The comparison's result in two paragraphs: the losses, and the costs.

    The model with the lowest held-out loss is set against each of the others that it was compared to.
    """
    lowest = comparison.lowest
    return [" ".join(_losses(comparison, lowest)), " ".join(_costs(comparison, lowest))]


def _losses(comparison: Comparison, lowest: Group) -> list[str]:
    relevant = [
        difference
        for difference in comparison.differences
        if lowest.name in (difference.group, difference.reference)
    ]
    significant = [difference for difference in relevant if difference.difference.decided]
    loss = comparison.loss_of(lowest).value
    opening = f"{lowest.name} has the lowest held-out loss, {loss:.4f} {comparison.unit}"
    sentences = [f"{opening}."]
    if significant:
        several = any(len(group.seeds) > 1 for group in comparison.groups)
        basis = "documents and seeds" if several else "documents"
        gains = listed(
            [
                f"{_other(difference, lowest)}'s by {_size(difference.difference)}"
                for difference in significant
            ]
        )
        sentences = [
            f"{opening}: lower than {gains} {comparison.unit} (95% intervals over {basis}, paired by document)."
        ]
    for difference in relevant:
        if difference in significant:
            continue
        pair = f"{difference.group} − {difference.reference} = {difference.difference:+.4f} {difference.unit}"
        if not difference.difference.has_interval:
            sentences.append(f"{pair}; one document allows no interval.")
            continue
        sentences.append(
            f"{'But there' if significant else 'There'} is no significant difference between {lowest.name} and "
            f"{_other(difference, lowest)}: the interval contains zero ({pair})."
        )
    return sentences


def _other(difference: Difference, group: Group) -> str:
    return difference.reference if difference.group == group.name else difference.group


def _size(difference: Estimate) -> str:
    """A difference whose interval excludes zero, and the interval, both without sign."""
    return f"{difference if difference.value > 0 else -difference:.4f}"


def _costs(comparison: Comparison, best: Group) -> list[str]:
    """Parameters, training speed and generation of the best model, relative to each of the others."""
    others = [group for group in comparison.groups if group is not best]
    parameters = listed([f"{count(group.parameters)} of {group.name}" for group in others])
    sentences = [f"{best.name} has {count(best.parameters)} parameters, against {parameters}."]
    facts = []
    speeds = _ratios(best.tokens_per_second, {group.name: group.tokens_per_second for group in others})
    if speeds:
        facts.append(
            "trains at " + listed([f"{ratio:.2f} times the speed of {name}" for name, ratio in speeds])
        )
    times = _ratios(best.ms_per_token, {group.name: group.ms_per_token for group in others})
    if times:
        relative = listed([f"{ratio:.2f} times that of {name}" for name, ratio in times])
        facts.append(f"takes {best.ms_per_token:.2f} ms for a generated token, {relative}")
    if facts:
        sentences.append(f"It {', and '.join(facts)}.")
    return sentences


def _ratios(value: float | None, others: dict[str, float | None]) -> list[tuple[str, float]]:
    """``value`` over each of the others; empty if one of them is not known."""
    known = {name: other for name, other in others.items() if other}
    if not value or len(known) < len(others):
        return []
    return [(name, value / other) for name, other in known.items()]
