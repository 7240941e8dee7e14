"""Training runs that are made from each other: templates, overrides, and ``@name`` for the folder of another run.

``joint`` may be ``[joint, model.cue.sentence_encoder=@sentence LM]``: the template of that name, with settings as on the
command line. Each run is trained after the runs that it is made from, which have the same seed. Finished runs are used
again.
"""

import re
from abc import abstractmethod
from pathlib import Path
from typing import Any

from pydantic import Field

from contextwise.base.config import validate, with_overrides
from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.reproductions.item import ItemMeasure
from contextwise.training.recipe import Recipe
from contextwise.training.run import train

REFERENCE = re.compile(r"@([^@]+)$")


def parents_of(settings: list[str]) -> list[str]:
    """The runs that a run with these settings is made from."""
    return [match.group(1) for setting in settings if (match := REFERENCE.search(setting))]


class Tree:
    """The runs of one seed.

    Args:
        templates: recipes without name, seed and corpus, by name.
        runs: template and overrides, by name of the run.
        corpus: folder of the corpus.
        folder: of the runs.
        name: stands before the runs' own names, in folders.

    Raises:
        ConfigError: a named template or run does not exist, or a run is made from itself.
    """

    def __init__(
        self,
        templates: dict[str, dict[str, Any]],
        runs: dict[str, list[str]],
        corpus: Path,
        folder: Path,
        name: str,
        seed: int,
    ) -> None:
        self.templates, self.runs, self.corpus = templates, runs, corpus
        self.folder, self.name, self.seed = folder, name, seed
        for run in runs:
            self._check(run, [])

    def _check(self, run: str, path: list[str]) -> None:
        if run in path:
            raise ConfigError(f"the run {run!r} is made from itself: {' <- '.join([*path, run])}")
        if run not in self.runs:
            raise ConfigError(f"the run {path[-1]!r} names {run!r}, which is none of {', '.join(self.runs)}")
        if not self.runs[run] or self.runs[run][0] not in self.templates:
            given = self.runs[run][0] if self.runs[run] else "nothing"
            raise ConfigError(
                f"the run {run!r} is of the template {given!r}, which is none of {', '.join(self.templates)}"
            )
        for before in self.predecessors(run):
            self._check(before, [*path, run])

    def predecessors(self, run: str) -> list[str]:
        """The runs that it is made from."""
        return parents_of(self.runs[run])

    def order(self, wanted: list[str]) -> list[str]:
        """The wanted runs and their ancestors, parents first."""
        found: list[str] = []
        for run in wanted:
            for one in [*self.order(self.predecessors(run)), run]:
                if one not in found:
                    found.append(one)
        return found

    def path(self, run: str) -> Path:
        """Folder of a run."""
        slug = re.sub(r"[^\w.=+-]+", "-", run).strip("-").lower()
        return self.folder / "runs" / f"{self.name}-{slug}-seed{self.seed}"

    def recipe(self, run: str) -> Recipe:
        """The recipe of a run.

        Raises:
            ConfigError: a setting is wrong, or does not fit a parent.
        """
        template, *overrides = self.runs[run]
        filled = [REFERENCE.sub(lambda match: str(self.path(match.group(1))), one) for one in overrides]
        values = with_overrides({"data": {}, **self.templates[template]}, filled)
        values["data"] = {"corpus": str(self.corpus), **values["data"]}
        values |= {"name": run, "seed": self.seed, "output": str(self.path(run))}
        return validate(Recipe, values, f"the run {run}")


class StagedRuns(ItemMeasure):
    """A measure of runs that are made from each other."""

    name: str = Field(description="prefix of the runs' folders; items with the same name share runs")
    corpus: str = Field("corpora/news", description="a prepared corpus with metadata columns")
    vocabulary: int = Field(
        8192, ge=2, description="size of the vocabulary of a corpus that does not exist yet, for --dry-run"
    )
    split: str = "test"
    templates: dict[str, dict[str, Any]]
    runs: dict[str, list[str]]

    @property
    @abstractmethod
    def wanted(self) -> list[str]:
        """The runs that are measured."""

    @property
    @abstractmethod
    def every_seed(self) -> list[int]:
        """Their seeds."""

    @property
    def vocab_size(self) -> int:
        return self.vocabulary

    def trees(self, folder: Path) -> list[Tree]:
        """The runs of each seed."""
        return [
            Tree(self.templates, self.runs, Path(self.corpus), folder, self.name, seed)
            for seed in self.every_seed
        ]

    def recipes(self, folder: Path) -> list[Recipe]:
        """All runs in the order of training, parents first."""
        return [tree.recipe(run) for tree in self.trees(folder) for run in tree.order(self.wanted)]

    def train(self, folder: Path) -> list[Path]:
        """Train all runs, or use finished ones; returns their folders.

        Raises:
            DataError: the corpus does not exist.
        """
        self.held_out()
        return [
            train(tree.recipe(run)).path for tree in self.trees(folder) for run in tree.order(self.wanted)
        ]

    def held_out(self) -> Corpus:
        """The documents that are scored."""
        return Corpus.open(self.corpus, split=self.split)
