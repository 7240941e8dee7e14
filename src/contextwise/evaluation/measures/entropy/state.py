"""Losses, sums and kept features of one context, as far as a measurement has come."""

import numpy as np
import torch

from contextwise.evaluation.measures.entropy.covariance import RunningCovariance
from contextwise.evaluation.scoring.truncated import TruncatedBatch


class Rows:
    """Rows that come batch by batch, in one block of memory that doubles when it is full.

    A small block for each batch would lie in what the batch's logits have left free, and the next ones would need new memory:
    the process would grow by the logits of a batch, batch by batch.
    """

    def __init__(self, rows: torch.Tensor | None = None) -> None:
        self._block = rows
        self._count = 0 if rows is None else len(rows)

    def __len__(self) -> int:
        return self._count

    def add(self, rows: torch.Tensor) -> None:
        """Copy the rows (rows, ...) behind those that are there."""
        stop = self._count + len(rows)
        if self._block is None or stop > len(self._block):
            block = torch.empty((2 * stop, *rows.shape[1:]), dtype=rows.dtype)
            if self._block is not None:
                block[: self._count] = self._block[: self._count]
            self._block = block
        self._block[self._count : stop] = rows
        self._count = stop

    def all(self) -> torch.Tensor:
        """Those that are there."""
        assert self._block is not None
        return self._block[: self._count]


class ContextState:
    """Losses, sums and kept features of one context.

    Attributes:
        nats: float32, losses of the targets that are done.
        kept: (features kept so far, D).
        eigenvalues: (D,) float64 once it is finished, the largest first.
        scale: mean square of a feature's length; what its variation is compared with.
    """

    def __init__(self, context: int, width: int, device: torch.device | str = "cpu") -> None:
        self.context = context
        self._nats, self._kept = Rows(), Rows()
        self._running: RunningCovariance | None = RunningCovariance(width, device)
        self.eigenvalues: np.ndarray | None = None
        self.scale = 0.0

    @property
    def done(self) -> int:
        return len(self._nats)

    @property
    def finished(self) -> bool:
        return self.eigenvalues is not None

    @property
    def nats(self) -> np.ndarray:
        return self._nats.all().numpy()

    @property
    def kept(self) -> torch.Tensor:
        return self._kept.all()

    def add(self, batch: TruncatedBatch, kept_rows: np.ndarray) -> None:
        """Add the next batch; of its features those of the targets ``kept_rows`` are kept."""
        assert batch.start == self.done and batch.features is not None and self._running is not None
        self._running.add(batch.features)
        self._nats.add(torch.from_numpy(batch.nats))
        first, last = np.searchsorted(kept_rows, [batch.start, batch.stop])
        rows = torch.from_numpy(kept_rows[first:last] - batch.start)
        self._kept.add(batch.features[rows.to(batch.features.device)].cpu())

    def finish(self, centred: bool) -> None:
        """Turn the sums into eigenvalues, and let go of them."""
        assert self._running is not None
        self.eigenvalues = self._running.eigenvalues(centred).numpy()
        spread = (
            float(self._running.eigenvalues(True).sum()) if not centred else float(self.eigenvalues.sum())
        )
        self.scale = float(self._running.mean().square().sum()) + spread
        self._running = None

    def tensors(self) -> dict[str, torch.Tensor]:
        state = {"nats": torch.from_numpy(self.nats), "kept": self.kept, "scale": torch.tensor(self.scale)}
        if self.eigenvalues is not None:
            return state | {"eigenvalues": torch.from_numpy(self.eigenvalues)}
        assert self._running is not None
        return state | {f"running.{name}": value for name, value in self._running.state().items()}

    @classmethod
    def from_tensors(
        cls, context: int, state: dict[str, torch.Tensor], device: torch.device | str
    ) -> "ContextState":
        found = cls(context, 0)
        found._nats, found._kept = Rows(state["nats"]), Rows(state["kept"])
        found.scale = float(state["scale"])
        if "eigenvalues" in state:
            found.eigenvalues, found._running = state["eigenvalues"].numpy(), None
            return found
        sums = {
            name.removeprefix("running."): value
            for name, value in state.items()
            if name.startswith("running.")
        }
        found._running = RunningCovariance.from_state(sums, device)
        return found
