"""Models: compositions around stock Hugging Face backbones, named sizes, and losses.

Names are imported when they are first used: ``contextwise.models.sizes`` needs no torch.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.models.building import backbone_config, parameter_count
    from contextwise.models.contextlm import ContextLMConfig, ContextLMForCausalLM
    from contextwise.models.loading import load_generating_model, load_model, load_tokenizer, model_folder
    from contextwise.models.losses import linear_cross_entropy, token_losses
    from contextwise.models.sizes import SIZES, ModelSize, named_size
    from contextwise.models.spec import Losses, ModelSpec, build_model, labelled_losses, register_model

_MODULES = {
    "building": ("backbone_config", "parameter_count"),
    "contextlm": ("ContextLMConfig", "ContextLMForCausalLM"),
    "loading": ("load_generating_model", "load_model", "load_tokenizer", "model_folder"),
    "losses": ("linear_cross_entropy", "token_losses"),
    "spec": ("Losses", "ModelSpec", "build_model", "labelled_losses", "register_model"),
    "sizes": ("SIZES", "ModelSize", "named_size"),
}

__all__ = ["SIZES", "ContextLMConfig", "ContextLMForCausalLM", "ModelSize"]
__all__ += ["backbone_config", "build_model"]
__all__ += ["linear_cross_entropy", "load_generating_model", "load_model", "load_tokenizer"]
__all__ += ["Losses", "ModelSpec", "labelled_losses", "model_folder", "named_size", "parameter_count", "register_model"]
__all__ += ["token_losses"]


def registering(imported: Callable[[str], Any]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that registers all models with the Auto classes where it gives a configuration or a class."""

    def __getattr__(name: str) -> Any:
        value = imported(name)
        if name.endswith(("Config", "LM")):  # so that the Auto classes build what a configuration describes
            importlib.import_module("contextwise.models.spec").register_models()
        return value

    return __getattr__


__getattr__ = registering(lazy_exports(__name__, _MODULES))
