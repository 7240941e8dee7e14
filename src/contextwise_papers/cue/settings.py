"""The sections ``data.contexts`` (CUE, Section 3.1) and ``model.cue``, a class for each stage (Sections 3 and 4)."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from contextwise.settings import ConfigError, Problem, Settings
from contextwise.training import DataSection, Width
from contextwise.training.settings import DEEPEST, Layers
from contextwise_papers.cue.metadata_texts import Columns

PREVIOUS = "previous_sentence"


class ContextSettings(DataSection):
    """Names of the contexts of a sentence; their order has no effect on a model."""

    about: ClassVar[str] = "contexts of each sentence, for model.cue"

    columns: Columns = Field(
        default=[], description="metadata columns; 'meta.title' is the field title of the column meta"
    )
    previous_sentence: bool = Field(
        default=False, description="the sentence before, of the same document, is a context as well"
    )

    @model_validator(mode="after")
    def _check(self) -> "ContextSettings":
        if PREVIOUS in self.columns:
            raise ValueError(f"{PREVIOUS!r} is not a column but the sentence before; set {PREVIOUS}: true instead")
        if not self.types:
            raise ValueError(f"there is no context; name columns, or set {PREVIOUS}: true")
        return self

    @property
    def types(self) -> list[str]:
        """Names of the contexts: the columns, then the previous sentence."""
        return [*self.columns, *([PREVIOUS] if self.previous_sentence else [])]

    @property
    def read(self) -> list[str]:  # type: ignore[override]
        return self.columns

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if getattr(recipe.model, "cue", None) is None:
            yield Problem("is used by model.cue only", "data.contexts", fix="remove it")


# The section ``model.cue``: one class for each stage (CUE, Sections 3 and 4), without values that a stage takes from its start.
TRAINED: dict[str, tuple[str, ...]] = {
    "joint": ("decoder", "context_encoder", "text_encoder"),
    "adapt": ("context_encoder",),
    "proxy": ("decoder", "proxy"),
    "swap": ("decoder",),
}
"""The parts that a stage trains (CUE, Table 1 and Section 4); in the proxy only its projection, and a text encoder only if it
is a part of the model. Other parts are frozen."""


class SentenceSettings(Settings):
    """The frozen sentence model, and the decoder that is trained on top of it."""

    sentence_encoder: str = Field(description="a sentence model: a run, a folder or a name on the Hub")
    decoder: Literal["transformer", "concatenate"] = "transformer"
    decoder_layers: Layers | None = Field(default=None, description="6 if not given")
    decoder_heads: Width | None = Field(default=None, description="4 if not given")
    sentence_inputs: bool = Field(default=True, description="false: only the contexts predict (Table 4)")
    head: Literal["sentence_encoder", "random"] = Field(
        default="sentence_encoder",
        description="the decoder's initial head: a copy of the sentence encoder's, where the widths agree, or random weights",
    )

    @field_validator("decoder_layers", "decoder_heads")
    @classmethod
    def _of_a_transformer(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("decoder") == "concatenate":
            raise ConfigError("a decoder that concatenates has no layers and no heads; remove it")
        return value


class TextSettings(Settings):
    """The frozen text encoder of the contexts; by default that of the starting run."""

    text_encoder: str | None = Field(
        default=None,
        description="a folder or Hub name; default distilbert-base-cased. trained:NAME or "
        "trained:NAME:LAYERSxWIDTH is trained from random weights, in the stage joint",
    )
    pooling: Literal["cls", "mean"] | None = Field(default=None, description="of the text encoder; by default cls")
    context_dropout: float = Field(default=0.0, ge=0, lt=1, description="probability to drop a context in training")


class ContextEncoderSettings(TextSettings):
    """The Transformer blocks over the set of a sentence's contexts."""

    context_layers: int | None = Field(default=None, ge=0, le=DEEPEST, description="2 if not given")
    context_heads: Width | None = Field(default=None, description="4 if not given")
    context_feed_forward: Width | None = Field(default=None, description="4 times the width if not given")


class JointStage(SentenceSettings, ContextEncoderSettings):
    """The stage that trains decoder and context encoder together."""

    stage: Literal["joint"]
    width: Width | None = Field(default=None, description="of e_cue; the sentence encoder's if not given")


class AdaptStage(ContextEncoderSettings):
    """The stage that trains only the context encoder."""

    stage: Literal["adapt"]
    start: str = Field(description="the CUE run whose parts are kept")


class ProxyStage(SentenceSettings):
    """The stage that trains the decoder without contexts, on noisy proxies."""

    stage: Literal["proxy"]
    autoencoder: str = Field(description="a run of model.family unigram_autoencoder")
    noise: float = Field(default=0.0, ge=0, description="sigma of the noise on proxies (Eq. 7)")
    width: Width | None = Field(default=None, description="of e_cue; the sentence encoder's if not given")


class SwapStage(SentenceSettings, TextSettings):
    """The stage that trains a new decoder on another sentence encoder, with the context encoder of an earlier run."""

    stage: Literal["swap"]
    start: str = Field(description="the CUE run whose context encoder is kept")


def _stage_variant(values: Any) -> str:
    stage = values.get("stage") if isinstance(values, dict) else getattr(values, "stage", None)
    return f"<the stage {stage}>"


Stage = JointStage | AdaptStage | ProxyStage | SwapStage
Started = AdaptStage | SwapStage
"""The stages that keep the context encoder of their starting run, if that has one."""
AnyStage = Annotated[
    Annotated[JointStage, Tag("<the stage joint>")]
    | Annotated[AdaptStage, Tag("<the stage adapt>")]
    | Annotated[ProxyStage, Tag("<the stage proxy>")]
    | Annotated[SwapStage, Tag("<the stage swap>")],
    Discriminator(
        _stage_variant,
        custom_error_type="stage",
        custom_error_message="Its stage must be one of joint, adapt, proxy and swap",
    ),
]
