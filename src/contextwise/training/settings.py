"""The sections ``data``, ``model`` and ``training`` of a recipe: one class for each variant, with only the settings that apply.

``data`` is a corpus or a synthetic task; ``model`` has a size, or starts from a pretrained model, or is of another kind that a
package offers. Checking settings imports neither torch nor transformers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field, ValidationInfo, create_model, field_validator, model_validator

from contextwise.base import plugins
from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem
from contextwise.base.files import without_folders
from contextwise.objectives import Cut, Objective

DEEPEST = 1024
Layers = Annotated[int, Field(ge=1, le=DEEPEST)]
Width = Annotated[int, Field(ge=1, le=2**20)]
"""A width, or a number of heads."""
Length = Annotated[int, Field(ge=1, le=2**24)]
VocabSize = Annotated[int, Field(ge=2, le=2**24)]


class Card(NamedTuple):
    """What a kind of model adds to the card of a model: rows (None: does not apply), tags of the Hub, and lines of code."""

    rows: dict[str, str | None]
    tags: list[str]
    lines: list[str]


def listed(settings: dict[str, object]) -> str:
    """Settings as one line of a model card, without folders."""
    return ", ".join(f"{name} {without_folders(value)}" for name, value in settings.items())


class Section(Settings):
    """Settings of an optional section below ``data`` or ``model`` that a feature adds, such as ``data.NAME``.

    A section is an entry point ``data.NAME`` (for a corpus) or ``model.NAME`` (for a model of a named size) of the group
    ``contextwise.sections``.

    Attributes:
        about: what it does: the help of the key.
        arms: arms of a trial that are known by name: name -> ``section.key=value`` settings.
    """

    about: ClassVar[str]
    arms: ClassVar[dict[str, list[str]]] = {}

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the section, which is valid by itself."""
        yield from ()


class ModelSection(Section):
    """Settings of an optional section of ``model``: a part that is composed with a stock model.

    Attributes:
        called: the part in a model card.
        tag: its tag on the Hub; empty for none.
        registers: as :attr:`ModelSettings.registers`.
        outermost: whether the part is composed after the others.
    """

    called: ClassVar[str]
    tag: ClassVar[str] = ""
    registers: ClassVar[tuple[str, ...]] = ()
    outermost: ClassVar[bool] = False

    @abstractmethod
    def compose(self, config: Any) -> Any:
        """The configuration of the composition around that of a model."""

    def card(self) -> str:
        """The part in a model card."""
        return listed(self.model_dump())


class DataSection(Section):
    """Settings of an optional section of a corpus's ``data``. Sections apply in alphabetical order."""

    @property
    def read(self) -> list[str]:
        """Metadata columns of the corpus whose values are read."""
        return []

    @property
    def corpora(self) -> dict[str, str]:
        """Further corpora by role; a role that ends with ``_loss`` is validated on, the others are trained on."""
        return {}

    @property
    def others(self) -> float:
        """The share of a run's examples that comes from further corpora."""
        return 0.0

    @property
    def objectives(self) -> list[Objective]:
        """Further objectives of a run."""
        return []

    def cut(self, cut: Cut) -> Cut:
        """How documents are cut into windows, given how they are without the section."""
        return cut

    def open(self, recipe: Any, corpus: Any, vocabulary: Any) -> Any:
        """The :class:`~contextwise.training.inputs.Addition` to the inputs of a run; None if there is none."""
        return None


class DataSettings(Settings):
    """Settings of the section ``data``: a kind of data that models are trained on.

    A kind is an entry point of the group ``contextwise.data``; a model says which it reads (:attr:`ModelSettings.reads`).

    Attributes:
        called: the kind in messages, such as ``a corpus``.
        gives: what examples are made from: ``text``, or the section of a synthetic task.
        one_pass: whether a step is one forward pass if the recipe sets no other limit.
        extended: ``data`` for a kind whose section other packages extend (:class:`Section`).

    Each kind has a field or property ``context``: tokens of an example.
    """

    called: ClassVar[str]
    gives: ClassVar[str] = "text"
    one_pass: ClassVar[bool] = False
    extended: ClassVar[str] = ""

    if TYPE_CHECKING:  # the settings of a kind, as ``context``

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        """Whether the values of a section ``data`` are of this kind; those that no kind claims are a corpus."""
        return False

    @property
    def samples(self) -> int | None:
        """Examples of an epoch of a fixed set of samples; None if there is no such set."""
        return None

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the data; the section is valid by itself."""
        yield from ()

    def hashes(self, recipe: Any) -> dict[str, str] | None:
        """Content hash of each input by name; None for those of corpora and models (:mod:`contextwise.training.identity`)."""
        return None

    def open(self, recipe: Any) -> Any:
        """The :class:`~contextwise.training.inputs.TrainingInputs` of a run; None for those of a corpus."""
        return None

    @property
    def sections(self) -> dict[str, DataSection]:
        """The sections that are given, by name, in alphabetical order."""
        values = ((name, getattr(self, name)) for name in sorted(type(self).model_fields))
        return {name: value for name, value in values if isinstance(value, DataSection)}


class CorpusData(DataSettings):
    """A corpus, and how its documents are cut into windows."""

    called = "a corpus"
    extended = "data"

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
    separate_documents: bool = Field(default=False, description="attention and positions stay inside a document")
    start_at_documents: bool = Field(
        default=False,
        description="every window begins with a document, and the rest of the document that its end cuts is not read, for "
        "the objective causal",
    )
    verify: bool = Field(default=True, description="compare the corpus with its hashes before training")

    @property
    def own_cut(self) -> Cut:
        """How documents are cut into windows without the sections."""
        return Cut(self.context, self.cross_documents, self.separate_documents, self.start_at_documents)

    @property
    def cut(self) -> Cut:
        """How documents are cut into windows."""
        cut = self.own_cut
        for section in self.sections.values():
            cut = section.cut(cut)
        return cut


class ModelSettings(Settings, ABC):
    """Settings of the section ``model``: a kind of model, and how models of this kind are built.

    A kind is an entry point of the group ``contextwise.models``. Recipes are checked without torch, so that a module of
    settings imports it in methods only.

    Attributes:
        called: the kind in messages, such as ``a pretrained model``.
        registers: modules that register configurations, classes and specifications when they are imported
            (:func:`contextwise.models.spec.register_model`).
        learning_rate: the default; None if there is none.
        usual_rate: a rate that is usual where there is no default, for a message.
        reads: what it reads, as :attr:`DataSettings.gives`.
        positions: positions of an example, where they are not those of its inputs.
        loader: the Auto class that loads it and the Hub's name of its task, where they are not those of its kind.
        loss_unit: what the first loss is a mean over.
        at_width: a method that returns the model with another width; None if the kind has no such models.
        extended: ``model`` for a kind whose section other packages extend (:class:`Section`).
    """

    called: ClassVar[str]
    registers: ClassVar[tuple[str, ...]] = ()
    learning_rate: ClassVar[float | None] = None
    usual_rate: ClassVar[str] = "1e-4"
    reads: ClassVar[str] = "text"
    loss_unit: ClassVar[str] = "token"
    positions: ClassVar[int | None] = None
    loader: ClassVar[tuple[str, str | None] | None] = None
    at_width: ClassVar[Any] = None
    extended: ClassVar[str] = ""

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        """Whether the values of a section ``model`` are of this kind, by default by ``family``.

        Those that no kind claims are a model of a named size.
        """
        family = cls.model_fields.get("family")
        return family is not None and values.get("family") in get_args(family.annotation)

    @property
    def starts(self) -> dict[str, str]:
        """The models whose weights training starts from, or keeps as parts, by setting."""
        return {}

    @property
    def trained(self) -> tuple[str, ...] | None:
        """The parts of the model that are trained; None: all."""
        return None

    def sources(self, recipe: Any, known: Container[str]) -> dict[str, str]:
        """The models in the identity of a run by setting, without the settings in ``known``."""
        return {name: source for name, source in self.starts.items() if name not in known}

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the model; its sections are valid by themselves."""
        yield from ()

    @abstractmethod
    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        """Build the configuration for a corpus with this vocabulary.

        Args:
            vocab_size: size of the corpus's tokenizer; None without a tokenizer.
            end_of_text: id of the token between documents.

        Raises:
            CheckpointError: the pretrained model that the recipe names does not exist.
            ConfigError: the vocabulary size is unknown or larger than the recipe's; the recipe's settings contradict each
                other or the pretrained model.
        """

    def planned(self, recipe: Any, configs: Callable[[str], Any], vocab_size: int | None) -> Any:
        """The configuration for a plan, as :meth:`config`; ``configs`` gives those of runs that do not exist yet, by name."""
        return self.config(recipe, vocab_size, None)

    def start(self, recipe: Any, config: Any) -> Any:
        """Build the model as training starts with it, in float32 on the CPU; None for one with random weights."""
        return None

    def freeze(self, model: Any) -> None:
        """Freeze what is not trained, in place."""

    @property
    def sections(self) -> dict[str, ModelSection]:
        """The sections that are given, by name, in the order in which they are composed."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        given = {name: value for name, value in values.items() if isinstance(value, ModelSection)}
        return dict(sorted(given.items(), key=lambda item: item[1].outermost))

    def card(self, recipe: Any, config: Any) -> Card:
        """What the card of a trained model says of it."""
        parts = self.sections.values()
        return Card({each.called: each.card() for each in parts}, [each.tag for each in parts if each.tag], [])


def known_size(setting: int | None, vocab_size: int | None) -> int:
    """The vocabulary size of a model: ``model.vocab_size``, or the corpus's; a ConfigError if it is unknown or too small."""
    size = setting or vocab_size
    if size is None:
        fix = "set it (for GPT-2's tokenizer, 50304)"
        raise ConfigError(Problem("is missing: the corpus has no tokenizer", "model.vocab_size", fix=fix))
    if vocab_size is not None and size < vocab_size:
        raise ConfigError(f"model.vocab_size is {size}, but the corpus's tokenizer has {vocab_size} tokens")
    return size


def prefix_problem(objective: Objective, where: str) -> Problem:
    """That a prefix objective cannot train a model with this part."""
    why = f"the objective {objective.name!r} has bidirectional attention in a prefix, but {where} takes no mask for it"
    return Problem(why, fix="remove one of the two")


def wrong_kind(objective: Any, kind: str, pretrained: str = "", family: str = "") -> Iterator[Problem]:
    """The problem of an objective for another kind of model than ``kind``, that of a pretrained model or a family."""
    if objective.kind == kind:
        return
    families = families_of(objective.kind)
    model = pretrained or f"model.family {family}"
    why = f"the objective {objective.name!r} needs another kind of model ({objective.kind}) than {model} ({kind})"
    fix = "name another model" if pretrained else f"set model.family to {' or '.join(families)}"
    yield Problem(why, fix=f"{fix}, or choose another objective")


@cache
def data_kinds() -> dict[str, type[DataSettings]]:
    """All kinds of data by name: the entry points of the group ``contextwise.data``, with the sections that extend them."""
    return {name: _with_sections(kind) for name, kind in plugins.load("data").items()}


@cache
def model_kinds() -> dict[str, type[ModelSettings]]:
    """All kinds of models by name: the entry points of the group ``contextwise.models``, with the sections that extend them."""
    return {name: _with_sections(kind) for name, kind in plugins.load("models").items()}


def _with_sections(kind: Any) -> Any:
    """A kind with a field for each section that extends it."""
    sections = plugins.load("sections") if kind.extended else {}
    own = {name.partition(".")[2]: each for name, each in sections.items() if name.startswith(f"{kind.extended}.")}
    if not own:
        return kind
    fields: Any = {name: (each | None, Field(default=None, description=each.about)) for name, each in own.items()}
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, __doc__=kind.__doc__, **fields)


def families_of(kind: str) -> list[str]:
    """The families of new models of a kind, such as ``decoder``."""
    new: list[Any] = [each for each in model_kinds().values() if getattr(each, "kind", None) == kind]
    return [family for each in sorted(new, key=lambda each: not each.extended) for family in each.sizes]


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
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: a GPU if there is one, else the CPU"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto: bf16 on a GPU, and on a CPU with AVX-512-BF16 or AMX; otherwise fp32"
    )
    compile: bool = Field(
        default=False, description="torch.compile: on one GPU the whole step (a minute), otherwise the model's blocks"
    )
    gradient_checkpointing: bool = False
    fsdp: bool = Field(default=False, description="shard parameters, gradients and optimizer over processes (FSDP2)")
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
            raise ConfigError("set exactly one of steps, tokens and epochs, and the others to null")
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
