"""Losses of any training script, for ``contextwise decide``: a file with a row for each held-out document of a run.

Imports neither torch nor transformers.
"""

import hashlib
import json
import math
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from contextwise.base.errors import DataError
from contextwise.base.files import atomic_file

LONGEST_NAME = 80


class LossWriter:
    """Write the losses of a run, a row a document, as JSON Lines; the file is complete when the block ends, or absent.

    ::

        with LossWriter("losses/rope-s3.jsonl", arm="rope", seed=3) as losses:
            for text in held_out:
                ids = tokenize(text)
                losses.add(text, tokens=len(ids) - 1, nats=total_loss(model, ids))

    Args:
        path: of the file, whose folder is made.
        arm: the way to train.
        seed: of the run; runs of other arms with this number have the same data in the same order.
        step: of the model that is scored.

    Raises:
        DataError: the file cannot be written.
    """

    def __init__(self, path: str | Path, arm: str, seed: int, step: int | None = None) -> None:
        self.path = Path(path)
        self._run = {"arm": str(arm), "seed": int(seed)} | ({} if step is None else {"step": int(step)})
        self._open = atomic_file(self.path, "the losses")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._file = None
        return self._open.__exit__(kind, error, trace)

    def add(self, document: str | int, tokens: float, nats: float, **more: Any) -> None:
        """Add a document.

        Args:
            document: its name, its number, or its text, which is named by its hash.
            tokens: that were predicted.
            nats: their summed loss; a tensor of one value or a number.
            more: further columns, such as ``bytes``.

        Raises:
            DataError: a value is not finite, or is negative.
        """
        if self._file is None:
            raise DataError(f"{self.path} is not open; add documents inside the with block")
        name = str(document)
        if len(name) > LONGEST_NAME or "\n" in name:
            name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        tokens, nats = float(tokens), float(nats)
        if not (math.isfinite(nats) and nats >= 0 and math.isfinite(tokens) and tokens >= 1):
            raise DataError(
                f"document {name} has {nats:g} nats over {tokens:g} tokens; both must be finite, and tokens 1 or more"
            )
        row = self._run | {"document": name, "tokens": tokens, "nats": nats} | more
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
