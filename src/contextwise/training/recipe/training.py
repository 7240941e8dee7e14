"""The section ``training`` of a recipe: length, optimizer, measurements and checkpoints."""

import math
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem


class TrainingSettings(Settings):
    """Settings of a run's length (steps, tokens or epochs), optimizer, measurements and checkpoints."""

    steps: int | None = Field(None, ge=1, description="optimizer steps; alternatively set tokens or epochs")
    tokens: int | None = Field(None, ge=1, description="training tokens; rounded up to whole steps")
    epochs: int | None = Field(None, ge=1, description="passes over data.synthetic.samples")
    tokens_per_step: int | None = Field(
        None, ge=1, description="over all processes and micro-batches; by default 8192"
    )
    examples_per_step: int | None = Field(
        None, ge=1, description="windows, sentences or samples per step, instead of tokens_per_step"
    )
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="maximum tokens in one forward pass of one process"
    )
    learning_rate: float | None = Field(None, gt=0, description="by default that of the size")
    minimum_learning_rate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="at the end of the schedule, as a share of the maximum; by default 0.1 for cosine, 0 for linear and wsd",
    )
    schedule: Literal["linear", "wsd", "cosine", "constant"] = Field(
        "cosine", description="wsd: warm-up, then constant, then linear decay over the last decay_steps"
    )
    warmup_steps: int | float = Field(0, ge=0, description="optimizer steps; below 1, a share of the run")
    decay_steps: int | float = Field(
        0.2, gt=0, description="of the schedule wsd: optimizer steps; below 1, a share of the run"
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: Muon for the matrices of the blocks, AdamW for the rest"
    )
    muon_learning_rate: float = Field(0.02, gt=0)
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    muon_weight_decay: float = Field(0.01, ge=0)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip: float = Field(1.0, ge=0, description="maximum gradient norm; 0 disables clipping")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 on a GPU that supports it"
    )
    compile: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = Field(False, description="shard parameters, gradients and optimizer over processes (FSDP2)")
    workers: int = Field(0, ge=0, description="processes that load windows in advance")
    log_every: int = Field(10, ge=1)
    evaluate_every: int = Field(0, ge=0, description="steps between validations; 0: only at the end")
    evaluation_tokens: int = Field(65_536, ge=1, description="tokens per validation")
    curve_every: int = Field(
        0, ge=0, description="steps between context curves, with one at the end; 0: no curves"
    )
    curve_tokens: int = Field(65_536, ge=1, description="approximate number of held-out tokens per curve")
    curve_longest: int | None = Field(
        None,
        ge=1,
        description="the longest context at which curves of several runs are compared; by default data.context",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="validations without a lower loss after which training stops; exports the weights of the lowest loss",
    )
    save_every: int = Field(100, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1)
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
        if patience is not None and info.data.get("evaluate_every") == 0:
            raise ConfigError(
                Problem(
                    "but the only validation is the one at the end", value=patience, fix="set evaluate_every"
                )
            )
        return patience

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
        return 0.1 if self.schedule == "cosine" else 0.0

    def warmup(self, steps: int) -> int:
        """Steps of the warm-up in a run of ``steps`` steps."""
        return in_steps(self.warmup_steps, steps)

    def decay(self, steps: int) -> int:
        """Steps of the decay of the schedule wsd in a run of ``steps`` steps."""
        return in_steps(self.decay_steps, steps)


def in_steps(value: float, steps: int) -> int:
    """A number of steps that may be given as a share (below 1) of ``steps``; shares are rounded up, as transformers does."""
    return math.ceil(value * steps) if value < 1 else int(value)
