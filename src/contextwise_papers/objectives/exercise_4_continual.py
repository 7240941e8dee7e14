"""Forgetting of an old corpus during training on a new one, and its remedies: objectives, Exercise 6.2.4.

Forgetting is the loss on held-out old documents after, minus the loss on the same documents before: nats per token, above
zero where something was forgotten (objectives, Section 6.2.7).
"""

import ast
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from contextwise.base.files import atomic_write
from contextwise.base.runs import RunFolder
from contextwise.comparison.compared_runs import evaluate_all
from contextwise.comparison.comparison import compare
from contextwise.comparison.result import Comparison
from contextwise.data import Corpus
from contextwise.data.sources.stdlib import StandardLibrary
from contextwise.report import Table
from contextwise.runset import Arm, RunSet, RunSetSettings
from contextwise.settings import ConfigError, Seeds, with_overrides
from contextwise.stats import Estimate
from contextwise_papers.claims import Claim, above, all_hold, below
from contextwise_papers.item import CorpusMeasure, Item, Outcome, corpus_folder, prepared_once
from contextwise_papers.models import difference_between, validation_losses
from contextwise_papers.tables import Plot, points, table_of

PARTS = ("docstrings", "code")
"""Two corpora on every machine: the English of the standard library's docstrings, and its code without them."""


@dataclass(frozen=True)
class Forgetting:
    """Models before and after continued training, every pair of them compared on the held-out documents of both corpora."""

    old: Comparison
    new: Comparison

    @classmethod
    def of(cls, sources: list[str], old: Corpus, new: Corpus) -> "Forgetting":
        """Compare runs on both corpora, with the smallest context that one of them was trained with.

        The first of ``sources`` is the model before; others of its recipe with other seeds belong to it.
        """
        if old.fingerprint == new.fingerprint:
            raise ConfigError(f"{old.path} and {new.path} hold the same documents; name two corpora")
        runs = [run for run in map(RunFolder, sources) if run.exists]
        contexts = [run.recipe().get("data", {}).get("context") for run in runs]
        context = min((size for size in contexts if isinstance(size, int)), default=None)
        return cls(
            *(
                compare(sources, results=evaluate_all(sources, corpus, context=context), all_pairs=True)
                for corpus in (old, new)
            )
        )

    @property
    def ways(self) -> dict[str, list[RunFolder]]:
        """The runs of each way to continue, seed by seed."""
        groups = {group.name: list(map(RunFolder, group.sources)) for group in self.old.groups}
        return {name: runs for name, runs in groups.items() if name != self.old.reference}

    def forgotten(self, way: str, than: str | None = None) -> Estimate:
        """Loss on the old documents minus that before, or minus that of another way."""
        return difference_between(self.old, way, than or self.old.reference)

    def learned(self, way: str, than: str | None = None) -> Estimate:
        """The same on the new documents."""
        return difference_between(self.new, way, than or self.new.reference)


class ContinualPretraining(CorpusMeasure, name="continual_pretraining"):
    """A model trained on ``corpus`` continues on ``new``, in several ways that differ in some settings."""

    corpus: str = Field(default="docstrings", description="the old one: a corpus, a source, or docstrings")
    new: str = Field(default="code", description="the new one; it is prepared with the old one's tokenizer")
    name: str = "continual"
    base: dict[str, Any] = Field(description="recipe of the model before")
    model: str = Field(default="", description="the model before, where it is given: `base` is not trained then")
    recipe: dict[str, Any] = Field(description="of the continued training; its model is the one before")
    ways: dict[str, list[str]] = Field(min_length=1, description="name -> settings; the first has none")
    seeds: Seeds = Field(default=[0], min_length=1, description="of the continued training")

    @model_validator(mode="after")
    def _plain_first(self) -> "ContinualPretraining":
        first = next(iter(self.ways))
        if self.ways[first]:
            raise ConfigError(
                f"the first of ways, {first!r}, has settings; it is the one that the others are compared to"
            )
        return self

    def corpus_folder(self, folder: Path) -> Path:
        return corpus_folder(folder, _named(self.corpus), self.tokenizer, self.validation)

    def new_folder(self, folder: Path) -> Path:
        """Folder of the new corpus."""
        return corpus_folder(folder, _named(self.new), self.known_tokenizer(folder), self.validation)

    def prepared(self, folder: Path) -> Path:
        """Both corpora; returns the old one's folder."""
        old, new = self.corpus_folder(folder), self.new_folder(folder)
        prepared_once(_source(self.corpus, folder), self.tokenizer, old, self.validation)
        prepared_once(_source(self.new, folder), old / "tokenizer", new, self.validation)
        return old

    def run_set(self, folder: Path) -> RunSet:
        """The model before, and the runs that continue it."""
        old, base = str(self.corpus_folder(folder)), self.base
        recipe = {**base, "name": f"{self.name}-before", "data": {**base.get("data", {}), "corpus": old}}
        before = Arm(recipe=recipe, settings=[f"name={self.name}-before"], seeds=[base.get("seed", 0)])
        arms = {"before": Arm(model=self.model, recipe=base) if self.model else before}
        for way, settings in self.ways.items():
            values = with_overrides({"data": {}, **self.recipe}, settings)
            data = {**base.get("data", {}), **values["data"], "corpus": str(self.new_folder(folder))}
            data["replay"] = {"corpus": old, "share": 0, **data.get("replay", {})}
            arms[way] = Arm(recipe={**values, "data": data, "model": {"pretrained": "@before"}})
        return RunSet.of(RunSetSettings(arms=arms, seeds=self.seeds), folder, prefix=self.name)

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        (start,) = runs.of_arm("before")
        sources = [start.source, *(run.source for way in self.ways for run in runs.of_arm(way))]
        folders = (self.corpus_folder(folder), self.new_folder(folder))
        forgetting = Forgetting.of(sources, *(Corpus.open(path, split="validation") for path in folders))
        first, *others = self.ways
        figures = {
            way: {"forgetting": forgetting.forgotten(way), "learning": forgetting.learned(way)}
            for way in forgetting.ways
        }
        claims = [claim.over_seeds(len(self.seeds)) for claim in forgetting_claims(forgetting, first, others)]
        tables = [changes_table(forgetting, first)]
        return Outcome(tables, claims, figures, runs.paths, during_plots(forgetting))


def _named(name: str) -> str:
    """A part of the standard library by its full name, which its version belongs to; or another source."""
    return f"{StandardLibrary.kind}:{name}" if name in PARTS else name


def _source(name: str, folder: Path) -> str:
    """The source of a corpus; a part of the standard library is written out first."""
    if name not in PARTS:
        return name
    path = folder / "sources" / f"{name}-{platform.python_version()}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"text": text, "module": module}) for module, text in stdlib_part(name))
        atomic_write(path, "\n".join(lines) + "\n", "the text")
    return str(path)


def stdlib_part(part: str) -> Iterator[tuple[str, str]]:
    """(module, text) of each module of the standard library: its ``docstrings``, or its ``code`` without them."""
    for document in StandardLibrary().records("text"):
        docstrings, code = without_docstrings(document.text)
        text = docstrings if part == "docstrings" else code
        if text.strip():
            yield str(document.metadata["module"]), text


def without_docstrings(source: str) -> tuple[str, str]:
    """A module's docstrings one after the other, and its source without them; no docstrings if it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "", source
    # As the parser counts: lines, and bytes of UTF-8 in a line.
    lines = source.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                found.append((node.body[0], text))
    found.sort(key=lambda each: each[0].lineno)
    for place, _ in reversed(found):
        first, last = place.lineno - 1, (place.end_lineno or place.lineno) - 1
        before, behind = lines[first][: place.col_offset], lines[last][place.end_col_offset :]
        alone = not before.strip() and not behind.strip()
        lines[first : last + 1] = [] if alone else [before + behind.lstrip(b"; ")]
    code = b"\n".join(lines).decode().removesuffix("\n")
    return "\n\n".join(text for _, text in found), re.sub(r"\n{3,}", "\n\n", code)


def changes_table(forgetting: Forgetting, first: str) -> Table:
    """Forgetting and learning of each way, and the differences to the first."""
    rows: list[list[Any]] = []
    for way in forgetting.ways:
        than = [None, None] if way == first else [forgetting.forgotten(way, first), forgetting.learned(way, first)]
        rows.append([way, forgetting.forgotten(way), forgetting.learned(way), *than])
    title = (
        f"Loss after minus before on held-out documents, nats per token, 95% intervals; {forgetting.old.documents} old and "
        f"{forgetting.new.documents} new documents"
    )
    numbers = ("forgotten", "learned", f"forgotten minus {first}", f"learned minus {first}")
    return table_of(title, ["way", *((name, "+.3f") for name in numbers)], rows)


def forgetting_claims(forgetting: Forgetting, first: str, others: list[str]) -> list[Claim]:
    """Continued training forgets, and every remedy forgets less."""
    forgotten, learned = forgetting.forgotten(first), forgetting.learned(first)
    text = f"{first}: the model forgets its old documents while it learns the new ones"
    evidence = f"forgotten {forgotten:+.3f}, learned {learned:+.3f} nats per token"
    claims = [Claim.of(text, all_hold([above(forgotten), below(learned)]), evidence)]
    for way in others:
        difference = forgetting.forgotten(way, first)
        evidence = f"{way} minus {first} on the old documents: {difference:+.3f}"
        if forgotten.value > 0:
            evidence += f"; {-difference.value / forgotten.value:.0%} of what was forgotten"
        claims.append(Claim.of(f"{way}: less is forgotten", below(difference), evidence))
    return claims


def during_plots(forgetting: Forgetting) -> list[Plot]:
    """Losses on the old and on the new documents during the continued training."""
    plots = []
    for title, name in (("Old documents during continued training", "replay_loss"), ("New documents", "loss")):
        series = {way: points(validation_losses(runs, name)) for way, runs in forgetting.ways.items()}
        if any(series.values()):
            plots.append(Plot(title, "tokens of continued training", "validation loss, nats", series))
    return plots
