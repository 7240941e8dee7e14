"""Registration of this package's models with transformers' Auto classes, without importing transformers or torch.

Both take seconds to import. So the models are registered when a configuration of an unknown type is first looked up:
``AutoModelForCausalLM.from_pretrained`` and ``AutoConfig`` look it up by the ``model_type`` in ``config.json``.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

CONFIGURATIONS = "transformers.models.auto.configuration_auto"


def register_when_needed(register: Callable[[], object]) -> None:
    """Let transformers ask this package for configurations that it does not know, now or once it is imported.

    ``register`` is called at each look-up of an unknown type.
    """
    if CONFIGURATIONS in sys.modules:
        _ask_for_unknown_types(sys.modules[CONFIGURATIONS], register)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(register))  # type: ignore[arg-type]


def _ask_for_unknown_types(module: Any, register: Callable[[], object]) -> None:
    known = module.CONFIG_MAPPING
    stock: Any = type(known)
    if hasattr(stock, "asks_contextwise"):
        return

    class Mapping(stock):
        """The configurations by type; at an unknown type, those of this package are registered first."""

        asks_contextwise = True

        def __contains__(self, key: object) -> bool:
            if not super().__contains__(key):
                register()
            return super().__contains__(key)

        def __getitem__(self, key: str) -> Any:
            if not super().__contains__(key):
                register()
            return super().__getitem__(key)

        def __reduce__(self) -> Any:
            return stock._from_pickle, super().__reduce__()[1]

    known.__class__ = Mapping


class _WhenImported:
    """Finds transformers' module of configurations as usual, and changes it once it is imported.

    The base class of finders is left out: its module imports much more.
    """

    def __init__(self, register: Callable[[], object]) -> None:
        self.register = register

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != CONFIGURATIONS:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _ask_for_unknown_types(module, self.register)

            loader.exec_module = exec_module
        return spec
