"""The sections ``data``, ``model`` and ``training`` of a recipe: one class for each variant, with only the settings that apply.

``data`` is a corpus or a synthetic task; ``model`` has a size, or starts from a pretrained model, or is a CUE model or a
small model of a synthetic task. Checking settings imports neither torch nor transformers.
"""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem
from contextwise.base.recipes import RECIPES
from contextwise.data.contexts import ContextSettings
from contextwise.data.synthetic import ParityData
from contextwise.models.sizes import KINDS, SIZES, TRANSFORMERS, ModelSize, adamw_rate, named_size, shape_problems
from contextwise.models.variant.code import digest, parse_variant, read_code
from contextwise.objectives import AnyObjective
from contextwise.objectives.kind import Kind
from contextwise.objectives.metadata import MetadataSettings

DEEPEST = 1024
Layers = Annotated[int, Field(ge=1, le=DEEPEST)]
Width = Annotated[int, Field(ge=1, le=2**20)]
"""A width, or a number of heads."""
Length = Annotated[int, Field(ge=1, le=2**24)]
VocabSize = Annotated[int, Field(ge=2, le=2**24)]


class ReplaySettings(Settings):
    """The replay of an old corpus during training on a new one."""

    corpus: str = Field(description="folder of the old corpus, prepared with the same tokenizer")
    share: float = Field(default=0.1, gt=0, lt=1, description="share of the examples that come from it")
    objective: AnyObjective | None = Field(
        default=None, description="of its examples; by default that of the new corpus. For instructions: instruction"
    )


class CorpusData(Settings):
    """A corpus, and how its documents are cut into windows."""

    corpus: str = Field(description="folder of a prepared corpus, a Zarr array, or a nanoGPT .bin file")
    split: str = "train"
    validation_split: str = "validation"
    tokens: int | None = Field(
        default=None,
        ge=1,
        description="train on the first tokens of the split only, repeated as often as needed; of sorted documents they are "
        "no fair sample",
    )
    context: Length = Field(default=256, description="training context: tokens per window")
    context_stages: dict[int, float] = Field(
        default_factory=dict,
        description="shorter windows at first: a context, and the share of the run's tokens that is read with it, such as "
        "{64: 0.5, 128: 0.25}; the rest is read with `context`",
    )
    cross_documents: bool = Field(default=True, description="windows may hold parts of several documents")
    separate_documents: bool = Field(
        default=False,
        description="attention and positions stay inside a document; so they do whenever metadata stands before the text",
    )
    start_at_documents: bool = Field(
        default=False,
        description="every window begins with a document, and the rest of the document that its end cuts is not read, for "
        "the objective causal; so it is whenever metadata stands before the text",
    )
    contexts: ContextSettings | None = Field(default=None, description="contexts of each sentence, for model.cue")
    metadata: MetadataSettings | None = Field(
        default=None, description="metadata of each document in its windows, for the objective causal"
    )
    verify: bool = Field(default=True, description="compare the corpus with its hashes before training")
    replay: ReplaySettings | None = Field(
        default=None, description="adds examples of an old corpus, and validates on it"
    )
    watch: str | None = Field(default=None, description="folder of an old corpus to validate on only")

    @field_validator("watch")
    @classmethod
    def _one_old_corpus(cls, watch: str | None, info: ValidationInfo) -> str | None:
        replay = info.data.get("replay")
        if watch is not None and replay is not None:
            why = f"given together with replay ({replay.corpus}), which is always watched"
            raise ConfigError(f"{why}; remove watch")
        return watch


class SyntheticData(Settings):
    """A synthetic task instead of a corpus."""

    synthetic: ParityData = Field(description="settings of the task, such as bits and tasks")

    @property
    def context(self) -> int:
        """Tokens per sample."""
        return self.synthetic.length


def _data_variant(values: Any) -> str:
    synthetic = "synthetic" in values if isinstance(values, dict) else isinstance(values, SyntheticData)
    return "<synthetic data>" if synthetic else "<a corpus>"


AnyData = Annotated[
    Annotated[CorpusData, Tag("<a corpus>")] | Annotated[SyntheticData, Tag("<synthetic data>")],
    Discriminator(_data_variant),
]


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


class ModelSettings(Settings):
    """Base class of model settings."""

    learning_rate: ClassVar[float | None] = None  # the default of the model, if it has one

    @property
    def starts(self) -> dict[str, str]:
        """The models whose weights training starts from, or keeps as parts, by setting."""
        return {}


class SizedModel(ModelSettings):
    """A stock model of a named size or given dimensions, with random weights, and optionally ContextLM or multi-token heads."""

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


# The section ``model.cue``: one class for each stage (CUE, Sections 3 and 4), without values that a stage takes from its start.
TRAINED: dict[str, tuple[str, ...]] = {
    "joint": ("decoder", "context_encoder", "text_encoder"),
    "adapt": ("context_encoder",),
    "proxy": ("decoder", "proxy"),
    "swap": ("decoder",),
}
"""The parts that a stage trains (CUE, Table 1 and Section 4); in the proxy only its projection, and a text encoder only if it
is a part of the model. Other parts are frozen."""


def trained_parts(model: Any) -> tuple[str, ...] | None:
    """The parts of a model that these settings train; None: all."""
    if isinstance(model, CueModel):
        return TRAINED[model.cue.stage]
    return ("context",) if getattr(model, "freeze_backbone", False) else None


CUE_STARTS = ("start", "sentence_encoder", "autoencoder", "text_encoder")


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
        description="a folder or Hub name; default distilbert-base-cased. random:NAME has random weights that stay; "
        "trained:NAME or trained:NAME:LAYERSxWIDTH is trained from random weights, in the stage joint",
    )
    pooling: Literal["cls", "mean"] | None = Field(default=None, description="of the text encoder; by default cls")
    text_tokens: int | None = Field(
        default=None,
        ge=3,
        description="maximum tokens of a context; by default the encoder's limit, of one that is trained data.context",
    )


class ContextEncoderSettings(TextSettings):
    """The Transformer blocks over the set of a sentence's contexts."""

    context_layers: int | None = Field(default=None, ge=0, le=DEEPEST, description="2 if not given")
    context_heads: Width | None = Field(default=None, description="4 if not given")
    context_feed_forward: Width | None = Field(default=None, description="4 times the width if not given")
    context_dropout: float = Field(default=0.0, ge=0, lt=1, description="probability to drop a context in training")


class JointStage(SentenceSettings, ContextEncoderSettings):
    """The stage that trains decoder and context encoder together."""

    stage: Literal["joint"]
    width: Width | None = Field(default=None, description="of e_cue; the sentence encoder's if not given")


class AdaptStage(ContextEncoderSettings):
    """The stage that trains only the context encoder."""

    stage: Literal["adapt"]
    start: str = Field(description="the CUE run whose parts are kept")
    fresh_context_encoder: bool = Field(default=False, description="a random context encoder instead of the start's")
    width: Width | None = Field(default=None, description="of e_cue; must be the start's")


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
    width: Width | None = Field(default=None, description="of e_cue; must be the start's")


def _stage_variant(values: Any) -> str:
    stage = values.get("stage") if isinstance(values, dict) else getattr(values, "stage", None)
    return f"<the stage {stage}>"


Stage = JointStage | AdaptStage | ProxyStage | SwapStage
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


class CueModel(ModelSettings):
    """A sentence model conditioned on contexts, built from the parts of earlier runs."""

    cue: AnyStage

    @property
    def starts(self) -> dict[str, str]:
        named = {name: getattr(self.cue, name, None) for name in CUE_STARTS}
        weightless = ("random:", "trained:")  # of a text encoder
        return {
            f"model.cue.{name}": value for name, value in named.items() if value and not value.startswith(weightless)
        }


class AutoencoderModel(ModelSettings):
    """CUE's unigram autoencoder; the layers around the code are 8 times as wide (CUE, Section 4.2.1: 128 x 16 x 128)."""

    learning_rate: ClassVar[float] = 1e-3
    family: Literal["unigram_autoencoder"]
    vocab_size: VocabSize | None = Field(default=None, description="vocabulary size; by default the tokenizer's")
    width: Width = Field(default=16, description="width of the code")


class ParityTransformerModel(ModelSettings):
    """The parity task's Transformer, of the paper's size by default (intrinsic entropy, Section 4.3)."""

    learning_rate: ClassVar[float] = 1e-3
    family: Literal["parity_transformer"]
    layers: Layers = 3
    width: Width = 208
    heads: Width = 4


class ParityMLPModel(ModelSettings):
    """The parity task's MLP."""

    learning_rate: ClassVar[float] = 1e-3
    family: Literal["parity_mlp"]
    layers: Layers = 1
    width: Width = 512
    feature_size: Width = Field(default=80, description="width of its context feature")


ParityModel = ParityTransformerModel | ParityMLPModel


def _model_variant(values: Any) -> str:
    if isinstance(values, ModelSettings):
        values = values.model_dump()
    if not isinstance(values, dict):
        return "<a model of a named size>"
    if "cue" in values:
        return "<a CUE model>"
    if "pretrained" in values:
        return "<a pretrained model>"
    family = values.get("family")
    return f"<the family {family}>" if family in TASK_FAMILIES else "<a model of a named size>"


TASK_FAMILIES = ("unigram_autoencoder", "parity_transformer", "parity_mlp")
"""Families for one task each, without named sizes."""
AnyModel = Annotated[
    Annotated[SizedModel, Tag("<a model of a named size>")]
    | Annotated[PretrainedModel, Tag("<a pretrained model>")]
    | Annotated[CueModel, Tag("<a CUE model>")]
    | Annotated[AutoencoderModel, Tag("<the family unigram_autoencoder>")]
    | Annotated[ParityTransformerModel, Tag("<the family parity_transformer>")]
    | Annotated[ParityMLPModel, Tag("<the family parity_mlp>")],
    Discriminator(_model_variant),
]


class TrainingSettings(Settings):
    """A run's length (steps, tokens or epochs), optimizer, schedule, measurements and checkpoints."""

    steps: int | None = Field(default=None, ge=1, description="optimizer steps; alternatively set tokens or epochs")
    tokens: int | None = Field(default=None, ge=1, description="training tokens; rounded up to whole steps")
    epochs: int | None = Field(default=None, ge=1, description="passes over data.synthetic.samples")
    tokens_per_step: int | None = Field(default=None, ge=1, description="over all processes; by default 8192")
    examples_per_step: int | None = Field(
        default=None, ge=1, description="windows, sentences or samples per step, instead of tokens_per_step"
    )
    rampup_batch_size: int | None = Field(
        default=None, ge=1, description="tokens per step at the start of the run; doubled up to tokens_per_step"
    )
    rampup_tokens: int | float = Field(
        default=0.3, gt=0, description="tokens of all steps below tokens_per_step; below 1, a share of the run"
    )
    micro_batch_tokens: int | None = Field(default=None, ge=1, description="maximum in a forward pass of a process")
    learning_rate: float | None = Field(default=None, gt=0, description="by default that of the size")
    minimum_learning_rate: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="at the end of the schedule, as a share of the maximum; by default 0.1 for cosine, 0 for linear and wsd, "
        "and 1e-4 of the first rate for one_cycle",
    )
    schedule: Literal["linear", "wsd", "cosine", "constant", "one_cycle"] = Field(
        default="cosine",
        description="wsd: warm-up, then constant, then linear decay over the last decay_steps; one_cycle: that of "
        "torch.optim.lr_scheduler.OneCycleLR, whose warm-up is a cosine too, by default of 0.3 of the run",
    )
    initial_learning_rate: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="of the schedule one_cycle: the first rate, as a share of the maximum; by default 0.04",
    )
    warmup_steps: int | float = Field(default=0, ge=0, description="optimizer steps; below 1, a share of the run")
    decay_steps: int | float = Field(
        default=0.2, gt=0, description="of the schedule wsd: optimizer steps; below 1, a share of the run"
    )
    branches: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list,
        description="lengths of runs with this trunk, in tokens (in steps if steps is given): a checkpoint is kept where "
        "each of them begins to decay",
    )
    trunk: str | None = Field(
        default=None,
        description="of the schedule wsd: start the decay from this run's checkpoint, and train nothing before it",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="muon: Muon for the matrices of the blocks, AdamW for the rest"
    )
    muon_learning_rate: float = Field(default=0.02, gt=0)
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    muon_weight_decay: float = Field(default=0.01, ge=0)
    muon_adjustment: Literal["original", "match_rms_adamw"] = Field(
        default="original", description="how Muon's rate depends on a matrix's shape, as torch.optim.Muon names it"
    )
    weight_decay: float = Field(default=0.1, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    clip: float = Field(default=1.0, ge=0, description="maximum gradient norm; 0 disables clipping")
    parametrization: Literal["standard", "mup"] = Field(
        default="standard",
        description="mup: initial values and rates under which the rates of the base width suit every width",
    )
    mup_base_width: Width = Field(default=128, description="the width at which the rates are given")
    mup_base_layers: Layers | None = Field(
        default=None, description="the depth at which they are given (CompleteP); by default depth changes nothing"
    )
    independent_weight_decay: bool = Field(
        default=True, description="with mup: a lower rate of a matrix does not lower its decay"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto: bf16 on a GPU, and on a CPU with AVX-512-BF16 or AMX; otherwise fp32"
    )
    compile: bool = Field(default=False, description="compile the model's blocks (torch.compile)")
    gradient_checkpointing: bool = False
    fsdp: bool = Field(default=False, description="shard parameters, gradients and optimizer over processes (FSDP2)")
    paired_initialization: bool = Field(
        default=False,
        description="initial values depend on the seed and the tensor's name only: models that share tensors start alike",
    )
    workers: int = Field(default=0, ge=0, le=128, description="processes that load windows in advance")
    log_every: int = Field(default=10, ge=1)
    evaluate_every: int = Field(default=0, ge=0, description="steps between validations; 0: only at the end")
    evaluation_tokens: int = Field(default=65_536, ge=0, description="tokens per validation; 0: no validation")
    curve_every: int = Field(default=0, ge=0, description="steps between context curves, and one at the end; 0: none")
    curve_tokens: int = Field(default=65_536, ge=1, description="approximate number of held-out tokens per curve")
    curve_longest: int | None = Field(
        default=None,
        ge=1,
        description="the longest context at which curves of several runs are compared; by default data.context",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        description="validations without a lower loss after which training stops; exports the weights of the lowest loss",
    )
    save_every: int = Field(default=100, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(default=2, ge=1)
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)

    @field_validator("examples_per_step")
    @classmethod
    def _one_batch(cls, examples: int | None, info: ValidationInfo) -> int | None:
        if examples is not None and info.data.get("tokens_per_step") is not None:
            raise ConfigError("given together with tokens_per_step; remove one of the two")
        return examples

    @field_validator("patience")
    @classmethod
    def _validates(cls, patience: int | None, info: ValidationInfo) -> int | None:
        if patience is not None and info.data.get("evaluation_tokens") == 0:
            raise ConfigError(Problem("but there is no validation", value=patience, fix="set evaluation_tokens"))
        if patience is not None and info.data.get("evaluate_every") == 0:
            why = "but the only validation is the one at the end"
            raise ConfigError(Problem(why, value=patience, fix="set evaluate_every"))
        return patience

    @model_validator(mode="after")
    def _one_cycle(self) -> "TrainingSettings":
        if self.schedule != "one_cycle":
            if self.initial_learning_rate is not None:
                why, fix = f"but the schedule is {self.schedule}", "set schedule: one_cycle, or remove it"
                raise ConfigError(Problem(why, "initial_learning_rate", self.initial_learning_rate, fix))
        elif "warmup_steps" not in self.model_fields_set:
            self.__dict__["warmup_steps"] = 0.3  # the default of torch's OneCycleLR
        return self

    @model_validator(mode="after")
    def _branching(self) -> "TrainingSettings":
        problems = []
        if self.trunk is not None and self.schedule != "wsd":
            why, fix = f"but the schedule is {self.schedule}", "set schedule: wsd"
            problems.append(Problem(why, "trunk", self.trunk, fix))
        if self.trunk is not None and self.patience is not None:
            problems.append(Problem("does not apply to a run with a trunk", "patience", fix="remove it"))
        if self.branches and self.schedule not in ("wsd", "constant"):
            fix = "set schedule to constant or wsd"
            problems.append(Problem(f"but the schedule is {self.schedule}", "branches", self.branches, fix))
        if problems:
            raise ConfigError(*problems)
        return self

    @model_validator(mode="after")
    def _one_length(self) -> "TrainingSettings":
        if sum(value is not None for value in (self.steps, self.tokens, self.epochs)) != 1:
            raise ConfigError("set exactly one of steps, tokens and epochs")
        return self

    @property
    def final_learning_rate(self) -> float:
        """The learning rate at the end of the schedule, as a share of the maximum."""
        if self.minimum_learning_rate is not None:
            return self.minimum_learning_rate
        if self.schedule == "one_cycle":
            return self.first_learning_rate / 1e4
        return 0.1 if self.schedule == "cosine" else 0.0

    @property
    def first_learning_rate(self) -> float:
        """The first learning rate of the schedule one_cycle, as a share of the maximum; by default that of torch, 1 / 25."""
        return 0.04 if self.initial_learning_rate is None else self.initial_learning_rate

    def rampup(self, steps: int, tokens_per_step: int) -> int:
        """Length of the batch-size ramp-up of a run of ``steps`` full steps, in full steps."""
        tokens = self.rampup_tokens
        return math.ceil(tokens * steps if tokens < 1 else tokens / tokens_per_step)

    def warmup(self, steps: int) -> int:
        """Steps of the warm-up in a run of ``steps`` steps."""
        return in_steps(self.warmup_steps, steps)

    def decay(self, steps: int) -> int:
        """Steps of the decay of the schedule wsd in a run of ``steps`` steps."""
        return in_steps(self.decay_steps, steps)


def in_steps(value: float, steps: int) -> int:
    """A number of steps that may be given as a share (below 1) of ``steps``; shares are rounded up, as transformers does."""
    return math.ceil(value * steps) if value < 1 else int(value)
