"""Models: compositions around stock Hugging Face backbones, named sizes, and losses.

Names are imported when they are first used: ``contextwise.models.sizes`` needs no torch.
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.models.building import backbone_config
    from contextwise.models.contextlm import ContextLMConfig, ContextLMForCausalLM
    from contextwise.models.loading import load_config, load_model, load_tokenizer
    from contextwise.models.losses import IGNORED, final_hidden_states, token_losses
    from contextwise.models.sizes import ModelSize
    from contextwise.models.spec import Losses, ModelSpec, build_model, labelled_losses, register_model

__all__ = ["IGNORED", "ContextLMConfig", "ContextLMForCausalLM", "Losses", "ModelSize", "ModelSpec"]
__all__ += ["backbone_config", "build_model", "final_hidden_states", "labelled_losses", "load_config"]
__all__ += ["load_model", "load_tokenizer", "register_model", "token_losses"]
__getattr__, __dir__ = lazy_exports(__name__)
