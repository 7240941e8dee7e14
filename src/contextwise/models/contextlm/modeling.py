"""ContextLM: a language model that predicts the embedding of its next chunk (ContextLM, Section 2).

The whole model on a page::

    h = token encoder(x)                            # embedding, and the first `injection_layer` backbone blocks
    c_k = pool(h[k*w : (k+1)*w])                    # complete chunks
    context_{k+1} = predictor(c_0 .. c_k)           # two blocks of the backbone's class, causal over chunks
    h_t += gate * context_{floor((t+1)/w)}          # context of the chunk that contains the *target* of t; context_0 = h_0
                                                    # (other forms of the injection: layers.py)
    logits = head(norm(token decoder(h)))           # the other backbone blocks

The backbone is a stock transformers model; none of its arithmetic is reimplemented.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedForCausalLM, Decoded, pretrained_backbone, stock_parts
from contextwise.models.contextlm.cache import StaticContextState, context_state, refuse_right_padding, static_inputs
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.layers import Gate
from contextwise.models.contextlm.pathway import ContextPathway, Contexts
from contextwise.models.masks import all_real


class ContextLMForCausalLM(ComposedForCausalLM):
    """A decoder-only backbone with a context predictor between its token encoder and its token decoder.

    Attributes:
        backbone: the stock base model (``GPT2Model``, ``GPTNeoXModel``).
        context: the pathway: ``pooling``, ``layers`` (blocks of the backbone's class), ``gate``.
        lm_head: the vocabulary head, tied to the embedding if the backbone's configuration ties it.
    """

    config: ContextLMConfig

    def __init__(self, config: ContextLMConfig) -> None:
        super().__init__(config)
        self._make_backbone()
        self.context = ContextPathway(config, self.backbone)
        self._make_head()
        self.post_init()

    @classmethod
    def from_backbone(cls, backbone: str | Path | PreTrainedModel, **options: Any) -> "ContextLMForCausalLM":
        """Add a context pathway to a pretrained causal language model; its weights are kept.

        With the default gated injection the new model's logits equal the backbone's until it is trained. A form with a
        norm of h (``normed_gate``, ``own_norms``, ``shared_norm``) changes what the pretrained blocks read.

        Args:
            backbone: a run, a model's folder or its name on the Hub, or a loaded causal language model (its weights are
                shared, not copied).
            options: arguments of :class:`ContextLMConfig` (``chunk_size``, ``predictor_layers``, ...).

        Raises:
            CheckpointError: the backbone could not be loaded.
            ConfigError: the backbone's family has no adapter, its vocabulary head has a bias, it reads its prompts as a prefix,
                or an option is out of range.
        """
        source = pretrained_backbone(backbone, "ContextLM's has")
        config = ContextLMConfig(backbone_config=source.config, **options)
        model = cls._from_config(config, dtype=source.dtype).to(source.device)  # its rotary frequencies stay in float32
        model.backbone, model.embedding_norm = stock_parts(source)
        model.lm_head = source.get_output_embeddings()
        model.tie_weights()
        return model.train(source.training)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare inputs as in transformers; for a static cache, add whether the next step completes a chunk."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)
        return static_inputs(inputs, self.config.chunk_size, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize gates to zero, and the predictor's blocks as the backbone initializes its blocks."""
        if isinstance(module, Gate):
            init.zeros_(module.weight)
        else:
            super()._init_weights(module)

    def decoded(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        further_layers: int = 0,
        inside_chunks: bool | None = None,
        **kwargs: Any,
    ) -> Decoded:
        """Run the model up to the final norm; chunks are counted from each row's first real token.

        ``further_layers`` of the cache follow ContextLM's own, for blocks after it. ``inside_chunks``: whether each row gets
        one token that begins no document and completes no chunk; by default read from ``position_ids``.
        """
        embeds, cache = self._token_vectors(input_ids, inputs_embeds), past_key_values
        depth = len(self.family.blocks(self.backbone))
        state = None if cache is None else context_state(cache, self.config, further_layers, depth)
        stepping = isinstance(state, StaticContextState) and state.is_initialized and embeds.shape[1] == 1
        consecutive = position_ids is None and attention_mask is None
        even = cache is None and position_ids is None and all_real(attention_mask)
        # A step with known positions ignores the mask, which generate() may have built in another form.
        read_mask = None if stepping and position_ids is not None else attention_mask
        if isinstance(state, StaticContextState):
            refuse_right_padding(read_mask)
        real_BT = _real_tokens(embeds, read_mask)
        positions_BT = self._positions(embeds, read_mask, position_ids, cache)
        contexts: Contexts | None = None

        def inject(i: int, h_BTD: Tensor) -> Tensor:
            nonlocal contexts
            decoder_layer, inputs = i - self.config.injection_layer, (h_BTD, self.backbone)
            if decoder_layer == 0:
                if even:
                    contexts = self.context.contexts(*inputs, **kwargs)
                else:
                    contexts = self.context.contexts_of_rows(
                        *inputs, positions_BT, real_BT, cache, state, consecutive, inside_chunks, **kwargs
                    )
            if contexts is None or (decoder_layer and not self.config.inject_every_layer):
                return h_BTD
            return self.context.inject(h_BTD, contexts, decoder_layer, self.backbone)

        mask, positions = (None, None) if even else (attention_mask, None if position_ids is None else positions_BT)
        return super().decoded(None, mask, positions, cache, embeds, positions_BT, inject, **kwargs)


def _real_tokens(embeds: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mask of the tokens of a call that are not padding: (B, T) booleans."""
    rows, length = embeds.shape[:2]
    if attention_mask is None:
        return torch.ones(rows, length, dtype=torch.bool, device=embeds.device)
    if attention_mask.dim() != 2:
        raise ConfigError("ContextLM accepts attention masks of shape (batch, length), 1 for tokens and 0 for padding")
    return attention_mask[:, -length:].bool()
