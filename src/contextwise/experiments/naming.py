"""Names of runs: model sizes, and ids by content."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from contextwise.base.runs import KEPT_OUT_OF_COMPARISON
from contextwise.training.recipe import Recipe


def size_name(model: dict[str, Any]) -> str:
    """Name of a recipe's model size, with the numbers that differ from it: ``nano`` or ``nano-layers6``."""
    changed = [f"{name}{model[name]}" for name in ("layers", "width", "heads") if model.get(name)]
    return "-".join([model["size"], *changed])


def content_id(recipe: Recipe, parents: Mapping[str, str] | None = None, data: tuple[str, ...] = ()) -> str:
    """Eight hexadecimal digits: a hash of every setting that changes the result.

    Settings at their defaults do not count, so that a run keeps its id when Contextwise learns new ones; paths do not count.

    Args:
        parents: setting -> id of the parent that it names.
        data: fingerprints of the corpora.
    """
    chosen = recipe.model_dump(mode="json", exclude_defaults=True)
    for setting in {*KEPT_OUT_OF_COMPARISON, "name", *(parents or {})}:
        *sections, last = setting.split(".")
        section: Any = chosen
        for part in sections:
            section = section.get(part) or {}
        section.pop(last, None)
    if parents:
        chosen["parents"] = dict(parents)
    if data:
        chosen["corpora"] = list(data)
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^\w.=+]+", "-", name).strip("-").lower()
