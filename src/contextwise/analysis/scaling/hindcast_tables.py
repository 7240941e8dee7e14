"""A hindcast as tables that read well in 80 columns."""

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table

from contextwise.analysis.scaling.hindcast import Hindcast
from contextwise.analysis.scaling.tables import columns, ends, law_tables, paragraph


def hindcast_tables(check: Hindcast) -> RenderableType:
    """Predicted against measured: optima, runs, and a verdict in words; then the law that predicted."""
    parts: list[RenderableType] = [paragraph(_heading(check)), ""]
    if check.optima:
        said = "Best context at the largest budget that all contexts of a size reached:"
        parts += [paragraph(said), _optima(check), paragraph(_optima_said(check)), ""]
    else:
        parts += [
            paragraph("No size has a hidden budget that all its contexts reached: no optimum is checked."),
            "",
        ]
    parts += [
        paragraph("Last point of each run that went beyond:"),
        _runs(check),
        paragraph(_runs_said(check)),
    ]
    return Stack(*parts, law_tables(check.analysis))


def _heading(check: Hindcast) -> str:
    return (
        f"Check: {check.shown} points up to {check.above:.2g} FLOPs are fitted, and {check.hidden} above, up to "
        f"{check.beyond:.3g} times that, are predicted."
    )


def _optima(check: Hindcast) -> Table:
    left, right = ["size,\nFLOPs"], ["context\npredicted", "context\nmeasured", "context\nbefore"]
    table = columns(left, [*right, "loss\npredicted", "loss\nmeasured"])
    for row in check.optima:
        low, high = row.as_good
        table.add_row(
            f"{row.size}\n{row.budget:.1e}",
            f"{row.predicted.value:.0f}\n{ends(row.predicted, '.0f')}",
            f"{row.measured:.0f}{' ' if row.inside else '*'}\n({low:.0f} to {high:.0f})",
            f"{row.before:.0f}",
            f"{row.predicted_loss.value:.4f}\n{ends(row.predicted_loss, '.3f')}",
            f"{row.measured_loss:.4f}",
        )
    return table


def _optima_said(check: Hindcast) -> str:
    right, at_end = (sum(getattr(row, name) for row in check.optima) for name in ("inside", "at_end"))
    said = (
        f"{right} of {len(check.optima)} measured best contexts lie inside the interval, give or take half a step of the "
        "contexts (* outside). Below each: the contexts whose loss a run's luck does not tell from the best. Before: the best "
        "at the largest budget that was shown. Losses are at the measured best context."
    )
    if at_end:
        said += (
            f" {at_end} of the measured ones {'is' if at_end == 1 else 'are'} the shortest or longest that was trained: the "
            "best may lie beyond, and the prediction was kept within."
        )
    return said


def _runs(check: Hindcast) -> Table:
    table = columns(["run"], ["FLOPs", "predicted", "measured", "off"])
    for run in check.runs:
        table.add_row(
            run.run,
            f"{run.flops:.1e}",
            f"{run.predicted.value:.4f} {ends(run.predicted, '.3f')}",
            f"{run.measured:.4f}{' ' if run.inside else '*'}",
            f"{100 * (run.predicted.value / run.measured - 1):+.2f}%",
        )
    return table


def _runs_said(check: Hindcast) -> str:
    inside = sum(run.inside for run in check.runs)
    said = (
        f"{inside} of {len(check.runs)} losses lie inside their {check.analysis.confidence:.0%} intervals for one run (* "
        f"outside); error {100 * check.error:.2f}% of the loss"
    )
    if check.unchanged is not None:
        said += f" (were each run's last shown loss to stay: {100 * check.unchanged:.2f}%)"
    return said + "."
