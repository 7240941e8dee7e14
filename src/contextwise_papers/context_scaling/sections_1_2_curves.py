"""Context curves of trained or given models, and the lengths of documents: context scaling, Sections 1 and 2."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from contextwise.comparison.curves import ComparedCurve, compare_curves, curves_table
from contextwise.data import Corpus
from contextwise.evaluation.measures.curve import CurveResult, measures_table
from contextwise.measures import Curve, measure
from contextwise.report import Table
from contextwise.runset import Arm, RecipeValues, RunSet, RunSetSettings
from contextwise.settings import Lengths, Seeds
from contextwise.stats import Estimate, ratio_difference, wilson
from contextwise_papers.claims import LEAST_SEEDS, Claim, Verdict, above, all_agree, all_hold, below
from contextwise_papers.item import CorpusMeasure, Item, Outcome
from contextwise_papers.models import GivenModel
from contextwise_papers.tables import Plot, points, table_of


class ContextCurve(GivenModel, name="context_curve"):
    """The loss of one model at each number of visible tokens, up to its training context or beyond it.

    With several seeds the claims are decided where three or more agree.
    """

    several: ClassVar = True
    context: int = Field(ge=8, description="the longest context that is measured")
    trained_context: int | None = Field(default=None, ge=4, description="of a given model, where below `context`")
    limit_documents: int | None = Field(default=None, ge=1, description="measure only the first so many documents")

    @property
    def trained(self) -> int:
        """Tokens that the model was trained with."""
        own = (self.recipe or {}).get("data", {}).get("context") if not self.model else self.trained_context
        return min(own or self.context, self.context)

    def measure(self, item: Item, folder: Path) -> Outcome:
        settings = self.settings_of(Curve, "context", mode="running", limit=self.limit_documents)
        curves = [self.measured(settings, folder, i) for i in range(self.models)]
        where = "in this one run, " if len(curves) == 1 and not self.model else ""
        claims = [curve_claim(improvement, curves, self.trained, where)]
        if self.trained < self.context:
            claims.append(curve_claim(deterioration, curves, self.trained, where))
        figures = {"bins": [curve.bins for curve in curves], "measures": [curve.measures for curve in curves]}
        tables = [bins_table(curves), *(measures_table(curve.summary, "Read off the curve") for curve in curves)]
        return Outcome(tables, claims, figures, self.run_set(folder).paths, [curves_plot(curves)])


def bins_table(curves: list[CurveResult]) -> Table:
    """Losses of the bins of some curves."""
    columns = [{(b["visible_from"], b["visible_to"]): _bin_loss(b) for b in curve.bins} for curve in curves]
    rows = [
        [" to ".join(f"{end:,}" for end in sorted(set(limits))), *(column.get(limits) for column in columns)]
        for limits in sorted(set().union(*columns))
    ]
    return table_of(
        "Context curve: loss, nats per token, over the held-out documents that are long enough; 95% intervals",
        ["visible tokens", *((Path(curve.summary["model"]).name, ".3f") for curve in curves)],
        rows,
    )


def _bin_loss(row: dict[str, Any]) -> Estimate:
    return Estimate(row["loss"], row["low"], row["high"])


def curves_plot(curves: list[CurveResult]) -> Plot:
    """The bins of some curves, by the names of their models."""
    series = {
        Path(curve.summary["model"]).name: points(
            {float(np.sqrt(b["visible_from"] * b["visible_to"])): _bin_loss(b) for b in curve.bins}
        )
        for curve in curves
    }
    return Plot("Context curve", "visible tokens", "loss, nats per token", series, logarithmic="x")


def bins_difference(curve: CurveResult, first: int, second: int) -> Estimate:
    """Loss of one bin minus that of another, with its interval over documents."""
    table, count = curve.documents, len(curve.bins)
    nats, targets = (table[name].to_numpy().reshape(-1, count) for name in ("nats", "targets"))
    sums = np.array([nats, targets.astype(float)])
    return ratio_difference(sums[:, :, first], sums[:, :, second])


class Change(NamedTuple):
    """What a claim says of a curve between two numbers of visible tokens; ``words`` are those before the size."""

    claim: str
    first: int
    last: int
    words: str
    size: Estimate
    form: str


def improvement(curve: CurveResult, trained: int) -> Change:
    """Section 1: the loss improves throughout the context, here in its last doubling."""
    ends = [b["visible_to"] for b in curve.bins if b["visible_to"] <= trained]
    last = len(ends) - 1
    half = max((i for i, end in enumerate(ends) if end <= ends[last] / 2), default=0)
    text = "the loss improves throughout the training context"
    return Change(text, ends[half], ends[last], "falls", bins_difference(curve, half, last), ".3f")


def deterioration(curve: CurveResult, trained: int) -> Change:
    """Section 2: beyond the training context the predictions deteriorate."""
    ends = [b["visible_to"] for b in curve.bins]
    inside = max(i for i, end in enumerate(ends) if end <= trained)
    text = "beyond the training context the loss deteriorates"
    return Change(text, ends[inside], ends[-1], "changes", bins_difference(curve, len(ends) - 1, inside), "+.3f")


def curve_claim(
    change: Callable[[CurveResult, int], Change], curves: list[CurveResult], trained: int, where: str
) -> Claim:
    """A claim on the curve of a model, or on those of a recipe's seeds; ``where`` begins the evidence."""
    changes = [change(curve, trained) for curve in curves]
    verdicts, first = [above(each.size) for each in changes], changes[0]
    verdict = verdicts[0] if len(verdicts) == 1 else all_agree(verdicts, "seeds", LEAST_SEEDS)
    sizes = ", ".join(format(each.size, each.form) for each in changes)
    by = "by" if len(changes) == 1 else "by, seed by seed,"
    evidence = f"{where}from {first.first:,} to {first.last:,} tokens it {first.words} {by} {sizes} nats"
    return Claim.of(first.claim, verdict, evidence)


class TrainingLossMisleads(CorpusMeasure, name="training_loss_misleads"):
    """One model trained with a short and with a long context on as many tokens: average loss against the lowest bin."""

    recipe: RecipeValues
    contexts: Lengths = Field(min_length=2, max_length=2, description="the short one and the long one")
    seeds: Seeds = Field(default=[0], min_length=1)
    limit_documents: int | None = Field(default=None, ge=2)

    def run_set(self, folder: Path) -> RunSet:
        arms = {str(self.recipe.get("name", "misleads")): Arm()}
        grid: dict[str, list[Any]] = {"data.context": self.contexts}
        settings = RunSetSettings(recipe=self.recipe, arms=arms, seeds=self.seeds, grid=grid)
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder))

    def measure(self, item: Item, folder: Path) -> Outcome:
        settings = self.settings_of(Curve, mode="running", limit=self.limit_documents)
        runs = self.train(folder).paths
        held_out = Corpus.open(self.prepared(folder), split="validation")
        curves = [measure(run, settings, held_out) for run in runs]
        tables, pairs, figures = [], [], {}
        for index, seed in enumerate(self.seeds):
            pair = curves[2 * index : 2 * index + 2]
            pairs.append(compare_curves(pair).curves)
            tables += [bins_table(pair), curves_table(pairs[-1], "By average, best-context loss and lowest bin")]
            figures[str(seed)] = [curve.measures for curve in pair]
        return Outcome(tables, misleading_claims(pairs), figures, runs, [curves_plot(curves)])


def misleading_claims(pairs: list[list[ComparedCurve]]) -> list[Claim]:
    """The claims of Section 2 on its Models A (short) and B (long), seed by seed; decided where three or more agree."""
    texts = (
        "the model of the longer context has the lower average loss",
        "yet the model of the shorter context is better at every context that both have",
        "and has the lower loss in its lowest bin",
    )
    decided = [_misleads(long) for _, long in pairs]
    claims = []
    for text, of_seeds in zip(texts, zip(*decided, strict=True), strict=True):
        verdicts, evidence = zip(*of_seeds, strict=True)
        verdict = all_agree(verdicts, "seeds", LEAST_SEEDS)
        claims.append(Claim.of(text, verdict, "long minus short, seed by seed: " + ", ".join(evidence)))
    return claims


def _misleads(long: ComparedCurve) -> list[tuple[Verdict, str]]:
    """Verdict and evidence of each claim with one seed."""
    assert long.average_difference is not None and long.lowest_difference is not None
    assert long.below is not None and long.bin_differences is not None
    average, lowest = long.average_difference, long.lowest_difference
    every_bin = all_hold(above(each) for each in long.bin_differences.values())
    return [
        (below(average), f"{average:+.3f}"),
        (every_bin, "lower in {} of {} bins".format(*long.below)),
        (above(lowest), f"{lowest:+.3f}"),
    ]


class DocumentLengths(CorpusMeasure, name="document_lengths"):
    """Shares of documents and of tokens by document length (context scaling, Section 1)."""

    lengths: list[int] = Field(default=[256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536], min_length=1)
    claimed: int | None = Field(default=None, ge=1, description="tokens that most documents are said to lack")
    share: float = Field(default=0.9, gt=0, lt=1)

    def measure(self, item: Item, folder: Path) -> Outcome:
        path = self.prepared(folder)
        splits = Corpus.open(path).splits
        lengths = np.concatenate([np.asarray(Corpus.open(path, split=split).lengths) for split in splits])
        limits, total = sorted(self.lengths), lengths.sum()
        shorter = {limit: float((lengths < limit).mean()) for limit in limits}
        longer = {limit: lengths[lengths >= limit].sum() / total for limit in limits}
        inside = {limit: np.minimum(lengths, limit).sum() / total for limit in limits}
        table = table_of(
            f"{len(lengths):,} documents, {total:,} tokens",
            [("tokens", ","), *((name, ".1%") for name in
             ("shorter documents", "text in longer ones", "text with less before it"))],
            [[limit, shorter[limit], longer[limit], inside[limit]] for limit in limits],
        )  # fmt: skip
        claims = []
        if self.claimed is not None:
            share = wilson(float((lengths < self.claimed).mean()), len(lengths))
            text = f"over {self.share:.0%} of the documents are shorter than {self.claimed:,} tokens"
            claims = [Claim.of(text, above(share, self.share), f"{share:.3f}")]
        series = {"documents": points(shorter)}
        plot = Plot("Share of documents that are shorter", "tokens", "share", series, logarithmic="x")
        return Outcome([table], claims, {"documents": len(lengths), "tokens": int(total)}, plots=[plot])
