"""Specifications of CUE, its parts and the LSTM language model: FLOPs, training losses and model cards."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModel

from contextwise.base.files import without_folders
from contextwise.models import Losses, ModelSpec, labelled_losses, register_model
from contextwise.models.spec import Batch, Parts, matrix_weights, spec_of, without_weights
from contextwise_papers.cue.config import CueConfig, UnigramConfig
from contextwise_papers.cue.lstm import LSTMConfig, LSTMForCausalLM
from contextwise_papers.cue.modeling import CueForCausalLM
from contextwise_papers.cue.parts import CueContextEncoder, CueDecoder, ProxyEncoder, UnigramAutoencoder
from contextwise_papers.cue.settings import TRAINED as TRAINED_BY

TRAINED = ("context_encoder", "proxy", "decoder")
"""The parts of a CUE model that are usually trained."""


class CueSpec(ModelSpec):
    """A CUE model, without a frozen text encoder, whose vectors are computed only once.

    Where the text encoder is trained, each context counts as long as the longest that it reads, as each sentence does.
    """

    reads_sentences = True
    takes_contexts = True
    loss_measure = "sentences"

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        config: CueConfig = model.config
        trained = TRAINED if trained is None else trained
        sentence_encoder = spec_of(config.sentence_encoder)
        total = sentence_encoder.flops_per_example(model.sentence_encoder, inputs) / 3  # forward alone
        if config.context_encoder is not None:
            encoder = config.context_encoder
            sources = encoder.contexts
            contexts = len(sources.get("columns", [])) + bool(sources.get("previous_sentence"))
            attention = 4 * encoder.layers * encoder.width * contexts
            text_model = model.context_encoder.text_model
            text_weights = 0 if text_model is None else matrix_weights(text_model)
            per_context = 2 * (matrix_weights(model.context_encoder) - text_weights) + attention
            total += (3 if "context_encoder" in trained else 1) * contexts * per_context
            if text_model is not None and "text_encoder" in trained:
                text, longest = text_model.config, encoder.text_encoder["max_tokens"]
                per_token = 2 * text_weights + 4 * text.num_hidden_layers * text.hidden_size * longest
                total += 3 * contexts * longest * per_token
        if config.proxy is not None:
            encoder_weights = matrix_weights(model.proxy.autoencoder.down)
            total += 2 * encoder_weights + 3 * 2 * matrix_weights(model.proxy.project)
        if config.decoder.form == "transformer":
            blocks = model.decoder.transformer
            cross_weights = sum(matrix_weights(block.crossattention.c_attn) for block in blocks.h)
            per_token = 2 * (matrix_weights(blocks) - cross_weights)
            steps = inputs if config.decoder.sentence_inputs else 1
            attention = 4 * config.decoder.layers * config.decoder.width * (steps + 1)
            of_cue = cross_weights + matrix_weights(model.decoder.project_cue)  # once per sentence
            total += (3 if "decoder" in trained else 2) * (steps * (per_token + attention) + 2 * of_cue)
            # The frozen sentence encoder takes no gradient.
            total += (2 if "decoder" in trained else 1) * steps * 2 * matrix_weights(model.decoder.project_states)
        return total

    def flops_per_target(self, config: Any, trained: Parts = None) -> float:
        passes = 2.0 if trained is not None and "decoder" not in trained else 3.0
        return passes * 2 * (config.hidden_size * config.vocab_size)

    def parts(self, model: Any) -> dict[str, Any]:
        parts = model.parts
        if model.text_encoder is None:
            return parts
        return {"sentence_encoder": parts.pop("sentence_encoder"), "text_encoder": model.text_encoder, **parts}

    def stages(self, part: str) -> list[str]:
        return [stage for stage, trained in TRAINED_BY.items() if part in trained]

    def beside(self, config: Any) -> dict[str, int]:
        from contextwise_papers.cue.encoding import text_config

        if config.context_encoder is None or "model" in config.context_encoder.text_encoder:
            return {}
        with without_weights():
            encoder = AutoModel.from_config(text_config(config.context_encoder.text_encoder["name"]))
        return {"text encoder": sum(parameter.numel() for parameter in encoder.parameters())}

    def saved_parts(self, model: Any) -> dict[str, bool]:
        return {name: name == "sentence_encoder" for name in model.parts}

    def losses(self, model: Any, batch: Batch) -> Losses:
        """The token loss; a model with proxies that gets neither contexts nor e_cue computes them from the labels."""
        names = ("position_ids", "attention_mask", "contexts", "context_mask", "cue", "proxy_noise")
        inputs = {name: batch[name] for name in names if name in batch}
        if model.proxy is not None and not {"contexts", "cue"} & set(inputs):
            inputs["proxy_targets"] = batch["labels"]
        hidden_BTD = model.hidden_states(batch["input_ids"], **inputs)
        return labelled_losses(hidden_BTD, batch["labels"], model.decoder.lm_head, labelled=batch.get("labelled"))

    def generation_inputs(self, model: Any, source: str, contexts: Path) -> dict[str, Tensor]:
        from contextwise_papers.cue.contexts import contexts_for

        return contexts_for(model, source, contexts)


class LSTMSpec(ModelSpec):
    """An LSTM: no attention."""

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        return 3.0 * inputs * 2 * matrix_weights(model.lstm)


class UnigramSpec(ModelSpec):
    """A unigram autoencoder: one vector and one loss per sentence; its last layer counts as the vocabulary head."""

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        return 3.0 * 2 * (matrix_weights(model) - matrix_weights(model.up[-1]))

    def losses(self, model: Any, batch: Batch) -> Losses:
        """The sum of the divergences over a batch's sentences, and their number."""
        divergences = model.divergences(batch["labels"])
        counts = batch["labels"].new_full((1,), len(divergences))
        return Losses(("sentences",), divergences.sum()[None], counts)


def usage(config: Any) -> list[str]:
    """Lines of code that use a CUE model with contexts; none for a model without."""
    from contextwise_papers.cue.contexts import trained_types

    types, encoder = trained_types(config), config.context_encoder
    if not types:
        return []
    name, pooling, tokens = (without_folders(encoder.text_encoder[key]) for key in ("name", "pooling", "max_tokens"))
    options = f"max_tokens={tokens}" + ", model=model.text_encoder" * ("model" in encoder.text_encoder)
    return [
        "",
        "import torch",
        "from contextwise_papers.cue.encoding import TextEncoder",
        f"text_encoder = TextEncoder.open({json.dumps(name)}, {json.dumps(pooling)}, {options})",
        f"# the contexts of one sentence, in any order ({', '.join(types)}); dates in this format",
        'texts = ["A title", "Wednesday 29 May 1985"]',
        "contexts = torch.from_numpy(text_encoder.encode(texts))[None]",
        'tokens = tokenizer(tokenizer.eos_token + " A sentence.", return_tensors="pt").input_ids',
        "mask = torch.ones(contexts.shape[:2], dtype=torch.bool)  # False for missing contexts",
        "logits = model(tokens, contexts=contexts, context_mask=mask).logits",
        "# or, for candidates of sentences: contextwise measure rescore MODEL lists.jsonl",
    ]


register_model(CueConfig, CueForCausalLM, CueSpec())
register_model(LSTMConfig, LSTMForCausalLM, LSTMSpec())
register_model(UnigramConfig, UnigramAutoencoder, UnigramSpec(UnigramAutoencoder), AutoModel)
for _part in (CueContextEncoder, CueDecoder, ProxyEncoder):
    register_model(_part.config_class, _part, auto_class=AutoModel)
