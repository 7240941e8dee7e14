"""Settings of the parity task's models in recipes."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from contextwise.training.settings import Layers, ModelSettings, Width


class ParityTransformerModel(ModelSettings):
    """The parity task's Transformer, of the paper's size by default (intrinsic entropy, Section 4.3)."""

    called = "the family parity_transformer"
    registers = ("contextwise_papers.intrinsic_entropy.parity.spec",)
    learning_rate: ClassVar[float] = 1e-3
    reads = "parity"

    family: Literal["parity_transformer"]
    layers: Layers = 3
    width: Width = 208
    heads: Width = 4

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return values.get("family") == "parity_transformer"

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise_papers.intrinsic_entropy.parity import ParityTransformerConfig

        shape = {"hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads}
        return ParityTransformerConfig(recipe.data.context - 1, recipe.data.synthetic.tasks, **shape)


class ParityMLPModel(ModelSettings):
    """The parity task's MLP."""

    called = "the family parity_mlp"
    registers = ("contextwise_papers.intrinsic_entropy.parity.spec",)
    learning_rate: ClassVar[float] = 1e-3
    reads = "parity"

    family: Literal["parity_mlp"]
    layers: Layers = 1
    width: Width = 512
    feature_size: Width = Field(default=80, description="width of its context feature")

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return values.get("family") == "parity_mlp"

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise_papers.intrinsic_entropy.parity import ParityMLPConfig

        bits, tasks = recipe.data.context - 1, recipe.data.synthetic.tasks
        return ParityMLPConfig(bits, tasks, self.feature_size, self.width, self.layers)


ParityModel = ParityTransformerModel | ParityMLPModel
