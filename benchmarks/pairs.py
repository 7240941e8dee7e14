"""AUC of classifiers of the label of pairs of segments, by features, on pairs that they have not seen.

``python -m benchmarks.pairs --corpus corpora/code --contexts 64 256`` draws pairs of ``sentence_order`` and ``next_sentence``
from a corpus, divides them into three parts, and tests on each a classifier that was trained on the others. 0.5 is chance. For
sentence order the parts are of documents, as the order of a known text is known; for next sentences they are of pairs, since
each segment is once in an epoch. Single tokens and vocabularies are read by logistic regression, numbers by boosted trees.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold

from benchmarks.harness import publish
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.intervals import NORMAL, plus_minus
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal
from contextwise.data import Corpus
from contextwise.objectives import Cut, Vocabulary, add_special_tokens, build_objective
from contextwise.objectives.objective import generator

OBJECTIVES = ("sentence_order", "next_sentence")
PARTS = 3


def drawn(
    corpus: Corpus, name: str, context: int, count: int
) -> tuple[list[Any], list[Any], np.ndarray, np.ndarray, Any]:
    """Segments A and B of pairs of the first epochs, their labels and groups, and the tokenizer."""
    tokenizer, objective = corpus.tokenizer(), build_objective(name)
    assert tokenizer is not None
    add_special_tokens(tokenizer, objective.special_tokens)
    examples: Any = objective.examples(corpus, Cut(context), 0, Vocabulary(tokenizer, corpus.end_of_text))
    first: list[Any] = []
    second: list[Any] = []
    labels: list[int] = []
    groups: list[int] = []
    epoch = 0
    while len(labels) < count:
        chosen = np.random.default_rng(epoch).permutation(examples.count(epoch))[: count - len(labels)]
        for index in chosen.tolist():
            a, b, label = examples.pair(index, generator(0, epoch, index, name))
            first.append(a)
            second.append(b)
            labels.append(label)
            groups.append(examples.chunks[index, 0] if name == "sentence_order" else len(groups))
        epoch += 1
    return first, second, np.array(labels), np.array(groups), tokenizer


def features_of(first: list[Any], second: list[Any], tokenizer: Any) -> dict[str, Any]:
    """Name -> features of each pair, a matrix; a sparse one has one column for each token."""
    pieces = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    blank, stop = np.array([p.isspace() for p in pieces]), np.array([any(c in p for c in ".!?") for p in pieces])
    spaced = np.array([p[:1].isspace() for p in pieces])

    def numbers(ids: np.ndarray) -> list[float]:
        counts = blank[ids].sum(), stop[ids].sum(), len(np.unique(ids))
        return [*counts, spaced[ids[0]], blank[ids[-1]], stop[ids[-1]]]

    def one(ids: list[int]) -> Any:
        return sparse.csr_matrix((np.ones(len(ids)), (np.arange(len(ids)), ids)), shape=(len(ids), len(pieces)))

    def bag(segments: list[Any]) -> Any:
        rows = np.repeat(np.arange(len(segments)), [len(ids) for ids in segments])
        ones = sparse.csr_matrix(
            (np.ones(len(rows)), (rows, np.concatenate(segments))), shape=(len(segments), len(pieces))
        )
        ones.data[:] = 1
        return ones

    lengths = np.array([(len(a), len(b), len(a) - len(b)) for a, b in zip(first, second, strict=True)])
    counted = np.array([[*numbers(a), *numbers(b)] for a, b in zip(first, second, strict=True)], dtype=float)
    return {
        "lengths": lengths,
        "white space, sentence ends, different tokens": counted,
        "last token of A and first token of B": sparse.hstack(
            [one([a[-1] for a in first]), one([b[0] for b in second])]
        ),
        "first token of A": one([a[0] for a in first]),
        "first token of B": one([b[0] for b in second]),
        "vocabulary of A": bag(first),
        "vocabulary of B": bag(second),
    }


def auc(features: Any, labels: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Area under the ROC curve of pairs whose group was not trained on, and its standard error at chance."""
    classifier: Any = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    if sparse.issparse(features):
        classifier, features = LogisticRegression(C=0.1, solver="liblinear"), features.tocsr()
    areas, weights = [], []
    for train, test in GroupKFold(PARTS, shuffle=True, random_state=0).split(labels, groups=groups):
        classifier.fit(features[train], labels[train])
        areas.append(roc_auc_score(labels[test], classifier.predict_proba(features[test])[:, 1]))
        true, false = (labels[test] == 0).sum(), (labels[test] == 1).sum()
        weights.append(12 * true * false / (true + false + 1))
    return float(np.average(areas, weights=weights)), float(np.sum(weights) ** -0.5)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of the corpus, from its start")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--pairs", type=int, default=5000)
    options = parser.parse_args(arguments)
    corpus = Corpus.open(options.corpus).first(options.tokens)
    measured: dict[str, dict[str, Estimate]] = {}
    for name in OBJECTIVES:
        for context in options.contexts:
            first, second, labels, groups, tokenizer = drawn(corpus, name, context, options.pairs)
            column = measured[f"{name}, {context}"] = {}
            for feature, values in features_of(first, second, tokenizer).items():
                area, error = auc(values, labels, groups)
                column[feature] = plus_minus(area, NORMAL * error, method="normal")
    rows: list[list[Any]] = [
        [feature, *(column[feature].value for column in measured.values())] for feature in next(iter(measured.values()))
    ]
    widest = max(area.limits[1] - area.value for column in measured.values() for area in column.values())
    title = f"AUC of the label, {options.pairs:,} pairs; at chance 95% of them are within {widest:.2f} of 0.5"
    console.print(
        terminal(Table(title, ["features", *(Column(name.replace("_", " "), form=".2f") for name in measured)], rows))
    )
    about = {"corpus": corpus.fingerprint, "tokens": options.tokens, "pairs": options.pairs}
    publish("pairs", {"corpora": {options.corpus.name: {**about, "auc": as_json(measured)}}}, records="corpora")


if __name__ == "__main__":
    main()
