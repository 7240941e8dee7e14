"""Rows of a table, each a trained model scored with some contexts: CUE's Tables 3 to 6 and Figures 4 and 5.

Table 5 adapts to new contexts after training: random partitions of the context types into a set A to train on and a set B to
adapt to. Runs in ``trained_on``, and their descendants, are trained again for each partition; the others are shared by all.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.estimates import exponential
from contextwise.base.intervals import bootstrap_estimate, per_seed, resampled_ratios
from contextwise.data import Corpus
from contextwise.measures import Evaluation, measure
from contextwise.report import as_json
from contextwise.runset import RunSet
from contextwise.settings import DataError, Settings
from contextwise.stats import Estimate, estimate, with_seeds
from contextwise_papers.claims import Better, Claim, Kept, Verdict, above, below, check_names, given
from contextwise_papers.cue.runs import REFERENCE, CueRuns
from contextwise_papers.cue.sentences import SentenceLoss
from contextwise_papers.cue.sentences.running import PROXY
from contextwise_papers.cue.settings import PREVIOUS
from contextwise_papers.item import Item, Outcome
from contextwise_papers.tables import Plot, point, seeds_behind, table_of

Set = Literal["A", "B", "both"]


@dataclass(frozen=True)
class Scored:
    """One row of a table: nats (P, S, A), sums over each article, by partition of the contexts and seed; and targets (A,)."""

    nats: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(cls, evaluations: list[Evaluation]) -> "Scored":
        """From the evaluations of each seed's run, on the same documents."""
        tokens = [evaluation.documents["tokens"].to_numpy() for evaluation in evaluations]
        if any(not np.array_equal(tokens[0], other) for other in tokens[1:]):
            raise DataError("the evaluations of several seeds are not of the same sentences; evaluate them again")
        nats = np.stack([evaluation.documents["nats"].to_numpy() for evaluation in evaluations])
        return cls(nats[None], tokens[0].astype(np.float64))

    @property
    def parts(self) -> list["Scored"]:
        """The row in each partition."""
        return [Scored(nats_SA[None], self.targets) for nats_SA in self.nats]

    @property
    def loss(self) -> Estimate:
        """Nats per target, with its interval over articles, seeds and partitions: the three variances are added.

        All partitions have the same seeds and articles, and share runs. So each of the three is a sample of its own, and the
        P · S values are not taken for independent ones.
        """
        over_both = estimate([self.nats.mean(axis=0)], self.targets)
        return _with_partitions(over_both, per_seed(self.nats.mean(axis=1), self.targets))

    @property
    def perplexity(self) -> Estimate:
        return self.loss.map(exponential)

    def minus(self, other: "Scored") -> Estimate:
        """Difference of the losses, paired by partition, seed and article."""
        if not np.array_equal(self.targets, other.targets):
            raise DataError("two rows were scored on different sentences; evaluate both on the same split")
        return Scored(self.nats - other.nats, self.targets).loss

    def relative(self, other: "Scored") -> Estimate:
        """Perplexity over the other's, minus one: -0.25 for a quarter less."""
        return self.minus(other).map(lambda nats: exponential(nats) - 1)


def kept_gain(part: Scored, base: Scored, best: Scored) -> Estimate:
    """The share of the gain in perplexity from ``base`` to ``best`` that the row ``part`` has, a mean over partitions.

    (PPL_base - PPL_part) / (PPL_base - PPL_best), of the means over seeds, with a bootstrap interval over articles, to which
    the parts of seeds and partitions are added; no interval for fewer than six articles.
    """
    weights, values, draws, of_seeds = base.targets, list[float](), [], []
    for nats_3SA in np.stack([row.nats for row in (part, base, best)], axis=1):
        nats_A3 = np.stack([*nats_3SA.mean(axis=1)], axis=1)
        values.append(float(_kept(nats_A3.sum(axis=0) / weights.sum())))
        draws.append(_kept(resampled_ratios(nats_A3, weights)))
        of_seeds.append(_kept(np.stack([per_seed(nats_SA, weights) for nats_SA in nats_3SA], axis=1)))
    over_articles = bootstrap_estimate(float(np.mean(values)), np.mean(draws, axis=0), len(weights))
    return _with_partitions(with_seeds(over_articles, np.mean(of_seeds, axis=0)), values)


def _kept(losses: np.ndarray) -> np.ndarray:
    """The share for losses (..., 3) of part, base and best."""
    ppl_part, ppl_base, ppl_best = np.moveaxis(np.exp(losses), -1, 0)
    return np.asarray((ppl_base - ppl_part) / (ppl_base - ppl_best))


def _with_partitions(over_articles_and_seeds: Estimate, values_P: Sequence[float] | np.ndarray) -> Estimate:
    known = over_articles_and_seeds
    whole = with_seeds(known, np.asarray(values_P))
    parts = (*known.parts[:-1], *whole.parts[len(known.parts) :], *known.parts[-1:])  # the part of the seeds stays last
    return replace(whole, seeds=known.seeds, deviation=known.deviation, parts=parts)


class Row(Settings):
    """A row: a run, and the contexts that it is tested with (those of its training by default)."""

    run: str
    contexts: list[str] | None = None


class Drawn(Settings):
    """A figure of rows: perplexity over numbers or names."""

    title: str
    x: str
    series: dict[str, dict[str, float | str]] = Field(description="row -> its x, by name of the series")
    levels: dict[str, str] = Field(default={}, description="name of a line -> row")
    kind: str = "lines"


class CuePerplexity(CueRuns, name="cue_perplexity"):
    """Perplexity of CUE's runs on one split."""

    rows: dict[str, Row] = Field(min_length=1)
    reference: str = Field(description="the row that the others are compared to")
    claims: list[Better] = Field(default=[])
    kept: list[Kept] = Field(default=[])
    figure: Drawn | None = None
    limit_documents: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _known(self) -> "CuePerplexity":
        named = {
            "reference": [self.reference],
            "claims": [name for claim in self.claims for name in claim.names],
            "kept": [name for claim in self.kept for name in claim.names],
        }
        if self.figure is not None:
            named["figure"] = [row for points in self.figure.series.values() for row in points]
            named["figure"] += list(self.figure.levels.values())
        check_names(named, self.rows, "the row ")
        runs = {f"the row {name!r}": [row.run] for name, row in self.rows.items()}
        check_names(runs, self.runs, "the run ")
        return self

    @property
    def wanted(self) -> list[str]:
        return [row.run for row in self.rows.values()]

    def _read_columns(self, folder: Path) -> list[str]:
        of_rows = [name for row in self.rows.values() for name in row.contexts or [] if name not in (PREVIOUS, PROXY)]
        return list(dict.fromkeys([*super()._read_columns(folder), *of_rows]))

    def scores(self, runs: RunSet) -> dict[str, Scored]:
        """Each row's scores over the seeds; what has been evaluated is used again."""
        held_out, limit = self.held_out(), self.limit_documents
        return {
            name: Scored.of([evaluated(run.folder, held_out, row, limit) for run in runs.of_arm(row.run)])
            for name, row in self.rows.items()
        }

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        scores = self.scores(runs)
        reference = scores[self.reference]
        about = f"articles of the split {self.split}, {int(reference.targets.sum()):,} targets"
        outcome = self.reported(scores, about, runs.paths)
        outcome.figures |= as_json(
            {
                "perplexities": {name: score.perplexity for name, score in scores.items()},
                "relative": {name: score.relative(reference) for name, score in scores.items()},
            }
        )
        outcome.plots = [] if self.figure is None else [drawn(self.figure, scores)]
        return outcome

    def reported(self, scores: dict[str, Scored], about: str, paths: list[Path], partitions: int = 0) -> Outcome:
        """The table and the claims of rows that were scored once, or in several partitions."""
        reference = scores[self.reference]
        losses = {name: row.loss for name, row in scores.items()}
        differences = {name: row.minus(reference) for name, row in scores.items()}
        rows: list[list[Any]] = []
        for name, row in scores.items():
            values = [part.perplexity.value for part in row.parts]
            spread = [np.std(values, ddof=1) if len(set(values)) > 1 else None] if partitions else []
            to_it: list[Any] = [None, None]
            if name != self.reference:
                to_it = [exponential(differences[name].value) - 1, differences[name]]
            rows.append([name, exponential(losses[name].value), *spread, *to_it])
        title = f"{len(reference.targets)} {about}; {seeds_behind(len(self.seeds))}"
        columns: list[Any] = ["", ("perplexity", ".2f"), ("change", "+.1%"), ("in nats", "+.3f")]
        if partitions:
            title = f"{partitions} random partitions of the contexts, {title}; SD: over partitions"
            columns.insert(2, ("SD", ".2f"))
        title += f"; differences from {self.reference}, 95% intervals"
        title += " over partitions, seeds and articles" if partitions else ""
        claims: list[Claim] = []
        kept: dict[str, Any] = {}
        for better in self.claims:
            ours, other = scores[better.better], scores[better.than]
            difference = ours.minus(other)
            lower = sum(part.minus(its).value < 0 for part, its in zip(ours.parts, other.parts, strict=True))
            of_all = f" on average, below zero in {lower} of {partitions} partitions" if partitions else ""
            claims.append(better.decided(below(difference), f": {difference:+.3f} nats per target{of_all}"))
        for claim in self.kept:
            part, base, best = (scores[name] for name in claim.names)
            share = kept[claim.text] = kept_gain(part, base, best)
            evidence = f"{share:.0%}"
            if partitions:
                every = [kept_gain(*rows).value for rows in zip(part.parts, base.parts, best.parts, strict=True)]
                kept[claim.text] = every
                evidence = f"mean {evidence} of {', '.join(f'{value:.0%}' for value in every)}"
            evidence += "" if claim.printed is None else f"; the document has {claim.printed:.0%}"
            claims.append(Claim.of(claim.text, _most(share, best.minus(base)), evidence))
        claims = [claim.over_seeds(len(self.seeds)) for claim in claims]
        figures = {"losses": losses, "differences": differences, "kept": kept}
        return Outcome([table_of(title, columns, rows)], claims, figures, paths)


def evaluated(run: Path, corpus: Corpus, row: Row, limit: int | None) -> Evaluation:
    """The evaluation of a run with a row's contexts; an existing one is used again."""
    return measure(run, SentenceLoss(contexts=row.contexts, limit=limit), corpus)


def _most(share: Estimate, gain: Estimate) -> Verdict:
    """Whether a row keeps more than half of a gain, a difference in nats below zero; undecided if there is none to keep."""
    otherwise = f"that there is a gain to keep is not decided: {gain:+.3f} nats per target"
    return given(below(gain), above(share, 0.5), otherwise)


def drawn(figure: Drawn, scores: dict[str, Scored]) -> Plot:
    """The figure's numbers: perplexities with their intervals."""
    series = {
        name: [point(x, scores[row].perplexity) for row, x in rows.items()] for name, rows in figure.series.items()
    }
    levels = {name: scores[row].perplexity.value for name, row in figure.levels.items()}
    return Plot(figure.title, figure.x, "perplexity", series, figure.kind, levels)


class CuePartitions(CuePerplexity, name="cue_partitions"):
    """Rows averaged over random partitions of the context types."""

    types: list[str] = Field(
        min_length=2, description="metadata columns, and previous_sentence; if columns is given, these instead"
    )
    trained_on: dict[str, Set] = Field(description="run -> the set of contexts that it is trained with")
    tested_on: dict[str, Set] = Field(default={}, description="row -> the set of its test, if not of its training")
    partitions: int = Field(default=5, ge=1)
    partition_seed: int = 0

    @model_validator(mode="after")
    def _sets_known(self) -> "CuePartitions":
        check_names({"trained_on": self.trained_on}, self.runs)
        check_names({"tested_on": self.tested_on}, self.rows)
        types = self.context_types
        if len(types) < 2:
            raise ValueError(f"{types[0]} is the only context, which cannot be divided; give columns two names or more")
        if len(set(types)) < len(types):
            raise ValueError(f"types names a context twice: {', '.join(types)}")
        if self.partitions > (possible := math.comb(len(types), len(types) // 2)):
            raise ValueError(f"partitions is {self.partitions}, but {len(types)} types have only {possible}")
        return self

    @property
    def context_types(self) -> list[str]:
        """The types that are divided: ``types``, with the metadata of this corpus if ``columns`` are given."""
        if self.columns is None:
            return self.types
        return [*self.columns, *(name for name in self.types if name == PREVIOUS)]

    def partition(self, number: int) -> dict[Set, list[str]]:
        """The sets of one partition, another for each number; A is the larger one where they are not equal."""
        types, drawn = self.context_types, list[list[str]]()
        for attempt in itertools.count():
            order = np.random.default_rng([self.partition_seed, attempt]).permutation(len(types))
            a = [types[i] for i in sorted(order[: -(-len(order) // 2)])]
            if a not in drawn:
                drawn.append(a)
            if len(drawn) > number:
                return {"A": a, "B": [name for name in types if name not in a], "both": types}
        raise AssertionError  # the validator allows as many as there are

    def of_partition(self, number: int) -> CuePerplexity:
        """The measure of one partition."""
        sets = self.partition(number)
        names = {name: f"{name} {number + 1}" if self._depends(name) else name for name in self.runs}
        runs = {names[name]: self._settings(name, sets, names) for name in self.runs}
        tested = {name: {"contexts": sets[part]} for name, part in self.tested_on.items()}
        rows = {
            name: row.model_copy(update={"run": names[row.run], **tested.get(name, {})})
            for name, row in self.rows.items()
        }
        values: dict[str, Any] = {name: getattr(self, name) for name in CuePerplexity.model_fields}
        templates = {name: self._template(name) for name in self.templates}
        return CuePerplexity(**values | {"templates": templates, "columns": None, "runs": runs, "rows": rows})

    def _depends(self, run: str) -> bool:
        """Whether a run differs between partitions: it or a parent is trained on a set."""
        parents = (match.group(1) for setting in self.runs[run] if (match := REFERENCE.search(setting)))
        return run in self.trained_on or any(map(self._depends, parents))

    def _settings(self, run: str, sets: dict[Set, list[str]], names: dict[str, str]) -> list[str]:
        """The settings of a run with the names that its parents have in a partition, and with its contexts."""
        settings = [
            REFERENCE.sub(lambda match: f"@{names.get(match.group(1), match.group(1))}", setting)
            for setting in self.runs[run]
        ]
        if run in self.trained_on:
            contexts = sets[self.trained_on[run]]
            columns = json.dumps([name for name in contexts if name != PREVIOUS], ensure_ascii=False)
            previous = str(PREVIOUS in contexts).lower()
            settings += [f"data.contexts.columns={columns}", f"data.contexts.previous_sentence={previous}"]
        return settings

    def run_set(self, folder: Path) -> RunSet:
        sets = (self.of_partition(number).run_set(folder) for number in range(self.partitions))
        runs = {run.id: run for runs in sets for run in runs.runs}
        return RunSet(folder, list(runs.values()))

    def measure(self, item: Item, folder: Path) -> Outcome:
        parts = [self.of_partition(number) for number in range(self.partitions)]
        every = [part.scores(part.train(folder)) for part in parts]
        scores = {
            name: Scored(np.concatenate([rows[name].nats for rows in every]), every[0][name].targets)
            for name in self.rows
        }
        outcome = self.reported(scores, "articles", self.run_set(folder).paths, self.partitions)
        sets = [self.partition(number) for number in range(self.partitions)]
        drawn_sets = [[i, ", ".join(drawn["A"]), ", ".join(drawn["B"])] for i, drawn in enumerate(sets, 1)]
        outcome.tables.append(table_of("The partitions", ["", "A", "B"], drawn_sets))
        perplexities = {name: [part.perplexity for part in row.parts] for name, row in scores.items()}
        outcome.figures |= as_json({"partitions": sets, "perplexities": perplexities})
        return outcome
