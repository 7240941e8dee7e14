"""ContextLM: a language model that predicts the embedding of its next chunk (ContextLM, Section 2).

The whole model on a page::

    h = token encoder(x)                            # embedding, and the first `injection_layer` backbone blocks
    c_k = pool(h[k*w : (k+1)*w])                    # complete chunks
    context_{k+1} = predictor(c_0 .. c_k)           # two blocks of the backbone's kind, causal over chunks
    h_t += gate * context_{floor((t+1)/w)}          # context of the chunk that the *target* of t lies in; context_0 = h_0
    logits = head(norm(token decoder(h)))           # the other backbone blocks

The backbone is a stock transformers model; nothing of its arithmetic is written again here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedForCausalLM, check_labels
from contextwise.models.contextlm.cache import context_state
from contextwise.models.contextlm.config import ContextLMConfig
from contextwise.models.contextlm.injection import Injection
from contextwise.models.contextlm.pathway import ContextPathway, Contexts
from contextwise.models.contextlm.static import StaticContextState, static_inputs
from contextwise.models.families import Rotary, family_of
from contextwise.models.loading import load_model
from contextwise.models.losses import loss_and_logits, next_tokens


class ContextLMForCausalLM(ComposedForCausalLM):
    """A decoder-only backbone with a context predictor between its token encoder and its token decoder.

    Attributes:
        backbone: the stock base model (``GPT2Model``, ``GPTNeoXModel``).
        context: the pathway: ``pooling``, ``layers`` (blocks of the backbone's own kind), ``gate``.
        lm_head: the vocabulary head, tied to the embedding where the backbone's configuration ties it.
    """

    config: ContextLMConfig
    config_class = ContextLMConfig

    def __init__(self, config: ContextLMConfig) -> None:
        super().__init__(config)
        backbone = config.backbone_config
        self.family = family_of(backbone)
        self.backbone = AutoModel.from_config(backbone, attn_implementation=config._attn_implementation)
        config.backbone_config = self.backbone.config
        self.context = ContextPathway(config)
        self.lm_head = nn.Linear(backbone.hidden_size, backbone.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self._tied_weights_keys = {"lm_head.weight": f"backbone.{self.family.embedding_name}.weight"}
        self.post_init()

    @classmethod
    def from_backbone(cls, backbone: str | Path | PreTrainedModel, **options: Any) -> "ContextLMForCausalLM":
        """Put a context pathway into a pretrained causal language model; its weights are taken over as they are.

        With the default gated injection the new model's logits equal the backbone's until it is trained on.

        Args:
            backbone: a run, a model's folder or its name on the Hub, or a loaded causal language model (its weights are
                shared, not copied).
            options: arguments of :class:`ContextLMConfig` (``chunk_size``, ``predictor_layers``, ...).

        Raises:
            CheckpointError: no model could be loaded from there.
            ConfigError: no adapter for such backbones, a vocabulary head with a bias, or options out of range.
        """
        source = load_model(backbone, device="cpu") if isinstance(backbone, str | Path) else backbone
        if getattr(source.get_output_embeddings(), "bias", None) is not None:
            raise ConfigError(
                f"the vocabulary head of this {source.config.model_type} has a bias, which ContextLM's has not; "
                "choose a backbone whose head is a plain matrix"
            )
        model = cls(ContextLMConfig(backbone_config=source.config, **options))
        model.to(device=source.device, dtype=source.dtype)
        model.backbone = source.base_model
        model.lm_head = source.get_output_embeddings()
        model.tie_weights()
        return model.train(source.training)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *args: Any, inputs_embeds: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """As in any transformers model; for a static cache, also whether the next step completes a chunk."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, *args, inputs_embeds=inputs_embeds, **kwargs
        )
        return static_inputs(inputs, self.config.chunk_size, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Gates start at their own value (zero); the predictor's blocks start as the backbone starts its own."""
        if isinstance(module, Injection):
            init.constant_(module.weight, module.initial)
        else:
            self.backbone._init_weights(module)

    def hidden_states(
        self, input_ids: torch.Tensor | None = None, *inputs: Any, **kwargs: Any
    ) -> torch.Tensor:
        """What the vocabulary head reads: (B, T, D), after the final norm. Inputs as for :meth:`decoded`."""
        return self.family.norm(self.backbone, self.decoded(input_ids, *inputs, **kwargs).h_BTD)

    def decoded(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        further_layers: int = 0,
        completes_chunk: bool | None = None,
        **kwargs: Any,
    ) -> "Decoded":
        """Everything up to the final norm.

        Args:
            input_ids: (B, T) tokens; the ones that are not in ``past_key_values`` yet.
            attention_mask: (B, past + T), 0 for left padding. Chunks are counted from each row's first real token.
            position_ids: (B, T). Where they fall back to 0 inside a row a new document begins: neither attention nor a
                chunk reaches across.
            past_key_values: a cache, dynamic or static, filled in place.
            further_layers: how many layers of the cache lie behind ContextLM's own, for blocks that go on from here.
            completes_chunk: with a static cache and one token a row, whether any row completes a chunk with it; it is looked
                up in ``position_ids`` if not given.
        """
        embeds = self._token_vectors(input_ids, inputs_embeds)
        state = None
        if past_key_values is not None:
            state = context_state(past_key_values, self.config, further_layers)
        stepping = isinstance(state, StaticContextState) and state.is_initialized and embeds.shape[1] == 1
        even = past_key_values is None and position_ids is None and _all_real(attention_mask)
        positions_BT, real_BT = _positions(embeds, attention_mask, position_ids, past_key_values, stepping)
        if attention_mask is None and position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            self._check_length(past + embeds.shape[1])
        else:
            self._check_positions(positions_BT)
        mask = create_causal_mask(
            config=self.backbone.config,
            inputs_embeds=embeds,
            attention_mask=None if even else attention_mask,
            past_key_values=past_key_values,
            position_ids=None if even else positions_BT,
        )
        family, backbone = self.family, self.backbone
        h_BTD = family.embed(backbone, embeds, positions_BT)
        rotary = family.rotary(backbone, h_BTD, positions_BT)
        contexts: Contexts | None = None
        for i, block in enumerate(family.blocks(backbone)):
            if i == self.config.injection_layer:
                if even:
                    contexts = self.context.contexts(h_BTD, backbone, **kwargs)
                elif isinstance(state, StaticContextState) and stepping:
                    contexts = self.context.contexts_of_step(
                        h_BTD, backbone, positions_BT, past_key_values, state, completes_chunk, **kwargs
                    )
                else:
                    contexts = self.context.contexts_of_rows(
                        h_BTD, backbone, positions_BT, real_BT, past_key_values, state, **kwargs
                    )
            place = i - self.config.injection_layer
            if contexts is not None and (place == 0 or self.config.inject_every_layer):
                h_BTD = self.context.inject(h_BTD, contexts, place)
            h_BTD = family.run(block, h_BTD, mask, rotary, past_key_values, **kwargs)
        return Decoded(h_BTD, mask, rotary)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and the loss where there are labels.

        Args:
            labels: (B, T) as transformers takes them: the tokens themselves, shifted here; -100 is ignored.
            shift_labels: (B, T) targets that are already shifted, instead of ``labels``.
            logits_to_keep: compute the logits of the last so many positions only (0: all), or of these indices.
            num_items_in_batch: divide the summed loss by this instead of by the number of targets.

        While training with labels no logits are returned: the loss is computed piece by piece, never holding all logits.
        """
        for name in ("output_attentions", "output_hidden_states", "return_dict"):
            kwargs.pop(name, None)
        if use_cache is None:
            use_cache = getattr(self.config, "use_cache", not self.training)
        if labels is not None or shift_labels is not None:
            use_cache = use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        h_BTD = self.hidden_states(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, **kwargs
        )

        if labels is not None and shift_labels is None:
            shift_labels = next_tokens(labels)
        if shift_labels is not None:
            check_labels(shift_labels, self.config.vocab_size)
        loss, logits = loss_and_logits(
            h_BTD,
            self.lm_head,
            shift_labels,
            logits_to_keep,
            items=num_items_in_batch,
            training=self.training,
        )
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=past_key_values if use_cache else None
        )


@dataclass
class Decoded:
    """What blocks behind the token decoder need to go on: its output (B, T, D), the attention mask and the rotary positions."""

    h_BTD: torch.Tensor
    mask: Any
    rotary: Rotary | None


def _all_real(attention_mask: torch.Tensor | None) -> bool:
    return attention_mask is None or (attention_mask.dim() == 2 and bool(attention_mask.all()))


def _positions(
    embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None,
    stepping: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Position of each token in its document, and which tokens are real; both (B, T)."""
    rows, length = embeds.shape[:2]
    if (
        stepping and position_ids is not None
    ):  # nothing needs to be read off the mask, which may be generate()'s own
        return position_ids.expand(rows, -1), torch.ones_like(position_ids, dtype=torch.bool).expand(rows, -1)
    if attention_mask is not None and attention_mask.dim() != 2:
        raise ConfigError(
            "ContextLM takes attention masks of shape (batch, length), 1 for tokens and 0 for padding"
        )
    real = torch.ones(rows, length, dtype=torch.bool, device=embeds.device)
    if attention_mask is not None:
        if cache is not None and bool((attention_mask[:, -1] < attention_mask.amax(1)).any()):
            raise ConfigError(
                "a row of attention_mask has padding behind its tokens; pad on the left to generate (padding_side='left')"
            )
        real = attention_mask[:, -length:].bool()
    if position_ids is not None:
        return position_ids.expand(rows, -1), real
    if attention_mask is not None:
        return (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:], real
    past = cache.get_seq_length() if cache is not None else 0
    return torch.arange(past, past + length, device=embeds.device).expand(rows, -1), real
