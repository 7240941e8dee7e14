"""CUE: a language model of sentences given a set of contexts (CUE, Section 3).

The whole model on a page::

    states = sentence_encoder(x)                    # a causal LM's states before its own head; frozen
    e_cue = context_encoder(contexts)               # or proxy(words of the sentence), or given
    logits = lm_head(decoder(states, e_cue))

Each part is a separate model with its own configuration and checkpoints, and can be trained, frozen or replaced
independently.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.modeling_outputs import CausalLMOutputWithPast

from contextwise.models import final_hidden_states
from contextwise.models.composition import CausalLanguageModel
from contextwise.models.families import new_stock_model
from contextwise.models.masks import packed_documents
from contextwise.settings import ConfigError
from contextwise_papers.cue.config import CueConfig
from contextwise_papers.cue.parts import CueContextEncoder, CueDecoder, ProxyEncoder

PARTS = ("sentence_encoder", "context_encoder", "proxy", "decoder")


class CueForCausalLM(CausalLanguageModel):
    """A sentence encoder, a context encoder (or a proxy encoder), and a decoder that combines them.

    Attributes:
        sentence_encoder: a causal language model, frozen when created (CUE, Section 3.2). Its own vocabulary head is not
            used, but kept for comparison.
        context_encoder: :class:`~contextwise_papers.cue.parts.CueContextEncoder` or None.
        proxy: :class:`~contextwise_papers.cue.parts.ProxyEncoder` or None.
        decoder: :class:`~contextwise_papers.cue.parts.CueDecoder`.
    """

    config: CueConfig
    keeps_cache = False
    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules = ["GPT2Block", "TransformerEncoderLayer"]  # noqa: RUF012

    context_encoder: CueContextEncoder | None
    proxy: ProxyEncoder | None

    def __init__(self, config: CueConfig) -> None:
        super().__init__(config)
        self.sentence_encoder: Any = new_stock_model(AutoModelForCausalLM, config.sentence_encoder)
        self.context_encoder = CueContextEncoder(config.context_encoder) if config.context_encoder else None
        self.proxy = ProxyEncoder(config.proxy) if config.proxy else None
        self.decoder: CueDecoder = CueDecoder(config.decoder)
        self.post_init()
        self._freeze_untrained_parts()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as in transformers, and freeze the untrained parts again, which a checkpoint does not record."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded)._freeze_untrained_parts()
        return loaded

    def _freeze_untrained_parts(self) -> None:
        self.sentence_encoder.requires_grad_(False)
        if self.proxy is not None:
            self.proxy.autoencoder.requires_grad_(False)
        self.train(self.training)

    @property
    def text_encoder(self) -> nn.Module | None:
        """The text encoder that is trained as a part of the context encoder; None without one."""
        return None if self.context_encoder is None else self.context_encoder.text_model

    @property
    def parts(self) -> dict[str, PreTrainedModel]:
        """The parts that the model has, by name."""
        return {name: getattr(self, name) for name in PARTS if getattr(self, name) is not None}

    def train(self, mode: bool = True) -> "CueForCausalLM":
        """Set the mode as in any module, but keep a frozen sentence encoder in evaluation mode, without dropout."""
        super().train(mode)
        if not _is_trained(self.sentence_encoder):
            self.sentence_encoder.eval()
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.sentence_encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.sentence_encoder.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.decoder.lm_head = new_embeddings

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as in transformers, including the sentence encoder's own vocabulary head.

        Raises:
            ConfigError: the model has a proxy encoder, which counts the words of one vocabulary.
        """
        if self.proxy is not None and new_num_tokens not in (None, self.config.vocab_size):
            raise ConfigError(
                f"the proxy encoder was trained on counts of {self.config.vocab_size} tokens, so that the vocabulary cannot be "
                f"resized to {new_num_tokens}; train a new proxy encoder with the new tokenizer"
            )
        frozen = not _is_trained(self.sentence_encoder)
        own = self.sentence_encoder.resize_token_embeddings(new_num_tokens, *args, **kwargs)
        if own.num_embeddings != self.decoder.lm_head.out_features:
            self.decoder.lm_head = self._get_resized_lm_head(self.decoder.lm_head, own.num_embeddings)
        self.config.vocab_size = self.vocab_size = own.num_embeddings  # transformers sets both
        if frozen:
            self.sentence_encoder.requires_grad_(False)
        return own

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: each part is a model that initializes its own weights."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: sentences are short, so ``generate()`` processes the whole sentence again for each token."""
        return False

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "a cue model keeps no cache, which assisted decoding needs; leave out assistant_model, prompt_lookup_num_tokens "
            "and assistant_early_exit"
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        contexts: Tensor | None = None,
        context_mask: Tensor | None = None,
        cue: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Return the whole sentence so far and its contexts."""
        given = {"contexts": contexts, "context_mask": context_mask, "cue": cue}
        return {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **given}

    def cue_vectors(self, contexts: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Compute e_cue (B, W) of sets of contexts (B, K, C) with their mask (B, K), for example to store it.

        Raises:
            ConfigError: the model has no context encoder, or the shapes do not match it.
        """
        if self.context_encoder is None:
            raise ConfigError("contexts are given, but this model has no context encoder; adapt it to contexts first")
        return self.context_encoder(contexts, context_mask)

    def hidden_states(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **sources: Any,
    ) -> Tensor:
        """Compute the input of the vocabulary head: (B, T, D).

        At most one of ``contexts``, ``cue`` and ``proxy_targets`` determines e_cue. Without any, e_cue is that of the empty
        set: the context encoder's learned vector, the proxies' mean if the model has only proxies, else zero.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 0 for padding on the left; padding on the right needs no mask.
            position_ids: (B, T); by default counted from each row's first real token. Where they do not increase by one a new
                sentence begins, which does not see the one before it.
            inputs_embeds: (B, T, D) token vectors of the sentence encoder, instead of ``input_ids``.
            contexts, context_mask: (B, K, C) and (B, K), as for :class:`~contextwise_papers.cue.parts.CueContextEncoder`.
            cue: (B, W), a precomputed e_cue.
            proxy_targets: (B, T) tokens to predict, -100 for no target, for proxies.
            proxy_noise: (B, P) standard normal numbers, for proxies.

        Raises:
            ConfigError: the sentence is longer than a part allows, or e_cue is given twice or has a wrong shape.
        """
        tokens = input_ids if input_ids is not None else inputs_embeds
        if tokens is None:
            raise ConfigError("neither input_ids nor inputs_embeds given; pass the tokens of the sentences")
        attention_mask, documents = packed_documents(attention_mask, position_ids, read=True)
        if documents is not None:
            raise ConfigError(
                "position_ids restart beside an attention_mask with padding, and CUE keeps packed sentences apart only in rows "
                "without padding; put one sentence into each row"
            )
        begins = sources.get("cu_seq_lens_q")
        if position_ids is None and begins is not None and len(begins) > 2:
            raise ConfigError(
                "cu_seq_lens_q names packed sentences; give their position_ids too, which tell them apart here"
            )
        for name in (*FlashAttentionKwargs.__annotations__, "seq_idx"):
            sources.pop(name, None)
        if position_ids is None and attention_mask is not None:
            position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        limit = self.config.max_position_embeddings
        if limit is not None and tokens.shape[1] > limit:  # a row may hold several sentences, or padding
            longest = tokens.shape[1] if position_ids is None else int(position_ids.max()) + 1
            if longest > limit:
                raise ConfigError(
                    f"a sentence of {longest} tokens is longer than the {limit} positions of the model; shorten it"
                )
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        given = {name: x for name, x in (inputs | {"position_ids": position_ids}).items() if x is not None}
        needs_gradient = _is_trained(self.sentence_encoder) or (
            inputs_embeds is not None and inputs_embeds.requires_grad
        )
        with torch.set_grad_enabled(torch.is_grad_enabled() and needs_gradient):
            states_BTS = final_hidden_states(self.sentence_encoder, **given)
        return self.decoder(states_BTS, self._cue(len(tokens), **sources), attention_mask, position_ids)

    def _cue(
        self,
        rows: int,
        contexts: Tensor | None = None,
        context_mask: Tensor | None = None,
        cue: Tensor | None = None,
        proxy_targets: Tensor | None = None,
        proxy_noise: Tensor | None = None,
    ) -> Tensor:
        """e_cue of each row, (B, W)."""
        if sum(source is not None for source in (contexts, cue, proxy_targets)) > 1:
            raise ConfigError("several of contexts, cue and proxy_targets given; pass at most one")
        if cue is not None:
            cue_BW = cue
        elif contexts is not None:
            cue_BW = self.cue_vectors(contexts, context_mask)
        elif proxy_targets is not None:
            if self.proxy is None:
                raise ConfigError("proxy_targets are given, but this model has no proxy encoder")
            cue_BW = self.proxy(proxy_targets, proxy_noise)
        elif self.context_encoder is not None:
            cue_BW = self.context_encoder.empty.expand(rows, -1)
        elif self.proxy is not None:
            cue_BW = self.proxy.without_words(rows)
        else:
            cue_BW = torch.zeros(rows, self.config.decoder.cue_width, device=self.decoder.device)
        expected = (rows, self.config.decoder.cue_width)
        if cue_BW.shape != expected:
            raise ConfigError(f"e_cue has the shape {tuple(cue_BW.shape)}, but the decoder expects {expected}")
        return cue_BW

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        contexts: Tensor | None = None,
        context_mask: Tensor | None = None,
        cue: Tensor | None = None,
        proxy_targets: Tensor | None = None,
        proxy_noise: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits (B, T, V), and the loss if labels are given.

        The named arguments are those of :meth:`hidden_states`, ``kwargs`` those of :class:`CausalLanguageModel`.
        """
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        kwargs |= {"contexts": contexts, "context_mask": context_mask, "cue": cue, "labels": labels}
        return super().forward(*inputs, proxy_targets=proxy_targets, proxy_noise=proxy_noise, **kwargs)


def _is_trained(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())
