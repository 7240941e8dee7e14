"""The matrices of a model: the parameters that weight decay shrinks and whose products are most of its operations."""

from collections.abc import Iterator

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


def matrices_of(module: nn.Module, embeddings: bool = False) -> Iterator[Tensor]:
    """The weights of linear layers, of recurrent layers and of torch's attention, and stacks of matrices, (E, M, N).

    A stack has the matrices of the experts of a layer, or those of several heads. Kernels of convolutions are none.

    Args:
        embeddings: those of embeddings too.
    """
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if isinstance(part, nn.Linear | Conv1D) or (embeddings and isinstance(part, nn.Embedding)):
            yield part.weight
        elif isinstance(part, nn.RNNBase):
            yield from (weight for weight in own if weight.dim() == 2)
        elif isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            yield part.in_proj_weight
        elif not isinstance(part, nn.modules.conv._ConvNd):
            yield from (weight for weight in own if is_stack(weight))


def is_stack(weight: Tensor) -> bool:
    """Whether a parameter, of no convolution, is a stack of matrices: three dimensions, none of one entry."""
    return weight.dim() == 3 and min(weight.shape) > 1
