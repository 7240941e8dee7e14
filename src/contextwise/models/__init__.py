"""Models: compositions around stock Hugging Face backbones, named sizes, and losses.

Names are imported when they are first used: ``contextwise.models.sizes`` needs no torch.
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.models.building import backbone_config, parameter_count
    from contextwise.models.contextlm import ContextLMConfig, ContextLMForCausalLM
    from contextwise.models.folders import model_folder
    from contextwise.models.loading import load_generating_model, load_model, load_tokenizer
    from contextwise.models.losses import linear_cross_entropy, token_losses
    from contextwise.models.sizes import SIZES, ModelSize, named_size
    from contextwise.models.spec import Losses, ModelSpec, build_model, labelled_losses, register_model

_MODULES = {
    "building": ("backbone_config", "parameter_count"),
    "contextlm": ("ContextLMConfig", "ContextLMForCausalLM"),
    "folders": ("model_folder",),
    "loading": ("load_generating_model", "load_model", "load_tokenizer"),
    "losses": ("linear_cross_entropy", "token_losses"),
    "spec": ("Losses", "ModelSpec", "build_model", "labelled_losses", "register_model"),
    "sizes": ("SIZES", "ModelSize", "named_size"),
}

__all__ = ["SIZES", "ContextLMConfig", "ContextLMForCausalLM", "ModelSize"]
__all__ += ["backbone_config", "build_model"]
__all__ += ["linear_cross_entropy", "load_generating_model", "load_model", "load_tokenizer"]
__all__ += ["Losses", "ModelSpec", "labelled_losses", "model_folder", "named_size", "parameter_count", "register_model"]
__all__ += ["token_losses"]

__getattr__ = lazy_exports(__name__, _MODULES)
