"""Mean and covariance of features that come in batches, in 64-bit numbers whatever the model computes in.

Only the sums are kept: D × D numbers for any number of features. Rows are gathered into blocks of :data:`BLOCK`; each block
is centred on its own mean and joined to the ones before it by the pairwise update of Chan, Golub and LeVeque (1979), so that no
large mean is ever squared and subtracted again. The limits of the blocks do not depend on the batches: a stream that was
stopped, saved and resumed gives the same bits. (Reading a mean or covariance ends a block early.)

Legend of shapes: B rows in a batch, D channels.
"""

import torch

BLOCK = 512
_COLUMNS = 1024


class RunningCovariance:
    """Sums of a stream of features.

    Args:
        width: D, channels of a feature.
        device: of the features; the sums stay there, or on the CPU where the device has no 64-bit numbers.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.width = width
        self._folded = 0
        self._mean_D = torch.zeros(width, dtype=torch.float64, device=self.device)
        self._scatter_DD = torch.zeros(width, width, dtype=torch.float64, device=self.device)
        self._waiting: list[torch.Tensor] = []

    def add(self, features_BD: torch.Tensor) -> None:
        """Add features of any number format."""
        self._waiting.append(features_BD.to(self.device, copy=True))  # the caller may reuse its buffer
        if sum(map(len, self._waiting)) >= BLOCK:
            rows = torch.cat(self._waiting)
            whole = len(rows) // BLOCK * BLOCK
            for block in rows[:whole].split(BLOCK):
                self._fold(block)
            self._waiting = [rows[whole:].clone()] if whole < len(rows) else []

    def mean(self) -> torch.Tensor:
        """(D,) float64."""
        self._fold_rest()
        return self._mean_D

    def eigenvalues(self, centred: bool = True) -> torch.Tensor:
        """(D,) float64 on the CPU: of :meth:`upper`, the largest first; negative ones, due to rounding, become zero."""
        return torch.linalg.eigvalsh(self.upper(centred), UPLO="U").flip(0).clamp(min=0).cpu()

    def upper(self, centred: bool = True) -> torch.Tensor:
        """(D, D) float64: the scatter about the mean over count − 1, or about the origin over count.

        Only the values on and right of the diagonal are valid. Raises ValueError for fewer than two features.
        """
        self._fold_rest()
        if self._folded < 2:
            raise ValueError(f"a covariance needs two features or more, and there are {self._folded}")
        if centred:
            return self._scatter_DD / (self._folded - 1)
        return torch.addr(self._scatter_DD / self._folded, self._mean_D, self._mean_D)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that is needed to resume, as tensors on the CPU that later features do not change."""
        state = {"count": torch.tensor(self._folded), "mean": self._mean_D, "scatter": self._scatter_DD}
        state |= {"waiting": torch.cat(self._waiting)} if self._waiting else {}
        return {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}

    @classmethod
    def from_state(cls, state: dict[str, torch.Tensor], device: torch.device | str = "cpu") -> "RunningCovariance":
        """Resume a stream from its :meth:`state`."""
        running = cls(len(state["mean"]), device)
        running._folded = int(state["count"])
        running._mean_D = state["mean"].to(running.device, copy=True)
        running._scatter_DD = state["scatter"].to(running.device, copy=True)
        running._waiting = [state["waiting"].to(running.device, copy=True)] if "waiting" in state else []
        return running

    def _fold_rest(self) -> None:
        if self._waiting:
            self._fold(torch.cat(self._waiting))
            self._waiting = []

    def _fold(self, rows_BD: torch.Tensor) -> None:
        """Add rows by the update of Chan, Golub and LeVeque."""
        if not len(rows_BD):
            return
        rows_BD = rows_BD.to(torch.float64)
        mean_D = rows_BD.mean(0)
        total = self._folded + len(rows_BD)
        shift_D = mean_D - self._mean_D
        self._scatter_DD.addr_(shift_D, shift_D, alpha=self._folded * len(rows_BD) / total)
        self._mean_D = self._mean_D + shift_D * (len(rows_BD) / total)
        self._folded = total
        centred_BD = rows_BD - mean_D
        # The matrix is symmetric: what is right of the diagonal is enough.
        for start in range(0, self.width, _COLUMNS):
            stop = min(start + _COLUMNS, self.width)
            self._scatter_DD[start:stop, start:].addmm_(centred_BD[:, start:stop].mT, centred_BD[:, start:])
