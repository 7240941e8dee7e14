"""Runs and models that take part in a comparison, and which of them are the same recipe with other seeds."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from contextwise.base.config import validate, with_overrides
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import counted, listed
from contextwise.base.hashes import content_key
from contextwise.base.runs import RunFolder, comparable
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Result, Subject, is_result, measure, measures, open_documents
from contextwise.evaluation.kernel.subject import results_of_model
from contextwise.evaluation.measures.loss import Evaluation, Loss
from contextwise.training.recipe import AnyModel

_SEED_SUFFIX = re.compile(r"(^|[-_. ]|(?<=/))s(eed)?[-_. ]?\d+$")
_HELD_OUT = re.compile(r"(\w*loss)(: .*)?|.* of the validation split")
"""Names of the fingerprints of documents that a run is not trained on."""
_MODEL: TypeAdapter[Any] = TypeAdapter(AnyModel)


@dataclass(frozen=True)
class ComparedRun:
    """One evaluated model: a run, which may be one of several seeds of a recipe, or another model."""

    source: str
    name: str  # of the group, before clashes are resolved: the recipe's name without a seed at its end
    key: str  # runs with the same key differ by their seed only
    seed: int | None
    evaluation: Evaluation
    run: RunFolder | None  # None for a model that is no run
    summary: dict[str, Any] = field(default_factory=dict)  # the run's


def measures_of_loss() -> list[str]:
    """Names of the measures of the loss on documents, whose results can be compared."""
    return [name for name, each in measures().items() if issubclass(each.result, Evaluation)]


def note_on_precisions(precisions: dict[str, set[str]]) -> list[str]:
    """A note where runs were trained in different precisions, as ``training.precision: auto`` is on other machines."""
    if len(set().union(*precisions.values())) < 2:
        return []
    each = listed([f"{name} in {listed(sorted(of))}" for name, of in precisions.items() if of])
    return [f"They were trained in different precisions, of which a part of a difference may be: {each}."]


def other_tokenizer(pair: str, offer: str = "compare them in bits per byte (`unit` byte)") -> DataError:
    """The refusal of losses per token of two tokenizers."""
    return DataError(f"{pair} have different tokenizers, so their losses per token are not comparable; {offer}")


def evaluate_all(
    sources: Sequence[str | Path | Subject],
    corpus: Corpus | str | Path,
    split: str = "validation",
    unit: str | None = None,
    **settings: Any,
) -> list[Evaluation]:
    """Evaluate runs and models on one corpus; evaluations that were made before are found again.

    If one of them needs a measure of its own, all are measured with that. Texts that several tokenizers read are refused
    if they will be compared in the ``unit`` token.
    """
    if done := [each for each in sources if not isinstance(each, Subject) and is_result(each)]:
        raise ConfigError(
            f"{done[0]} is an evaluation already; give its model, or compare evaluations without a corpus"
        )
    refuse_repeated([source.source if isinstance(source, Subject) else source for source in sources])
    subjects = [source if isinstance(source, Subject) else Subject(source) for source in sources]
    documents = [corpus if isinstance(corpus, Corpus) else open_documents(each, corpus, split) for each in subjects]
    from contextwise.models.tokenizers import corpus_tokenizer_hash, model_tokenizer_hash

    if len({read.path for read in documents}) == 1:  # prepared with one tokenizer
        made_of = [None if subject.loaded else model_tokenizer_hash(subject.source) for subject in subjects]
        for subject, one in zip(subjects, made_of, strict=True):
            if None not in (one, made_of[0]) and one != made_of[0]:
                offer = "give the texts themselves as the corpus, and compare bits per byte (`unit` byte)"
                raise other_tokenizer(f"{subjects[0].source} and {subject.source}", offer)
    for subject, read in zip(subjects, documents, strict=True):
        if unit == "token" and corpus_tokenizer_hash(read.path) != corpus_tokenizer_hash(documents[0].path):
            raise other_tokenizer(f"{subjects[0].source} and {subject.source}")
    own = [name for subject in subjects if (name := subject.spec.loss_measure) != Loss.name]
    given = {name: value for name, value in settings.items() if value is not None}  # which another measure may lack
    how = validate(measures()[own[0]] if own else Loss, given, "the evaluation")
    return [measure(subject, how, own) for subject, own in zip(subjects, documents, strict=True)]


def refuse_repeated(sources: Sequence[str | Path]) -> None:
    """Raise a ConfigError for a source that is given twice."""
    counts = Counter(str(Path(source).resolve()) for source in sources)
    if repeated := [source for source, count in counts.items() if count > 1]:
        raise ConfigError(f"{repeated[0]} is given twice; name each run once")


def open_compared(
    sources: Sequence[str],
    label: str | None = None,
    results: Sequence[Evaluation] | None = None,
    names: Sequence[str] | None = None,
) -> list[ComparedRun]:
    """Open the evaluations of runs and models; arguments as for :func:`~contextwise.comparison.comparison.compare`."""
    refuse_repeated(sources)
    chosen = results or _common(sources, label)
    compared = [_compared(source, result) for source, result in zip(sources, chosen, strict=True)]
    if names is None:
        return compared
    # Runs with different names are different groups, even if they differ by their seed only.
    named = zip(compared, names, strict=True)
    return [replace(each, name=name, key=f"{name} {each.key}") for each, name in named]


def _common(sources: Sequence[str], label: str | None) -> list[Evaluation]:
    """The evaluation of each source that answers the same question as those of the others."""
    candidates = []
    for source in sources:
        candidates.append([each for each in _evaluations(source) if label in (None, each.summary["label"])])
        if not candidates[-1]:
            run = RunFolder(source)
            corpus = str(run.recipe().get("data", {}).get("corpus") or "CORPUS") if run.exists else "CORPUS"
            raise DataError(
                f"{source} has no {'such ' if label else ''}evaluation yet; run: contextwise evaluate {source} --corpus "
                f"{f'CORPUS (for {label})' if label else f'{corpus}, or give compare --corpus {corpus}'}"
            )
    given = [each[0] if is_result(source) else None for source, each in zip(sources, candidates, strict=True)]
    searched = [each for each, one in zip(candidates, given, strict=True) if one is None]
    if not searched:
        return [each[0] for each in candidates]
    # All have the same settings as given (such as each model's own context), or else they resolve to the same values.
    for question in (lambda result: str(result.summary["question"]), _resolved_settings):
        common = set.intersection(*({question(result) for result in each} for each in searched))
        if any(given) and len(common) > 1:
            common &= {question(result) for result in given if result}
        if common:
            break
    if len(common) == 1:
        return [
            one or next(each for each in results if question(each) in common)
            for one, results in zip(given, candidates, strict=True)
        ]
    shared = [each for each in searched[0] if question(each) in common] or [
        each for some in candidates for each in some
    ]
    known = told_apart(shared)
    if common:
        raise ConfigError(
            f"the runs have several evaluations in common ({known}); choose one with `label`, or give their folders"
        )
    raise DataError(
        f"the runs are not evaluated on the same corpus with the same settings ({known}); give one with `corpus`, or, of "
        "models with other tokenizers, the folders of their evaluations of the same documents"
    )


def told_apart(results: Sequence[Result]) -> str:
    """The folders of some results, with the settings in which they differ."""
    settings = [{"corpus": each.summary.get("label"), **each.summary["settings"]} for each in results]
    names = dict.fromkeys(name for each in settings for name in each)
    differ = [name for name in names if len({str(each.get(name)) for each in settings}) > 1]
    folders = zip(results, settings, strict=True)
    return "; ".join(
        ", ".join(
            [str(one.path), *(f"no {name}" if own.get(name) is None else f"{name} {own[name]}" for name in differ)]
        )
        for one, own in folders
    )


def _resolved_settings(result: Evaluation) -> str:
    corpus, settings = result.summary["corpus"], result.summary["settings"]
    data = [corpus["fingerprint"], corpus["split"], corpus.get("metadata")]
    return content_key(measure=result.measure, data=data, settings=settings)


def _evaluations(source: str) -> list[Evaluation]:
    known = measures_of_loss()
    results = [Result.open(source)] if is_result(source) else results_of_model(source, known)
    if results and results[0].measure not in known:
        raise DataError(
            f"{source} is a result of contextwise measure {results[0].measure}, which has no losses of documents; give an "
            "evaluation, or only context curves"
        )
    return [Evaluation(result.path, result.summary) for result in results]


def run_of(result: Result, source: str = "") -> RunFolder | None:
    """The run that a result is of: that of its folder, or of the model that it names; None for another model."""
    model = Path(result.summary["model"])
    folders = [Path(source), result.path.parent.parent, model, *([model.parent] if model.name == "model" else [])]
    return next((run for run in map(RunFolder, folders) if run.exists), None)


def _compared(source: str, evaluation: Evaluation) -> ComparedRun:
    run = run_of(evaluation, source)
    # One model with several sets of contexts is several compared runs.
    condition = evaluation.summary.get("condition")
    suffix = "" if condition is None else f" ({condition})"
    if run is None:
        about, name = evaluation.summary, Path(evaluation.summary["model"]).name
        key = f"model {about['model']} {about['digest']} {condition}"  # loaded models have no path of their own
        return ComparedRun(source, name + suffix, key, None, evaluation, None)
    recipe, summary, texts = run.recipe(), run.summary() if run.finished else {}, None
    if (
        summary
    ):  # the content hashes of what it was trained on, replayed texts and metadata among it, without its models
        own = ((each, value) for each, value in summary["fingerprints"].items() if not each.startswith("model."))
        texts = {each: value for each, value in own if not _HELD_OUT.fullmatch(each)}
    name = _without_seed(str(recipe.get("name") or run.path.resolve().name))
    try:
        starts = _MODEL.validate_python(recipe.get("model") or {}).starts
    except ValueError:  # a kind that is not installed
        starts = {}
    # Runs that continue one model's seeds are seeds of one recipe.
    same = comparable({**recipe, "name": name}, "seed")
    same = with_overrides(same, {setting: _without_seed(path) for setting, path in starts.items()})
    key = json.dumps([same, texts], sort_keys=True, default=str)
    return ComparedRun(source, name + suffix, key + suffix, recipe.get("seed"), evaluation, run, summary)


def _without_seed(name: str) -> str:
    return _SEED_SUFFIX.sub("", name) or name


def is_single_run(seeds: Sequence[int | None]) -> bool:
    """Whether these are the seeds of a single run; a model that is no run has the seed None."""
    return len(seeds) == 1 and seeds[0] is not None


def number_of_seeds(seeds: Sequence[int | None]) -> str:
    """``, 3 seeds`` of a recipe's runs; empty for a model that is no run."""
    return "" if list(seeds) == [None] else f", {counted(len(seeds), 'seed')}"


def of_single_runs(single: Sequence[str], groups: int) -> str:
    """What a sentence about groups is restricted to if ``single`` of them are one run; empty if none is."""
    if not single:
        return ""
    return "with one run of each" if len(single) == groups else f"with this one run of {listed(list(single))}"


def groups_of(runs: list[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Group runs that differ only by their seed: groups in the order given, runs by seed."""
    by_key: dict[str, list[ComparedRun]] = {}
    for compared in runs:
        by_key.setdefault(compared.key, []).append(compared)
    names = Counter(group[0].name for group in by_key.values())
    groups = {}
    for group in by_key.values():
        group.sort(key=lambda compared: (compared.seed is None, compared.seed or 0))
        seeds = Counter(compared.seed for compared in group)
        if max(seeds.values()) > 1:
            twice = [compared.source for compared in group if seeds[compared.seed] > 1]
            raise ConfigError(f"{twice[0]} and {twice[1]} are the same recipe with the same seed; compare one of them")
        first = group[0]
        groups[first.name if names[first.name] == 1 else f"{first.name} ({Path(first.source).name})"] = group
    if len(groups) < len(by_key):
        raise ConfigError("two of the runs have the same name and lie in folders of the same name; rename one folder")
    return groups
