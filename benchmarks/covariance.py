"""Eigenvalues of the covariance of 10,000 features of 4,096 channels: our running sums against scikit-learn's PCA.

The features are float32 and come in batches, as from a model. Ours takes them as they come and works in 64-bit numbers. PCA
needs all of them together and works in their 32 bits, with its default solver and with ``covariance_eigh``, which goes our way.
Time: in alternation in one process. Memory: a process for each, its peak resident size over what it held before.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.harness import alternate, peak_memory, publish
from contextwise.base import machine
from contextwise_papers.intrinsic_entropy.entropy.running import RunningCovariance

BATCH = 64
CONTENDERS = ("contextwise", "PCA", "PCA, covariance_eigh")


def batches(samples: int, width: int) -> Iterator[torch.Tensor]:
    """Features with variances that fall as 1 / i, about a mean that is not zero."""
    generator = torch.Generator().manual_seed(0)
    scale_D = torch.arange(1, width + 1).rsqrt()
    for start in range(0, samples, BATCH):
        rows = min(BATCH, samples - start)
        yield torch.randn(rows, width, generator=generator) * scale_D + 1


def ours(rows: Iterator[torch.Tensor]) -> np.ndarray:
    running = RunningCovariance()
    for batch in rows:
        running.add(batch)
    return running.eigenvalues().numpy()


def sklearn_pca(rows: Iterator[torch.Tensor], solver: str) -> np.ndarray:
    from sklearn.decomposition import PCA  # type: ignore[import-untyped]

    return PCA(svd_solver=solver).fit(torch.cat(list(rows)).numpy()).explained_variance_


def contender(name: str, make: Callable[[], Iterator[torch.Tensor]]) -> Callable[[], np.ndarray]:
    """What finds the eigenvalues of the features that ``make`` gives."""
    if name == "contextwise":
        return lambda: ours(make())
    return lambda: sklearn_pca(make(), "covariance_eigh" if "eigh" in name else "auto")


def child(name: str, samples: int, width: int) -> None:
    """Child process: one pass, with the features made on the way."""
    contender(name, lambda: batches(130, 64))()  # what the libraries load on first use does not count
    before = machine.peak_memory()
    contender(name, lambda: batches(samples, width))()
    print(json.dumps({"bytes": machine.peak_memory() - before}))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", metavar="NAME")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    samples, width = options.samples, options.width
    if options.child:
        child(options.child, samples, width)
        return
    sizes = ["--samples", str(samples), "--width", str(width)]
    # First, while this process is small: a child starts with the peak of the process that it comes from.
    memory = {name: peak_memory("benchmarks.covariance", "--child", name, *sizes)["bytes"] for name in CONTENDERS}
    features = list(batches(samples, width))
    things = {name: contender(name, lambda: iter(features)) for name in CONTENDERS}
    spectra: dict[str, np.ndarray] = {}

    def timed(name: str) -> Callable[[], None]:
        def run() -> None:
            spectra[name] = things[name]()

        return run

    outcome = alternate({name: timed(name) for name in CONTENDERS}, options.rounds, warmup=0)
    result: dict[str, Any] = {
        "samples": samples,
        "width": width,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "seconds": {name: outcome.median(name) for name in CONTENDERS},
        "speed_of_contextwise_against": {name: outcome.speed("contextwise", name) for name in CONTENDERS[1:]},
        "peak_bytes": memory,
        "largest_relative_difference_of_eigenvalues": {
            name: float(np.max(np.abs(spectra[name] / spectra["contextwise"] - 1))) for name in CONTENDERS[1:]
        },
    }
    for name in CONTENDERS:
        print(
            f"spectrum of {samples:,} x {width:,}, {name}: {result['seconds'][name]:.1f} s, "
            f"{result['peak_bytes'][name] / 2**20:,.0f} MiB",
            flush=True,
        )
    publish("covariance", result)


if __name__ == "__main__":
    main(sys.argv[1:])
