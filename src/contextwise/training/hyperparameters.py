"""The section ``training`` of a recipe: hyperparameters, measurements, and how a run executes."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem
from contextwise.training.settings import Width


class TrainingSettings(Settings):
    """A run's length (steps, tokens or epochs), optimizer, schedule, measurements and checkpoints."""

    steps: int | None = Field(default=None, ge=1, description="optimizer steps; alternatively set tokens or epochs")
    tokens: int | None = Field(default=None, ge=1, description="training tokens; rounded up to whole steps")
    epochs: int | None = Field(default=None, ge=1, description="passes over data.synthetic.samples")
    tokens_per_step: int | None = Field(default=None, ge=1, description="over all processes; by default 8192")
    examples_per_step: int | None = Field(
        default=None, ge=1, description="windows, sentences or samples per step, instead of tokens_per_step"
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
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: a GPU if there is one, else the CPU"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description="auto: what is faster where the run begins, bf16 on a GPU and on a CPU with AMX or fast AVX-512-BF16",
    )
    compile: bool = Field(
        default=False, description="torch.compile: on one GPU the whole step (a minute), otherwise the model's blocks"
    )
    gradient_checkpointing: bool = False
    fsdp: bool = Field(
        default=False, description="on GPUs, shard parameters, gradients and optimizer over processes (FSDP2)"
    )
    paired_initialization: bool = Field(
        default=False,
        description="initial values depend on the seed and the tensor's name only: models that share tensors start alike",
    )
    workers: int | None = Field(
        default=None,
        ge=0,
        le=128,
        description="processes that load windows in advance; by default 2 for a GPU, else none",
    )
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

    @model_validator(mode="after")
    def _goes_together(self) -> "TrainingSettings":
        if problems := list(self._problems()):
            raise ConfigError(*problems)
        if self.schedule == "one_cycle" and "warmup_steps" not in self.model_fields_set:
            self.__dict__["warmup_steps"] = 0.3  # the default of torch's OneCycleLR
        return self

    def _problems(self) -> Iterator[Problem]:
        but = f"but the schedule is {self.schedule}"
        if self.initial_learning_rate is not None and self.schedule != "one_cycle":
            fix = "set schedule: one_cycle, or remove it"
            yield Problem(but, "initial_learning_rate", self.initial_learning_rate, fix)
        for name in ("warmup_steps", "decay_steps"):
            if (value := getattr(self, name)) > 1 and value != int(value):
                yield Problem("but must be a whole number, or a share below 1", name, value)
        if self.trunk is not None and self.schedule != "wsd":
            yield Problem(but, "trunk", self.trunk, "set schedule: wsd")
        if self.trunk is not None and self.patience is not None:
            yield Problem("does not apply to a run with a trunk", "patience", fix="remove it")
        if self.branches and self.schedule not in ("wsd", "constant"):
            yield Problem(but, "branches", self.branches, "set schedule to constant or wsd")
        if self.examples_per_step is not None and self.tokens_per_step is not None:
            yield Problem("is given together with tokens_per_step", "examples_per_step", fix="remove one of the two")
        if self.patience is not None and not self.evaluation_tokens:
            yield Problem("but there is no validation", "patience", self.patience, "set evaluation_tokens")
        elif self.patience is not None and not self.evaluate_every:
            yield Problem(
                "but the only validation is the one at the end", "patience", self.patience, "set evaluate_every"
            )
        if sum(value is not None for value in (self.steps, self.tokens, self.epochs)) != 1:
            yield Problem("set exactly one of steps, tokens and epochs, and the others to null")

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

    def warmup(self, steps: int) -> int:
        """Steps of the warm-up in a run of ``steps`` steps."""
        return in_steps(self.warmup_steps, steps)

    def decay(self, steps: int) -> int:
        """Steps of the decay of the schedule wsd in a run of ``steps`` steps."""
        return in_steps(self.decay_steps, steps)


def in_steps(value: float, steps: int) -> int:
    """A number of steps that may be given as a share (below 1) of ``steps``; shares are rounded up, as transformers does."""
    return math.ceil(round(value * steps, 9)) if value < 1 else int(value)  # 0.07 of 100 is 7.000000000000001
