"""Contextwise: pretrain language models that predict their context, and measure how much context they really use."""

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
MODELS = (
    "ContextLMConfig",
    "ContextLMForCausalLM",
    "CueConfig",
    "CueForCausalLM",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
)
__all__ = [
    "ContextLMConfig",
    "ContextLMForCausalLM",
    "Corpus",
    "CueConfig",
    "CueForCausalLM",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
]


def __getattr__(name: str) -> Any:
    if name in MODELS:
        from contextwise import models

        return getattr(models, name)
    if name == "Corpus":
        from contextwise.data import Corpus

        return Corpus
    raise AttributeError(f"module 'contextwise' has no attribute {name!r}")


# Importing the package registers its models with transformers' Auto classes. That imports torch, which takes seconds; the
# `contextwise` command answers --help and mistyped options at once, and its commands import the models themselves.
if Path(sys.argv[0]).name != "contextwise" and sys.orig_argv[1:3] != ["-m", "contextwise"]:
    from contextwise.models.spec import register_models

    register_models()
