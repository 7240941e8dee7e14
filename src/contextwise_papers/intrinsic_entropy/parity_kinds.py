"""The parity task in recipes: its data, and its kinds of models."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from contextwise.settings import Problem
from contextwise.training import DataSettings, ModelSettings, Width
from contextwise.training.settings import Layers
from contextwise_papers.intrinsic_entropy.synthetic import ParityData


class SyntheticData(DataSettings):
    """A synthetic task instead of a corpus."""

    called = "synthetic data"
    gives = "data.synthetic"
    one_pass = True  # its models are small

    synthetic: ParityData = Field(description="settings of the task, such as bits and tasks")

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return "synthetic" in values

    @property
    def context(self) -> int:
        """Tokens per sample."""
        return self.synthetic.length

    @property
    def samples(self) -> int | None:  # type: ignore[override]
        return self.synthetic.samples

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if recipe.objective.name != "causal":
            yield Problem(
                f"the objective {recipe.objective.name!r} is for text, but the data are synthetic", fix="remove it"
            )
        if recipe.training.curve_every:
            yield Problem("needs a corpus, but the data are synthetic", "training.curve_every", fix="set it to 0")

    def hashes(self, recipe: Any) -> dict[str, str]:
        from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples

        return {"train": Samples(self.synthetic, recipe.seed).fingerprint}

    def open(self, recipe: Any) -> Any:
        """The samples of the task: generated on access."""
        from contextwise.training import VALIDATION_SEED, TrainingInputs
        from contextwise_papers.intrinsic_entropy.synthetic.samples import ParityStream, Samples

        task = self.synthetic
        samples = Samples(task, recipe.seed)
        held_out = Samples(task, VALIDATION_SEED, "validation")
        validation = ParityStream(held_out, task.validation_samples, None)
        stream = ParityStream(samples, recipe.examples, task.samples)
        return TrainingInputs(
            samples,
            recipe.model.config(recipe, None, None),
            None,
            stream,
            {"loss": validation},
            {"train": samples},
            recipe,
        )


class ParityModel(ModelSettings):
    """A model of the parity task."""

    registers = ("contextwise_papers.intrinsic_entropy.parity",)
    learning_rate: ClassVar[float] = 1e-3
    loader = ("AutoModelForSequenceClassification", None)
    reads = "data.synthetic"


class ParityTransformerModel(ParityModel):
    """The parity task's Transformer, of the paper's size by default (intrinsic entropy, Section 4.3)."""

    called = "the family parity_transformer"
    family: Literal["parity_transformer"]
    layers: Layers = 3
    width: Width = 208
    heads: Width = 4

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise_papers.intrinsic_entropy.parity import ParityTransformerConfig

        shape = {"hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads}
        return ParityTransformerConfig(recipe.data.context - 1, recipe.data.synthetic.tasks, **shape)


class ParityMLPModel(ParityModel):
    """The parity task's MLP."""

    called = "the family parity_mlp"
    family: Literal["parity_mlp"]
    layers: Layers = 1
    width: Width = 512
    feature_size: Width = Field(default=80, description="width of its context feature")

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise_papers.intrinsic_entropy.parity import ParityMLPConfig

        bits, tasks = recipe.data.context - 1, recipe.data.synthetic.tasks
        return ParityMLPConfig(bits, tasks, self.feature_size, self.width, self.layers)
