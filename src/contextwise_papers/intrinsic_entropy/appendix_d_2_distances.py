"""Nearest-neighbour distances and the approximation loss against the number of samples: intrinsic entropy, Appendix D.2, Eq. 4.

By Theorem 1 the mean distance from one of D features to the nearest other falls no slower than D^(-c/d), with c = 1 where their
density is bounded from below; by Theorem 2 so does the approximation loss, the loss above the Bayes model's: α ≈ c/d. On the
parity task that loss is exact: of a held-out sample whose task is not visible the lowest is log 2, of any other 0.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import mean_estimate
from contextwise.base.tables import Table
from contextwise.experiments.run_set import Run
from contextwise.training.inputs import VALIDATION_SEED
from contextwise_papers.claims import Claim, above, all_hold, below, undecided, within
from contextwise_papers.intrinsic_entropy.density import distance_line, nearest_distances
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples
from contextwise_papers.intrinsic_entropy.table_1_figures_6_7_parity import data_of, opened
from contextwise_papers.item import Outcome
from contextwise_papers.tables import Plot, points, seeds_behind, table_of
from contextwise_plan.fits import fit_line

MOST = 4096
"""Features whose distances are compared."""
SPREAD = 0.5
"""c = α d counts as the same where it is within so much of its mean, relatively; the document gives no number."""


def add_data_scaling(
    outcome: Outcome, losses: Mapping[tuple[int, int], Sequence[float]], largest: Mapping[int, Sequence[Run]]
) -> None:
    """Add the distances, the dimension that follows from them, and the exponent of the loss to an outcome.

    Args:
        losses: lowest validation losses by (training samples, context), one value a seed, nats.
        largest: context -> the runs on the most samples, seed by seed; their features are measured.
    """
    distances = {context: [distances_of(run) for run in runs] for context, runs in largest.items()}
    distances = {context: of_seeds for context, of_seeds in distances.items() if all(of_seeds)}
    slopes = {c: [distance_line(d).slope.value for d in of_seeds] for c, of_seeds in distances.items()}
    dimensions = {c: [-1 / slope for slope in of_seeds] for c, of_seeds in slopes.items()}
    exponents = {c: loss_exponents(losses, c, lowest_loss(runs[0], c)) for c, runs in largest.items()}
    rows = []
    for c, runs in largest.items():
        of_slopes = _over_seeds(slopes.get(c))
        rows.append(
            [c, data_of(runs[0]).parity().visible_tasks(c), of_slopes, _over_seeds(dimensions.get(c)),
             _over_seeds(exponents[c]), _over_seeds(_products(exponents[c], dimensions.get(c)))]
        )  # fmt: skip
    count = len(next(iter(largest.values())))
    columns = ["context", "visible tasks", ("slope of ln distance", ".4f"), ("dimension d", ".2f"), ("α of the loss", ".3f"),
               ("c = α d", ".2f")]  # fmt: skip
    title = f"Distances to the nearest of D features, and loss above the lowest ~ samples^-α ({seeds_behind(count)})"
    outcome.tables += [table_of(title, columns, rows), _distances_table(distances)]
    outcome.claims += scaling_claims(dimensions, exponents)
    series = {f"{c} bits": points(_mean_distances(of_seeds)) for c, of_seeds in distances.items()}
    outcome.plots.append(
        Plot("Mean distance to the nearest feature", "features D", "distance", series, logarithmic="xy")
    )
    outcome.figures |= {"distances": distances, "dimensions": dimensions, "exponents": exponents}


def scaling_claims(
    dimensions: Mapping[int, Sequence[float]], exponents: Mapping[int, Sequence[float] | None]
) -> list[Claim]:
    """The claims of Section 2.3 on the contexts that have both a dimension and an exponent, seed by seed."""
    both = {
        c: (np.array(dimensions[c]), np.array(alphas)) for c, alphas in exponents.items() if alphas and c in dimensions
    }
    texts = (
        "the dimension by nearest distances grows with the context",
        "the exponent of the approximation loss falls with the context (Eq. 4)",
        f"α ≈ c/d: c is within {SPREAD:.0%} of its mean at every context",
    )
    if len(both) < 2:
        why = undecided("fewer than two contexts have both a dimension and an exponent")
        return [Claim.of(text, why) for text in texts]
    shortest, longest = min(both), max(both)
    (d_short, a_short), (d_long, a_long) = both[shortest], both[longest]
    more, less = mean_estimate(d_long - d_short), mean_estimate(a_long - a_short)
    products = {c: d * alphas for c, (d, alphas) in both.items()}
    center = float(np.mean(list(products.values())))
    relative = {c: mean_estimate(of_seeds / center) for c, of_seeds in products.items()}
    same = all_hold(within(each, 1 - SPREAD, 1 + SPREAD) for each in relative.values())
    between = f"{longest} minus {shortest} bits"
    spread = ", ".join(f"{c}: {each.value:.2f}" for c, each in relative.items())
    decided = ((above(more), f"{between}: {more:+.2f}"), (below(less), f"{between}: {less:+.3f}"),
               (same, f"mean {center:.2f}; over it {spread}"))  # fmt: skip
    return [Claim.of(text, *verdict) for text, verdict in zip(texts, decided, strict=True)]


@torch.no_grad()
def distances_of(run: Run) -> dict[int, float]:
    """Mean distances of a model's context features, by their number; empty where fewer than 100 of them differ."""
    model, samples = opened(run)
    input_ids = samples.batch(np.arange(MOST))["input_ids"]
    try:
        return nearest_distances(model.context_feature(input_ids.to(model.device)).cpu(), MOST)
    except DataError:
        return {}


def lowest_loss(run: Run, context: int) -> float:
    """The Bayes model's loss on the samples that a run is validated on, nats."""
    samples = Samples(data_of(run), VALIDATION_SEED, "validation")
    tasks = samples.draw(np.arange(data_of(run).validation_samples)).tasks
    return math.log(2) * float((samples.parity.larger[tasks] > context).mean())


def loss_exponents(
    losses: Mapping[tuple[int, int], Sequence[float]], context: int, lowest: float
) -> list[float] | None:
    """α of each seed: the approximation loss falls as samples^-α; None where a loss is not above the lowest."""
    sizes = sorted(size for size, c in losses if c == context)
    gaps = [np.array(losses[size, context]) - lowest for size in sizes]
    if min(map(np.min, gaps)) <= 0:
        return None
    x = {size: math.log(size) for size in sizes}
    return [
        -fit_line(x, dict(zip(sizes, np.log(of_seed).tolist(), strict=True))).slope.value
        for of_seed in zip(*gaps, strict=True)
    ]


def _products(alphas: Sequence[float] | None, dimensions: Sequence[float] | None) -> list[float] | None:
    return [a * d for a, d in zip(alphas, dimensions, strict=True)] if alphas and dimensions else None


def _over_seeds(values: Sequence[float] | None) -> Estimate | str:
    return mean_estimate(np.array(values)) if values else "none"


def _mean_distances(of_seeds: Sequence[Mapping[int, float]]) -> dict[int, Estimate]:
    """The means over seeds; the numbers of features that differ may do so slightly between seeds."""
    by_size = zip(*(sorted(own.items()) for own in of_seeds), strict=True)
    return {
        round(np.mean([count for count, _ in own])): mean_estimate(np.array([distance for _, distance in own]))
        for own in by_size
    }


def _distances_table(distances: Mapping[int, Sequence[Mapping[int, float]]]) -> Table:
    rows = [
        [context, count, distance]
        for context, of_seeds in distances.items()
        for count, distance in _mean_distances(of_seeds).items()
    ]
    columns = ["context", ("features D", ","), ("mean distance to the nearest", ".4f")]
    return table_of("Distances between context features of the models of most samples", columns, rows)
