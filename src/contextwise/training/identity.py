"""Content hashes of everything that a run starts from.

A recipe names corpora and models by path or Hub name. Runs are found again and resumed by what was there, not by the name: the
hashes are part of a run's id in a run set, and each run keeps them in its checkpoints and its summary.
"""

import contextlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from contextwise.base.errors import CheckpointError, ContextwiseError, DataError
from contextwise.base.files import remove_leftovers
from contextwise.base.hashes import damage, model_digest
from contextwise.base.pretrained import hub_revision
from contextwise.base.progress import say, say_once
from contextwise.base.runs import RunFolder
from contextwise.base.stopping import processes
from contextwise.data.corpus import Corpus
from contextwise.training.recipe import Recipe
from contextwise.training.settings import CorpusData


def input_hashes(recipe: Recipe, known: Container[str] = ()) -> dict[str, str]:
    """The content hash of each input of a run, by its name.

    Corpora have the names of their roles: ``train``, ``loss`` (held out), and those of the sections of ``data``. Columns that
    are read and models that the run starts from have the names of their settings. A model on the Hub has its commit for a hash.
    The code of a variant is hashed in the recipe itself.

    Settings in ``known`` name a run of the same run set, whose own id says what it is made from. A DataError or
    CheckpointError if a corpus, a column or a model does not exist.
    """
    if (own := recipe.data.hashes(recipe)) is not None:
        return own
    assert isinstance(recipe.data, CorpusData)
    hashes = dict(_of_corpora(recipe, recipe.data))
    for name, source in recipe.model.sources(recipe, known).items():
        if (digest := start_digest(source)) is not None:
            hashes[name] = digest
    return hashes


def changed_input(recipe: Recipe, before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first input of a run whose hash was another one before, for messages; None if nothing changed.

    Inputs that are new do not count, nor do further corpora that are no longer validated on.
    """
    for name, digest in before.items():
        if now.get(name, digest if name.endswith("_loss") else None) != digest:
            path = corpus_paths(recipe.data).get(name) if isinstance(recipe.data, CorpusData) else None
            return f"the corpus {path}" if path else name
    return None


def refuse_changed(run: RunFolder, recipe: Recipe, now: Mapping[str, str]) -> None:
    """Raise a DataError if a finished run was trained on other inputs than there are now, by its :func:`input_hashes`."""
    if (changed := changed_input(recipe, run.summary()["fingerprints"], now)) is not None:
        raise DataError(
            f"{run.path} is finished, but {changed} is not what it was trained on (the content hash differs); restore it, or "
            "choose another run folder"
        )


def is_sound(run: RunFolder, recipe: Recipe, now: Mapping[str, str]) -> bool:
    """Whether nothing is left to do for a finished run; a damaged model is exported again from a checkpoint.

    Requires :meth:`.RunFolder.locked`; ``now`` are the :func:`input_hashes`.
    """
    refuse_changed(run, recipe, now)
    run.renew_recipe(recipe.resolved(), anew=False)
    problem = damage(run.model, required=False)
    if problem is None and not (run.model / "config.json").is_file():
        problem = "it has no config.json"
    if problem is None:
        say(f"{run.path} is finished already: nothing to do")
    elif not any(each.name.removeprefix("step-").isdigit() for each in run.checkpoints.glob("step-*")):
        why = f"the model {run.model} is damaged: {problem}, and there is no checkpoint to export it from"
        raise CheckpointError(f"{why}; remove the run folder, and train anew")
    else:
        say_once(f"warning: the model {run.model} is damaged: {problem}; it is exported again")
    return problem is None


def finished_run(recipe: Recipe) -> RunFolder | None:
    """The run of a recipe if nothing is left to do for it, found without torch; None if there may be work."""
    run = RunFolder(recipe.folder)
    run.check_free(recipe.resolved())
    if processes() > 1 or not run.finished:
        return None
    with run.locked():
        for folder in (run.path, run.checkpoints):
            remove_leftovers(folder)
        return run if is_sound(run, recipe, input_hashes(recipe)) else None


def corpus_paths(data: CorpusData) -> dict[str, str]:
    """The corpora by their roles."""
    further = (section.corpora for section in data.sections.values())
    return {"train": data.corpus, "loss": data.corpus} | {role: path for each in further for role, path in each.items()}


def _of_corpora(recipe: Recipe, data: CorpusData) -> Iterator[tuple[str, str]]:
    columns = {f"data.{name}": section.read for name, section in data.sections.items() if section.read}
    of_objectives = list(dict.fromkeys(column for each in recipe.singles for column in each.columns))
    for role, path in corpus_paths(data).items():
        split = data.validation_split if role.endswith("loss") else data.split
        corpus = Corpus.open(path, split=data.split)
        if split not in corpus.splits:
            continue
        corpus = corpus if split == corpus.split else Corpus.open(path, split=split)
        corpus = corpus.first(data.tokens) if role == "train" and data.tokens is not None else corpus
        yield role, corpus.fingerprint
        for column in of_objectives:
            if column in corpus.columns:
                yield f"{role}: column {column}", corpus.metadata_digest([column])
        if role == "train":
            yield from ((name, corpus.metadata_digest(own)) for name, own in columns.items())
        elif role == "loss":
            for name, own in columns.items():
                with contextlib.suppress(ContextwiseError):  # the run has no validation then
                    yield f"{name} of the validation split", corpus.metadata_digest(own)


def start_digest(source: str) -> str | None:
    """The content hash of a model's files; of a Hub name its commit in the local cache, None if it cannot be downloaded."""
    from huggingface_hub import try_to_load_from_cache

    from contextwise.models.loading import load_config, model_folder

    folder = Path(model_folder(source))
    if folder.is_dir():
        return model_digest(folder)
    with contextlib.suppress(ContextwiseError):  # said when the model is loaded
        load_config(source)
    name, revision = hub_revision(source)
    cached = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(cached).parent.name if isinstance(cached, str) else None
