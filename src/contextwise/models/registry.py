"""The models of this package: each folder beside this file registers its own with transformers' Auto classes."""

import importlib
import pkgutil
from pathlib import Path


def register_models() -> None:
    """Import every folder of models, so that ``AutoConfig`` and the Auto classes know all of them."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.ispkg:
            importlib.import_module(f"contextwise.models.{module.name}")
