"""The kinds of models of the core: a stock model of a named size, and a pretrained one, each with parts of its own."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from contextwise.base.errors import ConfigError, Problem
from contextwise.base.files import expanded
from contextwise.base.recipes import RECIPES
from contextwise.models.sizes import SIZES, ModelSize, adamw_rate, shape_problems
from contextwise.models.variant.code import check_name, digest, name_code, parse_variant, read_code
from contextwise.objectives.kind import Kind
from contextwise.training.settings import (
    DEEPEST,
    Layers,
    Length,
    ModelSection,
    ModelSettings,
    VocabSize,
    Width,
    families_of,
    known_size,
    wrong_kind,
)

Injection = Literal["gate", "add", "normed_gate", "own_norms", "shared_norm", "paper"]
"""Forms of the injection (:mod:`contextwise.models.contextlm.layers`)."""


class ContextPredictorSettings(ModelSection):
    """ContextLM's pathway; without this section the plain backbone is trained."""

    tag = "contextlm"
    registers = ("contextwise.models.contextlm.spec",)

    chunk_size: Length = 4
    predictor_layers: Layers = 2
    pooling: Literal["mean", "mlp", "attention", "latent_attention"] = "mean"
    injection: Injection = Field(
        default="gate", description="paper: as the code of the paper's authors has it for the family"
    )
    injection_layer: int = Field(default=0, ge=0, le=DEEPEST)
    inject_every_layer: bool = False
    predictor_norm: bool | None = Field(
        default=None, description="a norm at the end of the predictor; by default only with paper on gpt_neox"
    )
    initial_context: Literal["first_token", "zero"] | None = Field(
        default=None,
        description="the context before the first complete chunk; by default first_token, and zero with paper",
    )

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if self.chunk_size > recipe.data.context:
            why = f"more than data.context ({recipe.data.context})"
            yield Problem(why, "model.context_predictor.chunk_size", self.chunk_size)

    def compose(self, config: Any) -> Any:
        from contextwise.models.contextlm import ContextLMConfig

        return ContextLMConfig(backbone_config=config, **self.model_dump())


class VariantSettings(ModelSection):
    """A model of the user's own; without this section the stock model is trained."""

    registers = ("contextwise.models.variant.spec",)
    outermost = True
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
        file = expanded(self.file)
        shipped = RECIPES / file  # "variants/token_order.py"
        self.__dict__["file"] = str((shipped if shipped.is_file() and not file.exists() else file).absolute())
        if not self.sha256:
            check_name(code := read_code(self.file), self.file, self.name)
            self.__dict__["sha256"] = digest(code)
        return self

    def compose(self, config: Any) -> Any:
        from contextwise.models.spec import meta_model
        from contextwise.models.variant.modeling import VariantConfig

        name_code(self.file, self.sha256)
        whole = VariantConfig(config, Path(self.file).name, self.name, self.options, self.sha256)
        meta_model(whole)  # built once, so that what is wrong with it is found now
        return whole


class NewModel(ModelSettings):
    """A stock model of a named size or given dimensions, with random weights; a subclass is a kind of its families."""

    kind: ClassVar[Kind]
    sizes: ClassVar[Mapping[str, Mapping[str, ModelSize]]]  # family -> name -> size

    family: str
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
    options: dict[str, Any] | None = Field(
        default=None,
        description="further fields of the family's configuration in transformers: {attn_pdrop: 0.1} for dropout in gpt2",
    )

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return values.get("family") in list(cls.sizes)

    @property
    def shape(self) -> ModelSize:
        """The named size, with explicitly given dimensions replaced; at another width the rate is that of the width.

        Published sizes keep their printed rate.
        """
        size = self.sizes[self.family][self.size]
        width = self.width or size.width
        rate = size.learning_rate if width == size.width or size.published else adamw_rate(width)
        return ModelSize(self.layers or size.layers, width, self.heads or size.heads, rate)

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
        yield from super().problems(recipe)

    @abstractmethod
    def stock(self, vocab_size: int, positions: int, end_of_text: int | None) -> Any:
        """The stock configuration, without the sections' parts."""

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise.models.building import with_fields
        from contextwise.training.model import composed

        size = known_size(self.vocab_size, vocab_size)
        stock = self.stock(size, self.max_context or recipe.data.context, end_of_text)
        return composed(with_fields(stock, self.options, type(self).model_fields), self, recipe.singles)

    @field_validator("family", mode="before")
    @classmethod
    def _known_family(cls, family: Any) -> Any:
        if isinstance(family, str) and family not in cls.sizes:
            kinds = ("decoder", "encoder", "encoder-decoder")
            known = ", ".join(name for kind in kinds for name in families_of(kind))
            raise ConfigError(Problem(f"but must be one of {known}", value=family))
        return family

    @model_validator(mode="after")
    def _possible_shape(self) -> Self:
        if self.size not in (sizes := self.sizes[self.family]):
            raise ConfigError(Problem(f"but the sizes of {self.family} are {', '.join(sizes)}", "size", self.size))
        layers, problems = self.shape.layers + self.extra_layers, shape_problems(self.family, self.shape)
        if layers < 1:
            problems.append(Problem("but at least one layer must remain", "extra_layers", self.extra_layers))
        if problems:
            raise ConfigError(*problems)
        return self


class SizedModel(NewModel):
    """A stock decoder of a named size or given dimensions, with random weights, and optionally with parts of its own."""

    called = "a model of a named size"
    registers = (
        *ContextPredictorSettings.registers,
        *VariantSettings.registers,
        "contextwise.models.embedding_norm.spec",
    )
    extended = "model"
    kind = "decoder"
    sizes = SIZES

    family: Literal["gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3"] = Field(
        default="gpt2", description="gpt2_rotary: GPT-2 with rotary positions"
    )
    tie_embeddings: bool | None = Field(
        default=None,
        description="whether the head shares the matrix of the embedding; by default as its family (gpt_neox: no)",
    )
    embedding_norm: bool = Field(
        default=False,
        description="a norm behind the embedding, of the class of the final norm: a control for injections with norms",
    )
    context_predictor: ContextPredictorSettings | None = None
    variant: VariantSettings | None = Field(default=None, description="a model of your own: path.py:Name")

    def problems(self, recipe: Any) -> Iterator[Problem]:
        yield from super().problems(recipe)
        own = ["model.variant"] if self.variant else []
        own += [f"the objective {each.name!r}" for each in recipe.singles if each.has_prefix]
        if self.embedding_norm and own:
            why = f"does not go with {own[0]}, which needs a stock model"
            yield Problem(why, "model.embedding_norm", fix="remove one of the two")
        predictor, layers = self.context_predictor, self.shape.layers + self.extra_layers
        if predictor is not None and predictor.injection_layer >= layers:
            why = f"but must be a whole number from 0 to {layers - 1} (the backbone has {layers} layers)"
            yield Problem(why, "model.context_predictor.injection_layer", predictor.injection_layer)

    def at_width(self, width: int) -> "SizedModel":
        """The model with another width: heads keep theirs, and blocks their proportions; unchecked."""
        shape = self.shape
        inner = self.feed_forward and round(self.feed_forward * width / shape.width)
        heads = width * shape.heads // shape.width
        return self.model_copy(update={"width": width, "heads": heads, "feed_forward": inner})

    def stock(self, vocab_size: int, positions: int, end_of_text: int | None) -> Any:
        from contextwise.models.building import backbone_config

        config = backbone_config(self.family, self.shape, vocab_size, positions, self.extra_layers, end_of_text)
        if self.feed_forward is not None:
            setattr(config, "n_inner" if self.family == "gpt2" else "intermediate_size", self.feed_forward)
        if self.tie_embeddings is not None:
            config.tie_word_embeddings = self.tie_embeddings
        if self.embedding_norm:
            config.embedding_norm = True
        return config


class PretrainedModel(ModelSettings):
    """A pretrained model as the starting point."""

    called = "a pretrained model"

    pretrained: str = Field(description="a run, a model's folder, or NAME or NAME@REVISION on the Hub")
    context_predictor: ContextPredictorSettings | None = None
    freeze_backbone: bool = Field(default=False, description="train only the context pathway")

    @property
    def starts(self) -> dict[str, str]:  # type: ignore[override]
        return {"model.pretrained": self.pretrained}

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return "pretrained" in values

    @property
    def trained(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return ("context",) if self.freeze_backbone else None

    def tokenizer_for(self, corpus: Any) -> Any:
        from contextwise.training.model import continued_tokenizer

        return continued_tokenizer(self.pretrained, corpus)

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise.training.model import pretrained_config

        return pretrained_config(recipe, self)

    def start(self, recipe: Any, config: Any) -> Any:
        from contextwise.training.model import continued_model

        return continued_model(self, config)

    def freeze(self, model: Any) -> None:
        if self.freeze_backbone:
            model.requires_grad_(False)
            model.context.requires_grad_(True)

    @model_validator(mode="after")
    def _goes_together(self) -> "PretrainedModel":
        if self.freeze_backbone and self.context_predictor is None:
            raise ConfigError(Problem(": nothing else would be trained; set context_predictor too", "freeze_backbone"))
        return self
