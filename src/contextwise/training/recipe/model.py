"""The section ``model`` of a recipe: one class for each way to obtain a model."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem
from contextwise.models.sizes import KINDS, SIZES, ModelSize, named_size, shape_problems
from contextwise.objectives.kind import Kind
from contextwise.training.recipe.cue import AnyStage


class ContextPredictorSettings(Settings):
    """Settings of ContextLM's pathway; without this section the plain backbone is trained."""

    chunk_size: int = Field(4, ge=1)
    predictor_layers: int = Field(2, ge=1)
    pooling: Literal["mean", "mlp", "attention", "latent_attention"] = "mean"
    injection: Literal["gate", "scalar_gate", "norm_gate", "projection", "add", "norm_add"] = "gate"
    injection_layer: int = Field(0, ge=0)
    inject_every_layer: bool = False


class MultiTokenSettings(Settings):
    """Settings of multi-token heads; without this section only the next-token head is trained."""

    future_tokens: int = Field(4, ge=1)
    head: Literal["layer", "linear"] = "layer"


class ModelSettings(Settings):
    """Base class of model settings, with the default learning rate if the model has one."""

    learning_rate: ClassVar[float | None] = None


class SizedModel(ModelSettings):
    """A stock model of a named size or given dimensions, with random weights, and optionally ContextLM or multi-token heads."""

    family: Literal["gpt2", "gpt_neox", "llama", "qwen3", "lstm", "bert", "t5"] = Field(
        "gpt2", description="decoders, an encoder (bert), an encoder-decoder (t5)"
    )
    vocab_size: int | None = Field(
        None, ge=2, description="tokens in the vocabulary; by default the tokenizer's"
    )
    size: str = "nano"
    layers: int | None = Field(None, ge=1, description="instead of those of the size")
    width: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    feed_forward: int | None = Field(
        None, ge=1, description="inner width of each block; by default the family's (4 times the width)"
    )
    extra_layers: int = Field(
        0,
        description="additional layers: 2 for the parameter-matched baseline; negative for a trunk below heads with layers",
    )
    max_context: int | None = Field(
        None, ge=1, description="positions of the model; by default the training context"
    )
    context_predictor: ContextPredictorSettings | None = None
    multi_token: MultiTokenSettings | None = None

    @property
    def kind(self) -> Kind:
        return KINDS[self.family]

    @property
    def shape(self) -> ModelSize:
        """The named size, with explicitly given dimensions replaced."""
        size = named_size(self.family, self.size)
        return ModelSize(
            self.layers or size.layers, self.width or size.width, self.heads or size.heads, size.learning_rate
        )

    @property
    def learning_rate(self) -> float:  # type: ignore[override]
        """The learning rate of the size."""
        return self.shape.learning_rate

    @field_validator("size")
    @classmethod
    def _known_size(cls, size: str, info: ValidationInfo) -> str:
        family = info.data.get("family")
        if family is not None and size not in SIZES[family]:
            raise ConfigError(
                Problem(f"but the sizes of {family} are {', '.join(SIZES[family])}", value=size)
            )
        return size

    @field_validator("feed_forward")
    @classmethod
    def _has_feed_forward(cls, width: int | None, info: ValidationInfo) -> int | None:
        if width is not None and info.data.get("family") == "lstm":
            raise ConfigError("given, but lstm has no such layers; remove it")
        return width

    @field_validator("context_predictor", "multi_token")
    @classmethod
    def _needs_a_decoder(cls, section: Any, info: ValidationInfo) -> Any:
        family = info.data.get("family")
        if section is not None and family is not None and (KINDS[family] != "decoder" or family == "lstm"):
            raise ConfigError(f"needs a decoder of Transformer blocks, but {family} is not one; remove it")
        return section

    @model_validator(mode="after")
    def _possible_shape(self) -> "SizedModel":
        shape, predictor = self.shape, self.context_predictor
        layers = shape.layers + self.extra_layers
        problems = shape_problems(self.family, shape)
        if layers < 1:
            problems.append(Problem("but at least one layer must remain", "extra_layers", self.extra_layers))
        if predictor is not None and predictor.injection_layer >= layers:
            problems.append(
                Problem(
                    f"but must be a whole number from 0 to {layers - 1} (the backbone has {layers} layers)",
                    "context_predictor.injection_layer",
                    predictor.injection_layer,
                )
            )
        if problems:
            raise ConfigError(*problems)
        return self


class PretrainedModel(ModelSettings):
    """A pretrained model as the starting point."""

    pretrained: str = Field(description="a run, a model's folder or its name on the Hub")
    context_predictor: ContextPredictorSettings | None = None
    freeze_backbone: bool = Field(False, description="train only the context pathway")

    @field_validator("freeze_backbone")
    @classmethod
    def _something_is_trained(cls, freeze: bool, info: ValidationInfo) -> bool:
        if freeze and info.data.get("context_predictor", ...) is None:
            raise ConfigError("nothing else would be trained; set context_predictor too")
        return freeze


class CueModel(ModelSettings):
    """A sentence model conditioned on contexts, built from the parts of earlier runs."""

    cue: AnyStage


class AutoencoderModel(ModelSettings):
    """CUE's unigram autoencoder; the layers around the code are 8 times as wide (CUE, Section 4.2.1: 128 x 16 x 128)."""

    learning_rate: ClassVar[float] = 1e-3
    family: Literal["unigram_autoencoder"]
    vocab_size: int | None = Field(
        None, ge=2, description="tokens in the vocabulary; by default the tokenizer's"
    )
    width: int = Field(16, ge=1, description="width of the code")


class ParityTransformerModel(ModelSettings):
    """The parity task's Transformer, of the paper's size by default (intrinsic entropy, Section 4.3)."""

    learning_rate: ClassVar[float] = 1e-3
    family: Literal["parity_transformer"]
    layers: int = Field(3, ge=1)
    width: int = Field(208, ge=1)
    heads: int = Field(4, ge=1)


class ParityMLPModel(ModelSettings):
    """The parity task's MLP."""

    learning_rate: ClassVar[float] = 1e-3
    family: Literal["parity_mlp"]
    layers: int = Field(1, ge=1)
    width: int = Field(512, ge=1)
    feature_size: int = Field(80, ge=1, description="width of its context feature")


ParityModel = ParityTransformerModel | ParityMLPModel


def _variant(values: Any) -> str:
    if isinstance(values, ModelSettings):
        values = values.model_dump()
    if not isinstance(values, dict):
        return "<a model of a named size>"
    if "cue" in values:
        return "<a CUE model>"
    if "pretrained" in values:
        return "<a pretrained model>"
    own = {family: f"<the family {family}>" for family in TASK_FAMILIES}
    family = values.get("family")
    return own.get(family if isinstance(family, str) else "", "<a model of a named size>")


TASK_FAMILIES = ("unigram_autoencoder", "parity_transformer", "parity_mlp")
"""Families for one task each, without named sizes."""
AnyModel = Annotated[
    Annotated[SizedModel, Tag("<a model of a named size>")]
    | Annotated[PretrainedModel, Tag("<a pretrained model>")]
    | Annotated[CueModel, Tag("<a CUE model>")]
    | Annotated[AutoencoderModel, Tag("<the family unigram_autoencoder>")]
    | Annotated[ParityTransformerModel, Tag("<the family parity_transformer>")]
    | Annotated[ParityMLPModel, Tag("<the family parity_mlp>")],
    Discriminator(_variant),
]
