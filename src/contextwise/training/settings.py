"""The sections ``data`` and ``model`` of a recipe: one class for each variant, with only the settings that apply.

``data`` is a corpus or a synthetic task; ``model`` has a size, or starts from a pretrained model, or is of another kind that a
package offers. Checking settings imports neither torch nor transformers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_args

from pydantic import Field, create_model

from contextwise.base import plugins
from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError, Problem
from contextwise.base.files import ExpandedPath
from contextwise.objectives import Cut, Objective

if TYPE_CHECKING:
    from contextwise.data.corpus import Corpus

DEEPEST = 1024
Layers = Annotated[int, Field(ge=1, le=DEEPEST)]
Width = Annotated[int, Field(ge=1, le=2**20)]
"""A width, or a number of heads."""
Length = Annotated[int, Field(ge=1, le=2**24)]
VocabSize = Annotated[int, Field(ge=2, le=2**24)]


class Section(Settings):
    """Settings of an optional section below ``data`` or ``model`` that a feature adds, such as ``data.NAME``.

    A section is an entry point ``data.NAME`` (for a corpus) or ``model.NAME`` (for a model of a named size) of the group
    ``contextwise.sections``.

    Attributes:
        about: what it does: the help of the key.
        arms: arms of a trial that are known by name: name -> ``section.key=value`` settings.
    """

    about: ClassVar[str] = ""
    arms: ClassVar[dict[str, list[str]]] = {}

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the section, which is valid by itself."""
        yield from ()


class ModelSection(Section):
    """Settings of an optional section of ``model``: a part that is composed with a stock model.

    Attributes:
        tag: on the Hub, of models with the part; empty for none.
        registers: as :attr:`ModelSettings.registers`.
        outermost: whether the part is composed after the others.
    """

    tag: ClassVar[str] = ""
    registers: ClassVar[tuple[str, ...]] = ()
    outermost: ClassVar[bool] = False

    @abstractmethod
    def compose(self, config: Any) -> Any:
        """The configuration of the composition around that of a model."""


class DataSection(Section):
    """Settings of an optional section of a corpus's ``data``. Sections apply in alphabetical order.

    Attributes:
        read: metadata columns of the corpus whose values are read.
        corpora: further corpora by role; a role that ends with ``_loss`` is validated on, the others are trained on.
        others: the share of a run's examples that comes from further corpora.
    """

    read: ClassVar[Sequence[str]] = ()
    corpora: ClassVar[Mapping[str, str]] = {}
    others: ClassVar[float] = 0.0

    @property
    def objectives(self) -> list[Objective]:
        """Further objectives of a run."""
        return []

    def cut(self, cut: Cut) -> Cut:
        """How documents are cut into windows, given how they are without the section."""
        return cut

    def open(self, recipe: Any, corpus: Any, vocabulary: Any) -> Any:
        """The :class:`Addition` to the inputs of a run; None if there is none."""
        return None


class DataSettings(Settings):
    """Settings of the section ``data``: a kind of data that models are trained on.

    A kind is an entry point of the group ``contextwise.data``; a model says which it reads (:attr:`ModelSettings.reads`).

    Attributes:
        called: the kind in messages, such as ``a corpus``.
        gives: what examples are made from: ``text``, or the section of a synthetic task.
        one_pass: whether a step is one forward pass if the recipe sets no other limit.
        extended: ``data`` for a kind whose section other packages extend (:class:`Section`).
        samples: examples of an epoch of a fixed set of samples; None if there is no such set.

    Each kind has a field or property ``context``: tokens of an example.
    """

    called: ClassVar[str]
    gives: ClassVar[str] = "text"
    one_pass: ClassVar[bool] = False
    extended: ClassVar[str] = ""
    samples: ClassVar[int | None] = None

    if TYPE_CHECKING:  # the settings of a kind, as ``context``

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        """Whether the values of a section ``data`` are of this kind; those that no kind claims are a corpus."""
        return False

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the data; the section is valid by itself."""
        yield from ()

    def hashes(self, recipe: Any) -> dict[str, str] | None:
        """Content hash of each input by name; None for those of corpora and models (:mod:`contextwise.training.identity`)."""
        return None

    def open(self, recipe: Any) -> Any:
        """The :class:`~contextwise.training.inputs.TrainingInputs` of a run; None for those of a corpus."""
        return None

    def vocabulary_size(self) -> int | None:
        """Number of tokens of its tokenizer, for a model whose recipe does not say it; None without a tokenizer."""
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

    corpus: ExpandedPath = Field(description="folder of a prepared corpus, a Zarr array, or a nanoGPT .bin file")
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
    def cut(self) -> Cut:
        """How documents are cut into windows."""
        cut = Cut(self.context, self.cross_documents, self.separate_documents, self.start_at_documents)
        for section in self.sections.values():
            cut = section.cut(cut)
        return cut

    def vocabulary_size(self) -> int | None:
        from contextwise.data import Corpus

        return Corpus.open(self.corpus, self.split).vocab_size


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
        loader: the Auto class that loads it and the Hub's name of its task, where they are not those of its kind.
        loss_unit: what the first loss is a mean over.
        at_width: a method that returns the model with another width; None if the kind has no such models.
        extended: ``model`` for a kind whose section other packages extend (:class:`Section`).
        starts: the models whose weights training starts from, or keeps as parts, by setting.
        trained: the parts of the model that are trained; None: all.
    """

    called: ClassVar[str]
    registers: ClassVar[tuple[str, ...]] = ()
    learning_rate: ClassVar[float | None] = None
    usual_rate: ClassVar[str] = "1e-4"
    reads: ClassVar[str] = "text"
    loss_unit: ClassVar[str] = "token"
    loader: ClassVar[tuple[str, str | None] | None] = None
    at_width: ClassVar[Any] = None
    extended: ClassVar[str] = ""
    starts: ClassVar[Mapping[str, str]] = {}
    trained: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        """Whether the values of a section ``model`` are of this kind, by default by ``family``.

        Those that no kind claims are a model of a named size.
        """
        family = cls.model_fields.get("family")
        return family is not None and values.get("family") in get_args(family.annotation)

    def sources(self, recipe: Any, known: Container[str]) -> dict[str, str]:
        """The models in the identity of a run by setting, without the settings in ``known``."""
        return {name: source for name, source in self.starts.items() if name not in known}

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the model, by default what contradicts its sections."""
        prefix = next((each for each in recipe.singles if each.has_prefix), None)
        for name, section in self.sections.items():
            yield from section.problems(recipe)
            if prefix is not None:
                yield prefix_problem(prefix, f"model.{name}")

    def tokenizer_for(self, corpus: "Corpus") -> Any:
        """The tokenizer of a corpus with the further tokens of a model that exists already; a DataError if the two differ."""
        return None

    @abstractmethod
    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        """Build the configuration for a corpus, given the size of its tokenizer's vocabulary and the token between documents.

        A CheckpointError or ConfigError if the pretrained model does not exist, or does not match recipe and vocabulary.
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

    @property
    def tags(self) -> list[str]:
        """Tags of a trained model on the Hub."""
        return [each.tag for each in self.sections.values() if each.tag]

    def usage(self, config: Any) -> list[str]:
        """Lines of Python on the card of a trained model, after those that load it."""
        return []


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
    return {name: _with_sections(kind) for name, kind in plugins.load("data", DataSettings).items()}


@cache
def model_kinds() -> dict[str, type[ModelSettings]]:
    """All kinds of models by name: the entry points of the group ``contextwise.models``, with the sections that extend them."""
    return {name: _with_sections(kind) for name, kind in plugins.load("models", ModelSettings).items()}


def _with_sections(kind: Any) -> Any:
    """A kind with a field for each section that extends it."""
    sections = plugins.load("sections", Section) if kind.extended else {}
    own = {name.partition(".")[2]: each for name, each in sections.items() if name.startswith(f"{kind.extended}.")}
    if not own:
        return kind
    fields: Any = {name: (each | None, Field(default=None, description=each.about)) for name, each in own.items()}
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, __doc__=kind.__doc__, **fields)


def families_of(kind: str) -> list[str]:
    """The families of new models of a kind, such as ``decoder``."""
    new: list[Any] = [each for each in model_kinds().values() if getattr(each, "kind", None) == kind]
    return [family for each in sorted(new, key=lambda each: not each.extended) for family in each.sizes]


class HeldOut(NamedTuple):
    """Examples to validate on, and their corpus."""

    corpus: "Corpus"
    examples: Any


class Addition:
    """What an objective or a section of ``data`` adds to the inputs of a run; a subclass overrides what it needs.

    Attributes:
        config: the model's configuration; None for that of the recipe's section ``model``.
        corpora: further corpora that are trained on, by role.
    """

    config: Any = None
    corpora: Mapping[str, "Corpus"] = MappingProxyType({})

    def stream(self, stream: Any) -> Any:
        """The training examples, given those without the addition."""
        return stream

    def held_out(self, sets: dict[str, HeldOut]) -> None:
        """Add or replace validation sets, by the name of their loss, given those without the addition."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What ``summary.json`` says of it."""
        return {}
