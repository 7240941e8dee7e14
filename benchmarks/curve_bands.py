"""The bias of a curve's bands, and their cost: ``contextwise curve --mode bands`` against ``--mode truncated``.

A band's targets see between 7l/8 + 1 and l tokens, and its point stands at their mean. Here the same targets are predicted
alone, each with exactly that many tokens (rounded down), and the losses are compared, paired by document.
"""

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.intervals import ratio_difference
from contextwise.evaluation.kernel import Subject, open_documents
from contextwise.evaluation.measures.curve import BLOCKS
from contextwise.evaluation.scoring.truncated import Targets, choose_targets, power_of_two, truncated_passes


def losses(subject: Subject, corpus: Any, targets: Targets, context: int) -> tuple[np.ndarray, float]:
    """Losses of all targets, (N,), and the seconds that they took."""
    started = time.monotonic()
    passes = truncated_passes(subject.model, corpus, targets, [context], batch_tokens=subject.batch_tokens)
    nats_N = np.concatenate([batch.nats for batch in passes])
    return nats_N, time.monotonic() - started


def by_document(nats_N: np.ndarray, targets: Targets) -> np.ndarray:
    """Sums and counts of each document, (2, D)."""
    rows = np.unique(targets.document, return_inverse=True)[1]
    return np.array([np.bincount(rows, weights=nats_N), np.bincount(rows)], dtype=float)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="run folders, models, or names")
    parser.add_argument("--corpus", required=True, help="a prepared corpus, or a file of texts")
    parser.add_argument("--contexts", default="16,64,256,512", help="powers of two")
    parser.add_argument("--samples", type=int, default=384)
    options = parser.parse_args(arguments)
    contexts = [int(context) for context in options.contexts.split(",")]
    records = {}
    for source in options.models:
        subject = Subject(source)
        corpus = open_documents(subject, options.corpus, "validation")
        block = power_of_two(max(1, contexts[-1] // BLOCKS))
        targets = choose_targets(corpus, contexts[-1], options.samples, 0, block=block)
        whole = np.repeat(targets.position[::block] >= contexts[-1], block)  # the first of a block has its context, too
        targets = Targets(targets.document[whole], targets.position[whole], block)
        alone = Targets(targets.document, targets.position)
        for context in contexts:
            exact = context - targets.band(context) // 2
            bands_N, fast = losses(subject, corpus, targets, context)
            exact_N, slow = losses(subject, corpus, alone, exact)
            bias = ratio_difference(by_document(bands_N, targets), by_document(exact_N, targets))
            level = ratio_difference(by_document(exact_N, targets), by_document(0 * exact_N, targets))
            assert bias.low is not None and bias.high is not None and level.low is not None and level.high is not None
            counts = {
                "corpus": options.corpus.rpartition("/")[2],
                "targets": len(targets),
                "documents": len(np.unique(targets.document)),
            }
            records[f"{source}: {context}"] = {
                "exact_visible": exact,
                "loss": level.to_dict(),
                "bias": bias.to_dict(),
                "time_ratio": fast / slow,
                **counts,
            }
            print(
                f"{source}, {context} tokens: exact {level.value:.4f} [{level.low:.4f}, {level.high:.4f}]; bands minus exact "
                f"{bias.value:+.4f} [{bias.low:+.4f}, {bias.high:+.4f}]; {fast / slow:.3f} of the time"
            )
    publish("curve_bands", {"records": records}, records="records")


if __name__ == "__main__":
    main()
