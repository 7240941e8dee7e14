"""The matrices of a model: the parameters that weight decay shrinks and whose products are most of its operations."""

from collections.abc import Iterator

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


def matrices_of(module: nn.Module, embeddings: bool = False) -> Iterator[Tensor]:
    """The weights of linear layers, routers, recurrent layers, attention, ``embeddings`` if set, and stacks (E, M, N).

    A stack has the matrices of the experts of a layer, or those of several heads. Kernels of convolutions are none.
    """
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if (matrix := linear_weight(part)) is not None:
            yield matrix
        elif embeddings and isinstance(part, nn.Embedding):
            yield part.weight
        elif isinstance(part, nn.RNNBase):
            yield from (weight for weight in own if weight.dim() == 2)
        elif isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            yield part.in_proj_weight
        elif not isinstance(part, nn.modules.conv._ConvNd):
            yield from (weight for weight in own if weight.dim() == 3 and min(weight.shape) > 1)


def linear_weight(part: nn.Module) -> Tensor | None:
    """The matrix of a linear layer, or of a router of experts that transformers builds without one; else None.

    Such a router has a parameter ``weight``, (experts, width), and an attribute with the number of experts, such as
    ``num_experts`` or ``n_routed_experts``. Other parameters of two dimensions can be tables of positions, queries or gates.
    """
    if isinstance(part, nn.Linear | Conv1D):
        return part.weight
    weight = getattr(part, "weight", None)
    if isinstance(weight, nn.Parameter) and weight.dim() == 2 and not isinstance(part, nn.Embedding):
        counts = [value for name, value in vars(part).items() if "experts" in name and type(value) is int]
        return weight if weight.shape[0] in counts else None
    return None


def ties_of(model: nn.Module) -> dict[str, str]:
    """The further names of each parameter that has several, with its first one."""
    first: dict[nn.Parameter, str] = {}
    names = [(name, first.setdefault(each, name)) for name, each in model.named_parameters(remove_duplicate=False)]
    return {name: own for name, own in names if name != own}
