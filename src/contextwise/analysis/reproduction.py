"""Reproductions: a table or figure of a source document, what it prints, and how to make it again at several scales.

1. An item is a file ``recipes/<document>/<item>.yaml`` with the key ``scales``: the printed figures, the name of the measure
   that makes them again, and that measure's settings at each scale. A file without that key is a recipe for training.
2. A measure is settings (so that a misspelt key is refused) with two methods: ``recipes(folder)``, the training runs that it
   needs, and ``measure(item, folder)``, which trains them and gives an :class:`Outcome`. :data:`MEASURES` has them by name.
3. Runs lie in the folder of document and scale. What has finished is used again, by other items too; what was stopped goes on.
"""

import difflib
import importlib
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from contextwise.base.config import Settings, read_yaml, validate
from contextwise.base.errors import ConfigError
from contextwise.base.files import write_json
from contextwise.models.flops import training_flops_per_example, training_flops_per_target
from contextwise.models.sizes import parameter_count
from contextwise.training.recipe import Recipe
from contextwise.training.task import Task

MEASURES = {
    "parity_table": "contextwise.analysis.parity:ParityTable",
    "parity_entropy": "contextwise.analysis.parity:ParityEntropy",
    "parity_dimension": "contextwise.analysis.parity_contexts:ParityDimension",
    "parity_optimum": "contextwise.analysis.parity_contexts:ParityOptimum",
    "corpus_optimum": "contextwise.analysis.corpus_optimum:CorpusOptimum",
}
"""Each measure's module and class, imported when it is needed."""
STATE_BYTES = 16
"""A parameter's weight, gradient and two moments in float32."""


class Scale(Settings):
    """How large the reproduction is, and on what."""

    machine: str = Field(description="what it is meant for")
    minutes: float | None = Field(
        None, gt=0, description="about how long it takes there, where it has been run"
    )
    settings: dict[str, Any] = Field(description="of the item's measure")


class Item(Settings):
    """A table or figure of a source document."""

    title: str
    source: str = Field(description="document and place")
    measure: str
    printed: dict[str, Any] = Field(description="the document's own figures")
    inferred: list[str] = Field(
        default_factory=list, description="what the document does not say, and was chosen here"
    )
    scales: dict[str, Scale]


class Measure(Settings, ABC):
    """Settings of a measure at one scale; subclasses say which runs it needs and what it makes of them."""

    @abstractmethod
    def recipes(self, folder: Path) -> list[Recipe]:
        """The training runs."""

    @abstractmethod
    def measure(self, item: Item, folder: Path) -> "Outcome":
        """Train them, or use those that have finished, and measure."""


@dataclass(frozen=True)
class Table:
    """``rows`` of text, one cell a column."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Claim:
    """Something that the document says, and whether it held here; None: this scale cannot tell."""

    text: str
    holds: bool | None
    evidence: str


@dataclass
class Outcome:
    """What a reproduction found.

    Attributes:
        figures: the numbers of the tables, and whatever else a reader may want to compute with.
    """

    tables: list[Table]
    claims: list[Claim]
    figures: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path, item: Item, scale: str) -> None:
        """Write everything to a JSON file, with what the document prints."""
        about = {"title": item.title, "source": item.source, "scale": scale, "printed": item.printed}
        claims = [asdict(claim) for claim in self.claims]
        write_json(path, {**about, "claims": claims, "figures": self.figures}, "the outcome")


def recipes_folder(given: Path | None = None) -> Path:
    """Where the items are: the folder given, that of the checkout which the package lies in, or ``recipes`` here.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(__file__).parents[3] / "recipes"
    found = given or (beside if beside.is_dir() else Path("recipes"))
    if not found.is_dir():
        raise ConfigError(
            f"there is no folder of recipes at {found}; name one with --recipes, or run in a checkout"
        )
    return found


def list_items(recipes: Path) -> dict[str, Item]:
    """All items by name, ``document/item``."""
    found = {}
    for path in sorted(recipes.glob("*/*.yaml")):
        values = read_yaml(path)
        if "scales" in values:
            found[f"{path.parent.name}/{path.stem}"] = validate(Item, values, f"the item {path}")
    return found


def find_item(name: str, recipes: Path) -> Item:
    """An item by its name.

    Raises:
        ConfigError: there is none of that name, or its file is wrong.
    """
    path = recipes / f"{name}.yaml"
    if name.count("/") == 1 and ".." not in name and path.is_file():
        values = read_yaml(path)
        if "scales" in values:
            return validate(Item, values, f"the item {path}")
    known = list(list_items(recipes))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
    raise ConfigError(f"there is nothing to reproduce at {name!r} in {recipes}; {hint}")


def measure_at(item: Item, scale: str) -> Measure:
    """The item's measure, with its settings at a scale.

    Raises:
        ConfigError: there is no such scale or measure, or a setting is wrong.
    """
    if scale not in item.scales:
        near = difflib.get_close_matches(scale, list(item.scales), n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(item.scales)}"
        raise ConfigError(f"{item.title!r} has no scale {scale!r}; {hint}")
    if item.measure not in MEASURES:
        near = difflib.get_close_matches(item.measure, list(MEASURES), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(MEASURES)}"
        raise ConfigError(f"{item.title!r} names the measure {item.measure!r}, which there is not; {hint}")
    module, _, name = MEASURES[item.measure].partition(":")
    settings = getattr(importlib.import_module(module), name)
    return validate(settings, item.scales[scale].settings, f"scale {scale!r} of {item.title!r}")


@dataclass(frozen=True)
class Planned:
    """What a training run will take, computed without starting it.

    Attributes:
        examples: over the whole run.
        flops: of training.
        state_bytes: weights, gradients and the optimizer's moments; activations come on top.
    """

    name: str
    parameters: int
    steps: int
    examples: int
    tokens: int
    flops: float
    state_bytes: int


def plan(recipe: Recipe) -> Planned:
    """Work out what a run takes.

    Raises:
        ConfigError, DataError: its corpus is not there, or does not fit.
    """
    task = Task.of(recipe)
    steps, step_tokens = recipe.training.total_steps, recipe.training.tokens_per_step
    examples = steps * step_tokens // recipe.data.context
    parameters = parameter_count(task.config)
    targets = 1 if recipe.data.synthetic is not None else recipe.data.context
    flops = training_flops_per_example(task.config, *task.lengths)
    flops += targets * training_flops_per_target(task.config)
    return Planned(
        recipe.name,
        parameters,
        steps,
        examples,
        steps * step_tokens,
        examples * flops,
        STATE_BYTES * parameters,
    )
