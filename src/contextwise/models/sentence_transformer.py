"""Export models for sentence-transformers, with the same vectors as :mod:`contextwise.models.embedding`.

Only files are written: sentence-transformers need not be installed.
"""

import json
from pathlib import Path
from typing import Any

from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_directory
from contextwise.models.composition import ComposedConfig
from contextwise.models.embedding import Embedder, Frame, Pooling
from contextwise.models.layers import load_text_model
from contextwise.models.loading import load_config, load_tokenizer
from contextwise.models.tokenizers import put_around

_MODES = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}


def export_sentence_transformer(
    source: str | Path,
    out: str | Path,
    pooling: Pooling | None = None,
    *,
    normalize: bool = False,
    max_tokens: int | None = None,
) -> Path:
    """Write a folder for ``SentenceTransformer(out)``: weights, tokenizer, pooling.

    If the tokenizer adds no special tokens, those that the model was trained with are written into it
    (:class:`~contextwise.models.embedding.Frame`); a tokenizer without a padding token pads with end-of-text.

    Args:
        source: a run, a Hugging Face model folder, or a name on the Hub.
        out: the folder; it must not exist yet.
        pooling: pooling of the last layer, as for :class:`~contextwise.models.embedding.Embedder`.
        normalize: scale each vector to length 1.
        max_tokens: length to which longer texts are truncated; by default the limit of tokenizer and model.

    Raises:
        CheckpointError: ``source`` has no model or no tokenizer.
        ConfigError: ``out`` exists already, the pooling does not suit the model, or sentence-transformers cannot load it.
    """
    out, config = Path(out), load_config(source)
    if out.exists():
        raise ConfigError(f"{out} already exists; choose another folder")
    if isinstance(config, ComposedConfig):
        raise ConfigError(
            f"sentence-transformers loads only stock transformers models, and {source} is a {config.model_type}; "
            "use contextwise embed, or embed_texts"
        )
    model, tokenizer = load_text_model(source, device="cpu"), load_tokenizer(source)
    embedder = Embedder(model, tokenizer, pooling=pooling, normalize=normalize, max_tokens=max_tokens)
    _frame(tokenizer, embedder.frame)
    with atomic_directory(out, "the model") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        _describe(folder, model.config.hidden_size, embedder)
    return out


def _frame(tokenizer: Any, frame: Frame) -> None:
    """Configure the tokenizer to add the special tokens and to pad."""
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise ConfigError(
            "sentence-transformers pads, but the tokenizer has neither a padding nor an end-of-text token; add one"
        )
    put_around(tokenizer, frame.before, frame.after)


def _describe(folder: Path, width: int, embedder: Embedder) -> None:
    """Write the files that describe the modules of sentence-transformers; all its versions read these names."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")][
        : 3 if embedder.normalize else 2
    ]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    settings = {
        "word_embedding_dimension": width,
        **{name: key == embedder.pooling for key, name in _MODES.items()},
    }
    for path, _ in kinds[1:]:
        (folder / path).mkdir()
    for name, content in (
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": embedder.max_tokens, "do_lower_case": False}),
        ("1_Pooling/config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
