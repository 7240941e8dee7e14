"""Models: compositions around stock Hugging Face backbones, named sizes, and losses."""

from transformers import AutoConfig, AutoModelForCausalLM

from contextwise.models.building import build_model
from contextwise.models.context import ContextLMConfig, ContextLMForCausalLM
from contextwise.models.cue import CueConfig, CueForCausalLM
from contextwise.models.flops import training_flops_per_token
from contextwise.models.loading import load_generating_model, load_model, load_tokenizer, model_folder
from contextwise.models.losses import causal_loss, linear_cross_entropy, token_losses
from contextwise.models.multitoken import MultiTokenConfig, MultiTokenForCausalLM
from contextwise.models.sizes import (
    SIZES,
    ModelSize,
    backbone_config,
    match_parameters,
    named_size,
    parameter_count,
)

AutoConfig.register(ContextLMConfig.model_type, ContextLMConfig, exist_ok=True)
AutoModelForCausalLM.register(ContextLMConfig, ContextLMForCausalLM, exist_ok=True)
AutoConfig.register(MultiTokenConfig.model_type, MultiTokenConfig, exist_ok=True)
AutoModelForCausalLM.register(MultiTokenConfig, MultiTokenForCausalLM, exist_ok=True)

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
