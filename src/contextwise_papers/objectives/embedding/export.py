"""Export of an embedding model to sentence-transformers."""

import json
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_directory, check_new
from contextwise.base.hashes import seal
from contextwise.base.pretrained import without_bars
from contextwise.models.composition import ComposedConfig
from contextwise.models.loading import load_config, load_tokenizer
from contextwise_papers.objectives.embedding.embedder import Embedder, Pooling, load_text_model

POOLING_MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}


def export_sentence_transformer(
    source: str | Path,
    out: str | Path,
    pooling: Pooling | None = None,
    *,
    normalize: bool = False,
    max_tokens: int | None = None,
) -> Path:
    """Write a folder for ``SentenceTransformer(out)``: weights, tokenizer, pooling; vectors are those of :class:`.Embedder`.

    Only files are written: sentence-transformers need not be installed. If the tokenizer adds no special tokens, those that
    the model was trained with are written into it (:class:`~contextwise.models.tokenizers.Frame`); a tokenizer without a
    padding token pads with end-of-text.

    Args:
        source: a run, a Hugging Face model folder, or a name on the Hub.
        out: the folder; it must not exist yet.
        pooling: pooling of the last layer, as for :class:`.Embedder`.
        normalize: scale each vector to length 1.
        max_tokens: length to which longer texts are truncated; by default the limit of tokenizer and model.

    Raises:
        CheckpointError: ``source`` has no model or no tokenizer.
        ConfigError: ``out`` exists already, the pooling does not suit the model, or sentence-transformers cannot load it.
    """
    out, config = Path(out), load_config(source)
    check_new(out)
    if isinstance(config, ComposedConfig):
        raise ConfigError(
            f"sentence-transformers loads only stock transformers models, and {source} is a {config.model_type}; "
            "use contextwise model embed, or embed_texts"
        )
    model, tokenizer = load_text_model(source, device="cpu"), load_tokenizer(source)
    embedder = Embedder(model, tokenizer, pooling=pooling, max_tokens=max_tokens)
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise ConfigError(
            "sentence-transformers pads, but the tokenizer has neither a padding nor an end-of-text token; add one"
        )
    embedder.frame.put_around(tokenizer)
    # All versions of sentence-transformers read these names.
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if normalize else {})
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    modes = {name: key == embedder.pooling for key, name in POOLING_MODES.items()}
    contents = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": embedder.max_tokens, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": model.config.hidden_size, **modes},
    }
    with atomic_directory(out, "the model") as folder, without_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for path in kinds:
            (folder / path).mkdir(exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        seal(folder)
    return out
