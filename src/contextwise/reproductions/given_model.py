"""The model that an item measures: a given one, or one that is trained first on the item's corpus."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.experiments.cost import Cost, cost_of
from contextwise.models.loading import model_folder
from contextwise.reproductions.corpora import CorpusSource
from contextwise.reproductions.item import ItemMeasure
from contextwise.training.recipe import Recipe
from contextwise.training.run import train

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

    def recipes(self, folder: Path) -> list[Recipe]:
        return [] if self.model else [self.trained_recipe(folder)]

    def trained_recipe(self, folder: Path) -> Recipe:
        """The run of a model that is trained."""
        values = dict(self.recipe or {})
        data = {**values.get("data", {}), "corpus": str(self.corpus_folder(folder))}
        values |= {"name": self.name, "data": data, "output": str(folder / "runs" / self.name)}
        return validate(Recipe, values, f"the run {self.name}")

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
        """What names the model to measure; a model that is not given is trained first.

        Args:
            corpus: whether the corpus has to be prepared, which a measure that reads none does not need.
        """
        if self.model:
            return self.model
        if corpus:
            self.prepared(folder)
        return str(train(self.trained_recipe(folder)).path)

    def runs(self, folder: Path) -> list[Path]:
        """The run behind the measurement, if it is one of ours."""
        return [] if self.model else [folder / "runs" / self.name]

    def measured_folder(self, folder: Path, kind: str) -> Path:
        """Folder of a result of this model, which other items use again."""
        subject = Path(self.model).name if self.model else self.name
        return (
            folder
            / "measured"
            / re.sub(r"[^\w.=-]+", "-", f"{subject}-{self.corpus_folder(folder).name}-{kind}")
        )

    def tokens_read(self) -> int | None:
        """Tokens that the measurement reads; None if that depends on the corpus."""
        return None

    def passes(self, folder: Path) -> list[Cost]:
        """Cost of the measurement: two operations for each parameter and token, weights in 16 bits.

        Attention does not count. Empty where only the corpus says how many tokens are read.
        """
        tokens = self.tokens_read()
        parameters = self.parameters
        if not self.model:
            parameters = cost_of(self.trained_recipe(folder), self.vocab_size).parameters
        if tokens is None or parameters is None:
            return []
        name = f"measure {self.model or self.name}"
        return [Cost(name, parameters, 0, 0, tokens, 2.0 * parameters * tokens, 2 * parameters, 0)]


def slug(name: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^\w.=]+", "-", name).strip("-").lower()
