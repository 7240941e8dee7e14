"""Load checkpoints of ContextLM's authors, which use the weight names of their related model (ConceptLM).

The authors name a repository on the Hub, but do not describe its files. The weight names are those of the related model
that the same group released, kept as a table. Embeddings and head are not tied, and the context is merged as in the code of
that model (``injection="paper"``). A predictor of GPT-NeoX has a norm at its end if the checkpoint has its weights.
"""

import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from contextwise.base.errors import CheckpointError, one_line
from contextwise.base.files import read_json
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.modeling import ContextLMForCausalLM

NAMES: dict[str, list[tuple[str, str]]] = {
    "gpt2": [
        (r"(wte|wpe|ln_f)\.(.+)", r"backbone.\1.\2"),
        (r"lm_head\.weight", "lm_head.weight"),
        (r"encoder\.(\d+)\.(.+)", r"backbone.h.{\1}.\2"),
        (r"decoder\.(\d+)\.(.+)", r"backbone.h.{\1+encoder}.\2"),
        (r"hlm\.transformer\.(\d+)\.(.+)", r"context.layers.\1.\2"),
    ],
    "gpt_neox": [
        (r"(embed_in|final_layer_norm)\.(.+)", r"backbone.\1.\2"),
        (r"embed_out\.weight", "lm_head.weight"),
        (r"encoder\.(\d+)\.(.+)", r"backbone.layers.{\1}.\2"),
        (r"decoder\.(\d+)\.(.+)", r"backbone.layers.{\1+encoder}.\2"),
        (r"hlm\.(?:transformer|layers)\.(\d+)\.(.+)", r"context.layers.\1.\2"),
        (r"hlm\.layer_norm\.(.+)", r"context.norm.\1"),
    ],
}
"""Per backbone: (pattern of a published name, our name). ``{i+encoder}`` adds the number of encoder blocks to i."""

COMPUTED = re.compile(r"(.*\.)?(attn\.(bias|masked_bias)|attention\.(bias|masked_bias)|rotary_emb\.inv_freq)")
"""Buffers that older transformers versions stored; they are recomputed."""


def translate(name: str, family: str, encoder_blocks: int) -> str | None:
    """Translate a published weight name to ours; None for a buffer that is recomputed, CheckpointError if it is unknown."""
    if COMPUTED.fullmatch(name):
        return None
    for pattern, ours in NAMES[family]:
        if match := re.fullmatch(pattern, name):
            return re.sub(
                r"\{(\d+)(\+encoder)?\}",
                lambda number: str(int(number[1]) + (encoder_blocks if number[2] else 0)),
                match.expand(ours),
            )
    raise CheckpointError(
        f"the checkpoint contains {name}, which the {family} table of contextwise_papers.contextlm.published does not "
        "list; add a line to the table if it belongs to the model"
    )


def load_published(folder: str | Path, chunk_size: int = 4) -> ContextLMForCausalLM:
    """Load a checkpoint whose weights have the published names.

    Args:
        folder: contains the ``config.json`` of the backbone, and ``*.safetensors``.
        chunk_size: w, which the checkpoint does not contain; 4 is the paper's (ContextLM, Section 3.1).

    Raises:
        CheckpointError: files or weights are missing, or weights have unknown names.
    """
    folder = Path(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} contains no *.safetensors; convert its weights to safetensors first")
    published: dict[str, Tensor] = {}
    for file in files:
        published |= load_file(file)
    encoder = _count(published, r"encoder\.(\d+)\.")
    config = _config(folder, published, encoder, chunk_size)
    family = config.backbone_config.model_type
    translated = {translate(name, family, encoder): tensor for name, tensor in published.items()}
    weights: dict[str, Any] = {name: tensor for name, tensor in translated.items() if name is not None}
    model = ContextLMForCausalLM(config)
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        reason = one_line(error, 300)
        raise CheckpointError(f"{folder} does not match its config.json: {reason}") from error
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing[:3])}")
    if unexpected:
        raise CheckpointError(f"{folder} contains the unexpected weight {unexpected[0]}")
    return model.eval()


def _config(folder: Path, published: dict[str, Tensor], encoder: int, chunk_size: int) -> ContextLMConfig:
    values = read_json(folder / "config.json", "the checkpoint's configuration")
    family = "gpt2" if "wte.weight" in published else "gpt_neox"
    values |= {"model_type": family, "tie_word_embeddings": False}
    depth = encoder + _count(published, r"decoder\.(\d+)\.")
    values["n_layer" if family == "gpt2" else "num_hidden_layers"] = depth
    kind = AutoConfig.for_model(family)
    known = {*kind.to_dict(), *kind.attribute_map} - {"model_type"}
    backbone: PreTrainedConfig = type(kind)(**{name: values[name] for name in values if name in known})
    return ContextLMConfig(
        backbone,
        chunk_size=chunk_size,
        predictor_layers=_count(published, r"hlm\.\w+\.(\d+)\."),
        injection="paper",
        injection_layer=encoder,
        predictor_norm="hlm.layer_norm.weight" in published,
    )


def _count(names: dict[str, Tensor], pattern: str) -> int:
    """The largest number that ``pattern`` captures at the start of a name, plus one; 0 without a match."""
    matches = [re.match(pattern, name) for name in names]
    return max((int(match[1]) + 1 for match in matches if match), default=0)
