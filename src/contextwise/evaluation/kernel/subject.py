"""The subject of a measurement: a model, opened once, and its origin (run, folder, Hub name, or loaded model)."""

import contextlib
import copy
import glob
import hashlib
import json
import re
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextwise.base.config import plain_number
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError, DataError, Problem
from contextwise.base.files import expanded
from contextwise.base.hashes import content_key, model_digest, model_files
from contextwise.base.machine import keep_freed_memory, torch_device, without_gpu
from contextwise.base.pretrained import hub_revision
from contextwise.base.progress import say_once
from contextwise.base.runs import RunFolder
from contextwise.evaluation.kernel.result import Result, results_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from contextwise.data import Corpus
    from contextwise.models.spec import ModelSpec

DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_BATCH_TOKENS = 16384
DEFAULT_CONTEXT_LIMIT = 1024
"""Largest default context of a model that is no run."""
TRAINED_ON = "the run was trained on these very documents; they are not held out"


class Subject:
    """A model as it is measured. Weights and tokenizer are loaded when they are first used.

    Its properties raise CheckpointError for a model that is missing or damaged, and ConfigError for a missing device.

    Args:
        source: a run folder, a Hugging Face model folder, ``NAME`` or ``NAME@REVISION`` on the Hub, or a loaded model.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto``: float32 on the CPU, else as the model was saved.
        device: a torch device, or ``auto``: a GPU if there is one.
        batch_tokens: positions of one batch, padding included.
        tokenizer, name: of a loaded model; by default the tokenizer of the folder or name that it was loaded from, and the name
            of its class.

    Attributes:
        source: as given; the name of a loaded model.
        run: the run folder; None for a model that is no run.

    Raises:
        ConfigError: ``dtype`` or ``batch_tokens`` is out of range.
    """

    def __init__(
        self,
        source: "str | Path | PreTrainedModel",
        *,
        dtype: str = "auto",
        device: str = "auto",
        batch_tokens: int | None = None,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        name: str | None = None,
    ) -> None:
        if dtype not in ("auto", *DTYPES):
            raise ConfigError(f"dtype is {dtype!r}; it must be one of auto, {', '.join(DTYPES)}")
        batch_tokens = plain_number("batch_tokens", batch_tokens)
        if batch_tokens is not None and batch_tokens < 1:
            raise ConfigError(f"batch_tokens is {batch_tokens}; it must be at least 1")
        self.batch_tokens = batch_tokens or DEFAULT_BATCH_TOKENS
        self._dtype, self._device = dtype, device
        self.loaded = not isinstance(source, str | Path)
        if isinstance(source, str | Path):
            self.source = str(Path(source))  # a slash at the end makes no other model
            if tokenizer is not None:
                raise ConfigError(f"tokenizer is given, but {source} has its own; give it with a loaded model only")
        else:
            if not hasattr(source, "config"):
                known = "a run, a model's folder or Hub name, or a loaded model of transformers"
                raise ConfigError(Problem(f"but must be {known}", "model", source))
            self.source, self.model = name or type(source).__name__, source
            self._refuse_other_form()
        self._given_tokenizer = tokenizer
        self._measured: dict[str, tuple[int, ...]] = {}
        run = RunFolder(self.source)
        self.run = run if not self.loaded and run.recipe_file.is_file() else None

    def _refuse_other_form(self) -> None:
        """Raise a ConfigError if a loaded model has another data type or device than asked for."""
        if any(parameter.is_meta for parameter in self.model.parameters()):
            raise ConfigError(
                "the model has shapes without values (on the device meta), or weights that accelerate keeps elsewhere; load it "
                "whole onto one device, as from_pretrained does without device_map"
            )
        for name, asked in (("dtype", self._dtype), ("device", self._device)):
            held = "" if asked == "auto" else str(getattr(self.model, name)).removeprefix("torch.")
            if asked not in ("auto", held, held.partition(":")[0]):
                raise ConfigError(
                    f"{name} is {asked!r}, but the model is given loaded, with {held}; convert it, or leave {name} out"
                )

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put a model that was given loaded in evaluation mode inside the ``with`` block, and then back as it was.

        A measure may extend its positions or freeze its weights: its modules, their attributes and configurations, and which
        weights are trained are restored. The values of its weights are not: no measure changes them.
        """
        modules = list(self.model.modules()) if self.loaded else []
        owners = [*modules, *(module.config for module in modules if hasattr(module, "config"))]
        inner = [held for owner in owners for held in vars(owner).values() if isinstance(held, dict)]
        states = [(held, dict(held)) for held in (*(owner.__dict__ for owner in owners), *inner)]
        trained = [(weight, weight.requires_grad) for module in modules for weight in module.parameters(recurse=False)]
        try:
            for module in modules:
                module.training = False
            if self.loaded:
                from contextwise.models.rope import forget_lengths

                forget_lengths(self.model)
            yield
        finally:
            for held, state in states:
                held.clear()
                held.update(state)
            for weight, requires_grad in trained:
                weight.requires_grad = requires_grad

    @property
    def name(self) -> str:
        """The last part of the model's path or name; with its revision, if one was given."""
        name, revision = hub_revision(self.source)
        last = name if self.loaded else Path(name).name
        return f"{last.lstrip('.') or 'model'}{'' if revision is None else f'@{revision}'}".replace("/", "-")

    @property
    def home(self) -> Path:
        """Folder of the model's results: ``RUN/evaluation``, or ``evaluation/NAME`` for a model that is no run."""
        return self.run.evaluation if self.run else Path("evaluation") / self.name

    @cached_property
    def folder(self) -> Path:
        """Local folder of the model's files; for a Hub name its snapshot in the local cache."""
        from contextwise.models.folders import model_folder

        folder = Path(model_folder(self.source))
        if folder.is_dir():
            return folder
        from transformers.utils.hub import cached_file

        _ = self.model  # the snapshot is complete once the model was loaded
        name, revision = hub_revision(self.source)
        return Path(str(cached_file(name, "config.json", revision=revision))).parent

    @cached_property
    def config(self) -> "PreTrainedConfig":
        """The model's configuration, read without the weights; a copy, since a measure may extend the model's positions."""
        from contextwise.models.loading import load_config

        return copy.deepcopy(self.model.config) if self.loaded else load_config(self.source)

    @cached_property
    def model(self) -> "PreTrainedModel":
        """The model in evaluation mode: a causal language model or an encoder-decoder; CheckpointError for an encoder."""
        from contextwise.models.loading import load_generating_model

        if self.device.type == "cpu":
            keep_freed_memory()
        return load_generating_model(self.source, dtype=self.dtype, device=self.device)

    @property
    def origin(self) -> str:
        """Path or Hub name of the model's files; that which a loaded model was loaded from, empty if it was built."""
        return str(getattr(self.model, "name_or_path", None) or "") if self.loaded else self.source

    def forget_model(self) -> None:
        """Load the weights again at their next use; a model that was given loaded stays."""
        if not self.loaded:
            self.__dict__.pop("model", None)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer that is saved with the model; of a loaded model the given one, or that of where it was loaded from."""
        from contextwise.models.loading import load_tokenizer

        if self._given_tokenizer is not None:
            return self._given_tokenizer
        if self.loaded and not self.origin:
            raise CheckpointError(
                "the model was given loaded, and was loaded from no folder or name that has a tokenizer; give the folder that "
                "it is saved in, or contextwise.evaluation.kernel.Subject(model, tokenizer=TOKENIZER)"
            )
        return load_tokenizer(self.origin)

    @cached_property
    def device(self) -> "torch.device":
        if self.loaded:
            return self.model.device
        return torch_device(self._device)

    @cached_property
    def dtype(self) -> "torch.dtype | None":
        """Number format that the weights are loaded in; None: as they were saved. That of a model that was given loaded."""
        import torch

        if self.loaded:
            return self.model.dtype
        if self._dtype == "auto":
            return torch.float32 if self.device.type == "cpu" else None
        return getattr(torch, self._dtype)

    @property
    def known_dtype(self) -> str | None:
        """The name of :attr:`dtype` for weights in files here that are loaded on the CPU; None where only torch can tell."""
        on_cpu = self._device == "cpu" or (self._device == "auto" and without_gpu())
        if self.loaded or not on_cpu or not Path(self.source).exists():
            return None
        return "float32" if self._dtype == "auto" else self._dtype

    @cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of the model's configuration, weights and tokenizer."""
        if self.loaded:
            return _digest_of_loaded(self)
        self._measured = self._file_states()
        return model_digest(self.folder)

    def check_unchanged(self) -> None:
        """Raise a CheckpointError if a file of the model was replaced since :attr:`digest` was computed."""
        if not self.loaded and self.digest and self._file_states() != self._measured:
            raise CheckpointError(f"the model {self.source} was replaced while it was measured; measure it again")

    def _file_states(self) -> dict[str, tuple[int, ...]]:
        """Identity, size and time of the files that determine the model, by name."""
        states = {str(file): file.stat() for file in model_files(self.folder)}
        return {name: (state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states.items()}

    @property
    def positions(self) -> int | None:
        """Positions that the model's configuration allows; None if it sets no limit."""
        return positions(self.config)

    @property
    def run_context(self) -> int | None:
        """Tokens of text in a training window of the run; None for a model that is no run."""
        context = self.run.recipe().get("data", {}).get("context") if self.run else None
        return context if isinstance(context, int) else None

    @property
    def trained_context(self) -> int | None:
        """Tokens of a training window: the run's own, else what the configuration allows; None if neither is known."""
        return self.run_context or self.positions

    def context(self, wanted: int | None = None) -> int:
        """Tokens of a window to measure with: ``wanted``, else the run's training context, else at most 1,024.

        Raises:
            ConfigError: the model has fewer positions.
        """
        limit = self.positions
        if wanted is None:
            return self.run_context or min(limit or DEFAULT_CONTEXT_LIMIT, DEFAULT_CONTEXT_LIMIT)
        if limit is not None and wanted > limit:
            raise ConfigError(
                f"context is {wanted}, but {self.source} has only {limit} positions; give at most {limit}"
            )
        return wanted

    @property
    def spec(self) -> "ModelSpec":
        """The specification of the model's kind."""
        from contextwise.models.spec import spec_of

        return spec_of(self.config)

    def check_corpus(self, corpus: "Corpus") -> None:
        """Raise DataError if the tokenizers differ, or the corpus has more tokens in its vocabulary than the model.

        The tokenizer of a loaded model is known if it was given, or lies where the model was loaded from.
        """
        from contextwise.models.tokenizers import check_tokenizer, corpus_tokenizer_hash

        if not self.loaded:
            embeddings: Any = self.model.get_input_embeddings()
            check_tokenizer(self.source, corpus, int(embeddings.weight.shape[0]))
        elif len({corpus_tokenizer_hash(corpus.path), self.tokenizer_hash} - {None}) > 1:
            other = f"that in {self.origin}, where the loaded model comes from"
            if self._given_tokenizer is not None:
                other = "the one that was given with the loaded model"
            raise DataError(
                f"the corpus {corpus.path} was prepared with another tokenizer than {other}; prepare a corpus with that, "
                "or, if the model has another, give contextwise.evaluation.kernel.Subject(model, tokenizer=TOKENIZER)"
            )

    @cached_property
    def tokenizer_hash(self) -> str | None:
        """Hash of a loaded model's tokenizer; None if none is known on this machine."""
        from contextwise.models.tokenizers import hash_of, tokenizer_hash_beside

        if self._given_tokenizer is not None:
            return hash_of(self._given_tokenizer)
        embeddings: Any = self.model.get_input_embeddings()
        return tokenizer_hash_beside(self.origin, int(embeddings.weight.shape[0])) if self.origin else None

    @property
    def prompt_hash(self) -> str | None:
        """Hash of the tokenizer that a loaded model reads prompts with; None if it has none that can be loaded."""
        from contextwise.models.tokenizers import prompt_hash

        with contextlib.suppress(CheckpointError):
            return prompt_hash(self.tokenizer)
        return None

    def trained_on(self, fingerprint: str) -> bool:
        """Whether the model is a finished run that was trained on the documents of this fingerprint."""
        if self.run is None or not self.run.finished:
            return False
        return self.run.summary()["corpus"]["fingerprint"] == fingerprint

    def seen(self, corpus: "Corpus") -> str:
        """A note if the run is known to have been trained on documents of the corpus; else empty."""
        from contextwise.data import Corpus
        from contextwise.data.near_copies import MOST_COMPARED, copied_documents

        if self.run is None or not self.run.finished:
            return ""
        # A recipe that was damaged since may lack its parts.
        data = self.run.recipe().get("data", {})
        path, split = data.get("corpus", "."), data.get("split", "train")
        same = expanded(path).resolve() == corpus.path.resolve()
        if self.trained_on(corpus.fingerprint) or (same and corpus.split == split):
            return TRAINED_ON
        copied = 0
        with contextlib.suppress(ContextwiseError, OSError):  # it was moved, or is no corpus
            trained = Corpus.open(path, split)
            if self.trained_on(trained.fingerprint) and max(trained.tokens, corpus.tokens) <= MOST_COMPARED:
                texts = trained.fingerprint, corpus.fingerprint  # of a trial the same for many runs
                if texts not in _COPIED:
                    _COPIED[texts] = len(copied_documents(trained, corpus, len(corpus)))
                copied = _COPIED[texts]
        shared = (
            f"{copied:,} of the {len(corpus):,} documents share half or more of their text with that of the training"
        )
        return f"{shared}: their losses are too low" if copied else ""

    def describe(self) -> dict[str, Any]:
        """The subject's part of ``summary.json``."""
        on_hub = not self.loaded and not Path(self.source).exists()
        return {
            "model": self.source,
            **({"commit": self.folder.name} if on_hub else {}),
            "name": self.name,
            "run": self.run is not None,
            "digest": self.digest,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.model.device.type,
        }


_COPIED: dict[tuple[str, str], int] = {}


def open_documents(source: "str | Path | PreTrainedModel | Subject", path: str | Path, split: str) -> "Corpus":
    """A split of a prepared corpus; or texts, read with the model's tokenizer, as a corpus ``corpora/NAME-KEY``.

    The texts of a corpus with another tokenizer than that of a model that is not loaded are read so, too. The tokenizer of a
    loaded model is that of the folder or Hub name that it was loaded from (``model.name_or_path``). Texts are named as for
    :func:`contextwise.data.sources.open_source`, and become that split.
    """
    from contextwise.data import Corpus, prepare_corpus
    from contextwise.data.corpus.corpus import holds_corpus, is_corpus
    from contextwise.data.sources import open_source, source_digest, source_path
    from contextwise.models.tokenizers import has_other_tokenizer, model_tokenizer_hash

    texts, place = str(path), source_path(str(path))
    prefixed = place != expanded(texts)
    if not prefixed and (holds_corpus(place) or not (place.exists() or glob.has_magic(texts))):
        corpus = Corpus.open(path, split=split)
        subject = source if isinstance(source, Subject) else Subject(source)
        if subject.loaded or not has_other_tokenizer(subject.source, corpus):
            return corpus
        say_once(f"note: {path} has another tokenizer than {subject.name}; its texts are read with the model's")
        texts = f"corpus:{path}/{split}"
    open_source(texts)  # what does not exist is refused before torch is imported
    from contextwise.models.folders import model_folder

    model = (source if isinstance(source, Subject) else Subject(source)).origin
    if not model:
        raise ConfigError(
            f"a model that was loaded from no folder has no tokenizer to read the texts in {texts} with; give a corpus: "
            f"contextwise.prepare({texts!r}, TOKENIZER, 'corpora/NAME')"
        )
    folder, text = model_folder(model), source_digest(texts)
    from contextwise.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(folder)
    if start := tokenizer.start:  # documents begin as the model's texts do
        tokenizer = load_tokenizer(folder, start)
    added = [[token, repr(about)] for token, about in sorted(tokenizer.backend.get_added_tokens_decoder().items())]
    tokens = {"tokenizer": model_tokenizer_hash(model), "added": added, "end_of_text": tokenizer.end_of_text}
    key = content_key(text=text, split=split, **tokens)
    name = re.sub(r"[^\w-]+", "", place.name.split(".")[0]) or re.sub(r"[^\w-]+", "", place.parent.name) or "texts"
    out = Path("corpora") / f"{name}-{key[:8]}"
    if not is_corpus(out):
        try:
            prepare_corpus([f"{split}={texts}"], folder, out, end_of_text=start)
        except DataError as error:
            if "text_field" not in str(error) and "skip_bad" not in str(error):
                raise
            message = f"{error}. Those are options of `contextwise prepare`; give its corpus in place of the texts"
            raise DataError(message) from None
        if source_digest(texts) != text:  # it would be found again for the text before
            shutil.rmtree(out, ignore_errors=True)
            raise DataError(f"{texts} was changed while it was read; run the same command again")
    return Corpus.open(out, split=split)


def results_of_model(source: str, measures: Sequence[str]) -> list[Result]:
    """The results of these measures of a run or model with its present weights; all of them for a run without a model."""
    subject = Subject(source)
    results = [result for result in results_of(subject.home) if result.measure in measures]
    if subject.run and not subject.run.model.exists():
        return results
    digest = subject.digest
    return [result for result in results if result.summary["digest"] == digest]


def positions(config: Any) -> int | None:
    """Positions that a configuration allows for text; None if it sets no limit."""
    for part in (config, getattr(config, "backbone_config", None), config.get_text_config()):
        limit = getattr(part, "max_position_embeddings", None)
        if limit is not None:
            if not isinstance(limit, int):
                raise CheckpointError(
                    f"the model's configuration sets max_position_embeddings to {limit!r}, not a number"
                )
            return limit
    return None


def _digest_of_loaded(subject: Subject) -> str:
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    from contextwise.models.rope import follows_length

    model = subject.model
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True, default=str).encode())

    def add(name: str, tensor: Any) -> None:
        if is_traceable_wrapper_subclass(tensor):  # of a library's quantization
            for part in tensor.__tensor_flatten__()[0]:
                add(f"{name}.{part}", getattr(tensor, part))
            return
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    for name, tensor in model.state_dict().items():
        add(name, tensor)
    tokenizer = subject._given_tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest.update((backend.to_str() if backend is not None else repr(tokenizer)).encode())
    for name, module in model.named_modules():
        # Numbers that a caller may have set, such as an attention's scaling; no counts of what the module has seen.
        numbers = ((key, value) for key, value in vars(module).items() if type(value) in (bool, int, float))
        left_out = ("training", "gradient_checkpointing", "layers_are_rescaled")
        set_here = {
            key: value
            for key, value in numbers
            if not key.startswith("_") and "cached" not in key and key not in left_out
        }
        functions = {key: getattr(value, "__qualname__", "") for key, value in _functions(module).items()}
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        digest.update(f"{name} {kind} {sorted(set_here.items())} {sorted(functions.items())}".encode())
        if hasattr(module, "rope_type") and follows_length(module):
            continue  # its frequencies are those of the last input
        for key in sorted(module._non_persistent_buffers_set - {"weights"}):  # positions that grow with the inputs
            if (buffer := getattr(module, key)) is not None:
                add(f"{name}.{key}", buffer)
    if any(map(_has_code_of_caller, model.modules())):
        digest.update(uuid.uuid4().bytes)  # what the code does is unknown: no result of this model is found again
    return digest.hexdigest()


def _functions(module: Any) -> dict[str, Any]:
    """The functions and other callable objects that a module has beside its submodules, by name."""
    public = ((key, value) for key, value in vars(module).items() if not key.startswith("_"))
    return {key: value for key, value in public if callable(value) and not isinstance(value, type)}


def _has_code_of_caller(module: Any) -> bool:
    """Whether a class, a hook or a function takes part in a module's outputs that is of no library."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    libraries = ("torch.", "transformers.", "accelerate.", "peft.", "contextwise")
    given = [*hooks, *_functions(module).values()]
    file = Path(getattr(sys.modules.get(type(module).__module__), "__file__", None) or "")
    if not {"site-packages", "dist-packages"} & {*file.parts}:  # installed: a layer of a library for quantization, say
        given.append(type(module))
    return any(not str(getattr(each, "__module__", "")).startswith(libraries) for each in given)
