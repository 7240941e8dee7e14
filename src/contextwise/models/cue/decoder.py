"""The decoder: maps a sentence encoder's states and e_cue to the input of the vocabulary head (CUE, Section 3.3).

Shapes: B sentences, T positions, S channels of the sentence encoder's states, D width, W channels of e_cue.
"""

from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2Model, PreTrainedModel
from transformers import initialization as init

from contextwise.models.cue.config import CueDecoderConfig


class CueDecoder(PreTrainedModel):
    """A causal Transformer over the sentence encoder's states that attends to e_cue in every block.

    The state at a position depends on the tokens up to it, and the decoder's output at that position predicts the next
    token: the states are the "shifted outputs" of Section 3.3. The blocks are stock GPT-2 blocks with cross-attention. As
    e_cue is one vector, its attention weight is always 1: cross-attention adds the same linear map of e_cue at each
    position of a block, and the query and key matrices keep their initial values.

    Attributes:
        lm_head: the vocabulary head, (V, D), not tied.
    """

    config: CueDecoderConfig
    config_class = CueDecoderConfig
    base_model_prefix = ""
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
            self.transformer = GPT2Model(self._blocks())
            self.transformer.set_input_embeddings(None)  # the inputs are states, never tokens
        if not config.sentence_inputs:
            self.constant = nn.Parameter(torch.zeros(config.input_width))
        self.lm_head: Any = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def _blocks(self) -> GPT2Config:
        config = self.config
        return GPT2Config(
            vocab_size=1,
            bos_token_id=None,
            eos_token_id=None,
            n_positions=config.max_positions,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            activation_function="gelu_pytorch_tanh",
            add_cross_attention=True,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            attn_implementation=config._attn_implementation,
        )

    def _init_weights(self, module: nn.Module) -> None:
        if module is self and not self.config.sentence_inputs:
            init.zeros_(self.constant)
        elif module is not self:
            super()._init_weights(module)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def forward(
        self,
        states: torch.Tensor,
        cue: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Compute the input of the vocabulary head, (B, T, D).

        Args:
            states: (B, T, S), the input of the sentence encoder's own vocabulary head.
            cue: (B, W), e_cue of each sentence.
            attention_mask: (B, T), 0 for padding on the left; padding on the right needs no mask.
            position_ids: (B, T).
        """
        states, cue = states.to(self.dtype), cue.to(self.dtype)
        if not self.config.sentence_inputs:
            states = self.constant.to(states.dtype).expand_as(states)
        if self.config.form == "concatenate":
            return torch.cat([states, cue[:, None].expand(-1, states.shape[1], -1)], dim=-1)
        return self.transformer(
            inputs_embeds=self.project_states(states),
            encoder_hidden_states=self.project_cue(cue)[:, None],
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state


def _projection(inputs: int, outputs: int) -> nn.Module:
    return nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)
