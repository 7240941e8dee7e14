"""Tokenizers of a corpus (a folder, a name on the Hub, ``train:N`` or ``bytes``), and fast batch encoding.

Special tokens that a text spells are text: a document with ``</s>`` does not hold the token ``</s>`` (:func:`hide_special`).
Whether tokens give back their text is checked for every document (:meth:`CorpusTokenizer.gives_back`).
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from contextwise.base.config import as_numbers
from contextwise.base.errors import CheckpointError, ConfigError, DataError, misspelt
from contextwise.base.files import expanded
from contextwise.base.gguf import gguf_folder
from contextwise.base.hashes import content_digest, content_key, model_files, sha256_file
from contextwise.base.machine import hub_problem
from contextwise.base.pretrained import PACKAGED, failure_reason, from_pretrained, hub_revision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PIECE = 65_536  # characters after which a long text may be cut without changing its tokens
# Approximate size of the text that one call tokenizes; the tokenizer needs about a hundred times this memory.
GROUP_BYTES = 1_000_000
CACHED_WORDS = 200_000
LARGEST_VOCABULARY = 2**20  # that is learned
LARGEST_ID = 2**24  # of a token
LONGEST_WORD = 1000  # characters; learning takes a time quadratic in it
_KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
_NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_CUT = re.compile(r"(?<=[!-~])\n")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)|\s{{{LONGEST_WORD}}}(?=\s)")


@dataclass
class CorpusTokenizer:
    """Tokenizer with the settings that a corpus needs."""

    tokenizer: "PreTrainedTokenizerFast"
    kind: str  # folder, hub, trained or bytes
    name: str  # as the user entered it, without folders
    end_of_text: int  # id of the token that windows put between documents; never inside a document

    def __post_init__(self) -> None:
        self._decoder: Tokenizer = self.tokenizer.backend_tokenizer
        self.backend, hidden = hide_special(self._decoder, self.end_of_text)  # text is encoded with it
        self.backend.no_truncation()
        self.backend.no_padding()
        # "<|endoftext|>" written out in a document is text about that token, not the end of the text.
        self.backend.encode_special_tokens = True
        # The library caches the tokens of 10,000 words; caching most words of a corpus makes it a fifth faster.
        if resize := getattr(self.backend.model, "_resize_cache", None):
            resize(CACHED_WORDS)
        self.vocab_size = max(self.backend.get_vocab(with_added_tokens=True).values()) + 1
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)
        self.piece = PIECE if _may_be_cut(self.backend) else None
        self._never_in_text = np.array(sorted({self.end_of_text, *hidden}), self.dtype)
        self._every_byte = _has_every_byte(settings_of(self._decoder))

    @property
    def start(self) -> str | None:
        """The token that the tokenizer itself puts before a text (:func:`own_start`)."""
        return own_start(self._decoder)

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Encode each text, without special tokens, as an array of ``dtype``, on all cores."""
        if self.kind == "bytes":  # the ids are the bytes
            return [np.frombuffer(text.encode(), dtype=np.uint8).astype(self.dtype) for text in texts]
        pieces_of = [list(pieces(text, self.piece)) for text in texts]
        flat = [piece for cut in pieces_of for piece in cut]
        ids: list[np.ndarray] = []
        sized = zip(flat, accumulate(map(len, flat)), strict=True)
        for _, texts_of in groupby(sized, key=lambda pair: pair[1] // GROUP_BYTES):
            group = [piece for piece, _ in texts_of]
            try:
                encodings = self.backend.encode_batch_fast(group, add_special_tokens=False)
            except Exception as error:
                raise DataError(f"the tokenizer {self.name} cannot tokenize the text: {error}") from None
            ids += [np.fromiter(encoding.ids, self.dtype) for encoding in encodings]
        left = iter(ids)
        encoded = ([*islice(left, len(cut))] for cut in pieces_of)
        joined = [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in encoded]
        for text, tokens in zip(texts, joined, strict=True):
            if (special := np.isin(tokens, self._never_in_text)).any():
                self._refuse(text, int(tokens[special.argmax()]))
        return joined

    def _refuse(self, text: str, special: int) -> NoReturn:
        token = self._decoder.id_to_token(special)
        what = "ends documents" if special == self.end_of_text else "is a special token"
        raise DataError(
            f"the tokenizer {self.name} makes the token {token!r}, which {what}, from a text that begins {text[:40]!r}; set "
            "end_of_text to a token that no text has, or take it out of the text"
        )

    def gives_back(self, texts: Sequence[str], ids: Sequence[np.ndarray]) -> np.ndarray:
        """Whether the tokens of each text decode to exactly that text, (texts,) bool; a space at its beginning does not count.

        Byte-level tokenizers give back what their normalizer leaves, and are not decoded.
        """
        if self.kind == "bytes" or (self._every_byte and self.backend.normalizer is None):
            return np.ones(len(texts), bool)
        if self._every_byte:
            same = [self.backend.normalizer.normalize_str(text) == text for text in texts]
        else:
            same = [False] * len(texts)
        left = [i for i, equal in enumerate(same) if not equal]
        sized = zip(left, accumulate(len(texts[i]) for i in left), strict=True)
        for _, group in groupby(sized, key=lambda pair: pair[1] // GROUP_BYTES):
            rows = [i for i, _ in group]
            decoded = self._decoder.decode_batch([ids[i].tolist() for i in rows], skip_special_tokens=False)
            for i, text in zip(rows, decoded, strict=True):
                same[i] = texts[i] in (text, f" {text}", text.removeprefix(" "))
        return np.array(same, bool)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``; return their manifest entry."""
        self.tokenizer.save_pretrained(folder)
        return {
            "kind": self.kind,
            "name": self.name,
            "vocab_size": self.vocab_size,
            "end_of_text": self.end_of_text,
            "sha256": sha256_file(folder / "tokenizer.json"),
        }


def own_start(backend: Tokenizer) -> str | None:
    """The token that a tokenizer itself puts before a text (BOS); None where it puts none, or one behind it too."""
    letters = range(min(backend.get_vocab_size(), 300))
    for text in ("a", *(backend.decode([token]) for token in letters)):
        with contextlib.suppress(Exception):  # of the tokenizer, which may know none of these characters
            encoded = backend.encode(text)
            first, *_, last = encoded.special_tokens_mask * 2
            if 0 in encoded.special_tokens_mask:
                return encoded.tokens[0] if first and not last else None
    return None


def check_ids(backend: Tokenizer) -> None:
    """Raise a DataError for a token id that no vocabulary reaches: to copy a tokenizer, the library counts up to it."""
    token, largest = max(backend.get_vocab().items(), key=lambda each: each[1], default=("", 0))
    if largest > LARGEST_ID:
        raise DataError(
            f"the token {token!r} has the id {largest:,}, beyond all vocabularies; correct its tokenizer.json"
        )


def settings_of(backend: Tokenizer) -> dict[str, Any]:
    """The settings of a tokenizer, as in ``tokenizer.json``, after :func:`check_ids`."""
    check_ids(backend)
    settings: dict[str, Any] = json.loads(backend.to_str())
    return settings


def hide_special(backend: Tokenizer, end_of_text: int) -> tuple[Tokenizer, set[int]]:
    """Return a tokenizer that makes none of the special tokens from text, and their ids, for encoding text.

    ``encode_special_tokens`` stops a tokenizer from finding special tokens in a text, but not a model whose vocabulary holds
    them: a Unigram or WordLevel model makes ``</s>`` from text. Here they have names that no text has. The unknown token stays,
    as unknown text is made into it. An ordinary token that a user chose as end-of-text stays as well.
    """
    settings = settings_of(backend)
    model = settings["model"]
    names = {token["content"] for token in settings["added_tokens"] if token["special"]}
    if (end := backend.id_to_token(end_of_text)) in _KNOWN_ENDS:
        names.add(end)
    unknown = model.get("unk_id") if (name := model.get("unk_token")) is None else backend.token_to_id(name)
    if unknown is not None:
        names.discard(backend.id_to_token(unknown))
    ids = {number for name in names if (number := backend.token_to_id(name)) is not None}
    merges = model.get("merges")
    made = set(backend.get_vocab(with_added_tokens=False))
    if merges is not None and not model.get("ignore_merges"):
        # A BPE makes a token of its vocabulary by a merge only, or of a single character.
        made = {name for name in made if len(name) == 1} | {"".join(pair) for pair in merges}
    names &= made | {token["content"] for token in settings["added_tokens"] if not token["special"]}
    if not names:
        return backend, ids

    def hidden(name: str) -> str:
        return f"\U0010ffff{name}\U0010ffff" if name in names else name

    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden(name): number for name, number in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden(name), score] for name, score in model["vocab"]]
    if merges is not None:
        model["merges"] = [pair for pair in merges if not names & {*pair, "".join(pair)}]
    for token in settings["added_tokens"]:  # renamed alike, so that every token keeps its id
        token["content"] = hidden(token["content"])
    settings["post_processor"] = None  # it may name them; texts are encoded without it
    return Tokenizer.from_str(json.dumps(settings)), ids


def _has_every_byte(settings: dict[str, Any]) -> bool:
    """Whether a tokenizer's tokens hold every byte of a (normalized) text, by construction.

    True for a BPE on byte-level characters whose vocabulary has those of all bytes in UTF-8, if nothing removes characters
    before it.
    """
    model, pre = settings["model"], settings["pre_tokenizer"]
    steps = pre["pretokenizers"] if pre is not None and pre["type"] == "Sequence" else [pre]
    *before, last = steps or [None]
    return (
        model["type"] == "BPE"
        and not model["continuing_subword_prefix"]
        and not model["end_of_word_suffix"]
        and all(char in model["vocab"] for byte, char in _byte_characters().items() if byte not in _NOT_IN_UTF8)
        and last is not None
        and last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and all(step["type"] == "Digits" or step.get("behavior", "Removed") != "Removed" for step in before)
        and not any(token["lstrip"] or token["rstrip"] for token in settings["added_tokens"] if not token["special"])
    )


def _byte_characters() -> dict[int, str]:
    """The characters that stand for bytes in a byte-level vocabulary."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()


def _may_be_cut(backend: Tokenizer) -> bool:
    """Whether text can be cut before a newline that follows a visible character without changing its tokens.

    True for the regular expression of GPT-2 (GPT-2, GPT-NeoX, ``train:N``): no match or look-ahead spans such a cut.
    NFC does not compose characters across it either.
    """
    pre, normalizer = backend.pre_tokenizer, backend.normalizer
    if not isinstance(pre, pre_tokenizers.ByteLevel) or pre.add_prefix_space or not pre.use_regex:
        return False
    if not isinstance(normalizer, normalizers.NFC | None):
        return False
    added = backend.get_added_tokens_decoder().values()
    return not any(token.lstrip or token.rstrip or "\n" in token.content for token in added)


def pieces(text: str, size: int | None) -> Iterator[str]:
    """Cut a long text about every ``size`` characters, before newlines that follow visible ASCII."""
    start = 0
    while size is not None and len(text) - start > size:
        cut = _CUT.search(text, start + size)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def vocabulary_to_learn(spec: str) -> int | None:
    """Return N of ``train:N``, checked; None if ``spec`` names an existing tokenizer."""
    if not spec.startswith("train:"):
        return None
    size = as_numbers(spec.removeprefix("train:"), "tokenizer")
    if not isinstance(size, int) or "." in spec:
        raise ConfigError(f"tokenizer is {spec!r}, but train: takes a vocabulary size, such as train:4096 or train:4k")
    if size > LARGEST_VOCABULARY:
        raise ConfigError(f"tokenizer is {spec[:60]!r}, but a vocabulary has at most {LARGEST_VOCABULARY:,} tokens")
    if size < 257:
        raise ConfigError(
            f"tokenizer is {spec!r}, but a vocabulary needs at least 257 tokens: 256 bytes and end-of-text"
        )
    return size


def learn_bpe(texts: Iterable[str], vocab_size: int) -> CorpusTokenizer:
    """Train a byte-level BPE (with GPT-2's pre-tokenization) with ``<|endoftext|>`` as its only special token.

    The same texts produce the same tokenizer. The vocabulary is smaller than ``vocab_size`` if the texts have too few repeated
    pairs.
    """
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Pieces have the words of the texts, and bound the memory; only words of over a thousand characters are cut.
    parts = (part for text in texts for piece in pieces(text, PIECE) for part in _short_words(piece))
    backend.train_from_iterator(parts, trainer)
    return _wrap(backend, "trained", f"train:{vocab_size}")


def _short_words(text: str) -> Iterator[str]:
    """Cut a text inside words, and runs of white space, of more than ``LONGEST_WORD`` characters."""
    start = 0
    for word in _LONG_WORD.finditer(text):
        yield text[start : word.end()]
        start = word.end()
    yield text[start:]


def byte_tokenizer() -> CorpusTokenizer:
    """Build the byte tokenizer: each byte of the UTF-8 text is a token with the byte as its id; end-of-text is 256."""
    vocabulary = {character: byte for byte, character in _byte_characters().items()}
    backend = _byte_level(models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return _wrap(backend, "bytes", "bytes")


def _byte_level(model: models.BPE) -> Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _wrap(backend: Tokenizer, kind: str, name: str) -> CorpusTokenizer:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )
    return CorpusTokenizer(tokenizer, kind, name, backend.get_vocab()[END_OF_TEXT])


def tokenizer_digest(spec: str | Path) -> str:
    """SHA-256, hexadecimal, of the files of a tokenizer; of its name if it is none of this machine (``train:N``, the Hub)."""
    path = expanded(spec)
    if not path.is_dir():
        return content_digest(path) if path.is_file() else content_key(name=str(spec))
    known = ("tokenizer_config.json", "tokenizer.json", "vocab.json")
    folders = (path, path / "tokenizer", path / "model")
    folder = next((each for each in folders if any((each / name).exists() for name in known)), path)
    return content_digest(folder, [file for file in model_files(folder) if file.suffix != ".safetensors"])


def load_tokenizer(spec: str, end_of_text: str | None = None) -> CorpusTokenizer:
    """Open an existing tokenizer: ``bytes``, a folder, a ``tokenizer.json``, a GGUF file or ``smollm2``, or a name on the Hub.

    ``end_of_text`` ends a document: the tokenizer's own end-of-sequence token if None.
    """
    if spec == "bytes":
        return byte_tokenizer()
    size = re.search(r"(?:^|:)(\d+)$", spec)
    hint = f"; did you mean train:{size[1]}?" if size else misspelt(spec, [*PACKAGED, "bytes"])
    try:
        path = gguf_folder(spec) or expanded(spec)
    except CheckpointError as error:
        raise DataError(str(error)) from None
    if path.exists():
        tokenizer, kind, name = _load_local(path), "folder", path.resolve().name
    elif re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", hub_revision(spec)[0]):
        absent = f"there is no tokenizer folder {spec} here, and"
        if problem := hub_problem():
            raise DataError(f"{absent} {problem}{hint}")
        tokenizer = _from_pretrained(spec, f"{absent} the Hub did not give that tokenizer", hint)
        kind, name = "hub", spec
    else:
        raise DataError(f"there is no tokenizer folder {spec}{hint}")
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise DataError(f"the tokenizer {spec} has no fast version; give one that has a tokenizer.json")
    vocabulary = tokenizer.get_vocab()
    known = next((name for name in _KNOWN_ENDS if name in vocabulary), None)
    end = end_of_text or tokenizer.eos_token or known
    if end is None:
        raise DataError(
            f"the tokenizer {spec} names no end-of-text token; prepare a corpus with end_of_text (--end-of-text) set to one "
            'of its tokens, or add "eos_token" to its tokenizer_config.json'
        )
    if end not in vocabulary:
        raise DataError(f"the tokenizer {spec} has no token {end!r}; set end_of_text to one that it has")
    if tokenizer.eos_token != end:
        tokenizer.eos_token = end
    return CorpusTokenizer(tokenizer, kind, name, vocabulary[end])


def _load_local(path: Path) -> Any:
    """Load a tokenizer folder, a ``tokenizer.json``, or the tokenizer in a corpus or run folder."""
    if path.is_file():
        return _from_files(path)
    for folder in (path, path / "tokenizer", path / "model"):
        if (folder / "tokenizer_config.json").exists():
            return _from_pretrained(str(folder), f"the tokenizer in {path} cannot be loaded")
        if (folder / "tokenizer.json").exists():
            return _from_files(folder / "tokenizer.json")
        if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            return _from_files(folder / "vocab.json", folder / "merges.txt")
    raise DataError(
        f"{path} holds no tokenizer: neither tokenizer.json nor vocab.json with merges.txt exists in it; save "
        "one there (tokenizer.save_pretrained)"
    )


def _from_files(file: Path, merges: Path | None = None) -> Any:
    """Load a ``tokenizer.json``, or GPT-2's vocabulary and merges."""
    try:
        if merges is None:
            backend = Tokenizer.from_file(str(file))
        else:
            backend = _byte_level(models.BPE.from_file(str(file), str(merges)))
    except Exception as error:
        raise DataError(f"the tokenizer {file} cannot be read: {str(error)[:200]}") from None
    check_ids(backend)
    if merges is not None and backend.token_to_id(END_OF_TEXT) is not None:
        backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def _from_pretrained(name: str, problem: str, hint: str = "") -> Any:
    from transformers import AutoTokenizer  # imports torch

    try:
        return from_pretrained(AutoTokenizer, name)
    except Exception as error:
        reason = failure_reason(error)
        raise DataError(f"{problem}: {reason.rstrip('.') if hint else reason}{hint}") from None
