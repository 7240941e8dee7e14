"""Lazy imports: names that are imported at first use, to keep the import of a package fast."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def object_named(name: str) -> Any:
    """What ``MODULE:NAME`` names."""
    module, _, member = name.partition(":")
    return getattr(importlib.import_module(module), member)


def lazy_exports(module: str, homes: Mapping[str, str], package: str = "") -> Callable[[str], Any]:
    """Create a module's ``__getattr__`` (PEP 562); ``homes`` maps modules below it, or ``package``, to names."""
    home = {name: place for place, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package or module}.{home[name]}"), name)

    return __getattr__
