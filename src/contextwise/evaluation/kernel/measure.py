"""A measure: settings, how a subject is measured with them, and how the summary is shown."""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rich.console import RenderableType

from contextwise.base import plugins
from contextwise.base.config import Settings
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError, DataError, Interrupted
from contextwise.base.estimates import CONFIDENCE
from contextwise.base.files import PARTIAL, is_held, output_folder
from contextwise.base.hashes import content_digest, content_key
from contextwise.base.machine import describe_environment
from contextwise.base.progress import interruption, say, say_once
from contextwise.evaluation.kernel.result import Result, finished, is_result, write_result
from contextwise.evaluation.kernel.subject import TRAINED_ON, Subject
from contextwise.evaluation.kernel.work import Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from contextwise.data import Corpus

MANY_COPIES = 0.05
"""Share of documents with the text of another one from which on they are noted."""
InputFile = Path
"""A setting that names a file or folder to read: a result is identified by its content, not its path."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a measurement: its part of ``summary.json``, and the further files of the result folder by name."""

    summary: dict[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)


class Measure(Settings):
    """Base class of a measure: its settings, and the method that runs it.

    A measure is an entry point of the group ``contextwise.measures``; its verb, options and folder of results
    follow from it. Each field has its help text (``Field(description=...)``), default and bounds.

    Attributes:
        name: of the verb and of the results.
        version: raised when the same settings give other numbers than before.
        on_corpus: whether it is made on the documents of a corpus.
        model_types: kinds of models that it can measure: ``decoder``, ``encoder-decoder``.
        gives_contexts: whether it gives contexts to a model that takes them; others measure it without, with a note.
        changes_model: whether it changes the model, such as its positions; a subject then loads it again for the next measure,
            or puts a model that was given loaded back as it was.
        result: class of its results.
        compared: settings that a comparison of results names where they differ.
        scored: what a measure of losses scores on its own, in words; losses per token of other things are not compared.
        default_dtype: default number format of the weights, as for :class:`Subject`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    on_corpus: ClassVar[bool] = True
    model_types: ClassVar[tuple[str, ...]] = ("decoder",)
    gives_contexts: ClassVar[bool] = False
    changes_model: ClassVar[bool] = False
    result: ClassVar[type[Result]] = Result
    compared: ClassVar[tuple[str, ...]] = ()
    scored: ClassVar[str] = "whole documents"
    default_dtype: ClassVar[str] = "auto"

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        """A copy with the settings that follow from the subject or the data; raises ConfigError for one that does not fit."""
        return self

    def label(self, corpus: "Corpus | None") -> str:
        """Name of the data in the name of the result's folder."""
        return "" if corpus is None else f"{Path(corpus.path).resolve().name}-{corpus.split}"

    @property
    def metadata_columns(self) -> list[str]:
        """Metadata columns of the corpus that are read; their values are part of the question."""
        return []

    @abstractmethod
    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        """Measure; ``work`` holds what an earlier, stopped run has kept, and keeps what this one can resume from.

        Raises:
            Interrupted: the process was asked to stop (:data:`contextwise.base.progress.interruption`).
        """

    @classmethod
    @abstractmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        """The summary for the terminal, in 80 columns."""

    @classmethod
    def remark(cls, summary: dict[str, Any]) -> str:
        """What a reader of many results has to know of how they were measured, in sentences; empty if there is nothing."""
        return ""

    @classmethod
    def passed(cls, summary: dict[str, Any]) -> bool:
        """Whether the model passes; if not, the command has exit status 1."""
        return True

    def identity(self) -> dict[str, Any]:
        """The settings, JSON-ready, with the content of files in place of their paths."""
        settings = self.model_dump(mode="json")
        for name, value in self:
            if isinstance(value, Path):
                settings[name] = _content(name, value)
            elif isinstance(value, list) and value and isinstance(value[0], Path):
                settings[name] = [_content(name, each) for each in value]
        return settings


def measure(
    source: "str | Path | PreTrainedModel | Subject",
    settings: Measure,
    corpus: "Corpus | None" = None,
    *,
    out: str | Path | None = None,
    home: Path | None = None,
    overwrite: bool = False,
    dtype: str | None = None,
    device: str = "auto",
    batch_tokens: int | None = None,
) -> Any:
    """Measure a model, or open the result that was made before; a stopped measurement resumes.

    A result answers one question: the model's weights and tokenizer, the data, the settings and the number format. It is
    reused for the same question only.

    Args:
        source: a run folder, a Hugging Face model folder, a name on the Hub, a loaded model, or a subject.
        settings: the measure.
        corpus: the documents (one split of a corpus), for a measure that needs one.
        out: folder of the result; by default ``HOME/NAME-CORPUS-SPLIT-KEY``.
        home: folder of the model's results; by default ``RUN/evaluation``, or ``evaluation/MODEL`` for a model that is no run.
        overwrite: replace another result in ``out``.
        dtype, device, batch_tokens: as :class:`Subject` takes them; ``dtype`` is by default the measure's, of a loaded model
            its own.

    Raises:
        ConfigError: a setting is out of range or does not fit the model, or ``out`` holds something else.
        DataError: the data do not fit the model, changed, or are too few.
        CheckpointError: there is no such model, or it is damaged.
        Interrupted: the process was asked to stop; the finished part is kept.
    """
    started = time.monotonic()
    subject = source
    if not isinstance(subject, Subject):
        usual = settings.default_dtype if isinstance(subject, str | Path) else "auto"
        subject = Subject(subject, dtype=dtype or usual, device=device, batch_tokens=batch_tokens)
    elif (dtype, device, batch_tokens) != (None, "auto", None):
        raise ConfigError("a Subject has its own dtype, device and batch_tokens; give them when you make it")
    if settings.on_corpus and corpus is None:
        raise ConfigError(f"{settings.name} needs documents; give a prepared corpus")
    if (known := _known(subject, settings, corpus, home, out)) is not None:
        return _noted(known, subject, corpus)
    from contextwise.models.loading import kind_of

    kind = kind_of(subject.config)
    if kind not in settings.model_types:
        raise CheckpointError(
            f"{subject.source} is an {kind} ({subject.config.model_type}), but {settings.name} needs a "
            f"{' or '.join(settings.model_types)}"
        )
    requested, settings = settings.identity(), settings.resolved(subject, corpus)
    label, identity = settings.label(corpus), settings.identity()
    common = _common(settings, corpus)
    question = content_key(**common, settings=requested)
    resolved = content_key(**common, settings=identity)
    number_format = "saved" if subject.dtype is None else str(subject.dtype)
    read_by = {"tokenizer": subject.prompt_hash} if subject.loaded and corpus is None else {}
    key = content_key(question=resolved, subject=subject.digest, dtype=number_format, **read_by)
    name = "-".join(filter(None, (settings.name, label, key[:8])))
    path = (home or subject.home) / name if out is None else output_folder(Path(out))
    with Work.opened(path, key, {"measure": settings.name, "settings": identity}, overwrite) as work:
        if (result := finished(path, key, overwrite, settings.result)) is not None:
            work.discard()  # the process that wrote the result was killed before it did
            return _noted(result, subject, corpus)
        if corpus is not None:
            corpus.verify()
            subject.check_corpus(corpus)
        if subject.spec.takes_contexts and not settings.gives_contexts:
            say(f"note: {subject.source} takes contexts; it is measured without any")
        try:
            outcome = _run(settings, subject, corpus, work, identity)
            _check_unchanged(settings, subject, corpus, work, identity)
            header = {"measure": settings.name, "key": key, "question": question, "label": label}
            about = header | _about(subject, corpus, common.get("metadata"))
            about |= {"seen": seen} if corpus is not None and (seen := subject.seen(corpus)) else {}
        finally:
            if settings.changes_model:
                subject.forget_model()
        about |= {"settings": settings.model_dump(mode="json"), **outcome.summary}
        summary = about | {"seconds": round(time.monotonic() - started, 3)}
        write_result(path, summary, outcome.files, overwrite=overwrite, held=True)
        work.discard()
    return _noted(settings.result(path, summary), subject, corpus)


def _noted(result: Result, subject: Subject, corpus: "Corpus | None") -> Result:
    """The result; a note if the model was trained on what it was measured on, or if many documents have one text."""
    if corpus is not None and "document_hash" in corpus.columns:
        hashes = corpus.column("document_hash")
        if (copies := len(hashes) - len(set(hashes))) > len(hashes) * MANY_COPIES:
            say_once(
                f"note: {copies:,} of the {len(hashes):,} documents have the text of another one, but count as documents of "
                "their own: intervals are too narrow (prepare --deduplicate leaves them out)"
            )
    known = corpus is not None and subject.trained_on(corpus.fingerprint)
    if seen := TRAINED_ON if known else result.summary.get("seen"):
        say_once(f"note: {seen}")
    return result


def _common(settings: Measure, corpus: "Corpus | None") -> dict[str, Any]:
    """What a question holds beside settings. It does not depend on the model: results with one question can be compared."""
    data = None if corpus is None else [corpus.fingerprint, corpus.split]
    common: dict[str, Any] = {"measure": settings.name, "version": settings.version, "data": data}
    if corpus is not None and settings.metadata_columns:
        common["metadata"] = corpus.metadata_digest(settings.metadata_columns)
    return common


def _known(
    subject: Subject, settings: Measure, corpus: "Corpus | None", home: Path | None, out: str | Path | None
) -> Result | None:
    """The result of a question, label and source, found by files alone; None if there is none, or only torch can tell."""
    try:
        question = content_key(**_common(settings, corpus), settings=settings.identity())
    except (
        ContextwiseError
    ):  # such as a column that is not there, of which the settings say more when they are resolved
        return None
    folders = (home or subject.home).glob(f"{settings.name}-*") if out is None else [output_folder(Path(out))]
    # The source too: what is resolved depends on the run and on the name of its folder.
    wanted = (question, settings.label(corpus), subject.source, subject.known_dtype, "cpu")
    for folder in sorted(each for each in folders if is_result(each) and PARTIAL not in each.name):
        with contextlib.suppress(ContextwiseError):  # damaged
            summary = (result := settings.result.open(folder, settings.name)).summary
            same = tuple(map(summary.get, ("question", "label", "model", "dtype", "device"))) == wanted
            unfinished = folder.with_name(f"{folder.name}.unfinished").exists()  # it is removed by what follows
            if same and not unfinished and not is_held(folder) and summary["digest"] == subject.digest:
                return result
    return None


def _run(settings: Measure, subject: Subject, corpus: "Corpus | None", work: Work, identity: dict[str, Any]) -> Outcome:
    try:
        with interruption.listening(), subject.evaluating():
            return settings.run(subject, corpus, work)
    except CheckpointError:
        work.discard()  # nothing is resumed from a damaged model
        raise
    except Interrupted as error:
        _check_unchanged(settings, subject, corpus, work, identity)  # before it is resumed
        end = "run the same command again" + ("" if work.empty else " to resume") + "; what is finished is kept"
        raise Interrupted(f"{subject.source}: {str(error).split(';')[0]}; {end}") from None


def _check_unchanged(
    settings: Measure, subject: Subject, corpus: "Corpus | None", work: Work, identity: dict[str, Any]
) -> None:
    """Discard the work, and raise an error, if model, corpus or a file of the settings are not those of the result's key."""
    try:
        subject.check_unchanged()
        if corpus is not None:
            corpus.check_in_place()
        if settings.identity() != identity:
            raise DataError(f"a file that {settings.name} reads was changed while it was read; measure again")
    except (CheckpointError, DataError):
        work.discard()
        raise


def _about(subject: Subject, corpus: "Corpus | None", metadata: str | None) -> dict[str, Any]:
    """The part of ``summary.json`` about model, data, the metadata's hash if it was read, intervals and machine."""
    from contextwise.models.tokenizers import corpus_tokenizer_hash

    about = subject.describe()
    if corpus is not None:
        about["corpus"] = {
            "path": str(corpus.path),
            "fingerprint": corpus.fingerprint,
            "split": corpus.split,
            "tokenizer_hash": corpus_tokenizer_hash(corpus.path),
            **({} if metadata is None else {"metadata": metadata}),
        }
    return about | {"confidence": CONFIDENCE, "environment": describe_environment()}


def _content(name: str, path: Path) -> str:
    """SHA-256 of a file, or of the files of a folder."""
    try:
        return content_digest(path)
    except OSError as error:
        raise DataError(f"{name} is {path}, which cannot be read: {error.strerror}") from None


def measures() -> dict[str, type[Measure]]:
    """All measures by name: the entry points of the group ``contextwise.measures``."""
    return plugins.load("measures", Measure)
