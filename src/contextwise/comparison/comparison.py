"""Comparisons of models on the same documents: paired differences, and the cost of each model; curves by their context."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contextwise.base.errors import ConfigError, DataError, Problem
from contextwise.base.estimates import count, exponential, listed
from contextwise.base.intervals import estimate, per_seed
from contextwise.comparison.compared_runs import (
    ComparedRun,
    evaluate_all,
    groups_of,
    is_single_run,
    note_on_precisions,
    open_compared,
    other_tokenizer,
)
from contextwise.comparison.curves import CurveComparison, are_curves, compare_curves, open_curves
from contextwise.comparison.decided import RESULT
from contextwise.comparison.result import UNITS, Comparison, Difference, Group
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Subject, measures
from contextwise.evaluation.measures.loss import Evaluation


def compare_sources(
    sources: Sequence[str | Subject],
    corpus: Corpus | str | Path | None = None,
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
    :func:`compare`.
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
        results = evaluate_all(sources, corpus, split or "validation", unit, limit=limit)
    compared = [
        each if isinstance(each, str) else str(results[i].path) if results and each.loaded else each.source
        for i, each in enumerate(sources)
    ]
    return compare(
        compared, label=label, results=results, names=names, reference=reference, all_pairs=all_pairs, unit=unit
    )


def compare(
    sources: list[str],
    *,
    label: str | None = None,
    results: Sequence[Evaluation] | None = None,
    names: Sequence[str] | None = None,
    reference: str | None = None,
    all_pairs: bool = False,
    unit: Literal["token", "byte"] = "token",
) -> Comparison:
    """Compare evaluated runs and models on the same documents.

    Args:
        sources: run folders, evaluation folders, or models that were evaluated.
        label: which evaluation of them (``CORPUS-SPLIT``); needed only where there are several.
        results: the evaluations, if they are known, in the order of the sources.
        names: of the sources, in place of those of their recipes or folders; runs with different names are different groups.
        reference: name of the group that the others are compared to; by default the first.
        all_pairs: compare every pair of groups, not only each with the reference.
        unit: ``token`` (nats per token), or ``byte`` (bits per byte), which also holds across tokenizers.
    """
    if unit not in UNITS:
        raise ConfigError(Problem(f"but must be one of {', '.join(UNITS)}", "unit", unit))
    if len(sources) < 2:
        raise ConfigError("a comparison needs two runs or more; name them one after the other")
    runs = open_compared(sources, label, results, names)
    groups = groups_of(runs)
    names = list(groups)
    reference = reference if reference is not None else names[0]
    if reference not in groups:
        raise ConfigError(f"reference is {reference!r}, which is none of the groups: {', '.join(names)}")
    notes = _check_same_data(runs, unit)
    rows = _rows(runs, unit)
    sizes_N = _sizes(runs, rows, unit)
    sums = {name: _sums(group, rows, unit) for name, group in groups.items()}
    others = [name for name in names if name != reference]
    pairs = [(name, reference) for name in others]
    if all_pairs:
        pairs += [(later, earlier) for earlier, later in combinations(others, 2)]
    differences = [_difference(a, b, groups, sums, sizes_N, UNITS[unit]) for a, b in pairs]
    first = runs[0].evaluation.summary
    measured = [_group(name, group, rows) for name, group in groups.items()]
    notes += [
        *_notes_on_seen(groups),
        *_note_on_compute(measured),
        *note_on_precisions({name: _precisions(group) for name, group in groups.items()}),
        *_note_on_lost_texts(runs),
        *_notes_on_scoring(groups),
        *_notes_on_seeds(groups, differences),
        *_notes_on_trials(runs),
    ]
    return Comparison(
        corpus=first["corpus"],
        documents=len(sizes_N),
        tokens=int(runs[0].evaluation.documents["tokens"].to_numpy()[rows[runs[0].source]].sum()),
        unit=UNITS[unit],
        reference=reference,
        groups=measured,
        differences=differences,
        notes=notes,
    )


def _group(name: str, runs: list[ComparedRun], rows: dict[str, np.ndarray]) -> Group:
    table = runs[0].evaluation.documents.take(rows[runs[0].source])
    nats = _sums(runs, rows, "token")
    tokens = table["tokens"].to_numpy()
    loss = estimate([nats], tokens)
    known, n_bytes = table["bytes"].is_valid().to_numpy(), table["bytes"].drop_null().to_numpy()
    per_byte = estimate([nats[:, known] / math.log(2)], n_bytes) if n_bytes.sum() else None

    summaries = [compared.summary for compared in runs]

    def mean(values: list[Any]) -> float | None:
        return None if any(value is None for value in values) else float(np.mean(values))

    return Group(
        name=name,
        sources=[compared.source for compared in runs],
        seeds=[compared.seed for compared in runs],
        runs=[compared.run for compared in runs if compared.run is not None],
        parameters=int(runs[0].evaluation.summary["parameters"]),
        loss=loss,
        losses=per_seed(nats, tokens).tolist(),
        perplexity=loss.map(exponential),
        bits_per_byte=per_byte,
        training_tokens=mean([each.get("tokens") for each in summaries]),
        training_seconds=mean([each.get("seconds") for each in summaries]),
        flops_per_token=mean(
            [each["flops"] / each["tokens"] if each.get("flops") and each.get("tokens") else None for each in summaries]
        ),
    )


def _difference(
    name: str,
    reference: str,
    groups: dict[str, list[ComparedRun]],
    sums: dict[str, np.ndarray],
    sizes_N: np.ndarray,
    unit: str,
) -> Difference:
    a, b = sums[name], sums[reference]
    seeds = [compared.seed for compared in groups[name]]
    paired = None not in seeds and seeds == [compared.seed for compared in groups[reference]]
    blocks = [a - b] if paired else [a, -b]
    by_seed = per_seed(blocks[0], sizes_N).tolist() if paired else []
    difference_N = a.mean(axis=0) - b.mean(axis=0)
    return Difference(
        group=name,
        reference=reference,
        unit=unit,
        difference=estimate(blocks, sizes_N),
        paired_by_seed=paired,
        seed_differences={str(seed): value for seed, value in zip(seeds, by_seed, strict=False)},
        documents_lower=float((difference_N[sizes_N > 0] < 0).mean()),
        single_runs=[each for each in (name, reference) if is_single_run([run.seed for run in groups[each]])],
    )


def _sums(runs: list[ComparedRun], rows: dict[str, np.ndarray], unit: str) -> np.ndarray:
    """(seeds, documents) nats of each document, or bits where the unit is the byte."""
    nats = np.stack([each.evaluation.documents["nats"].to_numpy()[rows[each.source]] for each in runs])
    return nats / math.log(2) if unit == "byte" else nats


def _sizes(runs: list[ComparedRun], rows: dict[str, np.ndarray], unit: str) -> np.ndarray:
    """(documents,) tokens or bytes of each document, which must be the same for all."""
    column = "tokens" if unit == "token" else "bytes"
    first, *others = (each.evaluation.documents[column].to_numpy()[rows[each.source]] for each in runs)
    for compared, other in zip(runs[1:], others, strict=True):
        if not np.array_equal(first, other):
            raise DataError(f"{runs[0].source} and {compared.source} were not scored on the same {column}")
    return first.astype(np.float64)


def _rows(runs: list[ComparedRun], unit: str) -> dict[str, np.ndarray]:
    """Rows of each run's table of documents in an order that all share; in bytes, of the documents whose bytes all know."""
    rows = {each.source: np.arange(each.evaluation.documents.num_rows) for each in runs}
    if unit != "byte":
        return rows
    known = []
    for each in runs:
        documents = each.evaluation.documents
        if not documents["document_hash"].null_count:
            hashes = documents["document_hash"].to_numpy(zero_copy_only=False)
            rows[each.source] = np.argsort(hashes, kind="stable")
        known.append(documents["bytes"].is_valid().to_numpy()[rows[each.source]])
        if not known[-1].any():
            why = "on a corpus that does not know its documents' bytes"
            if each.evaluation.summary.get("lost_texts"):
                why = "with a tokenizer that loses text, so that the tokens of no document hold all of its bytes"
            raise DataError(f"{each.source} was evaluated {why}; compare in nats per token (unit token)")
    together = np.logical_and.reduce(known)
    if not together.any():
        raise DataError(
            f"there is no document whose text the tokens of all of {listed([each.source for each in runs])} hold, since their "
            "tokenizers lose text; prepare the corpora with tokenizers that hold it, such as train:N"
        )
    return {source: order[together] for source, order in rows.items()}


def _check_same_data(runs: list[ComparedRun], unit: str) -> list[str]:
    """Raise DataError for evaluations that cannot be compared; return notes on settings that differ."""
    first, notes = runs[0], []
    base = first.evaluation.summary
    for compared in runs[1:]:
        other = compared.evaluation.summary
        pair = f"{first.source} and {compared.source}"
        ours, theirs = (measures()[each.evaluation.measure].scored for each in (first, compared))
        mixed = ours != theirs
        if mixed and unit == "token":
            raise DataError(
                f"of {first.source} {ours} were scored, and of {compared.source} {theirs}, which are other text to predict; "
                "compare them in bits per byte (`unit` byte), or evaluate both with one measure"
            )
        same_text = _hashes(first) is not None and _hashes(first) == _hashes(compared)
        here, there = base["corpus"], other["corpus"]
        same_corpus = here["fingerprint"] == there["fingerprint"]
        if not same_corpus and unit == "token" and here["tokenizer_hash"] != there["tokenizer_hash"]:
            raise other_tokenizer(pair) if same_text else other_tokenizer(pair, "use one tokenizer for both")
        if same_corpus and base["documents"] != other["documents"]:
            raise DataError(
                f"{pair} were evaluated on {base['documents']} and {other['documents']} documents; "
                "evaluate both with the same limit"
            )
        if not same_corpus and not (same_text and unit == "byte"):
            raise DataError(
                f"{pair} were evaluated on different documents ({here['path']} and {there['path']}); "
                "evaluate both on one corpus with contextwise evaluate"
            )
        if mixed:
            continue
        values = [
            f"{key} {a} and {b}"
            for key in dict.fromkeys([*_compared(first), *_compared(compared), "dtype"])
            if (a := _setting(base, key)) != (b := _setting(other, key))
        ]
        same_columns = same_corpus and _setting(base, "contexts") == _setting(other, "contexts")
        if same_columns and not values and here.get("metadata") != there.get("metadata"):
            values = ["the metadata have changed in between"]
        if values:
            notes.append(
                f"{pair} were scored with different settings ({', '.join(values)}); part of a difference may be theirs."
            )
    return notes


def _compared(run: ComparedRun) -> tuple[str, ...]:
    return measures()[run.evaluation.measure].compared


def _setting(summary: dict[str, Any], name: str) -> Any:
    return {**summary, **summary["settings"]}.get(name)


def _hashes(compared: ComparedRun) -> list[str] | None:
    column = compared.evaluation.documents["document_hash"]
    return None if column.null_count else sorted(column.to_pylist())


def _note_on_lost_texts(runs: list[ComparedRun]) -> list[str]:
    """Note on documents that bits per byte leave out, as their tokens do not hold their whole text."""
    notes = []
    for each in runs:
        lost, documents = each.evaluation.summary.get("lost_texts"), each.evaluation.summary["documents"]
        if lost:
            notes.append(
                f"Bits per byte leave out {lost:,} of {documents:,} documents, whose tokens do not decode to their text: the "
                f"tokenizer of {each.evaluation.summary['corpus']['path']} loses some."
            )
    return list(dict.fromkeys(notes))


def _precisions(runs: list[ComparedRun]) -> set[str]:
    return {each.summary["precision"] for each in runs if "precision" in each.summary}


def _note_on_compute(groups: list[Group]) -> list[str]:
    """Note on groups of which one had half as many training tokens again as another, or else 5% more training FLOPs."""
    tokens = {group.name: group.training_tokens for group in groups if group.training_tokens}
    flops = {group.name: (group.training_tokens or 0) * (group.flops_per_token or 0) for group in groups}
    if tokens and max(tokens.values()) >= 1.5 * min(tokens.values()):
        each = listed([f"{name} on {count(int(number))}" for name, number in tokens.items()])
        return [f"They were trained on different numbers of tokens: {each}."]
    if all(flops.values()) and max(flops.values()) > 1.05 * min(flops.values()):
        each = listed([f"{name} with {spent:.3g}" for name, spent in flops.items()])
        return [f"They were trained with different FLOPs: {each}. A trial compares at equal compute."]
    return []


def _notes_on_seen(groups: dict[str, list[ComparedRun]]) -> list[str]:
    """What results say of documents that their runs were trained on, with the groups of which each says the same."""
    seen: dict[str, list[str]] = {}
    for name, runs in groups.items():
        for words in dict.fromkeys(run.evaluation.summary.get("seen") for run in runs):
            seen.setdefault(words or "", []).append(name)
    return [f"{listed(names)}: {words}." for words, names in seen.items() if words]


def _notes_on_scoring(groups: dict[str, list[ComparedRun]]) -> list[str]:
    """What measures say of how they scored, with the groups of which each says the same."""
    remarks: dict[str, list[str]] = {}
    for name, runs in groups.items():
        evaluation = runs[0].evaluation
        remarks.setdefault(measures()[evaluation.measure].remark(evaluation.summary), []).append(name)
    said = ((listed(names), len(names) == 1, remark) for remark, names in remarks.items() if remark)
    return [f"{names} {'is' if one else 'are'} {remark}" for names, one, remark in said]


def _notes_on_trials(runs: list[ComparedRun]) -> list[str]:
    """A note where runs are of a trial, which has an answer of its own."""
    folders = dict.fromkeys(each.run.path.parent.parent for each in runs if each.run is not None)
    trials = [str(folder) for folder in folders if (folder / RESULT).is_file()]
    if not trials:
        return []
    return [
        f"These runs are of the trial {listed(trials)}. Its own answer (report.html there) stays valid although one looked at "
        "it after each seed, and leaves out the documents of the search for rates. The intervals here do neither."
    ]


def _notes_on_seeds(groups: dict[str, list[ComparedRun]], differences: list[Difference]) -> list[str]:
    several = [name for name, group in groups.items() if len(group) > 1]
    notes = [
        f"{difference.group} and {difference.reference} have different seeds, so they are not paired by seed."
        for difference in differences
        if not difference.paired_by_seed and {difference.group, difference.reference} & set(several)
    ]
    if single := [name for name, group in groups.items() if is_single_run([each.seed for each in group])]:
        notes.insert(
            0,
            f"One seed of {', '.join(single)}: the intervals say how much the loss varies from document to document"
            + f" and over the seeds of {', '.join(several)}" * bool(several)
            + ", not what another seed would have given.",
        )
    if given := [name for name, group in groups.items() if [each.seed for each in group] == [None]]:
        notes.append(
            f"{listed(given)} {'is' if len(given) == 1 else 'are'} compared as given: the intervals are over documents, and "
            "say nothing about how another training would end. Several seeds of an own training script: contextwise decide."
        )
    if len(differences) > 1:
        notes.append(
            f"The {len(differences)} intervals are of 95% each, without the correction for their number that a trial has."
        )
    return notes
