"""Compare tokenizers by their token ids, and configure the special tokens around a text."""

import contextlib
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from tokenizers import Tokenizer, processors

from contextwise.base.errors import ContextwiseError, DataError, one_line
from contextwise.base.hashes import content_key
from contextwise.base.pretrained import hub_revision
from contextwise.data.corpus import Corpus
from contextwise.data.tokenizers import settings_of
from contextwise.models.folders import model_folder
from contextwise.objectives.kind import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE = "tokenizer.json"


def tokenizer_hash(file: Path) -> str:
    """SHA-256 of the settings that determine token ids: vocabulary, merges, normalizer and pre-tokenizer.

    A hash of the file is not enough: the same tokenizer, loaded and saved again, has other bytes.
    """
    try:
        return _hash_of_settings(file.read_bytes())
    except Exception as error:
        reason = one_line(error)
        raise DataError(f"the tokenizer {file} cannot be read: {reason}") from None


@functools.lru_cache(maxsize=4)  # a measurement asks for the same file three times
def _hash_of_settings(content: bytes) -> str:
    settings = settings_of(Tokenizer.from_buffer(content))
    kept = {key: settings[key] for key in ("model", "normalizer", "pre_tokenizer")}
    return content_key(**_essential(kept))


def _essential(value: Any) -> Any:
    """Remove empty settings, which some versions write and others omit, and settings of offsets."""
    if isinstance(value, dict):
        return {
            key: _essential(part)
            for key, part in value.items()
            if part is not None and part != "" and part is not False and key != "trim_offsets"
        }
    return [_essential(part) for part in value] if isinstance(value, list) else value


def corpus_tokenizer_hash(corpus_path: Path) -> str | None:
    """Hash of a corpus's tokenizer; None if it has none (Zarr, ``.bin``)."""
    file = corpus_path / "tokenizer" / FILE
    return tokenizer_hash(file) if file.is_file() else None


def hash_of(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """Hash of a tokenizer in memory; None for one that is not of the library tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else _hash_of_settings(backend.to_str().encode())


def prompt_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Hash of what determines the ids of a prompt: :func:`hash_of`, and the added tokens, which a corpus need not have."""
    added = {number: repr(token) for number, token in tokenizer.added_tokens_decoder.items()}
    about = {"special": tokenizer.special_tokens_map, "chat": tokenizer.chat_template}
    return content_key(text=hash_of(tokenizer), added=added, **about)


def _local_file(source: str, file: str) -> Path | None:
    """A file of a model (run, folder or Hub name) on this machine, which need not exist; None if the Hub has to be asked."""
    folder = Path(model_folder(source))
    name, revision = hub_revision(source)
    found = folder / file if folder.is_dir() else try_to_load_from_cache(name, file, revision=revision)
    return Path(found) if isinstance(found, str | Path) else None


def tokenizer_hash_beside(origin: str, vocabulary: int) -> str | None:
    """Hash of the tokenizer where a model in memory was loaded from; None if none is known on this machine.

    The ``config.json`` there must name as many tokens: the model may have been given another vocabulary since.
    """
    with contextlib.suppress(ContextwiseError, ValueError, OSError):  # it was moved, or is damaged
        config, file = _local_file(origin, "config.json"), _local_file(origin, FILE)
        named = [] if config is None else re.findall(r'"vocab_size": *(\d+)', config.read_text(encoding="utf-8"))
        if file is not None and str(vocabulary) in named:
            return tokenizer_hash(file)
    return None


def has_other_tokenizer(source: str, corpus: Corpus) -> bool:
    """Whether a corpus has another tokenizer than a model (run, folder or Hub name), as far as files on this machine tell."""
    hashes = [corpus_tokenizer_hash(corpus.path)]
    # Whoever opens the model says what is wrong with it.
    with contextlib.suppress(ContextwiseError, ValueError, OSError):
        if (file := _local_file(source, FILE)) is not None and file.is_file():
            hashes.append(tokenizer_hash(file))
    return None not in hashes and len(set(hashes)) > 1


def model_tokenizer_hash(source: str) -> str | None:
    """Hash of the tokenizer of a model (run, folder or Hub name); None if it has none."""
    file = _local_file(source, FILE)
    if file is None:
        name, revision = hub_revision(source)
        try:
            file = Path(hf_hub_download(name, FILE, revision=revision))
        except (HfHubHTTPError, OSError):
            # No such file, or a cached model without a network: then only the vocabulary size is checked.
            return None
    return tokenizer_hash(file) if file.is_file() else None


def check_tokenizer(source: str, corpus: Corpus, vocabulary: int | None = None) -> str | None:
    """The hash of a model's tokenizer, None if it has none.

    A DataError if a corpus has another tokenizer, or more tokens than the model's ``vocabulary``, if known.
    """
    own = model_tokenizer_hash(source)
    if len({corpus_tokenizer_hash(corpus.path), own} - {None}) > 1:
        raise DataError(
            f"the corpus {corpus.path} was prepared with another tokenizer than that of {source}; "
            f"prepare a corpus with --tokenizer {source}"
        )
    if vocabulary is not None and corpus.vocab_size is not None and corpus.vocab_size > vocabulary:
        raise DataError(
            f"the corpus {corpus.path} has a vocabulary of {corpus.vocab_size} tokens, "
            f"but {source} has only {vocabulary}; prepare a corpus with --tokenizer {source}"
        )
    return own


@dataclass(frozen=True)
class Frame:
    """Special tokens to add around a text because the tokenizer, that of a corpus, does not add them.

    An encoder was trained on [CLS] text [SEP], an encoder-decoder on text followed by end-of-text.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", kind: Kind) -> "Frame":
        """The frame that a model of this kind was trained with, if the tokenizer has the tokens and adds none."""

        def ids(token: int | None) -> tuple[int, ...]:
            return () if token is None else (token,)

        if kind == "decoder" or tokenizer.num_special_tokens_to_add() > 0:
            return cls()
        if kind == "encoder-decoder":
            return cls(after=ids(tokenizer.eos_token_id))
        return cls(ids(tokenizer.cls_token_id), ids(tokenizer.sep_token_id))

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, ids: list[int]) -> list[int]:
        return [*self.before, *ids, *self.after]

    def put_around(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Let a tokenizer add the tokens of the frame around each text, ``[CLS] A [SEP]``, or pair, ``[CLS] A [SEP] B [SEP]``.

        A tokenizer without a padding token pads with end-of-text.
        """
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        if not len(self):
            return
        first, last = ([str(tokenizer.convert_ids_to_tokens(i)) for i in ids] for ids in (self.before, self.after))
        template = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, "$B:1", *(f"{token}:1" for token in last)],
            special_tokens=list(zip([*first, *last], [*self.before, *self.after], strict=True)),
        )
        backend = tokenizer.backend_tokenizer
        steps = [step for step in (backend.post_processor,) if step is not None]
        backend.post_processor = processors.Sequence([*steps, template]) if steps else template
