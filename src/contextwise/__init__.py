"""Contextwise: pretrain language models that predict their context, and measure how much context they really use.

The functions do what the verbs of the command line do; each name is imported when it is first used. The models are known to
transformers' Auto classes once this package is imported.
"""

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from contextwise.base.auto_classes import register_when_needed
from contextwise.base.lazy import lazy_exports
from contextwise.base.views import Viewed

if TYPE_CHECKING:
    from contextwise.api import compare, curve, evaluate, load, measure, prepare, train, trial
    from contextwise.base.runs import RunFolder
    from contextwise.data import Corpus
    from contextwise.decisions import decide
    from contextwise.models import ContextLMConfig, ContextLMForCausalLM

    __version__: str

__all__ = [
    "ContextLMConfig",
    "ContextLMForCausalLM",
    "Corpus",
    "RunFolder",
    "compare",
    "curve",
    "decide",
    "evaluate",
    "load",
    "measure",
    "prepare",
    "train",
    "trial",
]
_lazy_export, _ = lazy_exports(__name__)
Viewed.views = partial(importlib.import_module, "contextwise.reports.views")


def _register_models() -> None:
    spec = importlib.import_module("contextwise.models.spec")
    # While the module is being imported, the look-up is its own.
    if hasattr(spec, "register_models"):
        spec.register_models()


register_when_needed(_register_models)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _lazy_export(name)
    from contextwise.base.machine import own_version

    return own_version()


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
