"""The sections of a recipe: data, model and training, each checked by itself."""

from typing import Literal

from pydantic import Field, model_validator
from transformers import PreTrainedConfig

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.data.contexts import ContextSettings as ArticleContexts
from contextwise.data.synthetic import ParityData
from contextwise.models.building import backbone_config
from contextwise.models.contextlm import ContextLMConfig
from contextwise.models.cue import UnigramConfig
from contextwise.models.kinds import Kind, kind_of
from contextwise.models.loading import load_config
from contextwise.models.multitoken import MultiTokenConfig
from contextwise.models.sizes import ModelSize, named_size
from contextwise.training import parity
from contextwise.training.cue.settings import CueSettings

Families = Literal[
    "gpt2", "gpt_neox", "llama", "qwen3", "lstm", "bert", "t5", "parity_transformer", "parity_mlp", "unigram_autoencoder"
]  # fmt: skip
FAMILY_KINDS: dict[str, Kind] = {"bert": "encoder", "t5": "encoder-decoder"}
"""Families that are no decoders."""
AUTOENCODER = "unigram_autoencoder"
OWN_SHAPES = parity.SHAPES | {AUTOENCODER: ModelSize(layers=1, width=16, heads=1, learning_rate=1e-3)}
"""Families without named sizes. The width of a unigram auto-encoder is that of its code; the layers around that are 8 times as
wide (CUE, Section 4.2.1: 128 x 16 x 128)."""


class ReplaySettings(Settings):
    """An old corpus of which a share stays in the training on a new one."""

    corpus: str = Field(description="folder of the old corpus, prepared with the same tokenizer")
    share: float = Field(0.1, gt=0, lt=1, description="share of the examples that come from it")


class DataSettings(Settings):
    """Which corpus, and how its documents become windows."""

    corpus: str = Field(description="folder of a prepared corpus, a Zarr array, or a nanoGPT .bin file")
    synthetic: ParityData | None = Field(None, description="an exact task whose samples are drawn, instead")
    split: str = "train"
    validation_split: str = "validation"
    tokens: int | None = Field(
        None, ge=1, description="train on the first so many tokens of the split only, again and again"
    )
    context: int = Field(256, ge=1, description="training context: tokens a window")
    cross_documents: bool = Field(True, description="windows may hold parts of several documents")
    separate_documents: bool = Field(False, description="attention and positions stay inside a document")
    contexts: ArticleContexts | None = Field(None, description="contexts of each sentence, for model.cue")
    verify: bool = Field(True, description="compare the corpus with its hashes before training")
    replay: ReplaySettings | None = Field(
        None, description="keeps an old corpus in the training; also watched"
    )
    watch: str | None = Field(
        None, description="folder of an old corpus that is not trained on, to validate on beside the new one"
    )

    _without_corpus = model_validator(mode="before")(parity.without_corpus)

    @model_validator(mode="after")
    def _one_old_corpus(self) -> "DataSettings":
        if self.replay is not None and self.watch is not None:
            raise ConfigError(
                f"watch ({self.watch}) is given together with replay ({self.replay.corpus}), which is watched in any "
                "case; leave watch out"
            )
        return self


class ContextSettings(Settings):
    """ContextLM's pathway; leaving the section out trains the plain backbone."""

    chunk_size: int = Field(4, ge=1)
    predictor_layers: int = Field(2, ge=1)
    pooling: Literal["mean", "mlp", "attention", "latent_attention"] = "mean"
    injection: Literal["gate", "scalar_gate", "norm_gate", "projection", "add", "norm_add"] = "gate"
    injection_layer: int = Field(0, ge=0)
    inject_every_layer: bool = False


class MultiTokenSettings(Settings):
    """Heads for several tokens ahead; leaving the section out trains the next-token head alone."""

    future_tokens: int = Field(4, ge=1)
    head: Literal["layer", "linear"] = "layer"


class ModelSettings(Settings):
    """A named size, its numbers one by one, or a pretrained model to go on from."""

    pretrained: str | None = Field(
        None,
        description="a run, a model's folder or its name on the Hub; its shape and weights, instead of a size",
    )
    freeze_backbone: bool = Field(
        False, description="train the context pathway alone, on top of a pretrained backbone"
    )
    family: Families = Field("gpt2", description="decoders, an encoder (bert), an encoder-decoder (t5)")
    vocab_size: int | None = Field(
        None, ge=2, description="tokens of the vocabulary; the tokenizer's if not given"
    )
    size: str = "nano"
    layers: int | None = Field(None, ge=1, description="instead of the size's own")
    width: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    feed_forward: int | None = Field(
        None,
        ge=1,
        description="inner width of each block; what is usual in the family (4 times the width) if not given",
    )
    extra_layers: int = Field(
        0,
        description="layers on top: 2 makes the parameter-matched baseline; below 0 for a trunk that heads have layers above",
    )
    max_context: int | None = Field(
        None, ge=1, description="positions of the model; the training context if not given"
    )
    feature_size: int | None = Field(
        None, ge=1, description="of parity_mlp: width of its context feature; 80 if not given"
    )
    context_predictor: ContextSettings | None = None
    multi_token: MultiTokenSettings | None = None
    cue: CueSettings | None = Field(None, description="a sentence model conditioned on contexts, instead")

    @property
    def shape(self) -> ModelSize:
        """The named size with the given numbers in place of its own."""
        size = OWN_SHAPES.get(self.family) or named_size(self.family, self.size)
        return ModelSize(
            self.layers or size.layers, self.width or size.width, self.heads or size.heads, size.learning_rate
        )

    def build_config(
        self, vocab_size: int, context: int, end_of_text: int | None, pair_head: bool = False
    ) -> PreTrainedConfig:
        """The model's transformers configuration.

        Args:
            pair_head: whether an encoder has the head that tells pairs of sentences apart.

        Raises:
            ConfigError: values that contradict each other.
        """
        if self.family in parity.SHAPES:
            return parity.model_config(self.family, self.shape, self.feature_size, vocab_size, context)
        if self.family == AUTOENCODER:
            code = self.shape.width
            return UnigramConfig(vocab_size, widths=[8 * code, code], eos_token_id=end_of_text)
        config = (
            load_config(self.pretrained)
            if self.pretrained is not None
            else backbone_config(
                self.family,
                self.shape,
                vocab_size,
                self.max_context or context,
                self.extra_layers,
                end_of_text,
            )
        )
        if self.feed_forward is not None:
            set_feed_forward(config, self.family, self.feed_forward)
        if kind_of(config) == "encoder":
            config.architectures = ["BertForPreTraining"] if pair_head else None
        if self.context_predictor is not None:
            config = ContextLMConfig(backbone_config=config, **self.context_predictor.model_dump())
        if self.multi_token is not None:
            config = MultiTokenConfig(backbone_config=config, **self.multi_token.model_dump())
        return config

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSettings":
        if self.pretrained is None:
            if self.freeze_backbone:
                raise ConfigError(
                    "freeze_backbone is true, but there is no pretrained backbone; give pretrained as well"
                )
            return self
        if self.multi_token is not None:
            raise ConfigError(
                "multi_token is given together with pretrained; train such a model from scratch, or build it with "
                "MultiTokenForCausalLM.from_backbone"
            )
        if self.freeze_backbone and self.context_predictor is None:
            raise ConfigError(
                "freeze_backbone is true, but nothing else would be trained; give context_predictor as well"
            )
        for name in (
            "vocab_size", "size", "layers", "width", "heads", "feed_forward", "extra_layers", "max_context"
        ):  # fmt: skip
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(
                    f"{name} is given, but pretrained ({self.pretrained}) brings its own; leave {name} out"
                )
        return self


def set_feed_forward(config: PreTrainedConfig, family: str, width: int) -> None:
    """Give the blocks of a stock configuration another inner width.

    Raises:
        ConfigError: the family's layers have none.
    """
    name = {"gpt2": "n_inner", "t5": "d_ff"}.get(family, "intermediate_size")
    if not hasattr(config, name):
        raise ConfigError(f"model.feed_forward is given, but {family} has no such layers; leave it out")
    setattr(config, name, width)


class TrainingSettings(Settings):
    """How long, how fast, and what is written on the way."""

    steps: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1, description="training tokens; rounded up to whole steps")
    tokens_per_step: int = Field(8192, ge=1, description="over all processes and micro-batches")
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="most tokens in one forward pass of one process"
    )
    learning_rate: float | None = Field(None, gt=0, description="the size's own if not given")
    minimum_learning_rate: float = Field(
        0.1, ge=0, le=1, description="where the cosine ends, as a share of the top"
    )
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 turns clipping off")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 on a GPU that has it")
    compile: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = Field(False, description="shard parameters, gradients and optimizer over processes (FSDP2)")
    workers: int = Field(0, ge=0, description="processes that read windows ahead")
    log_every: int = Field(10, ge=1)
    evaluate_every: int = Field(0, ge=0, description="steps between validations; 0: at the end only")
    evaluation_tokens: int = Field(65_536, ge=1, description="validation tokens of such an evaluation")
    contextwise_every: int = Field(
        0, ge=0, description="steps between contextwise loss curves (and one at the end); 0: none"
    )
    contextwise_tokens: int = Field(
        65_536, ge=1, description="held-out tokens that such a curve reads, about"
    )
    contextwise_longest: int | None = Field(
        None,
        ge=1,
        description="the longest context that the curves of several runs are compared at; data.context if not given",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="validations without a lower loss after which training stops; the weights of the lowest are exported",
    )
    save_every: int = Field(100, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1)
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self.steps is not None:
            return self.steps
        return -(-(self.tokens or 0) // self.tokens_per_step)

    @model_validator(mode="after")
    def _length(self) -> "TrainingSettings":
        if (self.steps is None) == (self.tokens is None):
            raise ConfigError("give either steps or tokens, one of the two")
        if self.patience is not None and not self.evaluate_every:
            raise ConfigError(
                f"patience is {self.patience} validations, but there is only the one at the end; set evaluate_every"
            )
        if self.warmup_steps > self.total_steps:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps}, but the run has only {self.total_steps} steps"
            )
        return self
