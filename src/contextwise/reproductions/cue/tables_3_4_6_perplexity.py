"""Rows of a table, each a trained model scored with some contexts: CUE's Tables 3, 4, 6 and Figures 4 and 5."""

from pathlib import Path

from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.estimates import Estimate
from contextwise.base.tables import Table
from contextwise.data import Corpus
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.loss import Evaluation
from contextwise.evaluation.measures.sentences import SentenceLoss
from contextwise.experiments.run_set import RunSet
from contextwise.reproductions.claims import Better, Claim, Kept, above, below, check_names, point
from contextwise.reproductions.cue.runs import CueRuns
from contextwise.reproductions.cue.scores import Scored, kept_gain
from contextwise.reproductions.item import Item, Outcome, Plot, registered


class Row(Settings):
    """A row: a run, and the contexts that it is tested with (those of its training by default)."""

    run: str
    contexts: list[str] | None = None
    drop: float = Field(0.0, ge=0, le=1, description="share of the contexts that is withheld, at random")


class Drawn(Settings):
    """A figure of rows: perplexity over numbers or names."""

    title: str
    x: str
    series: dict[str, dict[str, float | str]] = Field(description="row -> its x, by name of the series")
    levels: dict[str, str] = Field(default_factory=dict, description="name of a line -> row")
    kind: str = "lines"


@registered("cue_perplexity")
class CuePerplexity(CueRuns):
    """Perplexity of CUE's runs on one split."""

    rows: dict[str, Row] = Field(min_length=1)
    reference: str = Field(description="the row that the others are compared to")
    seeds: list[int] = Field(default=[0], min_length=1)
    claims: list[Better] = Field(default_factory=list)
    kept: list[Kept] = Field(default_factory=list)
    figure: Drawn | None = None
    limit_documents: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _known(self) -> "CuePerplexity":
        named = {
            "reference": [self.reference],
            "claims": [name for claim in self.claims for name in (claim.better, claim.than)],
            "kept": [name for claim in self.kept for name in (claim.part, claim.base, claim.best)],
        }
        if self.figure is not None:
            named["figure"] = [row for points in self.figure.series.values() for row in points]
            named["figure"] += list(self.figure.levels.values())
        check_names(named, self.rows, "the row ")
        check_names(
            {f"the row {name!r}": [row.run] for name, row in self.rows.items()}, self.runs, "the run "
        )
        return self

    @property
    def wanted(self) -> list[str]:
        return [row.run for row in self.rows.values()]

    @property
    def every_seed(self) -> list[int]:
        return self.seeds

    def evaluations(self, runs: RunSet, row: Row) -> list[Evaluation]:
        """A row's evaluation for each seed; what has been evaluated is used again."""
        held_out = self.held_out()
        return [evaluated(run.folder, held_out, row, self.limit_documents) for run in runs.of_arm(row.run)]

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        scores = {name: Scored.of(self.evaluations(runs, row)) for name, row in self.rows.items()}
        reference = scores[self.reference]
        articles, targets = len(reference.targets), int(reference.targets.sum())
        many = f"mean of {len(self.seeds)} seeds" if len(self.seeds) > 1 else "one seed"
        title = f"{articles} articles of the split {self.split}, {targets:,} targets; {many}; 95% intervals"
        rows = [row_of(name, score, reference, name == self.reference) for name, score in scores.items()]
        tables = [Table(title, ["", "perplexity", f"to {self.reference}", "nats to it"], rows)]
        claims = [_better(claim, scores) for claim in self.claims]
        kept = {
            claim.text: kept_gain(*(scores[name] for name in (claim.part, claim.base, claim.best)))
            for claim in self.kept
        }
        claims += [_kept(claim, kept[claim.text]) for claim in self.kept]
        plots = [] if self.figure is None else [drawn(self.figure, scores)]
        figures = {
            "losses": {name: score.loss.to_dict() for name, score in scores.items()},
            "perplexities": {name: score.perplexity.to_dict() for name, score in scores.items()},
            "relative": {name: score.relative(reference).to_dict() for name, score in scores.items()},
            "kept": {text: score.to_dict() for text, score in kept.items()},
        }
        return Outcome(tables, claims, figures, runs.paths, plots)


def evaluated(run: Path, corpus: Corpus, row: Row, limit: int | None) -> Evaluation:
    """The evaluation of a run with a row's contexts; an existing one is used again."""
    return measure(
        run, SentenceLoss(contexts=row.contexts, drop_contexts=row.drop or 0.0, limit=limit), corpus
    )


def row_of(name: str, score: Scored, reference: Scored, is_reference: bool) -> list[str]:
    perplexity = score.perplexity
    cells = [name, f"{perplexity:.2f}"]
    if is_reference:
        return [*cells, "", ""]
    return [*cells, f"{score.relative(reference).value:+.1%}", f"{score.minus(reference):+.3f}"]


def _better(claim: Better, scores: dict[str, Scored]) -> Claim:
    difference = scores[claim.better].minus(scores[claim.than])
    evidence = f"{claim.better} minus {claim.than}: {difference:+.3f} nats per target"
    return Claim.of(claim.text, below(difference), evidence)


def _kept(claim: Kept, share: Estimate) -> Claim:
    """More than half of a gain is most of it."""
    printed = "" if claim.printed is None else f"; the document has {claim.printed:.0%}"
    return Claim.of(claim.text, above(share, 0.5), f"{share:.0%}{printed}")


def drawn(figure: Drawn, scores: dict[str, Scored]) -> Plot:
    """The figure's numbers: perplexities with their intervals."""
    series = {}
    for name, points in figure.series.items():
        series[name] = [point(x, scores[row].perplexity) for row, x in points.items()]
    levels = {name: scores[row].perplexity.value for name, row in figure.levels.items()}
    return Plot(figure.title, figure.x, "perplexity", series, figure.kind, levels)
