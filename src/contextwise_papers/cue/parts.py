"""The trained parts of a CUE model: context encoder (Section 3.1), decoder (Section 3.3), and proxies (Section 4.2)."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, GPT2Config, GPT2Model, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput

from contextwise.models import IGNORED
from contextwise.models.composition import as_config
from contextwise.models.families import family_of
from contextwise.models.masks import causal_mask
from contextwise.settings import ConfigError
from contextwise_papers.cue.config import CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig


def trained_text_model(config: PreTrainedConfig) -> Any:
    """Build a text encoder with random weights, without the pooler, which would get no gradient."""
    model = AutoModel.from_config(config, dtype=torch.float32)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


class CueContextEncoder(PreTrainedModel):
    """One projection for all contexts, Transformer blocks over the set without positions, and the mean.

    ::

        g_k = project(c_k)             # Eq. 2; linear according to Section 4.2.3 and Table 1's 6.6M parameters
        e_1 .. e_K = blocks(g_1 .. g_K)    # Eq. 3
        e_cue = mean(e_1 .. e_K)       # Eq. 4

    c_k are the vectors of a text encoder: of a frozen one, or of ``text_model``, a part of this model that is trained with it
    (Table 4, "No DistilBERT"). The result does not depend on the order of the contexts. A sentence without contexts gets the
    learned vector ``empty``.
    """

    config: CueContextConfig
    main_input_name = "contexts"
    _no_split_modules = ["TransformerEncoderLayer"]  # noqa: RUF012
    blocks: Any

    def __init__(self, config: CueContextConfig) -> None:
        super().__init__(config)
        self.project = nn.Linear(config.text_width, config.width)
        sizes = (config.width, config.heads, config.feed_forward)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(*sizes, dropout=0.0, batch_first=True) for _ in range(config.layers)
        )
        self.empty = nn.Parameter(torch.zeros(config.width))
        text_model = config.text_encoder.get("model")
        self.text_model = None if text_model is None else trained_text_model(as_config(text_model))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self:
            init.zeros_(self.empty)
        else:
            super()._init_weights(module)

    def forward(self, contexts: Tensor, context_mask: Tensor | None = None, **_: Any) -> Tensor:
        """e_cue of each sentence, (B, W), from vectors of the text encoder (B, K, C) and a mask (B, K), False for missing ones.

        For a ``text_model`` the contexts may also be tokens (B, K, L), padded on the right with -100.
        """
        mask_BK = self._mask(contexts, context_mask)
        if self.training and self.config.context_dropout:
            kept_BK = torch.rand(mask_BK.shape, device=mask_BK.device) >= self.config.context_dropout
            mask_BK = mask_BK & kept_BK
        if not mask_BK.shape[1]:
            return self.empty.expand(len(contexts), -1)
        e_BKW, attended_BK = self._projected(contexts, mask_BK)
        for block in self.blocks:
            e_BKW = block(e_BKW, src_key_padding_mask=~attended_BK)
        count_B1 = mask_BK.sum(1, keepdim=True)
        mean_BW = e_BKW.masked_fill(~mask_BK[..., None], 0.0).sum(1) / count_B1.clamp(min=1)
        # Both branches are always computed: under DDP every trained parameter needs a gradient in every step.
        return torch.where(count_B1 > 0, mean_BW, self.empty.to(mean_BW.dtype))

    @torch.no_grad()
    def attention(self, contexts: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """The attention that each context receives, (B, K), as in Figure 3.

        The mean over blocks, heads and attending contexts; the weights of a sentence sum to 1, those of missing contexts
        are 0. Without blocks all contexts have equal weight.
        """
        mask_BK = self._mask(contexts, context_mask)
        if not mask_BK.shape[1]:
            return contexts.new_zeros(mask_BK.shape)
        x_BKW, attended_BK = self._projected(contexts, mask_BK)
        received_BK = mask_BK.to(x_BKW.dtype) if not self.blocks else torch.zeros_like(x_BKW[..., 0])
        for block in self.blocks:
            weights_BQK = block.self_attn(x_BKW, x_BKW, x_BKW, key_padding_mask=~attended_BK)[1]
            received_BK = received_BK + (weights_BQK * mask_BK[..., None]).sum(1)
            x_BKW = block(x_BKW, src_key_padding_mask=~attended_BK)
        received_BK = received_BK * mask_BK
        return received_BK / received_BK.sum(1, keepdim=True).clamp(min=torch.finfo(received_BK.dtype).tiny)

    def _mask(self, contexts: Tensor, context_mask: Tensor | None) -> Tensor:
        tokens = self.text_model is not None and not contexts.is_floating_point()
        if contexts.dim() != 3 or (contexts.shape[-1] != self.config.text_width and not tokens):
            raise ConfigError(
                f"contexts have the shape {tuple(contexts.shape)}, but this context encoder expects (sentences, contexts, "
                f"{self.config.text_width}): vectors of {self.config.text_encoder.get('name', 'its text encoder')}"
            )
        if context_mask is None:
            return torch.ones(contexts.shape[:2], dtype=torch.bool, device=contexts.device)
        if context_mask.shape != contexts.shape[:2]:
            raise ConfigError(
                f"context_mask has the shape {tuple(context_mask.shape)}, but the contexts {tuple(contexts.shape[:2])}"
            )
        return context_mask.bool()

    def _projected(self, contexts: Tensor, mask_BK: Tensor) -> tuple[Tensor, Tensor]:
        """g_1 .. g_K, and a mask of those attended to; in an empty set the first, so that no softmax is empty."""
        vectors = contexts
        if self.text_model is not None and not contexts.is_floating_point():
            vectors = self._encoded(contexts, mask_BK)
        known = vectors.to(self.project.weight.dtype).masked_fill(~mask_BK[..., None], 0.0)
        attended_BK = mask_BK.clone()
        attended_BK[:, 0] |= ~mask_BK.any(1)
        return self.project(known), attended_BK

    def _encoded(self, tokens_BKL: Tensor, mask_BK: Tensor) -> Tensor:
        """The vectors (B, K, C) of contexts, as :class:`.Embedder` computes them; others are 0."""
        chosen_BK = mask_BK.clone()
        chosen_BK[0, 0] = True  # with no text at all the weights need a gradient as well, under DDP
        tokens_NL = tokens_BKL[chosen_BK]
        real_NL = tokens_NL.ge(0)
        real_NL[:, 0] = True
        longest = int(real_NL.sum(1).max())
        tokens_NL, real_NL = tokens_NL[:, :longest].long().clamp(min=0), real_NL[:, :longest]
        assert self.text_model is not None
        states_NLC = self.text_model(input_ids=tokens_NL, attention_mask=real_NL.long()).last_hidden_state
        if self.config.text_encoder["pooling"] == "cls":
            vectors_NC = states_NLC[:, 0]
        else:
            vectors_NC = (states_NLC * real_NL[..., None]).sum(1) / real_NL.sum(1, keepdim=True)
        vectors_BKC = vectors_NC.new_zeros(*mask_BK.shape, vectors_NC.shape[-1])
        return vectors_BKC.masked_scatter(chosen_BK[..., None], vectors_NC)


class CueDecoder(PreTrainedModel):
    """A causal Transformer over the sentence encoder's states that attends to e_cue in every block.

    The state at a position depends on the tokens up to it, and the decoder's output at that position predicts the next
    token: the states are the "shifted outputs" of Section 3.3. The blocks are stock GPT-2 blocks with cross-attention. As
    e_cue is one vector, its attention weight is always 1: cross-attention adds the same linear map of e_cue at each
    position of a block, and the query and key matrices keep their initial values.
    """

    config: CueDecoderConfig
    main_input_name = "states"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GPT2Block"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: CueDecoderConfig) -> None:
        super().__init__(config)
        if config.form == "transformer":
            self.project_states = _projection(config.input_width, config.width)
            self.project_cue = _projection(config.cue_width, config.width)
            blocks = GPT2Config(
                vocab_size=1,
                bos_token_id=None,
                eos_token_id=None,
                n_positions=config.max_positions,
                n_embd=config.width,
                n_layer=config.layers,
                n_head=config.heads,
                activation_function="gelu",
                add_cross_attention=True,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
                attn_implementation=config._attn_implementation,
            )
            self.transformer = GPT2Model(blocks)
            self.transformer.set_input_embeddings(None)  # the inputs are states, never tokens
        if not config.sentence_inputs:
            self.constant = nn.Parameter(torch.zeros(config.input_width))
        self.lm_head: Any = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is not self:
            super()._init_weights(module)
        elif not self.config.sentence_inputs:
            init.zeros_(self.constant)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        states: Tensor,
        cue: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Compute the input of the vocabulary head, (B, T, D), of states (B, T, S) and e_cue (B, W)."""
        states, cue = states.to(self.dtype), cue.to(self.dtype)
        if not self.config.sentence_inputs:  # "a constant vector at each step" (Section 6.2): one is computed for all
            one = self._decoded(self.constant.to(states.dtype).expand(len(states), 1, -1), cue)
            return one.expand(-1, states.shape[1], -1)
        return self._decoded(states, cue, attention_mask, position_ids)

    def _decoded(
        self, states: Tensor, cue: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        if self.config.form == "concatenate":
            return torch.cat([states, cue[:, None].expand(-1, states.shape[1], -1)], dim=-1)
        inputs = self.project_states(states)
        mask = causal_mask(self.transformer.config, inputs, attention_mask, position_ids, None)
        family, cue_B1D = family_of(self.transformer.config), self.project_cue(cue)[:, None]
        options = {"encoder_hidden_states": cue_B1D}
        hidden = family.run_blocks(self.transformer, inputs, position_ids, mask, **options)[0]
        return family.norm(self.transformer, hidden)


def _projection(inputs: int, outputs: int) -> nn.Module:
    return nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)


class UnigramAutoencoder(PreTrainedModel):
    """Reconstructs a sentence's unigram distribution from a code of a few numbers (Section 4.2.1).

    Layers V x 128 x 16 x 128 x V as printed, with a ReLU after each but the last, and a softmax. The loss is the divergence
    KL(P~ || F(P~)) of a sentence, in nats. Eq. 6 as printed has the opposite order, which is infinite for every sentence:
    P~ is 0 for all words that are not in the sentence, and a softmax is never 0.
    """

    config: UnigramConfig
    main_input_name = "labels"

    def __init__(self, config: UnigramConfig) -> None:
        super().__init__(config)
        down = [config.vocab_size, *config.widths]
        self.down = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(down))
        self.up = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(reversed(down)))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize weights that preserve the scale of their inputs; the first layer's columns are embeddings.

        With torch's default first layer (uniform within V^-0.5), six of the 16 channels of the code stayed at zero on news
        text, and the loss was higher.
        """
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=1.0 if module is self.down[0] else module.in_features**-0.5)
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Module:
        return self.up[-1]

    def bag(self, labels: Tensor) -> Tensor:
        """Eq. 5: the share of each token among a sentence's tokens, (B, T) to (B, V) float32.

        -100 and end-of-text, which is not a word, are not counted. A sentence without other tokens has a row of zeros.
        """
        words_BT = labels.ne(IGNORED)
        if self.config.eos_token_id is not None:
            words_BT = words_BT & labels.ne(self.config.eos_token_id)
        bags_BV = torch.zeros(len(labels), self.config.vocab_size, device=labels.device)
        bags_BV.scatter_add_(1, labels.clamp(min=0), words_BT.float())
        return bags_BV / words_BT.sum(1, keepdim=True).clamp(min=1)

    def encode(self, bags: Tensor) -> Tensor:
        """The codes (B, P) of unigram distributions (B, V)."""
        code = bags.to(self.dtype)
        for layer in self.down:
            code = layer(code).relu()
        return code

    def log_probabilities(self, codes: Tensor) -> Tensor:
        """Decode codes (B, P) to the logarithms of distributions, (B, V), float32."""
        hidden = codes
        for layer in self.up[:-1]:
            hidden = layer(hidden).relu()
        return self.up[-1](hidden).float().log_softmax(-1)

    def divergences(self, labels: Tensor) -> Tensor:
        """KL(P~ || F(P~)) of each sentence, nats: (B, T) to (B,)."""
        return self._divergences(*self._bags_and_log_probabilities(labels))

    def _bags_and_log_probabilities(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The words of sentences, (B, T) to (B, V), and what their codes say of them, (B, V)."""
        bags_BV = self.bag(labels)
        return bags_BV, self.log_probabilities(self.encode(bags_BV))

    @staticmethod
    def _divergences(bags_BV: Tensor, log_p_BV: Tensor) -> Tensor:
        return torch.special.xlogy(bags_BV, bags_BV).sum(1) - (bags_BV * log_p_BV).sum(1)

    def forward(self, labels: Tensor, **_: Any) -> ModelOutput:
        """``loss``, the mean divergence of sentences (B, T) in nats, and ``logits``, (B, V) log-probabilities."""
        bags_BV, log_p_BV = self._bags_and_log_probabilities(labels)
        return ModelOutput(loss=self._divergences(bags_BV, log_p_BV).mean(), logits=log_p_BV)


class ProxyEncoder(PreTrainedModel):
    """Computes a replacement of e_cue from the words to be predicted (Section 4.2.2).

    ::

        a = F(P~) + sigma * noise      # Eq. 7: F, the frozen encoder half of the autoencoder
        a = a / |a|                    # Eq. 8
        e_cue = project(a)
    """

    config: ProxyConfig
    main_input_name = "labels"

    def __init__(self, config: ProxyConfig) -> None:
        super().__init__(config)
        self.autoencoder = UnigramAutoencoder(config.autoencoder)
        self.project = nn.Linear(config.autoencoder.code_width, config.width)
        self.autoencoder.requires_grad_(False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as in transformers, and freeze the autoencoder again, which a checkpoint does not record."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).autoencoder.requires_grad_(False)
        return loaded

    def forward(self, labels: Tensor, noise: Tensor | None = None, **_: Any) -> Tensor:
        """e_cue of each sentence, (B, W)."""
        return self.project(self.proxies(labels, noise).to(self.project.weight.dtype))

    def proxies(self, labels: Tensor, noise: Tensor | None = None) -> Tensor:
        """Normalized codes (B, P) of the tokens to predict (B, T), with noise (B, P), standard normal, where sigma is not 0.

        Without it a proxy would contain more information than in training.
        """
        with torch.no_grad():
            code_BP = self.autoencoder.encode(self.autoencoder.bag(labels)).float()
        if self.config.noise:
            if noise is None:
                raise ConfigError(
                    f"the proxies have a noise of {self.config.noise:g}, but none is given; pass proxy_noise, standard "
                    f"normal numbers of shape ({len(code_BP)}, {code_BP.shape[1]})"
                )
            code_BP = code_BP + self.config.noise * noise.to(code_BP)
        return nn.functional.normalize(code_BP, dim=-1)

    def without_words(self, rows: int) -> Tensor:
        """e_cue without words, (rows, W): the projection of the zero vector, which is the mean of pure noise."""
        return self.project.bias.expand(rows, -1)
