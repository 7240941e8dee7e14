"""A contextwise loss curve as tables that read well in 80 columns."""

from typing import Any

from rich.text import Text

from contextwise.base.estimates import NOT_KNOWN, Estimate
from contextwise.base.tables import Column, Table

BAR = 16
ENOUGH_TARGETS = 1000
"""Below so many, a bin's mean is uncertain by a tenth of a nat or more: losses of single tokens vary by some three nats."""
EIGHTHS = " ▏▎▍▌▋▊▉█"


def curve_heading(summary: dict[str, Any]) -> Text:
    """What was scored, and how."""
    settings = summary["settings"]
    counts = f"{summary['documents']:,} document{'s' if summary['documents'] > 1 else ''}"
    head = f"{summary['model']} on {summary['corpus']['path']}, split {summary['corpus']['split']}: "
    if settings["mode"] == "running":
        windows = summary["targets"] // settings["context"]
        head += f"{windows:,} windows of {settings['context']:,} tokens in {counts}"
    else:
        contexts = len(settings["contexts"])
        targets = summary["targets"] // contexts
        head += (
            f"the same {targets:,} targets at {contexts} context{'s' if contexts > 1 else ''}, in {counts}"
        )
    if summary["trained_context"]:
        head += f"; trained with {summary['trained_context']:,}"
    if settings["rope"] != "none":
        head += f"; positions extended by {settings['rope']}, factor {summary['rope_factor']:g}"
    if summary["documents"] == 1:
        head += ". One document allows no interval"
    return Text(head + ".")


def bins_table(summary: dict[str, Any]) -> Table:
    """Loss by visible tokens. The bars stand for nats above the lowest bin."""
    bins = summary["bins"]
    losses = [row["loss"] for row in bins]
    lowest, highest = min(losses), max(losses)
    trained = summary["trained_context"]
    beyond = any(trained and row["visible_to"] > trained for row in bins)
    rows = []
    for row in bins:
        share = (row["loss"] - lowest) / (highest - lowest) if highest > lowest else 0.0
        mark = " *" if trained and row["visible_to"] > trained else "  " if beyond else ""
        loss = Estimate(row["loss"], row["low"], row["high"])
        rows.append(
            [visible(row["visible_from"], row["visible_to"]) + mark, loss, row["targets"], bar(share)]
        )
    columns = [
        Column("visible tokens", align="right"),
        Column("nats/token", "estimate", ".4f", interval="own"),
        Column("targets", "integer"),
        Column("above the lowest", align="left"),
    ]
    notes = [f"* beyond the training context of {trained:,}"] if beyond else []
    return Table("", columns, rows, notes)


def measures_table(summary: dict[str, Any]) -> Table:
    """Best context, effective context and average, with where each is read off."""
    measures, settings = summary["measures"], summary["settings"]
    best, tenth, average = (measures[name] for name in ("best_context_loss", "last_tenth", "average_loss"))
    where = f"at {visible(best['visible_from'], best['visible_to'])} visible"
    rows: list[list[Any]] = [["best-context loss", *_loss_cells(best), where]]
    if tenth is not None:
        where = f"mean of {visible(tenth['visible_from'], tenth['visible_to'])}"
        rows.append(["  of the last tenth", *_loss_cells(tenth), where])
    effective = measures["effective_context"]
    where = f"a doubling is worth < {effective['worth']:g}"
    rows.append(["effective context", *effective_cells(effective), where])
    if average is not None:
        rows.append(["average loss", *_loss_cells(average), f"mean of 1–{settings['context']:,}"])
    return Table("", ["", "value", "95% interval", Column("", align="left")], rows)


def _loss_cells(values: dict[str, Any]) -> tuple[str, str]:
    loss = Estimate.from_dict(values)
    return f"{loss.value:.4f}", loss.interval("number", NOT_KNOWN)


def notes(summary: dict[str, Any]) -> list[str]:
    """What a reader of the measures should know."""
    best = summary["measures"]["best_context_loss"]
    targets = next(row["targets"] for row in summary["bins"] if row["visible_from"] == best["visible_from"])
    if summary["settings"]["mode"] != "running" or targets >= ENOUGH_TARGETS or len(summary["bins"]) == 1:
        return []
    tenth = " or read the last tenth," if summary["measures"]["last_tenth"] is not None else ""
    return [
        f"The lowest bin has {targets:,} targets only, and each bin has others: it may be the lowest by chance. Take more "
        f"documents,{tenth} or measure in the truncated mode, which has the same targets at every context."
    ]


def effective_cells(effective: dict[str, Any]) -> tuple[str, str]:
    """The effective context and its interval, in tokens; what was not reached is beyond the longest that was measured."""
    first, last = effective["measured_from"], effective["measured_to"]
    if last is None:
        return NOT_KNOWN, NOT_KNOWN

    def shown(end: float | None) -> str:
        if end is None:
            return f"> {last:,.0f}"
        return f"{end:,.0f}" if end > max(first, 1) else f"≤ {end:,.0f}" if first > 1 else "1"

    value, low, high = (effective[name] for name in ("value", "low", "high"))
    return shown(value), NOT_KNOWN if low is None else f"[{shown(low)}, {shown(high)}]"


def visible(low: int, high: int) -> str:
    """A bin of visible tokens."""
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def bar(share: float) -> str:
    """A bar of ``share`` (0 to 1) of the column's width, in eighths of a character."""
    eighths = round(share * BAR * 8)
    return (EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()
