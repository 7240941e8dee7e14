"""The kinds of models of the core: a stock model of a named size, and a pretrained one, each with parts of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem
from contextwise.base.recipes import RECIPES
from contextwise.models.sizes import KINDS, SIZES, TRANSFORMERS, ModelSize, adamw_rate, named_size, shape_problems
from contextwise.models.variant.code import digest, parse_variant, read_code
from contextwise.objectives.kind import Kind
from contextwise.training.settings import (
    DEEPEST,
    Layers,
    Length,
    ModelSettings,
    VocabSize,
    Width,
    known_size,
    prefix_problem,
    wrong_kind,
)


class ContextPredictorSettings(Settings):
    """ContextLM's pathway; without this section the plain backbone is trained."""

    chunk_size: Length = 4
    predictor_layers: Layers = 2
    pooling: Literal["mean", "mlp", "attention", "latent_attention"] = "mean"
    injection: Literal["gate", "scalar_gate", "norm_gate", "projection", "add", "norm_add"] = "gate"
    injection_layer: int = Field(default=0, ge=0, le=DEEPEST)
    inject_every_layer: bool = False


class MultiTokenSettings(Settings):
    """Multi-token heads; without this section only the next-token head is trained."""

    future_tokens: int = Field(default=4, ge=1, le=256)
    head: Literal["layer", "linear"] = "layer"


class VariantSettings(Settings):
    """A model of the user's own; without this section the stock model is trained."""

    short_form: ClassVar[dict[str, Any]] = {"type": "string", "pattern": r"\.py:"}

    file: str = Field(
        description="the Python file, also variants/… of the package; path.py:Name in place of this section names both"
    )
    name: str = Field(description="of the class or function in it")
    options: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments")
    sha256: str = Field(default="", description="of the file's content; read from the file if not given")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return parse_variant(data) if isinstance(data, str) else data

    @model_validator(mode="after")
    def _identified(self) -> "VariantSettings":
        # The values of a valid section change without further checks: a run may start in another folder.
        file = Path(self.file).expanduser()
        shipped = RECIPES / file  # "variants/token_order.py"
        self.__dict__["file"] = str((shipped if shipped.is_file() and not file.exists() else file).absolute())
        self.__dict__["sha256"] = self.sha256 or digest(read_code(self.file))
        return self


class SizedModel(ModelSettings):
    """A stock model of a named size or given dimensions, with random weights, and optionally ContextLM or multi-token heads."""

    called = "a model of a named size"
    registers = (
        "contextwise.models.contextlm.spec",
        "contextwise_papers.objectives.multitoken.spec",
        "contextwise.models.variant.spec",
    )

    family: Literal["gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3", "lstm", "bert", "t5"] = Field(
        default="gpt2",
        description="decoders, an encoder (bert), an encoder-decoder (t5); gpt2_rotary: GPT-2 with rotary positions",
    )
    vocab_size: VocabSize | None = Field(default=None, description="vocabulary size; by default the tokenizer's")
    size: str = "nano"
    layers: Layers | None = Field(default=None, description="instead of those of the size")
    width: Width | None = None
    heads: Width | None = None
    feed_forward: Width | None = Field(
        default=None, description="inner width of each block; by default the family's (4 times the width)"
    )
    extra_layers: int = Field(
        default=0,
        le=DEEPEST,
        description="additional layers: 2 for the parameter-matched baseline; negative for a trunk below heads with layers",
    )
    max_context: Length | None = Field(default=None, description="positions; by default the training context")
    tie_embeddings: bool | None = Field(
        default=None,
        description="whether a decoder's head shares the matrix of its embedding; by default as its family (gpt_neox: no)",
    )
    context_predictor: ContextPredictorSettings | None = None
    multi_token: MultiTokenSettings | None = None
    variant: VariantSettings | None = Field(default=None, description="a model of your own: path.py:Name")

    @property
    def kind(self) -> Kind:
        return KINDS[self.family]

    @property
    def shape(self) -> ModelSize:
        """The named size, with explicitly given dimensions replaced; at another width the rate is that of the width.

        Published sizes keep their printed rate.
        """
        size = named_size(self.family, self.size)
        width = self.width or size.width
        rate = size.learning_rate if width == size.width or size.training else adamw_rate(width)
        return ModelSize(self.layers or size.layers, width, self.heads or size.heads, rate)

    def at_width(self, width: int) -> "SizedModel":
        """The model with another width: heads keep theirs, and blocks their proportions; unchecked."""
        shape = self.shape
        inner = self.feed_forward and round(self.feed_forward * width / shape.width)
        heads = width * shape.heads // shape.width
        return self.model_copy(update={"width": width, "heads": heads, "feed_forward": inner})

    @property
    def learning_rate(self) -> float:  # type: ignore[override]
        """The learning rate of the size."""
        return self.shape.learning_rate

    def problems(self, recipe: Any) -> Iterator[Problem]:
        context = recipe.data.context
        if self.max_context is not None and self.max_context < context:
            why = f"but the model has only {self.max_context} positions (model.max_context)"
            yield Problem(why, "data.context", context)
        for objective in recipe.objectives:
            yield from wrong_kind(objective, self.kind, family=self.family)
        yield from _problems_of_parts(self, recipe)

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise.training.model import sized_config

        size = known_size(self.vocab_size, vocab_size)
        return sized_config(self, size, recipe.data.context, end_of_text, recipe.has_pairs)

    @field_validator("size")
    @classmethod
    def _known_size(cls, size: str, info: ValidationInfo) -> str:
        family = info.data.get("family")
        if family is not None and size not in SIZES[family]:
            why = f"but the sizes of {family} are {', '.join(SIZES[family])}"
            raise ConfigError(Problem(why, value=size))
        return size

    @field_validator("feed_forward")
    @classmethod
    def _has_feed_forward(cls, width: int | None, info: ValidationInfo) -> int | None:
        if width is not None and info.data.get("family") == "lstm":
            raise ConfigError("given, but lstm has no such layers; remove it")
        return width

    @field_validator("tie_embeddings", "context_predictor", "multi_token", "variant")
    @classmethod
    def _needs_a_decoder(cls, section: Any, info: ValidationInfo) -> Any:
        family = info.data.get("family")
        if section is not None and family is not None and family not in TRANSFORMERS:
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
            why = f"but must be a whole number from 0 to {layers - 1} (the backbone has {layers} layers)"
            problems.append(Problem(why, "context_predictor.injection_layer", predictor.injection_layer))
        if problems:
            raise ConfigError(*problems)
        return self


class PretrainedModel(ModelSettings):
    """A pretrained model as the starting point."""

    called = "a pretrained model"

    pretrained: str = Field(description="a run, a model's folder, or NAME or NAME@REVISION on the Hub")
    context_predictor: ContextPredictorSettings | None = None
    freeze_backbone: bool = Field(default=False, description="train only the context pathway")
    rope: Literal["none", "linear", "dynamic", "yarn", "base"] | None = Field(
        default=None,
        description="how rotary positions change for a data.context longer than the model was trained with",
    )
    rope_factor: float | None = Field(
        default=None, ge=1, description="of linear, dynamic and yarn; by default the new context over the old"
    )
    rope_base: float | None = Field(default=None, gt=1, description="of the method base: rope_theta, such as 500000")

    @property
    def starts(self) -> dict[str, str]:
        return {"model.pretrained": self.pretrained}

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return "pretrained" in values

    @property
    def trained(self) -> tuple[str, ...] | None:
        return ("context",) if self.freeze_backbone else None

    def problems(self, recipe: Any) -> Iterator[Problem]:
        yield from _problems_of_parts(self, recipe)

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise.training.model import pretrained_config

        return pretrained_config(recipe, self)  # the caller compares its vocabulary with the corpus's

    def start(self, recipe: Any, config: Any) -> Any:
        from contextwise.training.model import continued_model

        return continued_model(self, config)

    @model_validator(mode="after")
    def _one_extension(self) -> "PretrainedModel":
        problems = []
        if (self.rope == "base") != (self.rope_base is not None):
            fix = "set model.rope: base and model.rope_base, or neither"
            problems.append(Problem("rope: base and rope_base go together", fix=fix))
        if self.rope_factor is not None and self.rope not in ("linear", "dynamic", "yarn"):
            fix = "set rope to one of them, or remove it"
            problems.append(Problem("belongs to linear, dynamic and yarn", "rope_factor", self.rope_factor, fix))
        if problems:
            raise ConfigError(*problems)
        return self

    @field_validator("freeze_backbone")
    @classmethod
    def _something_is_trained(cls, freeze: bool, info: ValidationInfo) -> bool:
        if freeze and info.data.get("context_predictor", ...) is None:
            raise ConfigError("nothing else would be trained; set context_predictor too")
        return freeze


def _problems_of_parts(model: SizedModel | PretrainedModel, recipe: Any) -> Iterator[Problem]:
    """Contradictions between a recipe and the parts that are composed with a stock model."""
    predictor, context = model.context_predictor, recipe.data.context
    if predictor is not None and predictor.chunk_size > context:
        name, value = "model.context_predictor.chunk_size", predictor.chunk_size
        yield Problem(f"more than data.context ({context})", name, value)
    prefix = next((each for each in recipe.objectives if each.has_prefix), None)
    for section in ("context_predictor", "multi_token", "variant"):
        if prefix is not None and getattr(model, section, None) is not None:
            yield prefix_problem(prefix, f"model.{section}")
