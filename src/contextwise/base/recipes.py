"""The recipes that come with installed packages, addressed by name: ``contextlm-nano``, or ``contextlm/contextlm-nano``."""

import importlib.util
import re
from dataclasses import dataclass
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import ClassVar

from contextwise.base import plugins
from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError, did_you_mean
from contextwise.base.files import expanded

RECIPES = Path(str(resources.files("contextwise"))) / "recipes"
"""Folder of the core's recipes, ``<document>/<name>.yaml``; ``variants/`` has models of their own."""


@dataclass(frozen=True)
class RecipeKind:
    """A kind of recipe file; an entry point of the group ``contextwise.recipe_kinds``.

    Attributes:
        verb: reads the file.
        key: only files of this kind have it at the top.
        settings: class of what the file holds, ``MODULE:NAME``; empty if it is another class for each file.
        resolved: file of a folder that the verb made; empty if the folder has no page of its own.
        page: function that writes the page of such a folder or of a table's file, ``MODULE:NAME``; its arguments are their
            path, and that of the page.
    """

    verb: str
    key: str
    settings: str = ""
    resolved: str = ""
    page: str = ""

    def made(self, path: Path) -> bool:
        """Whether the kind can make a page of a path: of a folder that the verb made, or of a file."""
        return bool(self.page) and (path.is_file() or (path / self.resolved).is_file())


def recipe_kinds() -> dict[str, RecipeKind]:
    """The installed kinds of recipe files by name."""
    return plugins.load("recipe_kinds", RecipeKind)


@dataclass(frozen=True)
class Shipped:
    """A recipe of a package: its name with its document, and its file."""

    name: str
    path: Path

    IN_JSON: ClassVar = ("verb", "about")

    @property
    def verb(self) -> str:
        """The verb that the recipe is for, by the key that only its recipes have."""
        values = read_yaml(self.path)
        return next(kind.verb for kind in recipe_kinds().values() if kind.key in values)

    @property
    def about(self) -> str:
        """The first sentence of the comment at its beginning."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        return re.split(r"(?<!\bal)(?<!\bEq)\.(?= |$)", text, maxsplit=1)[0]


def recipe_folders() -> list[Path]:
    """The folders of recipes of all packages: entry points of the group ``contextwise.recipes`` name them as modules."""
    specs = (importlib.util.find_spec(point.value) for point in plugins.points("recipes").values())
    return [Path(place) for spec in specs for place in (spec and spec.submodule_search_locations) or ()]


def shipped_recipes(name: str = "") -> list[Shipped]:
    """The recipes of all packages; with a name, those of this name or of this document."""
    files = (path for folder in recipe_folders() for path in folder.glob("*/*.yaml"))
    paths = sorted(files, key=lambda path: path.parts[-2:])
    recipes = [Shipped(f"{path.parent.name}/{path.stem}", path) for path in paths]
    return [each for each in recipes if name in ("", each.name, each.path.stem, each.path.parent.name)]


def shipped_recipe(name: str, verb: str = "train") -> Path | None:
    """The file of the shipped recipe with a name, if any; a ConfigError if it is for another verb, or if it is ambiguous."""
    named = [each for each in shipped_recipes() if name in (each.name, each.path.stem)]
    own = [each for each in named if each.verb == verb]
    if len(own) > 1:
        names = " or ".join(each.name for each in own)
        raise ConfigError(f"several recipes have the name {name!r}; give {names}")
    if named and not own:
        each = named[0]
        raise ConfigError(f"the recipe {name} is not for {verb}; run: contextwise {each.verb} {each.name}")
    return own[0].path if own else None


def recipe_path(name: str | Path, verb: str = "train", folder: Path = Path()) -> Path:
    """The file of a recipe for a verb: a path below ``folder``, a name of a recipe of a package, or the verb's folder."""
    path = folder / expanded(name)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        _refuse_other_kind(path, verb)
        return path
    shipped = shipped_recipe(str(name), verb)
    if shipped is None and path.is_dir():
        files = [path / kind.resolved for kind in recipe_kinds().values() if kind.verb == verb and kind.resolved]
        shipped = next((file for file in files if file.is_file()), None)
    if shipped is None:
        known = {key: each.name for each in shipped_recipes() for key in (each.name, each.path.stem)}
        if path.is_dir():
            raise ConfigError(
                f"{path} is a folder that holds no recipe; give one that contextwise {verb} made, or a YAML file"
            )
        hint = did_you_mean(str(name), known, "contextwise recipes lists those that come with the package")
        raise ConfigError(f"there is no recipe {name}; give the path of a YAML file, or a name ({hint})")
    return shipped


def _refuse_other_kind(path: Path, verb: str) -> None:
    """Refuse a file that has the key of another kind of recipe, and not that of the verb's own."""
    values = read_yaml(path) if path.is_file() else {}
    kinds = [kind for kind in recipe_kinds().values() if kind.key in values]
    if kinds and verb not in [kind.verb for kind in kinds]:
        other = kinds[0]
        raise ConfigError(
            f"the file {path} is not for {verb}, because it has the key {other.key!r}; run: contextwise {other.verb} {path}"
        )
