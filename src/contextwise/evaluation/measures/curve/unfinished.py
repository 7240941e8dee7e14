"""The finished part of a scoring that was stopped, kept beside the place where its result will stand.

The file's name is a hash of all that decides the result: the weights, the documents and the settings. So a part is found by
the same command only, and by no other.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from contextwise.base.files import atomic_write

FORMAT = 1


class Unfinished:
    """The kept part of one scoring.

    Args:
        out: folder of the result.
        decides: all that the result depends on, as JSON has it.
    """

    def __init__(self, out: Path, decides: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, **decides}, sort_keys=True, default=str)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.path = out.parent / f".{out.name}.unfinished-{self.key[:16]}.npz"

    def load(self, like: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The kept arrays; None if there are none, or not whole and of the names, shapes and types of ``like``."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                if str(file["key"]) != self.key:
                    return None
                kept = {name: file[name] for name in like}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        same = all(
            kept[name].shape == like[name].shape and kept[name].dtype == like[name].dtype for name in like
        )
        return kept if same and all(np.isfinite(array).all() for array in kept.values()) else None

    def save(self, arrays: dict[str, np.ndarray]) -> None:
        """Keep the arrays instead of those that were kept before, in one step.

        Raises:
            DataError: the disk is full, or the place cannot be written to.
        """
        content = io.BytesIO()
        np.savez(content, key=np.array(self.key), **arrays)  # type: ignore[arg-type]
        atomic_write(self.path, content.getvalue(), "the scores so far")

    def remove(self) -> None:
        """Forget them."""
        self.path.unlink(missing_ok=True)


def model_digest(model: PreTrainedModel) -> str:
    """SHA-256 of a model's configuration, and of all its weights in the number format that it is scored in."""
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
