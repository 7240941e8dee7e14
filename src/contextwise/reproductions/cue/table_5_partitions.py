"""Contexts that come later: random partitions of their types into a set A to train on and a set B to adapt to (CUE, Table 5).

In runs and rows ``$A``, ``$B`` and ``$AB`` stand for the metadata columns of each set and of both, and ``$hasA``, ``$hasB``
and ``$hasAB`` for whether the previous sentence is among them. For each partition these runs are trained anew; runs in which
no such word stands, and which are made from none in which one does, are shared by all.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.base.errors import ConfigError
from contextwise.data.contexts import PREVIOUS
from contextwise.reproductions.cue.scores import Scored, kept_gain
from contextwise.reproductions.cue.tables_3_4_6_perplexity import Row, StagedModels
from contextwise.reproductions.item import Claim, Item, Outcome, Table, registered
from contextwise.reproductions.trained_models import Lower
from contextwise.training.recipe import Recipe

_WORD = re.compile(r"\$(hasAB|hasA|hasB|AB|A|B)")


@registered("partitioned_models")
class PartitionedModels(StagedModels):
    """Rows averaged over random partitions of the context types."""

    types: list[str] = Field(min_length=2, description="metadata columns, and previous_sentence")
    partitions: int = Field(5, ge=1)
    partition_seed: int = 0

    def partition(self, number: int) -> dict[str, list[str]]:
        """The sets of one partition; A is the larger one where they are not equal."""
        draw = np.random.default_rng([self.partition_seed, number])
        order = [self.types[i] for i in draw.permutation(len(self.types))]
        half = -(-len(order) // 2)
        a, b = (sorted(part, key=self.types.index) for part in (order[:half], order[half:]))
        return {"A": a, "B": b, "AB": list(self.types)}

    def of_partition(self, number: int) -> StagedModels:
        """The measure of one partition."""
        sets = self.partition(number)
        own = {name for name, parts in self.runs.items() if any(_WORD.search(part) for part in parts)}
        while True:
            more = {
                name
                for name, parts in self.runs.items()
                if name not in own and any(part.endswith(f"@{other}") for part in parts for other in own)
            }
            if not more:
                break
            own |= more
        named = {name: f"{name} {number + 1}" if name in own else name for name in self.runs}
        runs = {
            named[name]: [_filled(part, sets, named) for part in parts] for name, parts in self.runs.items()
        }
        rows = {
            name: Row(run=named[row.run], contexts=_contexts(row.contexts, sets), drop=row.drop)
            for name, row in self.rows.items()
        }
        values: dict[str, Any] = {name: getattr(self, name) for name in StagedModels.model_fields}
        return StagedModels(**values | {"runs": runs, "rows": rows})

    def recipes(self, folder: Path) -> list[Recipe]:
        found: dict[str, Recipe] = {}
        for number in range(self.partitions):
            for recipe in self.of_partition(number).recipes(folder):
                found.setdefault(str(recipe.folder), recipe)
        return list(found.values())

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs: dict[Path, None] = {}
        scores: dict[str, list[Scored]] = {name: [] for name in self.rows}
        for number in range(self.partitions):
            one = self.of_partition(number)
            runs |= dict.fromkeys(one.train(folder))
            for name, row in one.rows.items():
                scores[name].append(Scored.of(one.evaluations(folder, row)))
        reference = scores[self.reference]
        rows = [_row(name, found, reference, name == self.reference) for name, found in scores.items()]
        title = f"Mean and standard deviation over {self.partitions} random partitions of the contexts"
        sets = [self.partition(number) for number in range(self.partitions)]
        drawn = [[str(i + 1), ", ".join(one["A"]), ", ".join(one["B"])] for i, one in enumerate(sets)]
        tables = [
            Table(title, ["", "perplexity", f"to {self.reference}"], rows),
            Table("The partitions", ["", "A", "B"], drawn),
        ]
        claims = [_lower(claim, scores) for claim in self.claims]
        kept = {}
        for one_kept in self.kept:
            parts = zip(scores[one_kept.part], scores[one_kept.base], scores[one_kept.best], strict=True)
            values = [kept_gain(*part).value for part in parts]
            kept[one_kept.text] = values
            mean = float(np.mean(values))
            theirs = "" if one_kept.printed is None else f"; the document has {one_kept.printed:.0%}"
            holds = all(value > 0.5 for value in values) or (None if max(values) > 0.5 else False)
            claims.append(Claim(one_kept.text, holds, f"mean {mean:.0%} of {_percents(values)}{theirs}"))
        figures = {
            "partitions": sets,
            "perplexities": {
                name: [one.perplexity.to_dict() for one in found] for name, found in scores.items()
            },
            "kept": kept,
        }
        return Outcome(tables, claims, figures, list(runs))


def _percents(values: list[float]) -> str:
    return ", ".join(f"{value:.0%}" for value in values)


def _filled(part: str, sets: dict[str, list[str]], named: dict[str, str]) -> str:
    head, at, other = part.rpartition("@")
    if at:
        part = f"{head}@{named.get(other, other)}"

    def value(match: re.Match[str]) -> str:
        word = match.group(1)
        if word.startswith("has"):
            return str(PREVIOUS in sets[word[3:]]).lower()
        return "[" + ", ".join(name for name in sets[word] if name != PREVIOUS) + "]"

    return _WORD.sub(value, part)


def _contexts(contexts: list[str] | None, sets: dict[str, list[str]]) -> list[str] | None:
    """A row's contexts with the sets in place of their words.

    Raises:
        ConfigError: a word that is no set.
    """
    if contexts is None:
        return None
    found: list[str] = []
    for name in contexts:
        if name.startswith("$"):
            if name[1:] not in sets:
                raise ConfigError(f"a row's contexts name {name}, but the sets are $A, $B and $AB")
            found += sets[name[1:]]
        else:
            found.append(name)
    return found


def _row(name: str, found: list[Scored], reference: list[Scored], is_reference: bool) -> list[str]:
    perplexities = [one.perplexity.value for one in found]
    spread = f" ± {np.std(perplexities, ddof=1):.2f}" if len(set(perplexities)) > 1 else ""
    relative = [one.relative(other).value for one, other in zip(found, reference, strict=True)]
    return [name, f"{np.mean(perplexities):.2f}{spread}", "" if is_reference else f"{np.mean(relative):+.1%}"]


def _lower(claim: Lower, scores: dict[str, list[Scored]]) -> Claim:
    """In every partition, by the intervals over articles."""
    found = [a.minus(b) for a, b in zip(scores[claim.lower], scores[claim.than], strict=True)]
    below = sum(one.high is not None and one.high < 0 for one in found)
    above = sum(one.low is not None and one.low > 0 for one in found)
    holds = True if below == len(found) else False if above == len(found) else None
    mean = np.mean([one.value for one in found])
    return Claim(
        claim.text,
        holds,
        f"{claim.lower} minus {claim.than}: {mean:+.3f} nats per target on average; the 95% interval over articles lies below "
        f"zero in {below} of {len(found)} partitions, above in {above}",
    )
