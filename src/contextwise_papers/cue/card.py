"""Model cards of CUE: how a model is used with contexts, and the card of a context encoder alone."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from contextwise.base.files import without_folders
from contextwise.base.runs import RunFolder
from contextwise_papers.cue.contexts import ContextSettings

TEXT_FACTS = ("name", "pooling", "max_tokens")
"""The arguments to open a text encoder with."""


def usage(config: Any) -> list[str]:
    """Lines of code that use a CUE model with contexts; none for a model without."""
    if config.context_encoder is None or not config.context_encoder.contexts:
        return []
    return [
        "",
        *_encoded(config.context_encoder, "model.text_encoder"),
        'tokens = tokenizer(tokenizer.eos_token + " A sentence.", return_tensors="pt").input_ids',
        "mask = torch.ones(contexts.shape[:2], dtype=torch.bool)  # False for missing contexts",
        "logits = model(tokens, contexts=contexts, context_mask=mask).logits",
        "# or, for candidates of sentences: contextwise rescore MODEL lists.jsonl",
    ]


def context_encoder_card(folder: Path, config: Any) -> str | None:
    """Text of ``README.md`` for a context encoder alone (``RUN/parts/context_encoder``); None for one without contexts."""
    from contextwise.training.export import card_text

    if not config.contexts:
        return None
    run = RunFolder(folder.parent.parent)
    name = f"{run.recipe()['name']}-{folder.name}" if run.recipe_file.exists() else folder.name
    rows = {
        "e_cue": f"{config.width} channels",
        "contexts": ", ".join(ContextSettings(**config.contexts).types),
        "text encoder": ", ".join(f"{key} {without_folders(config.text_encoder[key])}" for key in TEXT_FACTS),
    }
    lines = [
        "from transformers import AutoModel",
        "import contextwise  # registers the model",
        f"model = AutoModel.from_pretrained({json.dumps(name, ensure_ascii=False)})",
        "",
        *_encoded(config, "model.text_model"),
        "e_cue = model(contexts)  # or: contextwise embed MODEL --contexts contexts.jsonl --out cue.npy",
    ]
    data = ModelCardData(library_name="transformers", tags=["contextwise", "cue"])
    return card_text(data, name, rows, lines)


TEXT_FACTS = ("name", "pooling", "max_tokens")
"""The arguments to open a text encoder with."""


def _encoded(config: Any, trained: str) -> list[str]:
    """Lines of code that encode the texts of one sentence's contexts as ``contexts`` (1, K, C).

    ``trained`` is the expression for a text encoder that is a part of the model.
    """
    name, pooling, tokens = (without_folders(config.text_encoder[key]) for key in TEXT_FACTS)
    options = f"max_tokens={tokens}" + f", model={trained}" * ("model" in config.text_encoder)
    types = ContextSettings(**config.contexts).types
    return [
        "import torch",
        "from contextwise_papers.cue.encoding import TextEncoder",
        f"text_encoder = TextEncoder.open({json.dumps(name)}, {json.dumps(pooling)}, {options})",
        f"# the contexts of one sentence, in any order ({', '.join(types)}); dates in this format",
        'texts = ["A title", "Wednesday 29 May 1985"]',
        "contexts = torch.from_numpy(text_encoder.encode(texts))[None]",
    ]
