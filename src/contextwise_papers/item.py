"""Items: tables and figures of the source documents, their printed figures, and settings to reproduce them at several scales.

An item is a recipe ``<document>/<item>.yaml`` with the key ``scales``. It names a measure: settings with two methods,
``run_set(folder)``, the training runs that it needs, and ``measure(item, folder)``, which trains them and returns an
:class:`Outcome`. A new measure is a file in this package. Finished runs are used again, by other items too.
"""

import importlib
import pkgutil
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field

from contextwise.base.hashes import content_key
from contextwise.base.machine import describe_environment
from contextwise.base.runs import RunFolder
from contextwise.data import source_digest
from contextwise.data.corpus import MANIFEST
from contextwise.data.documents import read_splits
from contextwise.data.tokenizers import tokenizer_digest
from contextwise.measures import Measure
from contextwise.report import Table, as_json
from contextwise.runset import AnyExecutor, ExecutorSettings, RunSet
from contextwise.settings import ConfigError, Settings, did_you_mean, read_yaml, validate, with_overrides
from contextwise.training import Recipe
from contextwise_papers.claims import Claim, share_error
from contextwise_papers.tables import Plot

if TYPE_CHECKING:
    from contextwise.runset import RunCost


class Scale(Settings):
    """Size and machine of a reproduction."""

    machine: str = Field(description="machine that the scale is meant for")
    minutes: float | None = Field(default=None, gt=0, description="approximate run time on that machine")
    over_ten_minutes: str = Field(default="", description="why it takes that long")
    supports: str = Field(default="", description="the claims that a run of this size can support")
    settings: dict[str, Any] = Field(description="of the item's measure")


class Item(Settings):
    """A table or figure of a source document."""

    title: str
    source: str = Field(description="document and section")
    also: list[str] = Field(default=[], description="further names of the same item, such as table9")
    measure: str
    printed: dict[str, Any] = Field(description="the document's own figures")
    inferred: list[str] = Field(default=[], description="what the document leaves open, and was chosen here")
    scales: dict[str, Scale]


_Settings = TypeVar("_Settings", bound=Measure)


class ItemMeasure(Settings, ABC):
    """Settings of an item's measure at one scale; subclasses give the training runs it needs and the tables made from them."""

    known: ClassVar[dict[str, type["ItemMeasure"]]] = {}
    executor: AnyExecutor = ExecutorSettings()

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        """Register the class as the measure that items call ``name``."""
        super().__init_subclass__(**options)
        if name:
            ItemMeasure.known[name] = cls

    def run_set(self, folder: Path) -> RunSet:
        """The training runs; none for a measure that trains nothing."""
        return RunSet(folder, [])

    def recipes(self, folder: Path) -> list[Recipe]:
        """The recipes of the training runs, as they are planned."""
        return [run.planned_recipe() for run in self.run_set(folder).trained]

    def passes(self, folder: Path) -> "list[RunCost]":
        """Cost of the measurement itself, if it is considerable."""
        return []

    @property
    def vocab_size(self) -> int | None:
        """Size of the models' vocabulary, if it is known before the corpus exists."""
        return None

    @property
    def needed_corpus(self) -> str | None:
        """A corpus that has to be prepared by hand before."""
        return None

    def prepared(self, folder: Path) -> Path | None:
        """Prepare what the training runs read; returns the folder of the corpus, if there is one."""
        return None

    def train(self, folder: Path) -> RunSet:
        """Train the missing runs."""
        self.prepared(folder)
        runs = self.run_set(folder)
        runs.warn_of_few_steps()
        runs.train_missing(self.executor)
        return runs

    def settings_of(self, measure: type[_Settings], *shared: str, **own: Any) -> _Settings:
        """Settings of a measure of models, to be made before any training; ``shared`` are settings that both have."""
        values = {name: getattr(self, name) for name in shared} | own
        return validate(measure, values, f"the settings of {measure.name}")

    @abstractmethod
    def measure(self, item: Item, folder: Path) -> "Outcome":
        """Train the missing runs, and measure."""

    def reproduce(self, item: Item, folder: Path) -> "Outcome":
        """Measure, with the error shared over the item's claims, and with the time that it took.

        Training of earlier calls counts with the seconds that its runs have noted; measurements that are found again do not.
        """
        before, started = set(folder.rglob("summary.json")), time.monotonic()
        outcome = self.measure(item, folder)
        runs = [run for run in map(RunFolder, self.run_set(folder).paths) if run.finished]
        earlier = sum(run.summary()["seconds"] for run in runs if run.summary_file in before)
        outcome.seconds = time.monotonic() - started + earlier
        outcome.claims = share_error(outcome.claims)
        return outcome


class CorpusMeasure(ItemMeasure):
    """Settings of a measure on a corpus: a prepared one, or a source that is prepared once, in the folder of the item."""

    corpus: str = Field(
        default="stdlib", description="a prepared corpus; or a source, as `contextwise prepare` takes it"
    )
    tokenizer: str = Field(default="train:4096", description="for a source that has to be prepared")
    validation: float = Field(default=0.1, gt=0, lt=1, description="share held out of a source")

    @property
    def corpus_tokenizer(self) -> str:
        """The tokenizer of a source that has to be prepared."""
        return self.tokenizer

    def corpus_folder(self, folder: Path) -> Path:
        """Folder of the corpus below that of the reproduction, unless it is prepared already; nothing is prepared."""
        return corpus_folder(folder, self.corpus, self.corpus_tokenizer, self.validation)

    def known_tokenizer(self, folder: Path) -> Path | str:
        """The tokenizer of the corpus, for :func:`corpus_folder`: a prepared corpus, or the name of a new one's folder."""
        path = self.corpus_folder(folder)
        return path if path == Path(self.corpus) else path.name

    def prepared(self, folder: Path) -> Path:
        """The corpus; a source is prepared, once."""
        return prepared_once(self.corpus, self.corpus_tokenizer, self.corpus_folder(folder), self.validation)

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary of a tokenizer that has to be trained; None for any other."""
        kind, _, size = self.tokenizer.partition(":")
        return int(size) if kind == "train" and size.isdigit() else None


def corpus_folder(folder: Path, source: str, tokenizer: str | Path, validation: float) -> Path:
    """Folder of the corpus of a source, below that of a reproduction; a prepared corpus stays where it is.

    The name ends with a hash of the content of the source and the tokenizer, and of the share held out: what has changed, or
    has the same name elsewhere, is prepared in another folder.
    """
    given = Path(source)
    if (given / MANIFEST).exists():
        return given
    sources, splits = read_splits([source])
    key = content_key(
        sources=[source_digest(each) for each in sources],
        splits=splits,
        tokenizer=tokenizer_digest(tokenizer),
        validation=validation,
    )
    return folder / "corpora" / re.sub(r"[^\w.]+", "-", f"{given.name}-{Path(tokenizer).name}-{key[:8]}")


def prepared_once(source: str, tokenizer: str | Path, target: Path, validation: float) -> Path:
    """The corpus in ``target``, which is prepared if it does not exist."""
    if not (target / MANIFEST).exists():
        from contextwise.data import prepare_corpus

        prepare_corpus(source, tokenizer, target, validation=validation)
    return target


def all_measures() -> dict[str, type[ItemMeasure]]:
    """All registered measures by name; every file of this package is imported to find them."""
    import contextwise_papers as package

    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(ItemMeasure.known.items()))


@dataclass
class Outcome:
    """The result of a reproduction.

    ``figures`` are the numbers of the tables, and further ones, for computing; estimates and arrays become JSON values.
    ``seconds`` are of wall-clock time, training included.
    """

    tables: list[Table]
    claims: list[Claim]
    figures: dict[str, Any] = field(default_factory=dict)
    runs: list[Path] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    seconds: float | None = None

    def __post_init__(self) -> None:
        self.figures = as_json(self.figures)

    def to_dict(self, item: Item, scale: str) -> dict[str, Any]:
        """Convert to JSON values, with what the document prints."""
        facts = ("name", "seed", "parameters", "tokens", "flops", "seconds", "corpus")
        summaries = (RunFolder(run).summary() for run in self.runs)
        return {
            "title": item.title,
            "source": item.source,
            "scale": scale,
            "printed": item.printed,
            "supports": item.scales[scale].supports,
            "inferred": item.inferred,
            "date": datetime.now(UTC).date().isoformat(),
            "environment": describe_environment(),
            "tables": as_json(self.tables),
            "claims": as_json(self.claims),
            "plots": self.plots,
            "runs": [{name: summary[name] for name in facts} for summary in summaries],
            "figures": self.figures,
            "seconds": self.seconds,
        }


RECIPES = Path(str(resources.files("contextwise_papers"))) / "recipes"
"""Folder of the items and of the other recipes of the documents."""


def recipes_folder(given: Path | None = None) -> Path:
    """The folder of the items: the given one, or that of the package."""
    folder = given or RECIPES
    if not folder.is_dir():
        raise ConfigError(f"there is no folder of recipes at {folder}")
    return folder


def list_items(recipes: Path, pattern: str = "*/*.yaml") -> dict[str, Item]:
    """All items by name, ``document/item``."""
    items = {}
    for path in sorted(recipes.glob(pattern)):
        values = read_yaml(path)
        if "scales" in values:
            items[f"{path.parent.name}/{path.stem}"] = validate(Item, values, f"the item {path}")
    return items


def find_item(name: str, recipes: Path) -> tuple[str, Item]:
    """An item by any of its names, with the name of its file."""
    if re.fullmatch(r"[\w-]+/[\w.-]+", name) and (items := list_items(recipes, f"{name}.yaml")):
        return name, items[name]
    items = list_items(recipes)
    for known, item in items.items():
        if name in {f"{known.split('/')[0]}/{other}" for other in item.also}:
            return known, item
    near = [known for known in items if name.lower() in known][:6]
    listing = "contextwise reproduce --list shows all"
    hint = f"did you mean {' or '.join(near)}?" if near else did_you_mean(name, items, listing)
    raise ConfigError(f"there is no item {name!r}; {hint}")


def measure_at(item: Item, scale: str, overrides: list[str] | None = None) -> ItemMeasure:
    """The item's measure, with its settings at a scale and ``key=value`` settings in place of them."""
    if scale not in item.scales:
        hint = did_you_mean(scale, item.scales, f"it has {', '.join(item.scales)}")
        raise ConfigError(f"{item.title!r} has no scale {scale!r}; {hint}")
    measures = all_measures()
    if item.measure not in measures:
        hint = did_you_mean(item.measure, measures, f"there are {', '.join(measures)}")
        raise ConfigError(f"{item.title!r} names the measure {item.measure!r}, which does not exist; {hint}")
    settings = with_overrides(item.scales[scale].settings, overrides or [])
    return validate(measures[item.measure], settings, f"scale {scale!r} of {item.title!r}")
