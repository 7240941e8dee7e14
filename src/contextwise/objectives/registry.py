"""Registry of objectives by name, and their selection in a recipe.

An objective registers itself when its module is imported (:class:`~contextwise.objectives.objective.Objective`), and every
module of this folder is imported before a name is looked up: a new objective is one more file here.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.objectives.objective import Objective, SingleObjective


def objectives() -> dict[str, type[Objective]]:
    """The classes of all objectives by name, in alphabetical order."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"contextwise.objectives.{module.name}")
    return dict(sorted(Objective.registered.items()))


def read_objective(value: Any, base: type[Objective] = Objective) -> Any:
    """Build an objective from a recipe's ``{name: ..., setting: ...}``, or from a name alone.

    Args:
        base: the required base class.

    Raises:
        ConfigError: the objective does not exist, or a setting is invalid.
    """
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
    """Build an objective from its name in recipes and its settings.

    Raises:
        ConfigError: the objective does not exist, or a setting is invalid.
    """
    return read_objective({"name": name, **settings})


AnyObjective = Annotated[SerializeAsAny[Objective], BeforeValidator(read_objective)]
"""The type of a recipe's field for an objective."""
AnySingleObjective = Annotated[
    SerializeAsAny[SingleObjective], BeforeValidator(lambda value: read_objective(value, SingleObjective))
]
"""The same without mixtures."""
