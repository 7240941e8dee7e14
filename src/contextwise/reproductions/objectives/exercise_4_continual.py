"""Forgetting of an old corpus during training on a new one, and its remedies: objectives, Exercise 6.2.4."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.config import with_overrides
from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write
from contextwise.base.tables import Table
from contextwise.comparison.forgetting import Forgetting, measure_forgetting
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.corpus import MANIFEST
from contextwise.data.sources.stdlib import iter_stdlib_documents
from contextwise.experiments.naming import slug
from contextwise.experiments.run_set import Arm, RunSet, RunSetSettings
from contextwise.reproductions.claims import Claim, above, all_hold, below
from contextwise.reproductions.corpora import CorpusSource
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, Plot, registered
from contextwise.reproductions.trained_models import difference_between

PARTS = ("docstrings", "code")
"""Two corpora on every machine: the English of the standard library's docstrings, and its code without them."""


@registered("continual_pretraining")
class ContinualPretraining(CorpusSource, ItemMeasure):
    """A model trained on ``corpus`` continues on ``new``, in several ways that differ in some settings."""

    corpus: str = Field("docstrings", description="the old one: a corpus, a source, or docstrings")
    new: str = Field("code", description="the new one; it is prepared with the old one's tokenizer")
    name: str = "continual"
    base: dict[str, Any] = Field(description="recipe of the model before")
    model: str = Field("", description="the model before, where it is given: `base` is not trained then")
    recipe: dict[str, Any] = Field(description="of the continued training; its model is the one before")
    ways: dict[str, list[str]] = Field(
        min_length=1, description="name -> settings; the first is the one without a remedy"
    )
    seeds: list[int] = Field([0], min_length=1, description="of the continued training")

    @model_validator(mode="after")
    def _plain_first(self) -> "ContinualPretraining":
        first = next(iter(self.ways))
        if self.ways[first]:
            raise ConfigError(
                f"the first of ways, {first!r}, has settings; it is the one that the others are compared to"
            )
        return self

    def new_folder(self, folder: Path) -> Path:
        """Folder of the new corpus."""
        given = Path(self.new)
        if (given / MANIFEST).exists():
            return given
        return folder / "corpora" / slug(f"{given.name}-with-{self.corpus_folder(folder).name}")

    def prepared(self, folder: Path) -> Path:
        """Both corpora; returns the old one's folder."""
        old, new = self.corpus_folder(folder), self.new_folder(folder)
        if not (old / MANIFEST).exists():
            source = _source(self.corpus, folder)
            prepare_corpus(source, self.tokenizer, old, validation=self.validation, reuse=True)
        if not (new / MANIFEST).exists():
            source = _source(self.new, folder)
            prepare_corpus(source, old / "tokenizer", new, validation=self.validation, reuse=True)
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
            if "replay" in data:
                data["replay"] = {"corpus": old, **data["replay"]}
            else:
                data["watch"] = old
            arms[way] = Arm(recipe={**values, "data": data, "model": {"pretrained": "@before"}})
        return RunSet.of(RunSetSettings(arms=arms, seeds=self.seeds), folder, prefix=self.name)

    def measure(self, item: Item, folder: Path) -> Outcome:
        old = self.prepared(folder)
        runs = self.run_set(folder)
        runs.train_missing()
        (start,) = runs.of_arm("before")
        after = [run for way in self.ways for run in runs.of_arm(way)]
        sources = [start.source, *(run.source for run in after)]
        held_out = (Corpus.open(path, split="validation") for path in (old, self.new_folder(folder)))
        forgetting = measure_forgetting(sources, *held_out)
        first, *others = self.ways
        claims = forgetting_claims(forgetting, first, others)
        figures = {
            change.group: {"forgetting": change.forgetting.to_dict(), "learning": change.learning.to_dict()}
            for change in forgetting.changes
        }
        return Outcome(
            [changes_table(forgetting, first)],
            claims,
            figures,
            [*(run.folder for run in runs.trained)],
            during_plots(forgetting),
        )


def _source(name: str, folder: Path) -> str:
    """The source of a corpus; a part of the standard library is written out first."""
    if name not in PARTS:
        return name
    path = folder / "sources" / f"{name}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"text": text, "module": module}) for module, text in stdlib_part(name))
        atomic_write(path, "\n".join(lines) + "\n", "the text")
    return str(path)


def stdlib_part(part: str) -> Iterator[tuple[str, str]]:
    """(module, text) of each module of the standard library: its ``docstrings``, or its ``code`` without them."""
    for document in iter_stdlib_documents():
        docstrings, code = without_docstrings(document.text)
        text = docstrings if part == "docstrings" else code
        if text.strip():
            yield str(document.metadata["module"]), text


def without_docstrings(source: str) -> tuple[str, str]:
    """A module's docstrings one behind the other, and its source without them; no docstrings if it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "", source
    lines = source.splitlines()
    texts, removed = [], np.zeros(len(lines) + 1, dtype=bool)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is not None:
            texts.append((node.body[0].lineno, text))
            removed[node.body[0].lineno : (node.body[0].end_lineno or 0) + 1] = True
    code = "\n".join(line for number, line in enumerate(lines, 1) if not removed[number])
    return "\n\n".join(text for _, text in sorted(texts)), re.sub(r"\n{3,}", "\n\n", code)


def changes_table(forgetting: Forgetting, first: str) -> Table:
    """Forgetting and learning of each way, and the differences to the first."""
    rows = []
    for change in forgetting.changes:
        own = change.group != first
        rows.append([
            change.group, f"{change.forgetting:+.3f}", f"{change.learning:+.3f}",
            f"{difference_between(forgetting.old, change.group, first):+.3f}" if own else "",
            f"{difference_between(forgetting.new, change.group, first):+.3f}" if own else "",
        ])  # fmt: skip
    title = (
        f"Loss after minus before on held-out documents, nats per token, 95% intervals; {forgetting.old.documents} old and "
        f"{forgetting.new.documents} new documents"
    )
    columns = ["way", "forgotten", "learned", f"forgotten minus {first}", f"learned minus {first}"]
    return Table(title, columns, rows)


def forgetting_claims(forgetting: Forgetting, first: str, others: list[str]) -> list[Claim]:
    """Continued training forgets, and every remedy forgets less."""
    changes = {change.group: change for change in forgetting.changes}
    plain = changes[first]
    claims = [
        Claim.of(
            f"{first}: the model forgets its old documents while it learns the new ones",
            all_hold([above(plain.forgetting), below(plain.learning)]),
            f"forgotten {plain.forgetting:+.3f}, learned {plain.learning:+.3f} nats per token",
        )
    ]  # fmt: skip
    for way in others:
        difference = difference_between(forgetting.old, way, first)
        evidence = f"{way} minus {first} on the old documents: {difference:+.3f}"
        if plain.forgetting.value > 0:
            evidence += f"; {-difference.value / plain.forgetting.value:.0%} of what was forgotten"
        claims.append(Claim.of(f"{way}: less is forgotten", below(difference), evidence))
    return claims


def during_plots(forgetting: Forgetting) -> list[Plot]:
    """Losses on the old and on the new documents during the continued training."""
    plots = []
    for title, name in (("Old documents during continued training", "old"), ("New documents", "new")):
        series = {
            change.group: [
                {"x": loss.tokens, "y": value}
                for loss in change.during
                if (value := getattr(loss, name)) is not None
            ]
            for change in forgetting.changes
        }
        if any(series.values()):
            plots.append(Plot(title, "tokens of continued training", "validation loss, nats", series))
    return plots
