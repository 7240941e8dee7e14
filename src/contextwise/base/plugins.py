"""Plug points: the features that installed packages offer, by group and name.

A package offers a feature with an entry point in its metadata, for example in ``pyproject.toml``::

    [project.entry-points."contextwise.measures"]
    surprise = "my_package:Surprise"

The groups are ``models`` (:class:`contextwise.training.ModelSettings`), ``data``
(:class:`contextwise.training.DataSettings`), ``sections`` (:class:`contextwise.training.DataSection`), ``sources``
(:class:`contextwise.data.sources.Source`), ``objectives`` (:class:`contextwise.objectives.Objective`), ``measures``
(:class:`contextwise.evaluation.kernel.Measure`), ``verbs`` (a function with the options of the command line: ``greet``, or
``plan.greet`` in the group ``plan``), ``recipes`` (folders of recipes), ``recipe_kinds``
(:class:`contextwise.base.recipes.RecipeKind`) and ``launchers``
(:class:`contextwise.experiments.executors.ExecutorSettings`). The features of this project are entry points too; in a source
tree that is not installed they are read from its ``pyproject.toml``.
"""

import tomllib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError, one_line
from contextwise.base.progress import say_once

PROJECT = "contextwise"
"""Name of this distribution, and the first word of its groups."""


def _source_tree(group: str) -> list[EntryPoint]:
    """The entry points in the ``pyproject.toml`` of the source tree that this file lies in; none if it lies in no such tree."""
    file = Path(__file__).parents[3] / "pyproject.toml"
    if not file.is_file():
        return []
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    named = project.get("entry-points", {}).get(group, {}) if project.get("name") == PROJECT else {}
    return [EntryPoint(name, value, group) for name, value in named.items()]


@cache
def points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group such as ``models`` by name; a ConfigError if two packages offer a feature of one name."""
    group = f"{PROJECT}.{group}"
    own = _source_tree(group)
    installed = [point for point in entry_points(group=group) if not own or _package(point) != PROJECT]
    result: dict[str, EntryPoint] = {}
    for point in [*own, *installed]:
        other = result.setdefault(point.name, point)
        if other.value != point.value:
            raise ConfigError(
                f"{point.name!r} in {group} is offered twice, as {other.value} and {point.value}; uninstall one of them"
            )
    return dict(sorted(result.items()))


@cache
def load(group: str) -> dict[str, Any]:
    """Load the features of a group, by name. Those of other packages that cannot be imported are left out, with a note."""
    features = {name: feature(point) for name, point in points(group).items()}
    return {name: each for name, each in features.items() if each is not None}


def feature(point: EntryPoint) -> Any:
    """The feature of an entry point; None, with a note, for one of another package that cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        package = _package(point)
        if package in (PROJECT, ""):
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        say_once(
            f"note: {point.name!r} of the package {package} cannot be imported ({what}); mend, update or uninstall it"
        )
        return None


@cache
def is_ours(module: str) -> bool:
    """Whether a module lies in a package of this distribution: this one, or one beside it whose name begins alike."""
    package = module.split(".")[0]
    return package.startswith(PROJECT) and (Path(__file__).parents[2] / package / "__init__.py").is_file()


def _package(point: EntryPoint) -> str:
    """The distribution of an entry point; empty for one of the source tree."""
    return "" if point.dist is None else point.dist.name
