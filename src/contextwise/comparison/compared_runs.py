"""Runs and models that take part in a comparison, and which of them are the same recipe with other seeds."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import read_json
from contextwise.base.runs import KEPT_OUT_OF_COMPARISON, RunFolder
from contextwise.data import Corpus
from contextwise.evaluation.measures.loss import column_or_none, default_destination, evaluate_model, label
from contextwise.evaluation.measures.sentences.conditioning import is_cue
from contextwise.evaluation.measures.sentences.running import evaluate_sentences, sentence_label
from contextwise.evaluation.results import Evaluation, is_evaluation
from contextwise.training.recipe import with_newer_settings

_SEED_SUFFIX = re.compile(r"[-_. ]?s(eed)?[-_. ]?\d+$")


@dataclass(frozen=True)
class Member:
    """One evaluated model: a run, or a model that somebody else trained.

    Attributes:
        source: as the user gave it.
        name: of the group, before clashes are resolved: the recipe's name without a seed at its end.
        key: members with the same key differ by their seed only.
        run: the run folder; None for a model that is no run.
        summary: the run's ``summary.json``; empty if there is none.
    """

    source: str
    name: str
    key: str
    seed: int | None
    evaluation: Evaluation
    run: RunFolder | None
    summary: dict[str, Any] = field(default_factory=dict)

    def column(self, name: str) -> np.ndarray | None:
        """A column of the documents' table; None if the corpus did not know its values."""
        return column_or_none(self.evaluation.documents, name)

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return int(self.evaluation.summary["parameters"])

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds per generated token, if the run's ``evaluation/generation.json`` has them."""
        file = self.run.evaluation / "generation.json" if self.run else None
        return (
            read_json(file, "the timing of generation")["ms_per_token"] if file and file.is_file() else None
        )


def open_members(sources: list[str], wanted: str | None) -> list[Member]:
    """Open the evaluations of runs, models or evaluation folders.

    Args:
        wanted: label of the evaluation to take (``CORPUS-SPLIT``); by default the only one that all of them
            have.

    Raises:
        ConfigError: nothing to compare, a source given twice, or several labels to choose from.
        DataError: a source has no evaluation (the message has the command that makes one).
    """
    repeated = [
        source for source, count in Counter(str(Path(s).resolve()) for s in sources).items() if count > 1
    ]
    if repeated:
        raise ConfigError(f"{repeated[0]} is given twice; name each run once")
    chosen = wanted or _common_label([source for source in sources if not is_evaluation(Path(source))])
    return [_open(source, chosen) for source in sources]


def evaluate_missing(sources: list[str], corpus: Corpus, **options: Any) -> str:
    """Evaluate on ``corpus`` the runs and models that lack that evaluation; returns the evaluation's label.

    A CUE model can be scored sentence by sentence only; where there is one, the others are scored so too.

    Args:
        options: passed to :func:`~contextwise.evaluation.measures.loss.evaluate_model`, or
            :func:`~contextwise.evaluation.measures.sentences.evaluate_sentences`.
    """
    by_sentence = any(
        not _is_evaluated(source, label(corpus), corpus.fingerprint) and is_cue(source) for source in sources
    )
    name = sentence_label(corpus) if by_sentence else label(corpus)
    evaluate = evaluate_sentences if by_sentence else evaluate_model
    for source in sources:
        if not _is_evaluated(source, name, corpus.fingerprint):
            evaluate(source, corpus, **options)
    return name


def groups_of(members: list[Member]) -> dict[str, list[Member]]:
    """Group members that differ only by their seed: groups in the order given, members by seed.

    Raises:
        ConfigError: two runs of one recipe have the same seed.
    """
    by_key: dict[str, list[Member]] = {}
    for member in members:
        by_key.setdefault(member.key, []).append(member)
    names = Counter(group[0].name for group in by_key.values())
    groups = {}
    for group in by_key.values():
        group.sort(key=lambda member: (member.seed is None, member.seed or 0))
        seeds = Counter(member.seed for member in group)
        if max(seeds.values()) > 1:
            twice = [member.source for member in group if seeds[member.seed] > 1]
            raise ConfigError(
                f"{twice[0]} and {twice[1]} are the same recipe with the same seed; compare one of them"
            )
        first = group[0]
        groups[first.name if names[first.name] == 1 else f"{first.name} ({Path(first.source).name})"] = group
    if len(groups) < len(by_key):
        raise ConfigError(
            "two of the runs have the same name and lie in folders of the same name; rename one folder"
        )
    return groups


def _is_evaluated(source: str, name: str, fingerprint: str) -> bool:
    """Whether a source is an evaluation itself, or has the one of this label on this data."""
    return is_evaluation(Path(source)) or _is_of(default_destination(source, name), fingerprint)


def _is_of(place: Path, fingerprint: str) -> bool:
    return is_evaluation(place) and Evaluation.open(place).summary["corpus"]["fingerprint"] == fingerprint


def _labels(source: str) -> set[str]:
    folder = default_destination(source, "x").parent
    return {place.name for place in folder.iterdir() if is_evaluation(place)} if folder.is_dir() else set()


def _common_label(sources: list[str]) -> str:
    """The one label that all sources have an evaluation of."""
    if not sources:
        return ""
    found = {source: _labels(source) for source in sources}
    for source, labels in found.items():
        if not labels:
            raise _unevaluated(source, "CORPUS")
    common = set.intersection(*found.values())
    if len(common) == 1:
        return common.pop()
    if common:
        raise ConfigError(f"the runs are evaluated on {', '.join(sorted(common))}; choose one with --label")
    each = "; ".join(f"{source} on {', '.join(sorted(labels))}" for source, labels in found.items())
    raise DataError(f"the runs are not evaluated on the same corpus ({each}); give one with --corpus")


def _unevaluated(source: str, corpus: str) -> DataError:
    if not Path(source).exists():
        return DataError(
            f"there is no run at {source}, and no evaluation of a model of that name; check it, or run: "
            f"contextwise evaluate {source} --corpus {corpus}"
        )
    return DataError(
        f"{source} has no such evaluation yet; run: contextwise evaluate {source} --corpus {corpus}"
    )


def _open(source: str, wanted: str) -> Member:
    path = Path(source)
    place = path if is_evaluation(path) else default_destination(source, wanted)
    if not is_evaluation(place):
        raise _unevaluated(source, "CORPUS" if not wanted else f"CORPUS (for {wanted})")
    evaluation = Evaluation.open(place)
    run = next((RunFolder(p) for p in (path, place.parent.parent) if (p / "recipe.yaml").is_file()), None)
    condition = evaluation.summary.get(
        "condition"
    )  # one model with several sets of contexts is several members
    if run is None:
        name, key = Path(evaluation.summary["model"]).name, f"model {evaluation.summary['model']} {condition}"
        return Member(source, _with_condition(name, condition), key, None, evaluation, None)
    recipe, summary = run.recipe(), run.summary() if run.finished else {}
    name = _SEED_SUFFIX.sub("", str(recipe.get("name") or run.path.resolve().name))
    same = _without({**with_newer_settings(recipe), "name": name}, KEPT_OUT_OF_COMPARISON | {"seed"})
    start = same.get("model", {}).get("pretrained")
    if start is not None:  # runs that go on from one model's seeds are seeds of one recipe
        same["model"]["pretrained"] = _SEED_SUFFIX.sub("", str(start))
    key = json.dumps(
        [same, summary.get("corpus", {}).get("fingerprint"), condition], sort_keys=True, default=str
    )
    name = _with_condition(name, condition)
    return Member(source, name, key, recipe.get("seed"), evaluation, run, summary)


def _with_condition(name: str, condition: str | None) -> str:
    return name if condition is None else f"{name} ({condition})"


def _without(settings: dict[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    """A copy of nested settings without some dotted keys."""
    kept = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if name not in keys:
            kept[key] = _without(value, keys, f"{name}.") if isinstance(value, dict) else value
    return kept
