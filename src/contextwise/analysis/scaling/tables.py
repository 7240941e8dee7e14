"""Plans and laws as tables that read well in 80 columns."""

import numpy as np
from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contextwise.analysis.scaling.analysis import Analysis, Interval
from contextwise.analysis.scaling.experiments import SHARE, Candidate
from contextwise.analysis.scaling.planning import RIVALS, Plan, Recommendation
from contextwise.base.estimates import NOT_KNOWN, count, duration


def plan_tables(plan: Plan, analysis: Analysis) -> RenderableType:
    """The answer, the sizes, other forms of the law, the next run."""
    parts: list[RenderableType] = [paragraph(f"Plan for {plan.budget.said}."), _answer(plan, analysis)]
    context, lost = plan.rounded
    parts.append(paragraph(f"The nearest power of two, {context}, costs {max(lost, 0):.4f} nats more."))
    if plan.shapes:
        named = ", or ".join(f"{shape.name} ({count(shape.parameters)})" for shape in plan.shapes)
        parts.append(paragraph(f"Nearest model that can be built: {named}."))
    parts += [paragraph(f"Note: {note}") for note in plan.notes]
    sized = plan.best.parameters is not None
    if sized:
        parts += ["", paragraph("Best context of each size of the sweep, at this budget:"), _sizes(plan)]
    if plan.rivals:
        parts += ["", paragraph(f"What other forms of the law say (up to {RIVALS:g} times the error):")]
        parts.append(_rivals(plan, analysis, sized))
    if plan.next_runs:
        parts += ["", paragraph(_next_said()), _next(plan.next_runs)]
    return Stack(*parts)


def law_tables(analysis: Analysis) -> RenderableType:
    """What was read, the forms compared, and the numbers of the chosen one."""
    found = analysis.found
    contexts = len(np.unique(found.context))
    said = (
        f"The law: {len(found)} points of {len(found.runs)} runs, {len(found.sizes)} model "
        f"size{'s' * (len(found.sizes) > 1)}, {contexts} training contexts; {found.left_out} early points left out. "
        f"{analysis.confidence:.0%} intervals over {len(analysis.ensemble.theta)} resamples of whole runs. Errors are those "
        "of ln L, in thousandths. * is chosen, the simplest that held-out runs do not tell from the best; + are not told from "
        "it either, and take part in the intervals of the plan."
    )
    return Stack("", paragraph(said), _forms(analysis), _numbers(analysis))


def residual_table(analysis: Analysis) -> RenderableType:
    """How far each run lies off the law."""
    table = columns(["run"], ["points", "mean", "spread", "first", "last"])
    found, residuals = analysis.found, 1000 * analysis.residuals
    for run, name in enumerate(found.runs):
        mine = np.flatnonzero(found.run == run)
        values = residuals[mine[found.tokens[mine].argsort()]]
        mean, spread, first, last = values.mean(), values.std(), values[0], values[-1]
        table.add_row(name, str(len(mine)), f"{mean:+.1f}", f"{spread:.1f}", f"{first:+.1f}", f"{last:+.1f}")
    said = "Residuals: ln of measured over fitted loss, in thousandths, along each run:"
    return Stack("", paragraph(said), table)


def columns(left: list[str], right: list[str]) -> Table:
    """An empty table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def paragraph(text: str) -> Padding:
    """Text as far from the margin as the tables are."""
    return Padding(Text(text), (0, 0, 0, 1))


def ends(value: Interval, shown: str) -> str:
    """``[low, high]``."""
    return f"[{format(value.low, shown)}, {format(value.high, shown)}]"


def _answer(plan: Plan, analysis: Analysis) -> Table:
    table = columns([""], ["recommended", f"{analysis.confidence:.0%} interval", "of the sweep's\nlargest"])
    best, times = plan.best, plan.extrapolation

    def row(name: str, value: Interval, shown: str, factor: str) -> None:
        cells = [
            count(x) if shown == "count" else format(x, shown) for x in (value.value, value.low, value.high)
        ]
        against = f"{times[factor]:.2g} x" if factor in times else NOT_KNOWN
        table.add_row(name, cells[0], f"[{cells[1]}, {cells[2]}]", against)

    if best.parameters is None:
        table.add_row("model size", str(best.size), "given", NOT_KNOWN)
    else:
        name = "model size" + (f" ({best.size})" if best.size else "")
        row(name, best.parameters, "count", "parameters")
    row("training context", best.context, ".0f", "context")
    row("tokens", best.tokens, "count", "tokens")
    row("best-context loss (nats/token)", best.loss, ".4f", "")
    table.add_row("FLOPs", f"{plan.flops:.2e}", "", f"{times['flops']:.2g} x")
    table.add_row("time on the sweep's machine", duration(plan.seconds), "", "")
    return table


def _sizes(plan: Plan) -> Table:
    table = columns(["size"], ["context", "", "tokens", "loss", ""])
    for row in plan.each_size:
        table.add_row(*_size_cells(row))
    return table


def _size_cells(row: Recommendation) -> list[str]:
    return [
        f"{row.size} ({count(row.parameters.value)})" if row.parameters else str(row.size),
        f"{row.context.value:.0f}",
        ends(row.context, ".0f"),
        count(row.tokens.value),
        f"{row.loss.value:.4f}",
        ends(row.loss, ".3f"),
    ]


def _forms(analysis: Analysis) -> RenderableType:
    right = ["num-\nbers", "seen", "unseen\nruns", "unseen\nbudgets"]
    table = columns(["form", "L(l, N, D)" if len(analysis.found.sizes) > 1 else "L(l, D)"], right)
    for score in analysis.scores:
        chosen = score is analysis.chosen
        table.add_row(
            score.form.name + ("*" if chosen else "+" if any(score is one for one in analysis.tied) else ""),
            score.form.formula,
            str(len(score.form.parameters)),
            *(f"{1000 * x:.1f}" for x in (score.fitted, score.error, score.held_out_budgets)),
            style="bold" if chosen else "",
        )
    return table


def _numbers(analysis: Analysis) -> Table:
    table = columns([""], ["value", "interval", ""])
    for name, value in analysis.parameters().items():
        bound = "at a bound" if name in analysis.at_bounds else ""
        table.add_row(name, f"{value.value:.4g}", ends(value, ".3g"), bound)
    return table


def _rivals(plan: Plan, analysis: Analysis, sized: bool) -> RenderableType:
    table = columns(["form"], ["error", *(["size"] if sized else []), "context", "loss"])
    best = plan.best
    chosen = best.parameters.value if best.parameters else 0.0
    rows = [
        (
            f"{analysis.chosen.form.name}*",
            analysis.chosen.error,
            chosen,
            best.context.value,
            best.loss.value,
        ),
        *((rival.form, rival.error, rival.parameters, rival.context, rival.loss) for rival in plan.rivals),
    ]
    for form, error, parameters, context, loss in rows:
        size = [count(parameters)] if sized else []
        table.add_row(form, f"{1000 * error:.1f}", *size, f"{context:.0f}", f"{loss:.4f}")
    return table


def _next_said() -> str:
    return (
        "One more run that would narrow the answer most: what is left of the width of each interval (from the resamples, "
        f"linearised; runs that cost at most {SHARE:.0%} of the plan, or what the sweep's largest did):"
    )


def _next(candidates: list[Candidate]) -> RenderableType:
    sized = candidates[0].parameters_left is not None
    table = columns(
        ["size"], ["context", "tokens", "FLOPs", "", "context", "loss", *(["size"] if sized else [])]
    )
    for row in candidates:
        shares = [row.context_left, row.loss_left]
        shares += [row.parameters_left] if row.parameters_left is not None else []
        cells = [str(row.context), count(row.tokens), f"{row.flops:.1e}", "new" if row.new else "again"]
        table.add_row(row.size, *cells, *(f"{share:.0%}" for share in shares))
    return table
