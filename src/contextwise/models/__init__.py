"""Models: compositions around stock Hugging Face backbones, named sizes, and losses.

Names are imported when they are first used: ``contextwise.models.sizes`` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextwise.models.building import backbone_config, build_model, match_parameters, parameter_count
    from contextwise.models.contextlm import ContextLMConfig, ContextLMForCausalLM
    from contextwise.models.cue import CueConfig, CueForCausalLM
    from contextwise.models.flops import training_flops_per_token
    from contextwise.models.loading import load_generating_model, load_model, load_tokenizer, model_folder
    from contextwise.models.losses import causal_loss, linear_cross_entropy, token_losses
    from contextwise.models.multitoken import MultiTokenConfig, MultiTokenForCausalLM
    from contextwise.models.sizes import SIZES, ModelSize, named_size

_MODULES = {
    "building": ("backbone_config", "build_model", "match_parameters", "parameter_count"),
    "contextlm": ("ContextLMConfig", "ContextLMForCausalLM"),
    "cue": ("CueConfig", "CueForCausalLM"),
    "flops": ("training_flops_per_token",),
    "loading": ("load_generating_model", "load_model", "load_tokenizer", "model_folder"),
    "losses": ("causal_loss", "linear_cross_entropy", "token_losses"),
    "multitoken": ("MultiTokenConfig", "MultiTokenForCausalLM"),
    "sizes": ("SIZES", "ModelSize", "named_size"),
}

__all__ = [
    "SIZES",
    "ContextLMConfig",
    "ContextLMForCausalLM",
    "CueConfig",
    "CueForCausalLM",
    "ModelSize",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
    "backbone_config",
    "build_model",
    "causal_loss",
    "linear_cross_entropy",
    "load_generating_model",
    "load_model",
    "load_tokenizer",
    "match_parameters",
    "model_folder",
    "named_size",
    "parameter_count",
    "token_losses",
    "training_flops_per_token",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"contextwise.models.{module}"), name)
    raise AttributeError(f"module 'contextwise.models' has no attribute {name!r}")
