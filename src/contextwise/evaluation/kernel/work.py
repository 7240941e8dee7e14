"""The finished part of a measurement that was stopped, kept beside the folder of its result."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_write, exclusive, read_json, write_json
from contextwise.evaluation.kernel.journal import Journal

if TYPE_CHECKING:
    import numpy as np
    import torch

QUESTION = "question.json"


class Work:
    """Unfinished work of one measurement, in ``RESULT.unfinished/``. Only the same question resumes it.

    Attributes:
        path: the folder; it exists once something is kept.
    """

    def __init__(self, path: Path, key: str, question: dict[str, Any]) -> None:
        self.path, self.key, self.question = path, key, question

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, result: Path, key: str, question: dict[str, Any], overwrite: bool = False
    ) -> Iterator["Work"]:
        """Hold the result's folder for this process, and open the unfinished work beside it.

        A second process with the same result waits.

        Args:
            question: what ``key`` is made of, for messages.
            overwrite: discard unfinished work of another question instead of refusing.

        Raises:
            ConfigError: there is unfinished work of another question.
            DataError: the folder cannot be written.
        """
        made = [folder for folder in result.parents if not folder.exists()]
        try:
            with exclusive(result, "the result", wait=True):
                work = cls(result.with_name(f"{result.name}.unfinished"), key, question)
                work._check(overwrite)
                yield work
        finally:
            with contextlib.suppress(OSError):  # what is empty is removed again
                for folder in made:
                    folder.rmdir()

    def _check(self, overwrite: bool) -> None:
        if not self.path.is_dir():
            return
        try:
            there = read_json(self.path / QUESTION, "the unfinished work")
        except DataError:
            there = {}
        if there.get("key") == self.key:
            return
        if there and not overwrite:
            ours, theirs = self.question.get("settings", {}), there.get("settings", {})
            different = [name for name in ours if ours[name] != theirs.get(name)] or ["model or data"]
            raise ConfigError(
                f"{self.path} holds unfinished work of another measurement ({', '.join(different[:5])} differ); choose "
                "another folder for the result, or remove that one"
            )
        self.discard()

    def _start(self) -> None:
        if not (self.path / QUESTION).exists():
            write_json(self.path / QUESTION, {"key": self.key, **self.question}, "the unfinished work")

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.path.is_dir()

    @contextlib.contextmanager
    def journal(self, name: str, key: Any = None) -> Iterator[Journal]:
        """Rows of JSON that are kept as soon as they are added.

        Args:
            name: of the file, without ``.jsonl``.
            key: tells rows apart; by default their field ``key``.
        """
        self._start()
        with Journal.opened(self.path / f"{name}.jsonl", *([] if key is None else [key])) as journal:
            yield journal

    def save(self, name: str, arrays: "Mapping[str, np.ndarray | torch.Tensor]") -> None:
        """Keep arrays, or tensors, under a name instead of those that were kept under it before, in one step.

        Raises:
            DataError: the disk is full, or the folder cannot be written.
        """
        import numpy as np
        import torch
        from safetensors.torch import save

        def tensor(array: Any) -> torch.Tensor:
            return (
                torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else array
            ).contiguous()

        self._start()
        content = save({key: tensor(array) for key, array in arrays.items()})
        atomic_write(self.path / f"{name}.safetensors", content, "the unfinished work")

    def load(self, name: str, torch: bool = False) -> Any:
        """The arrays that were kept under a name, as tensors if ``torch``; None if there are none, or they are damaged."""
        from safetensors import SafetensorError
        from safetensors import numpy as arrays
        from safetensors import torch as tensors

        try:
            return (tensors if torch else arrays).load_file(self.path / f"{name}.safetensors")
        except (OSError, SafetensorError):
            return None

    def discard(self) -> None:
        """Remove all that is kept."""
        shutil.rmtree(self.path, ignore_errors=True)
