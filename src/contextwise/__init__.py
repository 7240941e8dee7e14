"""Contextwise: pretrain language models that predict their context, and measure how much context they really use."""

from contextwise.base.stopping import is_command  # first: it handles signals from here on

# isort: split
from importlib import metadata
from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.models import (
        ContextLMConfig,
        ContextLMForCausalLM,
        CueConfig,
        CueForCausalLM,
        MultiTokenConfig,
        MultiTokenForCausalLM,
    )

__version__ = metadata.version("contextwise")
__all__ = [
    "ContextLMConfig",
    "ContextLMForCausalLM",
    "Corpus",
    "CueConfig",
    "CueForCausalLM",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
]
__getattr__ = lazy_exports(__name__, {"models": __all__, "data": ["Corpus"]})

# Importing the package registers its models with transformers' Auto classes. That imports torch, which takes seconds; the
# `contextwise` command answers --help and mistyped options at once, and its commands import the models themselves.
if not is_command():
    from contextwise.models.spec import register_models

    register_models()
