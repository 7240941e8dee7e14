"""Settings of measures, verbs and run sets: their base class, files and common types; and errors of what is given."""

from contextwise.base.config import Lengths, Name, Seeds, Settings, read_yaml, validate, with_overrides
from contextwise.base.errors import (
    CheckpointError,
    ConfigError,
    ContextwiseError,
    DataError,
    Problem,
    did_you_mean,
    not_installed,
)
from contextwise.base.recipes import RecipeKind

__all__ = ["CheckpointError", "ConfigError", "ContextwiseError", "DataError", "Lengths", "Name", "Problem"]
__all__ += ["RecipeKind", "Seeds", "Settings", "did_you_mean", "not_installed", "read_yaml", "validate"]
__all__ += ["with_overrides"]
