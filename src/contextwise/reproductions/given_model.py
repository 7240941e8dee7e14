"""The model that an item measures: a given one, or one that is trained first on the item's corpus."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.experiments.cost import RunCost, cost_of
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise.models.loading import model_folder
from contextwise.reproductions.corpora import CorpusSource
from contextwise.reproductions.item import ItemMeasure

CORPUS_TOKENIZER = CorpusSource.model_fields["tokenizer"].default


class GivenModel(CorpusSource, ItemMeasure):
    """Settings of a measure of one model.

    A corpus that has to be prepared gets the tokenizer of a given model, unless ``tokenizer`` is set.
    """

    name: str = Field("model", pattern=r"^[^/\\]+$", description="name of the run, if a model is trained")
    model: str = Field(
        "",
        description="a run, a folder of a Hugging Face model, or a name on the Hub; if empty, `recipe` is trained",
    )
    parameters: int | None = Field(None, gt=0, description="of a given model, for the plan")
    recipe: dict[str, Any] | None = Field(None, description="of the model that is trained if none is given")

    @model_validator(mode="after")
    def _some_model(self) -> "GivenModel":
        if not self.model and self.recipe is None:
            raise ConfigError("neither model nor recipe is given; give a model, or the recipe to train one")
        return self

    def run_set(self, folder: Path) -> RunSet:
        if self.model:
            return RunSet(folder, [])
        recipe = self.recipe or {}
        settings = RunSetSettings(recipe=recipe, arms={self.name: []}, seeds=[recipe.get("seed", 0)])
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder))

    def corpus_folder(self, folder: Path) -> Path:
        return self._source().corpus_folder(folder)

    def prepared(self, folder: Path) -> Path:
        return self._source().prepared(folder)

    def _source(self) -> CorpusSource:
        """The source, with the tokenizer that goes with the model."""
        tokenizer = self.tokenizer
        if self.model and tokenizer == CORPUS_TOKENIZER:
            tokenizer = model_folder(self.model)
        return CorpusSource(corpus=self.corpus, tokenizer=tokenizer, validation=self.validation)

    def held_out(self, folder: Path) -> Corpus:
        """The documents that are measured: the validation split."""
        return Corpus.open(self.prepared(folder), split="validation")

    def subject(self, folder: Path, corpus: bool = True) -> str:
        """The model to measure, as a path or a Hub name; a model that is not given is trained first.

        Args:
            corpus: whether the corpus has to be prepared, which a measure that reads none does not need.
        """
        if self.model:
            return self.model
        if corpus:
            self.prepared(folder)
        runs = self.run_set(folder)
        runs.train_missing()
        return runs.runs[0].source

    def runs(self, folder: Path) -> list[Path]:
        """The run behind the measurement, if it is one of ours."""
        return [run.folder for run in self.run_set(folder).runs]

    def measured_folder(self, folder: Path, kind: str) -> Path:
        """Folder of a result of this model, which other items use again."""
        subject = Path(self.model).name if self.model else self.run_set(folder).runs[0].id
        return (
            folder
            / "measured"
            / re.sub(r"[^\w.=-]+", "-", f"{subject}-{self.corpus_folder(folder).name}-{kind}")
        )

    def tokens_read(self) -> int | None:
        """Tokens that the measurement reads; None if that depends on the corpus."""
        return None

    def passes(self, folder: Path) -> list[RunCost]:
        """Cost of the measurement: two operations for each parameter and token, weights in 16 bits.

        Attention does not count. Empty where only the corpus says how many tokens are read.
        """
        tokens = self.tokens_read()
        parameters = self.parameters
        if not self.model:
            (recipe,) = self.recipes(folder)
            parameters = cost_of(recipe, self.vocab_size).parameters
        if tokens is None or parameters is None:
            return []
        name = f"measure {self.model or self.name}"
        return [RunCost(name, parameters, 0, 0, tokens, 2.0 * parameters * tokens, 2 * parameters, 0)]
