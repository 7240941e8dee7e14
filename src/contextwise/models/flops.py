"""Floating-point operations of training, counted from a model's matrices.

The matrix products of blocks and head (2 operations per weight and position) and of attention are counted over full rows,
as is the convention for model FLOPs utilization (PaLM, Appendix B): 6 N + 12 L D T per token of a decoder. The backward
pass counts twice the forward pass; for a frozen matrix after a trained one it counts once, and before all trained ones not
at all. Embedding look-ups, norms and softmax are not counted, nor the matrices of poolings, injections and a pair head.
Padding is counted, since it is computed.
"""

from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D


def block_operations(blocks: nn.Module, config: Any, length: int, count: int) -> float:
    """Operations of ``count`` blocks on one of ``length`` positions: weights and attention."""
    heads = config.num_attention_heads
    attended = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * matrix_weights(blocks) + 4 * count * attended * length


def matrix_weights(module: nn.Module) -> int:
    """Weights of the linear layers in ``module``, and of the gates of an LSTM."""
    return sum(_weights(part) for part in module.modules())


def _weights(part: nn.Module) -> int:
    if isinstance(part, nn.Linear | Conv1D):
        return part.weight.numel()
    if isinstance(part, nn.LSTM):
        return sum(weight.numel() for weight in part.parameters() if weight.dim() == 2)
    if isinstance(part, nn.MultiheadAttention):  # its output projection is a separate linear layer
        return part.in_proj_weight.numel()
    return 0
