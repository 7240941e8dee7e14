"""Lazy imports: names that are imported at first use, to keep the import of a package fast."""

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def object_named(name: str) -> Any:
    """What ``MODULE:NAME`` names."""
    module, _, member = name.partition(":")
    return getattr(importlib.import_module(module), member)


def lazy_exports(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A module's ``__getattr__`` and ``__dir__`` (PEP 562): what it imports under ``TYPE_CHECKING``, at the first use."""
    this = sys.modules[module]
    source = this.__loader__.get_source(module)  # type: ignore[union-attr]  # also of a module in a zip file
    if source is None:
        raise ImportError(f"{module} cannot be imported without its source file")
    blocks = (each for each in ast.parse(source).body if isinstance(each, ast.If))
    imports = (each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom))
    homes = {alias.name: str(each.module) for each in imports for alias in each.names}

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(homes[name]), name)
        except AttributeError as error:  # Python would say no more than that the name cannot be imported
            raise ImportError(f"{name} cannot be imported from {homes[name]}: {error}") from error

    return __getattr__, lambda: list(this.__all__)
