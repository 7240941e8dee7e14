"""Coverage of the interval of the effective context, in simulations.

``python -m benchmarks.effective_context`` draws curves over documents whose mean follows a known law, and prints how often the
interval of :mod:`contextwise.evaluation.measures.curve.readings` holds the law's effective context; beside it, how often the
percentiles of resamples over documents would, by which the limits were made before. A document has a level of its own, gains by
a factor of its own, and has noise in each bin: little where all bins have the same targets, much where each has others.
"""

import argparse
import math
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.intervals import bootstrap_estimate, effective_freedom, leave_one_out, resampled_ratios
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal
from contextwise.evaluation.measures.curve.readings import Doublings, effective_context

CENTRE = 2.0 ** np.arange(10)
WORTH = 0.01
LAWS = {
    "flat behind 8": np.array([1.0, 0.4, 0.1, *[0.0] * 7]),
    "2 / l^1.2": 2 * CENTRE**-1.2,
    "falls throughout": 2 * CENTRE**-0.4,
}
NOISE = {"the same targets (bands)": 1.0, "other targets (running)": 3.0}
"""Standard deviation of a token's loss in a bin, about the document's curve, in nats."""
DOCUMENTS = (12, 30, 100)
TARGETS = 100  # of a document, in the mean


def drawn(draw: np.random.Generator, law: np.ndarray, documents: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Nats and targets of each document and bin, both (D, K)."""
    shape = documents, 1
    sizes = np.broadcast_to(TARGETS * draw.lognormal(0, 0.7, shape), (documents, len(law)))
    own = 4 + draw.normal(0, 0.4, shape) + draw.normal(1, 0.2, shape) * law
    return (own + draw.normal(0, noise, sizes.shape) / np.sqrt(sizes)) * sizes, np.array(sizes)


def coverage(law: np.ndarray, documents: int, noise: float, curves: int, seed: int) -> dict[str, float | None]:
    """Shares of the intervals, and of the percentiles of resamples, that hold the law's effective context, and median values.

    ``value`` is that of the measure, ``unfitted`` that of the measured gains; None beyond the longest context.
    """
    draw, doublings = np.random.default_rng(seed), Doublings(CENTRE)
    truth = doublings.effective(doublings.gains(law[None]), WORTH)[0]
    held, resampled, known, values = 0, 0, 0, []
    for _ in range(curves):
        nats, sizes = drawn(draw, law, documents, noise)
        losses, left_out = nats.sum(0) / sizes.sum(0), leave_one_out(nats, sizes)
        found = effective_context(CENTRE, losses, left_out, sizes, WORTH)
        low, value, high = (math.inf if found[name] is None else found[name] for name in ("low", "value", "high"))
        values.append((value, doublings.effective(doublings.gains(losses[None]), WORTH)[0]))
        held += low <= truth <= high
        known += math.isfinite(high) or low > CENTRE[0]
        contexts = doublings.effective(doublings.gains(resampled_ratios(nats, sizes)), WORTH)
        limits = bootstrap_estimate(truth, contexts, documents, "nearest", effective_freedom(sizes[:, 0])).limits
        resampled += limits[0] <= truth <= limits[1]
    shares = {"t": float(held / curves), "resamples": float(resampled / curves), "bounded": float(known / curves)}
    medians = np.quantile(values, 0.5, axis=0, method="nearest").tolist()
    found_medians = [median if math.isfinite(median) else None for median in medians]
    return shares | dict(zip(("value", "unfitted"), found_medians, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=int, default=1000, help="of each case")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for law, values in LAWS.items():
        for targets, noise in NOISE.items():
            for documents in DOCUMENTS:
                shares = coverage(values, documents, noise, options.curves, documents)
                results.append({"law": law, "targets": targets, "documents": documents, **shares})
    columns = [Column("curve"), Column("targets"), Column("documents", "integer")]
    columns += [Column(name, "percent", ".1%") for name in ("t", "resamples", "bounded")]
    columns += [Column(name, "estimate", ".0f") for name in ("value", "unfitted")]
    console.print(
        terminal(Table("Intervals that hold the effective context:", columns, [[*row.values()] for row in results]))
    )
    publish("effective-context", {"curves": options.curves, "worth": WORTH, "cases": results})


if __name__ == "__main__":
    main()
