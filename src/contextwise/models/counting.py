"""Operations of a training step, as torch counts them: matrix products and convolutions, forward and backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.models.matrices import matrices_of


def _addmm_flops(total: Any, first: Any, second: Any, out_shape: Any = None, **_: Any) -> int:
    """Operations of ``total.addmm_(first, second)``; the chunked loss has one."""
    return 2 * first[0] * first[1] * second[1]


def _grouped_flops(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Operations of the products of experts: of rows (S, K) with matrices (E, K, N), or of (M, S) with (S, N) in groups."""
    return 2 * first[0] * first[1] * second[-1]


FURTHER = {torch.ops.aten.addmm_: _addmm_flops, torch.ops.aten._grouped_mm: _grouped_flops}
"""Operations by the products that torch's counter lacks."""


class _Factors(TorchDispatchMode):
    """Collects the memory of all factors of counted products."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = getattr(function, "_overloadpacket", function)
        if product in flop_registry or product in FURTHER:
            self.seen |= {each.untyped_storage()._cdata for each in args if isinstance(each, Tensor)}
        return function(*args, **(kwargs or {}))


def counted_flops(
    model: Any,
    length: int,
    on_meta: Callable[[], float],
    on_cpu: Callable[[], float],
    failure: Callable[[Exception], str],
) -> float:
    """Operations of a training step on ``length`` tokens, counted once and kept with the model.

    Code that reads values of tensors cannot run on the meta device: its step is counted on the CPU, with a model of its own.
    """
    known: dict[int, float] = model.__dict__.setdefault("counted_flops", {})
    if length not in known:
        try:
            known[length] = on_meta()
        except ContextwiseError:
            raise
        except Exception:
            try:
                with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                    known[length] = on_cpu()
            except ContextwiseError:
                raise
            except Exception as error:
                raise ConfigError(failure(error)) from error
    return known[length]


def step_flops(model: nn.Module, loss: Callable[[], Tensor]) -> tuple[float, list[str]]:
    """Operations of the passes of ``loss``, whose gradients are deleted, and names of matrices that no counted product used."""
    counter, factors = FlopCounterMode(display=False, custom_mapping=FURTHER), _Factors()
    with factors, counter, sdpa_kernel(SDPBackend.MATH):  # not all kinds of fused attention are counted
        loss().backward()
    inner = {id(weight) for weight in matrices_of(model)}
    missed = [
        name
        for name, weight in model.named_parameters()
        if id(weight) in inner and weight.grad is not None and weight.untyped_storage()._cdata not in factors.seen
    ]
    model.zero_grad()
    return float(counter.get_total_flops()), missed
