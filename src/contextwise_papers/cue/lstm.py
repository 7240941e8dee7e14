"""An LSTM language model: the alternative sentence encoder of CUE, Section 6.4. Shapes: L layers of D channels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.cache_utils import Cache

from contextwise.models.composition import CausalLanguageModel, OwnConfig
from contextwise.models.contextlm.cache import StateLayer
from contextwise.models.masks import readable_without_sync
from contextwise.settings import ConfigError


class LSTMConfig(OwnConfig):
    """Configuration of :class:`LSTMForCausalLM`.

    Args:
        hidden_size, num_hidden_layers: 512 and 4 in the paper (CUE, Section 6.4).
        tie_word_embeddings: whether the vocabulary head is tied to the embedding; not given in the paper.
        initializer_range: initial standard deviation of the embeddings. An LSTM's states are small, and its head is tied to
            the embedding: with smaller values the loss stays near the unigram entropy for hundreds of steps.
    """

    model_type = "lstm_lm"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    num_attention_heads = 1  # for counting operations: there is no attention

    def __init__(
        self,
        vocab_size: int = 28_996,
        hidden_size: int = 512,
        num_hidden_layers: int = 4,
        tie_word_embeddings: bool = True,
        initializer_range: float = 0.3,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        self.initializer_range = initializer_range
        if min(vocab_size, hidden_size, num_hidden_layers) < 1:
            raise ConfigError("vocabulary, width and layers of an LSTM must all be at least 1")
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)


class LSTMState(StateLayer):
    """The recurrent state after the tokens so far, as a layer of a cache: ``h`` and ``c``, (L, B, D) each."""

    is_croppable = False
    tensors, row_dimension = ("h", "c"), 1

    h: Tensor
    c: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def keep(self, state: tuple[Tensor, Tensor], tokens: int) -> None:
        """Store the state after ``tokens`` more tokens."""
        (self.h, self.c), self.length, self.is_initialized = state, self.length + tokens, True
        self.device = self.h.device

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def reset(self) -> None:
        self.length, self.is_initialized = 0, False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ConfigError("an LSTM keeps one state, not one per token: its cache cannot be cropped")


class _LSTM(nn.LSTM):
    """torch's LSTM, which under autocast stays in float32 on a CPU for which oneDNN has no LSTM in bf16."""

    def forward(self, *arguments: Any) -> Any:
        on_cpu = self.weight_ih_l0.device.type == "cpu"
        if on_cpu and torch.is_autocast_enabled("cpu") and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            with torch.autocast("cpu", enabled=False):
                return super().forward(*arguments)
        return super().forward(*arguments)


def restart(position_ids: Any, real_BT: Tensor | None) -> bool:
    """Whether positions (B, T) begin again among the real tokens of a row, as those of packed documents do.

    Positions that cannot be read without waiting for an accelerator are taken to be of one document.
    """
    if not readable_without_sync(position_ids):
        return False
    known_BT, least = position_ids.long(), torch.iinfo(torch.long).min
    known_BT = known_BT if real_BT is None else known_BT.where(real_BT, least)  # padding is of no document
    after_BT, before_BT = known_BT[..., 1:], known_BT.cummax(-1).values[..., :-1]
    return bool(((after_BT <= before_BT) & (after_BT > least)).any())


class LSTMForCausalLM(CausalLanguageModel):
    """Embedding, ``torch.nn.LSTM``, vocabulary head."""

    config: LSTMConfig
    _input_embed_layer = "embed"
    _is_stateful = True  # rejects generation that removes tokens (assisted decoding)
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        width, layers = config.hidden_size, config.num_hidden_layers
        self.embed: Any = nn.Embedding(config.vocab_size, width)
        self.lstm = _LSTM(width, width, layers, batch_first=True)
        self.lm_head: Any = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize recurrent weights as torch does, uniform within 1 / sqrt(D), with open forget gates.

        (Jozefowicz et al. 2015, "An empirical exploration of recurrent network architectures".)
        """
        if isinstance(module, nn.LSTM):
            bound = module.hidden_size**-0.5
            for name, weight in module.named_parameters():
                init.uniform_(weight, -bound, bound)
                loaded = getattr(weight, "_is_hf_initialized", False)  # which a slice of the weight does not know
                if name.startswith("bias_hh") and not loaded:
                    init.ones_(weight[module.hidden_size : 2 * module.hidden_size])
        else:
            super()._init_weights(module)

    def hidden_states(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Compute the input of the vocabulary head, (B, T, D), of tokens that are not yet in ``past_key_values``.

        Args:
            attention_mask: (B, past + T), 0 for padding on the left; padding on the right needs no mask. It is read, for which
                an accelerator is waited for: torch's LSTM wants the lengths of padded rows.
            position_ids: (B, T); only used to reject packed documents.
            past_key_values: a dynamic cache, whose first layer holds the state.

        Raises:
            ConfigError: documents are packed into a row (the state would carry over), or the cache is another model's.
        """
        embeds_BTD = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        layer: Any = None
        if past_key_values is not None:
            layers = past_key_values.layers
            if not (layers and isinstance(layers[0], LSTMState)):
                if past_key_values.get_seq_length() > 0:
                    raise ConfigError("past_key_values was filled by another model; start with an empty cache")
                layers[:] = [LSTMState()]
            layer = layers[0]
        before = (layer.h, layer.c) if layer is not None and layer.is_initialized else None
        length = embeds_BTD.shape[1]
        real_BT = None if attention_mask is None else attention_mask[:, -length:].bool()
        if position_ids is not None and restart(position_ids, real_BT):
            raise ConfigError(
                "an LSTM carries its state from one packed document into the next; put one document into each row"
            )
        if real_BT is None or bool(real_BT.all()):
            h_BTD, state = self.lstm(embeds_BTD, before)
        else:
            h_BTD, state = self._padded(embeds_BTD, real_BT, before)
        if layer is not None:
            layer.keep(state, length)
        return h_BTD

    def _padded(self, embeds_BTD: Tensor, real_BT: Tensor, before: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM on rows with padding: real tokens are moved to the front and back; outputs at padding are 0."""
        order_BT = (~real_BT).int().argsort(dim=1, stable=True)
        front_BTD = embeds_BTD.take_along_dim(order_BT[..., None], 1)
        lengths_B = real_BT.sum(1)
        packed = pack_padded_sequence(front_BTD, lengths_B.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        packed, after = self.lstm(packed, before)
        old = tuple(torch.zeros_like(part) for part in after) if before is None else before
        read_B1 = (lengths_B > 0)[:, None]  # a row of only padding keeps its state
        state = (torch.where(read_B1, after[0], old[0]), torch.where(read_B1, after[1], old[1]))
        h_BTD, _ = pad_packed_sequence(packed, batch_first=True, total_length=embeds_BTD.shape[1])
        return h_BTD.take_along_dim(order_BT.argsort(1)[..., None], 1), state
