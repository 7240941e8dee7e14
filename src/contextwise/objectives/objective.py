"""Base classes of objectives (settings, the examples of an epoch, the stream of a run), and the registry by name.

1. An :class:`Objective` is settings. From a corpus, a :class:`Cut`, a seed and a vocabulary it builds :class:`Examples`.
2. :class:`Examples` are one pass over the corpus per epoch; ``example(epoch, index)`` builds them on demand.
3. :class:`ExampleStream` shuffles and concatenates the examples of the epochs of a run.

An objective is an entry point of the group ``contextwise.objectives`` (:mod:`contextwise.base.plugins`): a new one is one
file, here or in another package. A class that is defined in a running program is known by its name too.

All random numbers of an example come from :func:`generator`, seeded with (seed, epoch, number of the window or document,
name of the objective) and nothing else. So an example is the same in any number of workers or processes, and after any
restart.

Examples are dictionaries of tensors with the same shapes throughout an objective:

- decoder: ``input_ids`` (T,), ``labels`` (T,) already shifted (the label of position t is token t+1), and where they apply
  ``position_ids`` (T,) and ``prefix`` (T,), bool: positions that see each other in both directions;
- encoder: ``input_ids`` (T,), ``labels`` (T,) in place, and where they apply ``position_ids``, ``token_type_ids``,
  ``attention_mask`` (T,) and ``pair_label`` ();
- contrastive, of either kind: ``input_ids``, ``labels`` (T,) without any loss, ``attention_mask`` (T,), ``document`` () and
  ``temperature`` (); items 2 i and 2 i + 1 are the two segments of a pair;
- encoder-decoder: ``input_ids`` (S,) for the encoder, ``labels`` (U,) for the decoder, not shifted.

A label of -100 means that the position has no loss. ``window`` () is the number of the example in its epoch.

Modules of objectives import neither torch nor the corpus reader when they are imported, so that a recipe can be checked
before torch is loaded: examples are made as NumPy arrays and become tensors in :meth:`Examples.example`.
"""

from __future__ import annotations

import bisect
import inspect
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, GetJsonSchemaHandler, SerializeAsAny
from pydantic_core import CoreSchema

from contextwise.base import plugins
from contextwise.base.config import Settings, validate
from contextwise.base.errors import ConfigError, Problem
from contextwise.objectives.kind import Kind
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary

if TYPE_CHECKING:
    import torch

    from contextwise.data.corpus import Corpus
    from contextwise.data.windows import Documents, Windows

NO_LOSS = -100


@dataclass(frozen=True)
class Cut:
    """Settings for cutting documents into windows; see :mod:`contextwise.data.windows`."""

    context: int
    cross_documents: bool = True
    separate_documents: bool = False
    start_at_documents: bool = False

    def windows(self, corpus: Documents, length: int, vocabulary: Vocabulary) -> Windows:
        """Windows of ``length`` tokens; raises what :class:`~contextwise.data.windows.Windows` does."""
        from contextwise.data.windows import Windows

        return Windows(
            corpus, length, self.cross_documents, self.separate_documents, vocabulary.size, self.start_at_documents
        )

    def refuse_separate_documents(self, name: str) -> None:
        """Raise ConfigError if ``separate_documents`` is set: objective ``name`` cannot keep documents apart in a window."""
        if self.separate_documents:
            raise ConfigError(
                f"data.separate_documents is true, but the objective {name!r} moves tokens within a window and cannot keep "
                "its documents apart; set data.cross_documents=false instead, so that each window is of one document"
            )


class Examples(ABC):
    """The examples of a corpus under one objective, epoch by epoch."""

    @abstractmethod
    def count(self, epoch: int) -> int:
        """Number of examples of an epoch."""

    @abstractmethod
    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        """Example ``index`` of an epoch, 0 <= index < count(epoch), as NumPy arrays (int64 or bool) and numbers."""

    def example(self, epoch: int, index: int) -> dict[str, torch.Tensor]:
        """Example ``index`` of an epoch, as tensors."""
        import torch

        return {name: torch.as_tensor(value) for name, value in self.arrays(epoch, index).items()}


class WindowExamples(Examples):
    """Examples built from one window each (by default the window), the same windows in every epoch."""

    def __init__(self, windows: Windows, seed: int = 0) -> None:
        self.windows, self.seed = windows, seed

    def count(self, epoch: int) -> int:
        return len(self.windows)

    def window(self, index: int) -> dict[str, np.ndarray]:
        """A window as arrays: ``input_ids``, ``labels`` (shifted), ``window``, and ``position_ids`` where they apply."""
        return {name: tensor.numpy() for name, tensor in self.windows[index].items()}

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        return self.window(index)


class RewrittenExamples(Examples):
    """Windows over documents that are rewritten for each epoch, whose number may differ from epoch to epoch."""

    def __init__(self, cut: Cut, vocabulary: Vocabulary) -> None:
        self.cut, self.vocabulary = cut, vocabulary
        self._epoch = -1
        self._counts: dict[int, int] = {}

    @abstractmethod
    def documents(self, epoch: int) -> Documents:
        """The documents of an epoch."""

    def windows(self, epoch: int) -> Windows:
        """The windows of an epoch; those of the last epoch that was asked for are kept."""
        if epoch != self._epoch:
            self._windows = self.cut.windows(self.documents(epoch), self.cut.context, self.vocabulary)
            self._epoch, self._counts[epoch] = epoch, len(self._windows)
        return self._windows

    def count(self, epoch: int) -> int:
        return self._counts[epoch] if epoch in self._counts else len(self.windows(epoch))

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in self.windows(epoch)[index].items()}


class Stream(ABC):
    """A map-style dataset: the ``length`` examples of a run, in order."""

    length: int

    @abstractmethod
    def item(self, index: int) -> dict[str, torch.Tensor]:
        """Example ``index`` of the run, 0 <= index < length."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.item(index)


class Objective(Settings, ABC):
    """Settings of an objective. A subclass registers itself under the default of its field ``name``.

    Subclasses override the attributes, with a property where the value depends on the settings. Of a mixture those of its parts
    count (:attr:`singles`).

    Attributes:
        registered: the objectives by name whose modules are imported; :func:`objectives` has all.
        special_tokens: the special tokens that the objective needs, except end-of-text.
        has_prefix: whether examples for a decoder have positions that see each other in both directions.
        has_pairs: whether examples are pairs of segments with a label, for an encoder's pair head.
        reads_sentences: whether an example is a single sentence, behind end-of-text.
        whole_steps: whether the loss compares the vectors of all examples of a step, which is one forward pass of one process.
        alone: whether the examples are trained without those of other objectives or corpora.
        columns: columns of a corpus that examples are made from, beside the tokens.
        chat_template: that of transformers for a model that was trained on the examples; None if these are no conversations.
    """

    registered: ClassVar[dict[str, type[Objective]]] = {}
    special_tokens: ClassVar[Sequence[SpecialToken]] = ()
    has_prefix: ClassVar[bool] = False
    has_pairs: ClassVar[bool] = False
    reads_sentences: ClassVar[bool] = False
    whole_steps: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    columns: ClassVar[Sequence[str]] = ()
    chat_template: ClassVar[str | None] = None

    name: str

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        name = cls.model_fields["name"].default
        if isinstance(name, str):
            cls.registered[name] = cls

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        if not inspect.isabstract(cls):
            return schema
        concrete = {name: each for name, each in objectives().items() if issubclass(each, cls)}
        settings = [handler(each.__pydantic_core_schema__) for each in concrete.values()]
        return {"anyOf": [{"enum": list(concrete)}, *settings]}

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """The kind of model that the examples are for."""

    @property
    def singles(self) -> list[Any]:
        """The objective itself, or those of a mixture."""
        return [self]

    def problems(self, recipe: Any) -> Iterator[Problem]:
        """What in a recipe contradicts the objective; it is valid by itself."""
        yield from ()

    def open(self, recipe: Any, corpus: Corpus) -> Any:
        """What it adds to the inputs of a run (:class:`contextwise.training.settings.Addition`); None if there is nothing."""
        return None

    @abstractmethod
    def stream(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary, length: int) -> Stream:
        """The ``length`` examples of a run.

        A ConfigError if settings, window and vocabulary contradict each other, a DataError if the corpus yields no example.
        """


class SingleObjective(Objective):
    """An objective with examples of one form, which may be a part of a mixture; ``together`` as for :class:`ExampleStream`."""

    together: ClassVar[int] = 1

    @abstractmethod
    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> Examples:
        """The examples of a corpus; raises what :meth:`stream` does."""

    def stream(
        self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary, length: int, salt: tuple[int, ...] = ()
    ) -> ExampleStream:
        """The ``length`` examples of a run; ``salt`` as for :class:`ExampleStream`."""
        return ExampleStream(self.examples(corpus, cut, seed, vocabulary), seed, length, salt, self.together)


def generator(seed: int, epoch: int, index: int, name: str) -> np.random.Generator:
    """The source of all random numbers of one example."""
    return np.random.Generator(np.random.PCG64([seed, epoch, index, zlib.crc32(name.encode())]))


class ExampleStream(Stream):
    """The examples of a run; each epoch is shuffled with the seed (seed, epoch).

    Epochs may differ in their number of examples; to locate item k all earlier epochs are counted, once.

    Args:
        salt: additional seed numbers, so that several streams of one seed differ.
        together: so many consecutive examples stay in order; it divides the number of every epoch.
    """

    def __init__(
        self, examples: Examples, seed: int, length: int, salt: tuple[int, ...] = (), together: int = 1
    ) -> None:
        self.examples, self.seed, self.length, self.salt, self.together = examples, seed, length, salt, together
        self._ends = [0]  # first item of each epoch, and the item after the last epoch counted so far
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    @property
    def distinct(self) -> int:
        """Number of items before the first one that repeats an example, at most all."""
        return min(self.length, self.examples.count(0))

    def place(self, index: int) -> tuple[int, int]:
        """The epoch of item ``index``, and the index of the example in that epoch."""
        while self._ends[-1] <= index:
            self._ends.append(self._ends[-1] + self.examples.count(len(self._ends) - 1))
        epoch = bisect.bisect_right(self._ends, index) - 1
        if epoch != self._epoch:
            self._epoch = epoch
            numbers = np.random.Generator(np.random.PCG64([self.seed, epoch, *self.salt]))
            groups = numbers.permutation(self.examples.count(epoch) // self.together)
            self._order = (groups[:, None] * self.together + np.arange(self.together)).ravel()
        return epoch, int(self._order[index - self._ends[epoch]])

    def item(self, index: int) -> dict[str, torch.Tensor]:
        return self.examples.example(*self.place(index))


def objectives() -> dict[str, type[Objective]]:
    """The classes of all objectives by name, in alphabetical order."""
    return dict(sorted((Objective.registered | plugins.load("objectives", Objective)).items()))


def read_objective(value: Any, base: type[Objective] = Objective) -> Any:
    """Build an objective of class ``base`` from a recipe's ``{name: ..., setting: ...}``, or from a name alone."""
    if isinstance(value, base):
        return value
    values = {"name": value} if isinstance(value, str) else value
    classes = {name: cls for name, cls in objectives().items() if issubclass(cls, base)}
    name = values.get("name") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in classes:
        raise ConfigError(
            f"the objective is {name if isinstance(values, dict) else value!r}, but must be one of {', '.join(classes)}"
        )
    return validate(classes[name], values, f"the objective {name!r}")


def build_objective(name: str, **settings: Any) -> Any:
    """Build an objective from its name in recipes and its settings; a ConfigError if there is none, or one is invalid."""
    return read_objective({"name": name, **settings})


AnyObjective = Annotated[SerializeAsAny[Objective], BeforeValidator(read_objective)]
"""The type of a recipe's field for an objective."""
AnySingleObjective = Annotated[
    SerializeAsAny[SingleObjective], BeforeValidator(lambda value: read_objective(value, SingleObjective))
]
"""The same without mixtures."""
