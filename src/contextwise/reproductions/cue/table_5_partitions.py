"""New contexts after training: random partitions of types into a set A to train on and a set B to adapt to (CUE, Table 5).

Runs in ``trained_on``, and their descendants, are trained again for each partition; the others are shared by all.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.tables import Table
from contextwise.data.contexts import PREVIOUS
from contextwise.experiments.run_set import RunSet
from contextwise.reproductions.claims import Better, Claim, above, all_agree, below, check_names
from contextwise.reproductions.cue.runs import REFERENCE, parents_of
from contextwise.reproductions.cue.scores import Scored, kept_gain
from contextwise.reproductions.cue.tables_3_4_6_perplexity import CuePerplexity, Row
from contextwise.reproductions.item import Item, Outcome, registered

Set = Literal["A", "B", "both"]


@registered("cue_partitions")
class CuePartitions(CuePerplexity):
    """Rows averaged over random partitions of the context types."""

    types: list[str] = Field(min_length=2, description="metadata columns, and previous_sentence")
    trained_on: dict[str, Set] = Field(description="run -> the set of contexts that it is trained with")
    tested_on: dict[str, Set] = Field(
        default_factory=dict,
        description="row -> the set of contexts that it is tested with, if not that of its training",
    )
    partitions: int = Field(5, ge=1)
    partition_seed: int = 0

    @model_validator(mode="after")
    def _sets_known(self) -> "CuePartitions":
        check_names({"trained_on": self.trained_on}, self.runs)
        check_names({"tested_on": self.tested_on}, self.rows)
        return self

    def partition(self, number: int) -> dict[Set, list[str]]:
        """The sets of one partition; A is the larger one where they are not equal."""
        draw = np.random.default_rng([self.partition_seed, number])
        order = [self.types[i] for i in draw.permutation(len(self.types))]
        half = -(-len(order) // 2)
        a, b = (sorted(part, key=self.types.index) for part in (order[:half], order[half:]))
        return {"A": a, "B": b, "both": list(self.types)}

    def of_partition(self, number: int) -> CuePerplexity:
        """The measure of one partition."""
        sets = self.partition(number)
        names = {name: f"{name} {number + 1}" if self._depends(name) else name for name in self.runs}
        runs = {names[name]: self._settings(name, sets, names) for name in self.runs}
        rows = {
            name: Row(
                run=names[row.run],
                contexts=sets[self.tested_on[name]] if name in self.tested_on else row.contexts,
                drop=row.drop,
            )
            for name, row in self.rows.items()
        }
        values: dict[str, Any] = {name: getattr(self, name) for name in CuePerplexity.model_fields}
        return CuePerplexity(**values | {"runs": runs, "rows": rows})

    def _depends(self, run: str) -> bool:
        """Whether a run differs between partitions."""
        return run in self.trained_on or any(self._depends(parent) for parent in parents_of(self.runs[run]))

    def _settings(self, run: str, sets: dict[Set, list[str]], names: dict[str, str]) -> list[str]:
        """The settings of a run with the names that its parents have in a partition, and with its contexts."""
        settings = [
            REFERENCE.sub(lambda match: f"@{names.get(match.group(1), match.group(1))}", setting)
            for setting in self.runs[run]
        ]
        if run in self.trained_on:
            contexts = sets[self.trained_on[run]]
            columns = ", ".join(name for name in contexts if name != PREVIOUS)
            settings.append(f"data.contexts.columns=[{columns}]")
            settings.append(f"data.contexts.previous_sentence={str(PREVIOUS in contexts).lower()}")
        return settings

    def run_set(self, folder: Path) -> RunSet:
        runs = [
            run for number in range(self.partitions) for run in self.of_partition(number).run_set(folder).runs
        ]
        return RunSet(folder, list({run.id: run for run in runs}.values()), self.vocab_size)

    def measure(self, item: Item, folder: Path) -> Outcome:
        scores: dict[str, list[Scored]] = {name: [] for name in self.rows}
        for number in range(self.partitions):
            partition = self.of_partition(number)
            runs = partition.train(folder)
            for name, row in partition.rows.items():
                scores[name].append(Scored.of(partition.evaluations(runs, row)))
        reference = scores[self.reference]
        rows = [
            _row(name, row_scores, reference, name == self.reference) for name, row_scores in scores.items()
        ]
        title = f"Mean and standard deviation over {self.partitions} random partitions of the contexts"
        sets = [self.partition(number) for number in range(self.partitions)]
        drawn = [
            [str(i + 1), ", ".join(partition["A"]), ", ".join(partition["B"])]
            for i, partition in enumerate(sets)
        ]
        tables = [
            Table(title, ["", "perplexity", f"to {self.reference}"], rows),
            Table("The partitions", ["", "A", "B"], drawn),
        ]
        claims = [_better(claim, scores) for claim in self.claims]
        kept = {}
        for claim in self.kept:
            parts = zip(scores[claim.part], scores[claim.base], scores[claim.best], strict=True)
            shares = [kept_gain(*part) for part in parts]
            kept[claim.text] = values = [share.value for share in shares]
            printed = "" if claim.printed is None else f"; the document has {claim.printed:.0%}"
            verdict = all_agree((above(share, 0.5) for share in shares), "partitions")
            evidence = (
                f"mean {np.mean(values):.0%} of {', '.join(f'{value:.0%}' for value in values)}{printed}"
            )
            claims.append(Claim.of(claim.text, verdict, evidence))
        figures = {
            "partitions": sets,
            "perplexities": {
                name: [score.perplexity.to_dict() for score in row_scores]
                for name, row_scores in scores.items()
            },
            "kept": kept,
        }
        return Outcome(tables, claims, figures, self.run_set(folder).paths)


def _row(name: str, scores: list[Scored], reference: list[Scored], is_reference: bool) -> list[str]:
    perplexities = [score.perplexity.value for score in scores]
    spread = f" ± {np.std(perplexities, ddof=1):.2f}" if len(set(perplexities)) > 1 else ""
    relative = [score.relative(other).value for score, other in zip(scores, reference, strict=True)]
    return [name, f"{np.mean(perplexities):.2f}{spread}", "" if is_reference else f"{np.mean(relative):+.1%}"]


def _better(claim: Better, scores: dict[str, list[Scored]]) -> Claim:
    """In every partition, by the intervals over articles."""
    differences = [a.minus(b) for a, b in zip(scores[claim.better], scores[claim.than], strict=True)]
    verdicts = [below(difference) for difference in differences]
    mean = np.mean([difference.value for difference in differences])
    lower, higher = (sum(verdict.holds is holds for verdict in verdicts) for holds in (True, False))
    return Claim.of(
        claim.text,
        all_agree(verdicts, "partitions"),
        f"{claim.better} minus {claim.than}: {mean:+.3f} nats per target on average; the 95% interval over articles is below "
        f"zero in {lower} of {len(verdicts)} partitions, above in {higher}",
    )
