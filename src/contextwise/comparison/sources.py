"""Comparison of whatever a user names: runs, models and evaluations by their losses, curves by their context."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from contextwise.base.errors import ConfigError
from contextwise.comparison.comparison import compare
from contextwise.comparison.curves import CurveComparison, are_curves, compare_curves, open_curves
from contextwise.comparison.result import Comparison

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.evaluation.kernel import Subject


def compare_sources(
    sources: "Sequence[str | Subject]",
    corpus: "Corpus | str | Path | None" = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    label: str | None = None,
    reference: str | None = None,
    all_pairs: bool = False,
    unit: Literal["token", "byte"] = "token",
    names: list[str] | None = None,
    curves: bool = False,
) -> Comparison | CurveComparison:
    """Compare context curves if they are asked for or one source is a curve's folder; else losses, after evaluations on
    ``corpus`` of the sources that lack one, of its first ``limit`` documents. The other arguments are those of
    :func:`contextwise.comparison.comparison.compare`.
    """
    paths = [each for each in sources if isinstance(each, str)]
    if curves or are_curves(paths):
        others = {"corpus": corpus, "split": split, "limit": limit, "label": label, "reference": reference}
        given = {name: value is not None for name, value in others.items()}
        return compare_curves(open_curves(paths, **given, all_pairs=all_pairs, unit=unit != "token"), names)
    if corpus is not None and label is not None:
        raise ConfigError("label and `corpus` both choose the evaluation; give one of them")
    if corpus is None and limit is not None:
        raise ConfigError("limit says how much of the corpus is read; give that too")
    results = None
    if corpus is not None:
        from contextwise.comparison.compared_runs import evaluate_all

        results = evaluate_all(sources, corpus, split or "validation", unit, limit=limit)
    compared = [
        each if isinstance(each, str) else str(results[i].path) if results and each.loaded else each.source
        for i, each in enumerate(sources)
    ]
    return compare(
        compared, label=label, results=results, names=names, reference=reference, all_pairs=all_pairs, unit=unit
    )
