"""The verbs of the command line as functions: ``contextwise.train``, ``evaluate``, ``compare``, ….

    corpus = contextwise.prepare("texts/", "train:4096", "corpora/mine")
    run = contextwise.train("contextlm-nano", {"data.corpus": corpus, "training.tokens": 500_000})
    contextwise.evaluate(run, corpus)                         # a notebook shows the table; .plot(), .to_pandas(), .page(path)

Recipes, models and corpora are given by path or name, or as objects. The functions print nothing unless ``verbose`` is set.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, Problem, did_you_mean, one_line, with_hints
from contextwise.base.estimates import counted
from contextwise.base.files import expanded
from contextwise.base.plugins import points
from contextwise.base.progress import quieten
from contextwise.base.runs import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from contextwise.comparison.curves import CurveComparison
    from contextwise.comparison.result import Comparison
    from contextwise.data import Corpus
    from contextwise.evaluation.kernel import Measure, Result, Subject
    from contextwise.evaluation.measures.curve import CurveResult
    from contextwise.evaluation.measures.loss import Evaluation
    from contextwise.experiments.trial.result import TrialResult
    from contextwise.training import Recipe

    Model: TypeAlias = str | Path | RunFolder | PreTrainedModel | Subject
    Documents: TypeAlias = str | Path | Corpus
    Changes: TypeAlias = Mapping[str, Any] | Sequence[str]


TRIAL_ARGUMENTS = ("arms", "corpus", "changes", "out", "verbose")
HELD_OUT = "validation"
"""The split that is measured if none was chosen."""


@with_hints
def prepare(
    sources: str | Path | Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    text_field: str = "text",
    limit: int | None = None,
    validation: float | None = None,
    test: float | None = None,
    end_of_text: str | None = None,
    skip_bad: bool = False,
    deduplicate: float | None = None,
    overwrite: bool = False,
    verbose: bool = False,
) -> "Corpus":
    """Tokenize texts into a corpus folder, as ``contextwise prepare`` does.

    The options are those of :func:`contextwise.data.prepare_corpus`.
    """
    options = dict(locals())
    from contextwise.data import prepare_corpus

    with output(options.pop("verbose")):
        return prepare_corpus(**options)


@with_hints
def train(
    recipe: "str | Path | Mapping[str, Any] | Recipe",
    changes: "Changes | None" = None,
    out: str | Path | None = None,
    *,
    verbose: bool = False,
) -> RunFolder:
    """Train a recipe to its end, or resume it, as ``contextwise train`` does.

    Args:
        recipe: a file, the name of a recipe of the package, a dictionary of settings, or a recipe.
        changes: settings in place of the recipe's: ``{"training.tokens": 500_000}``, or ``["training.tokens=500000"]``.
        out: the run folder; by default the recipe's.
    """
    from contextwise.experiments.causality import refuse_leaking_variant
    from contextwise.training import load_recipe
    from contextwise.training import train as train_recipe

    loaded = load_recipe(recipe, plain_values(changes), out)
    with output(verbose):
        refuse_leaking_variant(loaded)
        return train_recipe(loaded)


@with_hints
def measure(
    name: "str | Measure",
    model: "Model",
    corpus: "Documents | None" = None,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    dtype: str | None = None,
    device: str = "auto",
    batch_tokens: int | None = None,
    verbose: bool = False,
    **settings: Any,
) -> Any:
    """Measure a model, or open the result that was made before, as the verb ``name`` does.

    Args:
        name: of a measure (``evaluate``, ``curve``, ``tasks``, ``ruler``, …), or the measure with its settings.
        model: a run, a model's folder or Hub name, a loaded model, or a :class:`~contextwise.evaluation.kernel.Subject`.
        corpus: a prepared corpus or its path, for a measure that needs documents; or a file of texts, which are read with the
            model's tokenizer.
        split: which documents of the corpus; by default those of a corpus that was opened with the name of a split, or cut to
            its first tokens, else ``validation``.
        out, overwrite, dtype, device, batch_tokens: as for :func:`contextwise.evaluation.kernel.measure`.
        settings: of the measure.
    """
    from contextwise.evaluation import kernel

    if isinstance(name, type) and issubclass(name, kernel.Measure) and name is not kernel.Measure:
        name = name.name
    if isinstance(name, str):
        known = kernel.measures()
        if name not in known:
            commands = {typed.removeprefix("measure.") for typed in points("verbs") if typed.startswith("measure.")}
            if name in commands:
                raise ConfigError(f"{name!r} is a command only; type contextwise measure {name}")
            raise ConfigError(f"there is no measure {name!r}; {did_you_mean(name, sorted({*known, *commands}))}")
        called = f"contextwise.{name}" if name in globals() else f"contextwise.measure({name!r})"
        name = validate(known[name], settings, called)
    elif not isinstance(name, kernel.Measure):
        raise ConfigError(Problem("but must be the name of a measure, or a measure with its settings", "name", name))
    elif settings:
        raise ConfigError(f"{', '.join(settings)}: a measure is given with its settings; change them there")
    source: Any = model.path if isinstance(model, RunFolder) else model
    source = str(expanded(source)) if isinstance(source, str | Path) else source
    given: dict[str, Any] = {"dtype": dtype, "device": device, "batch_tokens": batch_tokens}
    with output(verbose):
        documents = None
        if isinstance(corpus, str | Path):
            documents = kernel.open_documents(source, corpus, HELD_OUT if split is None else split)
        elif corpus is not None:
            documents = _documents(corpus, split)
        return kernel.measure(source, name, documents, out=out, overwrite=overwrite, **given)


@with_hints
def evaluate(
    model: "Model",
    corpus: "Documents",
    *,
    context: int | None = None,
    stride: int | None = None,
    full_windows: bool = False,
    limit: int | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    dtype: str | None = None,
    device: str = "auto",
    batch_tokens: int | None = None,
    verbose: bool = False,
) -> "Evaluation":
    """Score held-out documents: loss, perplexity, bits per byte.

    Args:
        context: tokens of a window; by default the training context, else the model's, up to 1024.
        stride: tokens between the starts of two windows; by default half the context.
        full_windows: let the last window of a document reach back to ``context`` tokens.
        limit: score only the first so many documents.

    The others are those of :func:`measure`.
    """
    return measure("evaluate", **locals())


@with_hints
def curve(
    model: "Model",
    corpus: "Documents",
    *,
    mode: Literal["bands", "truncated", "running"] = "bands",
    context: int | None = None,
    contexts: list[int] | None = None,
    samples: int | None = None,
    seed: int = 0,
    worth: float = 0.01,
    rope: Literal["none", "linear", "dynamic", "yarn"] = "none",
    rope_factor: float | None = None,
    bos: bool | None = None,
    limit: int | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    dtype: str | None = None,
    device: str = "auto",
    batch_tokens: int | None = None,
    verbose: bool = False,
) -> "CurveResult":
    """Measure the loss at each number of visible tokens, as ``contextwise curve`` does.

    Args:
        mode: ``bands``, the same targets at every context l, each with 7l/8 to l tokens visible; ``truncated``, with exactly l,
            at many times the cost; ``running``, one pass over windows, with other targets at each.
        context: the longest context, or the tokens of a window; by default the training context, else the model's, up to 1024.
        contexts: the most visible tokens of each point; by default the powers of two up to ``context``.
        samples: targets; by default 1,024 (in running mode all).
        seed: of the choice of targets.
        worth: nats per token; from the effective context on, no doubling is worth as much.
        rope, rope_factor: how rotary positions are extended beyond the training context, and by what.
        bos: put the tokenizer's start token (else the corpus's end-of-text) before every window, not counted as visible; by
            default if the tokenizer itself puts one before a text.
        limit: score only the first so many documents.

    The others are those of :func:`measure`.
    """
    return measure("curve", **locals())


@with_hints
def compare(
    models: "Sequence[Model | Result] | Mapping[str, Model | Result]",
    corpus: "Documents | None" = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    reference: str | None = None,
    all_pairs: bool = False,
    unit: Literal["token", "byte"] = "token",
    label: str | None = None,
    curves: bool = False,
    verbose: bool = False,
) -> "Comparison | CurveComparison":
    """Compare runs and models on the same documents, as ``contextwise compare`` does.

    Args:
        models: two or more runs, evaluations, or models that were evaluated; with a corpus those that lack it are evaluated
            first, loaded models too. A dictionary gives each its name. Or context curves: results, or their folders.
        split: as for :func:`measure`.
        limit: evaluate on the first so many documents of the corpus only.
        curves: compare the context curves of runs, not their losses.
        reference, all_pairs, unit, label: as for :func:`contextwise.comparison.comparison.compare`.
    """
    from contextwise.comparison.comparison import compare_sources
    from contextwise.evaluation.kernel import Subject

    if isinstance(models, str | Path | RunFolder) or not isinstance(models, Iterable):
        raise ConfigError(
            f"models is {one_line(getattr(models, 'path', models), 80)!r}; give a list of two models or more"
        )
    names = list(models) if isinstance(models, Mapping) else None
    listed = list(models.values()) if isinstance(models, Mapping) else list(models)
    if len(listed) < 2:
        raise ConfigError(f"models holds {counted(len(listed), 'model')}; give a list of two models or more")
    kinds = [type(model).__name__ for model in listed]
    subjects: list[Any] = []
    for i, (model, kind) in enumerate(zip(listed, kinds, strict=True)):
        path = getattr(model, "path", model)
        if isinstance(path, str | Path):
            subjects.append(str(expanded(path)))
        elif corpus is None:
            raise ConfigError(f"a loaded model ({kind}) was not evaluated yet; give the corpus to compare on")
        else:
            own = names[i] if names else f"{kind}-{i + 1}" if kinds.count(kind) > 1 else None
            subjects.append(model if isinstance(model, Subject) else Subject(model, name=own))
    with output(verbose):
        if corpus is not None and not isinstance(corpus, str | Path):
            corpus = _documents(corpus, split)
        return compare_sources(
            subjects,
            corpus,
            split=split,
            limit=limit,
            label=label,
            reference=reference,
            all_pairs=all_pairs,
            unit=unit,
            names=names,
            curves=curves,
        )


@with_hints
def trial(
    arms: "str | Path | Sequence[str] | Mapping[str, Any]",
    corpus: "Documents | None" = None,
    changes: "Changes | None" = None,
    out: str | Path | None = None,
    *,
    reference: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    equal: Literal["flops", "time", "tokens"] | None = None,
    tokens: int | list[int] | None = None,
    margin: float | None = None,
    confidence: float | None = None,
    documents: Literal["fixed", "random"] | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    rates: str | Mapping[str, Any] | None = None,
    limit: int | None = None,
    score: Mapping[str, Any] | None = None,
    executor: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    verbose: bool = False,
) -> "TrialResult":
    """Decide whether one way to train beats another, or resume a trial, as ``contextwise trial`` does.

    The settings after ``out`` are those of a trial's file; None leaves the file's, or the default.

    Args:
        arms: a trial file or the name of a trial of the package; or two arms and more, the reference first; or name -> arm.
        corpus: a prepared corpus with held-out documents; ``recipe.data`` says what is read of it.
        changes: settings in place of the file's, by dotted key, such as ``{"recipe.model.size": "pico"}``.
        out: the trial's folder; by default ``trials/NAME``.
        reference: the arm that the others are compared to; by default the first.
        recipe: what the arms share; by default GPT-2 of size nano.
        equal: what the arms' runs have in common; by default FLOPs.
        tokens: training tokens of the reference's runs, or several budgets; by default those of the recipe, else 524,288.
        margin: the smallest difference that matters, nats per token; 0.01.
        confidence: of the intervals of all comparisons together; 0.95.
        documents: decide about these held-out documents (fixed, the default) or any like them (random).
        seeds: the most seeds; 20.
        first_seed: seeds count up from it; 0.
        rates: ``"search"`` (the default), ``"fixed"`` (each arm's own), or settings of the search.
        limit: use the first so many held-out documents only.
        score: the measure of the loss that scores every arm, with its settings; by default ``evaluate``.
        executor: ``"local"``, ``"ray"``, or settings such as ``{"kind": "local", "jobs": 2}``.
        name: of the trial.
    """
    settings = {key: value for key, value in locals().items() if key not in TRIAL_ARGUMENTS and value is not None}
    from contextwise.experiments.trial import Trial, load_trial
    from contextwise.reports.trial import run_with_page

    file = arms if isinstance(arms, str | Path) else None
    if not isinstance(arms, str | Path | Sequence | Mapping):
        raise ConfigError(Problem("but must be a trial file, or two arms and more", "arms", arms))
    values = settings | ({} if file is not None else {"arms": arms})
    if corpus is not None:
        values["corpus"] = plain_values({"corpus": corpus})["corpus"]
    planned = Trial(load_trial(file, values, plain_values(changes), out))
    with output(verbose):
        return run_with_page(planned)


@with_hints
def load(model: str | Path | RunFolder, dtype: Any = None, device: Any = None) -> "PreTrainedModel":
    """Load a model in evaluation mode.

    Args:
        model: a run, a model's folder, or a name on the Hub.
        dtype: a torch data type, or its name; by default as saved.
        device: by default a GPU if there is one.
    """
    import torch

    from contextwise.models.loading import load_generating_model

    if not isinstance(model, str | Path | RunFolder):
        raise ConfigError(Problem("but must be a run, a model's folder or a name on the Hub", "model", model))
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype not in (None, "auto") and not isinstance(named, torch.dtype):
        why = "but must be a data type of torch, or its name, such as bfloat16"
        raise ConfigError(Problem(why, "dtype", dtype))

    path = model.path if isinstance(model, RunFolder) else expanded(model)
    source = path.absolute() if path.exists() else path  # where its tokenizer is, wherever the process goes
    with output(verbose=False):
        return load_generating_model(source, dtype=dtype, device=device)


@contextlib.contextmanager
def output(verbose: bool) -> Iterator[None]:
    """Print messages and progress inside the ``with`` block only if they are asked for; leave the process as it was.

    Calls in several threads run one after another.
    """
    from datasets.utils import disable_progress_bars
    from transformers.utils import logging

    from contextwise.base.undisturbed import ONE_AT_A_TIME, undisturbed

    with ONE_AT_A_TIME, undisturbed(), contextlib.nullcontext() if verbose else quieten():
        if not verbose:
            logging.set_verbosity_error()
            logging.disable_progress_bar()
            disable_progress_bars()
        yield


def plain_values(changes: "Changes | None") -> Any:
    """Settings with corpora and runs by their paths; ``data.corpus`` with the split and the tokens that a corpus was cut to."""
    if not isinstance(changes, Mapping):
        return [changes] if isinstance(changes, str) else [] if changes is None else changes
    from contextwise.data import Corpus

    values: dict[str, Any] = {}
    for key, value in changes.items():
        given = value.path if isinstance(value, Corpus | RunFolder) else value
        values.setdefault(key, str(given) if isinstance(given, Path) else given)
        if isinstance(value, Corpus) and value.chosen:
            section = key.removesuffix("corpus")
            if section != key and section.endswith("data."):
                own = {"split": value.split} | ({} if value.limit is None else {"tokens": value.limit})
                values |= {f"{section}{name}": each for name, each in own.items() if f"{section}{name}" not in changes}
            elif value.limit is not None or value.split != "train":
                raise ConfigError(
                    f"{key} is {value}, but a corpus is given whole there; give its path, and choose documents by the recipe's "
                    "data.split and data.tokens"
                )
    return values


def _documents(corpus: Any, split: str | None) -> "Corpus":
    """The documents to measure: those that a corpus object was opened for, unless a split is given; else the held-out ones."""
    from contextwise.data import Corpus

    if not isinstance(corpus, Corpus):
        raise ConfigError(Problem("but must be a prepared corpus, or the path of one or of texts", "corpus", corpus))
    if corpus.chosen:
        if split in (None, corpus.split):
            return corpus
        if corpus.limit is not None:
            raise ConfigError(
                f"split is {split!r}, but the corpus is {corpus}, cut to its first tokens; leave split out"
            )
    return Corpus.open(corpus.path, split=HELD_OUT if split is None else split)
