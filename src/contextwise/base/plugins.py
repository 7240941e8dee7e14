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
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Any, get_args

from contextwise.base.errors import one_line
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
    """The entry points of a group such as ``models`` by name.

    Of a name that two packages offer, this project's is taken, and otherwise none, with a note.
    """
    group = f"{PROJECT}.{group}"
    own = _source_tree(group)
    installed = [point for point in entry_points(group=group) if not own or _package(point) != PROJECT]
    offered: dict[str, list[EntryPoint]] = {}
    for point in sorted([*own, *installed], key=lambda point: (point.name, not _is_own(point), _package(point))):
        offered.setdefault(point.name, []).append(point)
    for name, (first, *others) in list(offered.items()):
        if other := next((each for each in others if each.value != first.value), None):
            taken = f"{first.value} is used" if _is_own(first) else "none is used"
            say_once(
                f"note: {name!r} in {group} is offered twice, as {first.value} and {other.value}, and {taken}; "
                "rename or uninstall one of them"
            )
            if not _is_own(first):
                del offered[name]
    return {name: first for name, (first, *_) in offered.items()}


@cache
def load(group: str, base: type = object) -> dict[str, Any]:
    """Load the features of a group, by name: subclasses or instances of ``base``. Others are left out as by :func:`feature`."""
    features = {name: feature(point, base) for name, point in points(group).items()}
    return {name: each for name, each in features.items() if each is not None}


def feature(point: EntryPoint, base: Any = object) -> Any:
    """The feature of an entry point, a subclass or an instance of ``base``.

    None, with a note, for one of another package that is neither, or cannot be imported.
    """
    try:
        found = point.load()
        if not (isinstance(found, base) or (isinstance(found, type) and issubclass(found, base))):
            names = [each.__name__ for each in get_args(base) or (base,)]
            raise TypeError(f"it is no {' or '.join(names)}")  # which the note shows
        return found
    except Exception as error:
        if _is_own(point):
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        say_once(
            f"note: {point.name!r} of the package {_package(point)} cannot be used ({what}); mend, update or uninstall it"
        )
        return None


@cache
def others() -> tuple[EntryPoint, ...]:
    """The entry points of all groups that other packages offer."""
    offered = (point for each in distributions() for point in each.entry_points)
    return tuple(point for point in offered if point.group.startswith(f"{PROJECT}.") and not _is_own(point))


@cache
def is_ours(module: str) -> bool:
    """Whether a module lies in a package of this distribution: this one, or one beside it whose name begins alike."""
    package = module.split(".")[0]
    return package.startswith(PROJECT) and (Path(__file__).parents[2] / package / "__init__.py").is_file()


def _is_own(point: EntryPoint) -> bool:
    """Whether this distribution, or its source tree, offers an entry point."""
    return _package(point) in (PROJECT, "")


def _package(point: EntryPoint) -> str:
    """The distribution of an entry point; empty for one of the source tree."""
    return "" if point.dist is None else point.dist.name
