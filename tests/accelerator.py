"""An accelerator without hardware, for which torch's meta device stands in: its tensors have no values that could be read."""

import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "meta"

aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
FROM_HOST = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
VALUE_SHAPED = (
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
)


def is_part_of(package: ModuleType, file: str | Path) -> bool:
    """Whether a file belongs to a package, wherever that is installed: folders of any name may lie above it."""
    return Path(file).is_relative_to(Path(str(package.__file__)).parent)


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


class Synchronised(AssertionError):
    """The host waits for the accelerator, or a tensor was left on the host."""


class FakeAccelerator(TorchDispatchMode):
    """Inside the ``with`` block operations on the accelerator are watched.

    A real accelerator works behind the host, which waits for it where it needs a value (``.item()``, ``bool(tensor)``,
    ``.tolist()``, ``.cpu()``), where a shape depends on values (``nonzero``, a boolean index), and where host memory is copied
    without ``non_blocking=True`` (``torch.tensor(values, device=...)``). An operation that mixes its tensors with those of the
    host (numbers, of no dimension, too) fails there or copies.

    Args:
        allowed: number of reads of values that are not errors; they give zeros.

    Attributes:
        files: of the code that read values.
        reads: where that was: file, line and source.

    Raises:
        Synchronised: at the place of a wait that is not allowed.
    """

    def __init__(self, allowed: float = 0) -> None:
        super().__init__()
        self.allowed, self.files, self.reads = allowed, list[str](), list[str]()
        self._from_host = _FromHost(self)

    def __enter__(self) -> "FakeAccelerator":
        super().__enter__()
        self._from_host.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._from_host.__exit__(*error)
        super().__exit__(*error)

    def wait(self, what: str) -> None:
        """Note that the host waits, and refuse it beyond the allowed number."""
        stack = traceback.extract_stack()
        frames = [f for f in stack if not is_part_of(torch, f.filename) and f.filename != __file__]
        self.files.append(frames[-1].filename)
        self.reads.append(f"{what} at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}")
        if len(self.reads) > self.allowed:
            raise Synchronised(self.reads[-1])

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(_tensors_in((*args, *kwargs.values())))
        on_device = [x for x in tensors if x.device.type == DEVICE]
        target = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu")).type
        if function in COPIES:
            source = tensors[-1]
            if source.device.type == DEVICE and target != DEVICE:
                self.wait("values are copied to the host")
                zeros = torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
                return zeros if function is COPIES[0] else args[0].copy_(zeros)
            if target == DEVICE != source.device.type and not (kwargs.get("non_blocking") or True in args[2:]):
                self.wait("host memory is copied to the device")
        elif on_device:
            if function is aten._local_scalar_dense.default:
                self.wait("a value is read")
                return torch.zeros((), dtype=on_device[0].dtype).item()
            if function in (aten.equal.default, aten.allclose.default, aten.is_nonzero.default):
                self.wait("values are compared")
                return True
            chosen = args[1] if function in (aten.index.Tensor, aten.index_put_.default) else []
            as_mask = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in chosen)
            if function is aten.index_put_.default and args[2].numel() == 1:
                as_mask = False  # one value for all: filled without knowing how many
            if function in VALUE_SHAPED or as_mask:
                raise Synchronised(f"the shape of the result of {function} depends on values")
            if len(on_device) < len(tensors):
                raise Synchronised(f"{function} mixes tensors of the accelerator and the host")
        return function(*args, **kwargs)


class _FromHost(TorchFunctionMode):
    """Notices tensors that are made on the device from values of the host, which modes of dispatch do not see."""

    def __init__(self, accelerator: FakeAccelerator) -> None:
        super().__init__()
        self.accelerator = accelerator

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = function in FROM_HOST and result.device.type == DEVICE and result is not args[0] and result.numel()
        indices = args[1] if function in INDEXING and args[0].device.type == DEVICE else ()
        listed = any(isinstance(index, list) for index in (indices if isinstance(indices, tuple) else [indices]))
        if made or listed:
            self.accelerator.wait("values of the host are copied to the device")
        return result
