"""CUE's training runs: templates, overrides, and ``@name`` for the folder of another run that a run starts from.

``joint`` may be ``[joint, model.cue.sentence_encoder=@sentence LM]``: the template of that name, with settings as on the
command line.
"""

import re
from abc import abstractmethod
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.experiments.run_set import Arm, RunSet, RunSetSettings
from contextwise.reproductions.item import ItemMeasure

REFERENCE = re.compile(r"@([^@]+)$")


def parents_of(settings: list[str]) -> list[str]:
    """The parents of a run with these settings."""
    return [match.group(1) for setting in settings if (match := REFERENCE.search(setting))]


class CueRuns(ItemMeasure):
    """A measure of CUE's runs: sentence language models, joint training and adaptation, each from the runs before it."""

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

    @model_validator(mode="after")
    def _templates_known(self) -> "CueRuns":
        for run, settings in self.runs.items():
            if not settings or settings[0] not in self.templates:
                given = settings[0] if settings else "nothing"
                raise ConfigError(
                    f"the run {run!r} is of the template {given!r}, which is none of {', '.join(self.templates)}"
                )
        return self

    def run_set(self, folder: Path) -> RunSet:
        """The measured runs, each after its parents."""
        arms = {
            run: Arm(recipe=self.templates[template], settings=settings)
            for run, (template, *settings) in self.runs.items()
        }
        return RunSet.of(
            RunSetSettings(arms=arms, seeds=self.every_seed),
            folder,
            corpus=Path(self.corpus),
            prefix=self.name,
            wanted=self.wanted,
        )

    def train(self, folder: Path) -> RunSet:
        """Train the missing runs.

        Raises:
            DataError: the corpus does not exist.
        """
        self.held_out()
        runs = self.run_set(folder)
        runs.train_missing()
        return runs

    def held_out(self) -> Corpus:
        """The documents that are scored."""
        return Corpus.open(self.corpus, split=self.split)
