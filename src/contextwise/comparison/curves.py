"""Models of different training contexts side by side: by their average loss, which misleads, and by their best.

The average over all positions of a window is what a trainer logs. Models of longer contexts predict more positions
with many visible tokens, which are easier. So their average may be lower although their loss is higher at each number of
visible tokens that both have (context scaling, Section 2). Models are ranked by the last tenth of their training context
(footnote 4), or where all targets are the same at each context, by the best of these. Differences are paired by document,
over the documents that all curves have.

Legend of shapes: D documents, K bins.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import RenderableType

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import Estimate, as_json, listed
from contextwise.base.intervals import ratio_difference, ratios, resampled_ratios
from contextwise.base.progress import say
from contextwise.base.tables import Column, Row, Table
from contextwise.base.views import Viewed
from contextwise.comparison.compared_runs import of_single_runs, refuse_repeated, run_of, told_apart
from contextwise.evaluation.kernel import Result, is_result
from contextwise.evaluation.kernel.subject import results_of_model
from contextwise.evaluation.measures.curve import Curve, CurveResult, visible
from contextwise.evaluation.measures.curve.readings import lowest_estimate


class ComparedCurve:
    """One curve, and its differences to the first one; nats per token.

    Attributes:
        context: longest that was measured.
        average: mean over all visible tokens, in the running mode; None in the others, whose contexts were chosen.
        lowest: loss of the lowest bin, which holds ``lowest_from`` to ``lowest_to`` visible tokens.
        best_context_loss: mean over the last tenth of the training context, in the running mode; None in the others.
        average_difference, lowest_difference, best_context_difference: to the first curve; None for itself.
        bin_differences: (visible from, visible to) of each bin that both have -> the difference to the first curve.
        below: bins in which it is lower than the first curve, and bins that both have.
        single_run: whether it is the curve of a run: its intervals do not hold for other seeds of the recipe.
    """

    average_difference: Estimate | None
    lowest_difference: Estimate | None
    best_context_difference: Estimate | None
    below: tuple[int, int] | None

    def __init__(
        self, curve: CurveResult, documents: list[int], first: "ComparedCurve | None" = None, name: str | None = None
    ) -> None:
        limits = [(each["visible_from"], each["visible_to"]) for each in curve.bins]
        self.name, self.context = str(curve.summary["model"]) if name is None else name, limits[-1][1]
        self._given_name = name
        self.single_run = run_of(curve) is not None
        self._sums, self._tail = _sums(curve, documents), _tail(curve, documents)
        nats, targets = self._sums.sum(axis=1)
        self._lowest_column = 1 + int((nats[1:] / targets[1:]).argmin())
        self._column = {bin: i for i, bin in enumerate(limits, 1)}
        average, lowest = (
            ratios(self._sums[0][:, i], {"loss": self._sums[1][:, i]})["loss"] for i in (0, self._lowest_column)
        )
        self.average = average if self._tail is not None else None
        drawn = resampled_ratios(*self._sums[:, :, 1:]).min(axis=1)
        self.lowest, self._drawn = lowest_estimate(lowest, drawn, len(documents)), drawn
        self.lowest_from, self.lowest_to = limits[self._lowest_column - 1]
        self.best_context_loss = None if self._tail is None else ratios(self._tail[0], {"loss": self._tail[1]})["loss"]
        self.average_difference = self.lowest_difference = self.best_context_difference = self.below = None
        self.bin_differences: dict[tuple[int, int], Estimate] | None = None
        if first is not None:
            self.average_difference = None if self._tail is None else self._minus(first, 0, 0)
            self.lowest_difference = self.lowest_minus(first)
            self.best_context_difference = self.tail_minus(first)
            shared = [bin for bin in limits if bin in first._column]
            self.bin_differences = {bin: self._minus(first, self._column[bin], first._column[bin]) for bin in shared}
            self.below = sum(each.value < 0 for each in self.bin_differences.values()), len(shared)

    @property
    def shown(self) -> str:
        """The name in tables: as it was given, or the last part of the model's path."""
        return Path(self.name).name if self._given_name is None else self._given_name

    def _minus(self, first: "ComparedCurve", own: int, other: int) -> Estimate:
        """The difference of two columns of the sums."""
        return ratio_difference(self._sums[:, :, own], first._sums[:, :, other])

    def lowest_minus(self, other: "ComparedCurve") -> Estimate:
        """The loss of the lowest bin minus that of another curve."""
        fixed = self._minus(other, self._lowest_column, other._lowest_column)
        return lowest_estimate(fixed, self._drawn - other._drawn, self._sums.shape[1])

    def tail_minus(self, other: "ComparedCurve") -> Estimate | None:
        """The loss of the last tenth minus that of another curve; None outside the running mode."""
        if self._tail is None or other._tail is None:
            return None
        return ratio_difference(self._tail, other._tail)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; the differences of the bins are counted in ``below``."""
        return as_json({n: value for n, value in vars(self).items() if n[0] != "_" and n != "bin_differences"})


@dataclass(frozen=True, repr=False)
class CurveComparison(Viewed):
    """Result of :func:`compare_curves`: the curves as they were measured, and each with its differences to the first."""

    measured: list[CurveResult]
    curves: list[ComparedCurve]

    @property
    def answer(self) -> str:
        """The curves in the order of their losses, each with its distance to the one before."""
        return ranking(self.curves).removesuffix(".")


def are_curves(sources: list[str]) -> bool:
    """Whether one of these is the folder of a curve."""
    return any(is_result(source) and Result.open(source).measure == Curve.name for source in sources)


def open_curves(sources: list[str], **others: bool) -> list[CurveResult]:
    """Curves by their folders, or by the runs that have one; ``others``: which options of a comparison of losses were given."""
    if given := [option for option, was_given in others.items() if was_given]:
        raise ConfigError(
            f"{given[0]} chooses among losses of documents, and context curves are compared; leave it out"
        )
    if len(sources) < 2:
        raise ConfigError("there is one curve; give two or more to compare")
    curves = [_curve_of(source) for source in sources]
    refuse_repeated([curve.path for curve in curves])
    first = curves[0].summary
    for source, curve in zip(sources, curves, strict=True):
        if curve.summary["corpus"]["fingerprint"] != first["corpus"]["fingerprint"]:
            raise DataError(
                f"{source} was measured on other documents than {sources[0]}; measure both on one corpus and split"
            )
        settings = curve.summary["settings"]
        mode, other = settings["mode"], first["settings"]["mode"]
        if mode != other:
            raise DataError(
                f"{source} was measured in the {mode} mode, {sources[0]} in {other}; measure both in one mode"
            )
        if mode != "running":
            for name in ("context", "samples", "seed", "limit"):  # on which the targets depend
                if settings.get(name) != first["settings"].get(name):
                    raise DataError(
                        f"{source} was measured with {name} {settings.get(name)}, {sources[0]} with "
                        f"{first['settings'].get(name)}, and so at other targets; measure both alike, or with --mode running"
                    )
        starts = {row["visible_to"]: row["visible_from"] for row in curves[0].bins}
        if any(starts.get(row["visible_to"], row["visible_from"]) != row["visible_from"] for row in curve.bins):
            raise DataError(
                f"{source} was measured in other bands than {sources[0]}, as another version does; measure both again"
            )
    if len({bool(curve.summary["settings"].get("bos")) for curve in curves}) > 1:
        say("note: a start token stands before the windows of some curves alone, which lowers their first rows (--bos)")
    return curves


def _curve_of(source: str) -> CurveResult:
    if is_result(source):
        return CurveResult.open(source, Curve.name)
    results = results_of_model(source, (Curve.name,))
    if not results:
        raise DataError(f"{source} has no curve yet; make one with: contextwise curve {source} --corpus CORPUS")
    if len(results) > 1:
        raise ConfigError(f"{source} has several curves ({told_apart(results)}); give the folder of one")
    return CurveResult(results[0].path, results[0].summary)


def compare_curves(curves: list[CurveResult], names: list[str] | None = None) -> CurveComparison:
    """Compare all curves to the first; ``names`` are by default those of the models."""
    common = set.intersection(*(set(curve.documents["document"].to_pylist()) for curve in curves))
    if not common:
        raise DataError("the curves have no document in common; measure them on longer documents")
    compared: list[ComparedCurve] = []
    for i, curve in enumerate(curves):
        own = names[i] if names else None
        compared.append(ComparedCurve(curve, sorted(common), compared[0] if compared else None, own))
    return CurveComparison(curves, compared)


def _sums(curve: CurveResult, documents: list[int]) -> np.ndarray:
    """Nats and targets of each document, in all bins together and in each bin: (2, D, 1 + K)."""
    table = curve.documents
    kept = np.isin(table["document"].to_numpy(), documents)
    nats_DK, targets_DK = (table[name].to_numpy()[kept].reshape(-1, len(curve.bins)) for name in ("nats", "targets"))
    return np.array([np.hstack([x.sum(1, keepdims=True), x]) for x in (nats_DK, targets_DK.astype(float))])


def _tail(curve: CurveResult, documents: list[int]) -> np.ndarray | None:
    """Nats and targets of each document in the last tenth of the training context: (2, D); None outside the running mode."""
    table = curve.documents
    if "tail_nats" not in table.column_names:
        return None
    kept = np.isin(table["document"].to_numpy(), documents) & (table["bin"].to_numpy() == 0)
    return np.array([table[name].to_numpy()[kept].astype(float) for name in ("tail_nats", "tail_targets")])


def differences_table(curves: list[ComparedCurve]) -> Table:
    """The difference of each curve to the first at each number of visible tokens that both have."""
    first, *others = curves
    known = [curve.bin_differences or {} for curve in others]
    rows = [[visible(*limits), *(each.get(limits) for each in known)] for limits in sorted(set().union(*known))]
    interval: Literal["own", "below"] = "own" if len(others) <= 2 else "below"
    names = [Column(curve.shown, "estimate", "+.4f", interval=interval) for curve in others]
    title = f"Minus {first.shown}, nats per token, paired by document; 95% intervals"
    return Table(title, [Column("visible tokens", align="right"), *names], rows)


def comparison_parts(comparison: CurveComparison) -> list[RenderableType]:
    """What the verb prints."""
    curves = comparison.curves
    return [curves_table(curves), differences_table(curves), f"{comparison.answer}."]


def ranking(curves: list[ComparedCurve]) -> str:
    """The curve with the lowest last tenth, else with the lowest bin, and the differences between neighbours in this order.

    As in the tables, a difference is that of the curve that was given later, minus the earlier one. Where they are of runs,
    the sentence says that it is about these runs alone.
    """
    ordered = sorted(curves, key=lambda curve: (curve.best_context_loss or curve.lowest).value)
    where = of_single_runs([curve.shown for curve in ordered if curve.single_run], len(curves))
    what = "best-context loss" if curves[0].best_context_loss else "loss in its lowest bin"
    first = f"{f'{where[:1].upper()}{where[1:]}, ' if where else ''}{ordered[0].shown} has the lowest {what}"
    words = []
    for before, curve in itertools.pairwise(ordered):
        earlier, later = sorted((before, curve), key=curves.index)
        difference = later.tail_minus(earlier) or later.lowest_minus(earlier)
        decided = "higher" if difference.value > 0 else "lower"
        how = decided if difference.decided else "no significant difference"
        why = f" ({difference.too_few})" if difference.too_few else ""
        words.append(f"{later.shown} − {earlier.shown} = {difference:+.4f} nats per token, {how}{why}")
    return f"{first}: {'; '.join(words)}."


def curves_table(curves: list[ComparedCurve], title: str = "") -> Table:
    """Average loss, best-context loss and lowest bin of each curve, with the differences to the first."""
    rows: list[Row] = []
    for curve in curves:
        where = f"to {curve.context:,} tokens, lowest at {visible(curve.lowest_from, curve.lowest_to)}"
        rows.append(Row([(curve.shown, where), curve.average, curve.best_context_loss, curve.lowest]))
        if curve.lowest_difference is not None:
            below = "" if curve.below is None else f"lower in {curve.below[0]} of {curve.below[1]} bins"
            differences = curve.average_difference, curve.best_context_difference, curve.lowest_difference
            rows.append(Row([("minus the first", below), *differences], kind="difference"))
    names = ["average\nloss", "best-context\nloss", "lowest\nbin"]
    known = [i for i in range(len(names)) if any(row.cells[i + 1] is not None for row in rows)]
    rows = [replace(row, cells=[row.cells[0], *(row.cells[i + 1] for i in known)]) for row in rows]
    columns = [Column("model"), *(Column(names[i], "estimate", ".4f", interval="none") for i in known)]
    single = [curve.shown for curve in curves if curve.single_run]
    notes = [
        "Minus the first: with 95% intervals over documents; a bin is a range of visible tokens that both models have."
    ]
    if single:
        notes += [f"One run of {listed(single)}: intervals are over documents, and say nothing about other seeds."]
    return Table(title, columns, rows, notes)
