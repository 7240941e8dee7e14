"""The setting ``executor``: that of any installed launcher, an entry point of the group ``contextwise.launchers``."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, Tag

from contextwise.base import plugins
from contextwise.base.errors import ConfigError, Problem
from contextwise.base.estimates import listed
from contextwise.experiments.executors import ExecutorSettings


def _kind(values: Any) -> Any:
    return values.get("kind", "local") if isinstance(values, dict) else getattr(values, "kind", "local")


def _installed(values: Any) -> Any:
    """Refuse a kind of executor that no installed package offers."""
    kind, kinds = _kind(values), plugins.load("launchers", ExecutorSettings)
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(Problem(f"but must be {listed([*kinds], 'or')}", "kind", kind))
    return values


if TYPE_CHECKING:
    AnyExecutor = ExecutorSettings
else:
    AnyExecutor = Annotated[
        Union[  # noqa: UP007
            tuple(
                Annotated[kind, Tag(f"<{name}>")] for name, kind in plugins.load("launchers", ExecutorSettings).items()
            )
        ],
        Discriminator(lambda values: f"<{_kind(values)}>"),
        BeforeValidator(_installed),
    ]
"""The type of a setting for an executor of any installed launcher."""
