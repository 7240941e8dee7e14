"""Whitening of embeddings: a linear map after which the vectors of given texts have mean 0 and the identity as covariance.

Objectives, Section 6.2.2, names it as what makes pooled states of a pretrained model comparable by their cosines without
further training ("mean pooling combined with whitening / normalization"). Method: Su et al. 2021, "Whitening Sentence
Representations for Better Semantics and Faster Retrieval". Fewer components keep those of largest variance, as PCA does.

Shapes: N texts, D channels of a vector, K components.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import atomic_file, atomic_write, exclusive

_LEAST = 1e-9
"""Share of the largest variance below which a direction has none: it holds rounding errors only. The states after a final
layer norm have such a direction always, since a norm fixes their mean."""


@dataclass(frozen=True)
class Whitening:
    """``(vector - mean) @ matrix``.

    Attributes:
        mean: (D,) float64.
        matrix: (D, K) float64; the directions of largest variance come first.
        about: what the vectors were made with (model, pooling, layer), which :meth:`check` compares.
    """

    mean: np.ndarray
    matrix: np.ndarray
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fit(
        cls, vectors: np.ndarray, components: int | None = None, about: Mapping[str, str] | None = None
    ) -> "Whitening":
        """Fit a whitening to vectors (N, D).

        Args:
            components: K; by default all directions in which the vectors vary.

        Raises:
            DataError: there are too few vectors, or they vary in fewer directions than ``components``.
            ConfigError: ``components`` is below 1.
        """
        count, width = vectors.shape
        if components is not None and components < 1:
            raise ConfigError(f"components is {components}, but must be at least 1")
        needed = (width if components is None else components) + 1
        if count < needed:
            fewer = f", or at most {count - 1} components" if count > 1 else ""
            raise DataError(
                f"{count:,} text{'s are' if count != 1 else ' is'} too few to whiten "
                f"{components or width} numbers of a vector; give at least {needed:,} texts{fewer}"
            )
        mean = vectors.mean(axis=0, dtype=np.float64)
        centred = vectors - mean
        values, directions = np.linalg.eigh(centred.T @ centred / (count - 1))
        values, directions = values[::-1], directions[:, ::-1]
        rank = int((values > _LEAST * values[0]).sum()) if values[0] > 0 else 0
        if rank == 0 or rank < (components or 0):
            raise DataError(
                f"the vectors of {count:,} texts vary in {rank} directions, too few for "
                f"{components or 'a whitening'}{' components' if components else ''}; give more different texts"
                + (f", or at most {rank} components" if rank else "")
            )
        kept = components or rank
        return cls(mean, directions[:, :kept] / np.sqrt(values[:kept]), about or {})

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Whiten vectors (N, D): (N, K) float32."""
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)

    def check(self, about: Mapping[str, str]) -> None:
        """Raise a ConfigError if vectors made with ``about`` are not of the kind that it was fitted to."""
        for name, value in about.items():
            if self.about.get(name) != value:
                raise ConfigError(
                    f"the whitening was fitted to vectors of another {name} ({self.about.get(name)}) than these ({value}); "
                    f"embed both with the same {name}"
                )

    def save(self, path: Path) -> None:
        """Write it as safetensors."""
        arrays = {"mean": self.mean, "matrix": np.ascontiguousarray(self.matrix)}
        atomic_write(path, save(arrays, dict(self.about)), "the whitening")

    @classmethod
    def load(cls, path: Path) -> "Whitening":
        """Read what :meth:`save` wrote; raises DataError if it is missing or is no whitening."""
        try:
            with safe_open(path, "numpy") as file:
                return cls(file.get_tensor("mean"), file.get_tensor("matrix"), file.metadata() or {})
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{path} cannot be read as a whitening ({str(error)[:100]}); `contextwise model embed --whiten` writes one"
            ) from None


def normalized(vectors_ND: np.ndarray) -> np.ndarray:
    """Vectors scaled to length 1, in their precision; a vector of zeros stays one."""
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=-1, keepdims=True), 1e-12)


def write_vectors(path: Path, vectors_ND: np.ndarray) -> None:
    """Write vectors as float32 to a ``.npy`` file, atomically."""
    vectors_ND = np.ascontiguousarray(vectors_ND, "<f4")
    with exclusive(path, "the vectors", wait=True), atomic_file(path, "the vectors") as file:
        # numpy.save does not notice that the last bytes of a real file found no room on the disk.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(vectors_ND))
        file.write(vectors_ND.data)
