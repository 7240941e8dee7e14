"""Multi-token prediction: a decoder-only backbone that predicts the next n tokens at each position.

The whole model on a page::

    h = trunk(x)                                  # the backbone's blocks, shared by all heads
    head="linear":  logits_i = W_i norm(h)        # i = 1..n; W_1 is the backbone's own vocabulary matrix
    head="layer":   logits_i = W norm(block_i(h)) # norm and W shared; each head has one more block of the backbone's class
    loss = sum over i of the cross entropy of logits_i at t against token t+i

Generation runs the trunk and the first head only, at the cost of a stock model. Speculative generation runs all heads, and
verifies the tokens that heads 2..n propose in the next forward pass (:mod:`contextwise.models.multitoken.speculative`).

The backbone is a stock transformers model; none of its arithmetic is reimplemented.

Shapes: B rows, T positions, D channels, V tokens in the vocabulary, n heads.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from contextwise.base.errors import ConfigError
from contextwise.models.composition import ComposedForCausalLM, check_labels, pretrained_backbone
from contextwise.models.contextlm.static import static_inputs
from contextwise.models.losses import kept_positions
from contextwise.models.multitoken.config import MultiTokenConfig, shorten
from contextwise.models.multitoken.losses import FutureLoss, future_loss, future_targets
from contextwise.models.multitoken.speculative import Acceptance, speculative_options


@dataclass
class MultiTokenOutput(CausalLMOutputWithPast):
    """The model's output; ``logits`` are those of the next-token head.

    Args:
        head_losses: mean cross entropy of each head over its targets, nats: (n,), detached; 0 for a head without targets.
        head_targets: number of targets of each head: (n,).
        future_logits: logits of heads 2..``heads``: (B, T, heads - 1, V), if the argument ``heads`` is above 1.
    """

    head_losses: torch.Tensor | None = None
    head_targets: torch.Tensor | None = None
    future_logits: torch.Tensor | None = None


class MultiTokenForCausalLM(ComposedForCausalLM):
    """A decoder-only backbone with heads for the next n tokens.

    Attributes:
        backbone: the stock base model (``GPT2Model``, ``LlamaModel``, ...); its blocks are the trunk.
        lm_head: vocabulary matrix of the next-token head, tied to the embedding if the backbone's configuration ties it;
            with ``head="layer"`` all heads share it.
        heads: with ``head="layer"`` the blocks of heads 1..n; with ``"linear"`` the vocabulary matrices of heads 2..n.
        last_acceptance: acceptance statistics of the last ``generate(..., speculative=True)``.
    """

    config: MultiTokenConfig
    config_class = MultiTokenConfig

    def __init__(self, config: MultiTokenConfig) -> None:
        super().__init__(config)
        if config.over_context:  # a ContextLM has its own vocabulary matrix
            self.backbone = AutoModelForCausalLM.from_config(
                config.backbone_config, attn_implementation=config._attn_implementation
            )
            config.backbone_config = self.backbone.config
            self.family = self.backbone.family
        else:
            self._make_backbone()
            self._make_head()
        stock, backbone = self.stock.config, self.backbone.config
        if config.head == "layer":
            # The layer numbers continue those of the trunk, so that these blocks use separate cache layers.
            first = config.trunk_cache_layers
            self.heads = nn.ModuleList(
                self.family.new_block(stock, first + i) for i in range(config.future_tokens)
            )
        else:
            self.heads = nn.ModuleList(
                nn.Linear(backbone.hidden_size, backbone.vocab_size, bias=False)
                for _ in range(config.future_tokens - 1)
            )
        self.last_acceptance: Acceptance | None = None
        self.post_init()

    @property
    def stock(self) -> Any:
        """The stock base model: the backbone, or the backbone of the ContextLM that is the backbone."""
        return self.backbone.backbone if self.config.over_context else self.backbone

    @property
    def blocks(self) -> list[nn.Module]:
        first_head = list(self.heads[:1]) if self.config.head == "layer" else []
        return [*self.family.blocks(self.stock), *first_head]

    @classmethod
    def from_backbone(
        cls, backbone: str | Path | PreTrainedModel, future_tokens: int = 4, head: str = "layer"
    ) -> "MultiTokenForCausalLM":
        """Add heads to a pretrained causal language model; its weights are copied.

        The next-token head is the backbone's own, so logits and generation equal those of the backbone until the model is
        trained. The other heads are initialized as copies of it. With ``head="layer"`` the backbone's last block becomes
        the block of the first head.

        Args:
            backbone: a run, a model's folder or its name on the Hub, or a loaded causal language model (also a ContextLM).

        Raises:
            CheckpointError: the backbone could not be loaded.
            ConfigError: the backbone's family has no adapter, its vocabulary head has a bias, it has too few layers for a
                trunk, or it adds a context before its last block.
        """
        source = pretrained_backbone(backbone, "the heads here have")
        matrix = source.get_output_embeddings()
        config = deepcopy(source.config)
        if head == "layer":
            shorten(config)
        model = cls(MultiTokenConfig(config, future_tokens, head)).to(source.device, source.dtype)
        # With head="layer" the trunk is one block shorter: the last block's weights go to the heads instead.
        model.backbone.load_state_dict(source.base_model.state_dict(), strict=head != "layer")
        model.get_output_embeddings().load_state_dict(matrix.state_dict())
        stock = source.backbone if model.config.over_context else source.base_model
        copied = model.family.blocks(stock)[-1] if head == "layer" else matrix
        for module in model.heads:
            module.load_state_dict(copied.state_dict())
        model.generation_config = deepcopy(source.generation_config)
        return model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the heads as the backbone initializes its blocks and matrices."""
        self.backbone._init_weights(module)

    def get_output_embeddings(self) -> nn.Module:
        return self.backbone.get_output_embeddings() if self.config.over_context else self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        if self.config.over_context:
            self.backbone.set_output_embeddings(new_embeddings)
        else:
            self.lm_head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as in transformers, including the vocabulary matrices of all heads."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.config.head == "linear":
            self.heads = nn.ModuleList(
                self._get_resized_lm_head(head, embeddings.num_embeddings) for head in self.heads
            )
        return embeddings

    def vocabulary_head(self, i: int) -> Any:
        """The vocabulary matrix of head i, counted from 1."""
        own = i > 1 and self.config.head == "linear"
        return self.heads[i - 2] if own else self.get_output_embeddings()

    def future_states(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        heads: int | None = None,
        **kwargs: Any,
    ) -> list[torch.Tensor]:
        """Compute the inputs of the vocabulary matrices of the first ``heads`` heads (by default all): (B, T, D) each.

        Args:
            input_ids: (B, T) tokens that are not yet in ``past_key_values``.
            attention_mask: (B, past + T), 0 for padding. Positions count from each row's first real token.
            position_ids: (B, T). Where they do not increase by one a new document begins, which attention does not cross.
            past_key_values: a cache, filled in place; it must have been filled for these heads from the first token on.

        Raises:
            ConfigError: an input has a wrong shape, is longer than the backbone's learned positions, or comes with a cache
                of another model.
        """
        heads = self.config.future_tokens if heads is None else heads
        if not 1 <= heads <= self.config.future_tokens:
            raise ConfigError(f"heads is {heads}, but this model has heads 1 to {self.config.future_tokens}")
        if past_key_values is not None and self.config.head == "layer":
            self._check_cache(past_key_values, heads)
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        if self.config.over_context:
            further = self.config.future_tokens if self.config.head == "layer" else 0
            trunk = self.backbone.decoded(*inputs, further_layers=further, **kwargs)
            kwargs.pop("completes_chunk", None)
        else:
            trunk = self.decoded(*inputs, **kwargs)
        family, stock = self.family, self.stock
        if self.config.head == "linear":
            return [family.norm(stock, trunk.h_BTD)] * heads
        cache = past_key_values
        return [
            family.norm(stock, family.run(block, trunk.h_BTD, trunk.mask, trunk.rotary, cache, **kwargs))
            for block in self.heads[:heads]
        ]

    def hidden_states(self, input_ids: torch.Tensor | None = None, **inputs: Any) -> torch.Tensor:
        """Compute the input of the next-token head's vocabulary matrix: (B, T, D). Inputs as for :meth:`future_states`."""
        return self.future_states(input_ids, heads=1, **inputs)[0]

    def multi_token_loss(
        self,
        input_ids: torch.Tensor | None,
        targets: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        **inputs: Any,
    ) -> FutureLoss:
        """Compute the summed loss of all heads (objectives, Section 6.2.6), in nats.

        Args:
            targets: (B, T) next tokens, already shifted; -100 is ignored.
            position_ids: (B, T); heads have no targets after the end of the current document.
            inputs: further arguments of :meth:`future_states`.
        """
        check_labels(targets, self.config.vocab_size)
        states = self.future_states(input_ids, position_ids=position_ids, **inputs)
        return self._loss(states, targets, position_ids)

    def _loss(
        self, states: list[torch.Tensor], targets: torch.Tensor, position_ids: torch.Tensor | None
    ) -> FutureLoss:
        weights = [self.vocabulary_head(i).weight for i in range(1, len(states) + 1)]
        return future_loss(states, weights, future_targets(targets, len(states), position_ids))

    def outputs(
        self,
        inputs: dict[str, Any],
        targets: torch.Tensor | None,
        logits_to_keep: int | torch.Tensor,
        items: torch.Tensor | int | None,
    ) -> MultiTokenOutput:
        """Compute logits of the next-token head (and of more heads on request), and the loss of all heads given targets.

        Args:
            inputs: arguments of :meth:`future_states`. ``heads`` is the number of heads to run without targets (by default
                1); with targets all heads run.

        The loss is that of Section 6.2.6, summed over heads and positions, divided by the number of targets of the
        next-token head (or by ``items``): the sum of n cross entropies, about n times that of one head.
        ``head_losses[0]`` is the next-token loss.
        """
        heads = inputs.pop("heads", 1)
        states = self.future_states(**inputs, heads=heads if targets is None else None)
        out = MultiTokenOutput()
        if targets is not None:
            total, sums, counts = self._loss(states, targets, inputs["position_ids"])
            out.head_losses, out.head_targets = sums / counts.clamp(min=1), counts
            out.loss = total / (counts[0].clamp(min=1) if items is None else items)
            if self.training:
                return out
        kept = kept_positions(logits_to_keep)
        out.logits = self.vocabulary_head(1)(states[0][:, kept])
        if heads > 1:
            more = [self.vocabulary_head(i)(states[i - 1][:, kept]) for i in range(2, heads + 1)]
            out.future_logits = torch.stack(more, dim=2)
        return out

    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: Any = None,
        *,
        speculative: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Generate with transformers' ``generate()`` and the next-token head; options are passed by name.

        Args:
            speculative: propose tokens with heads 2..n, and verify them in the next forward pass. The output is that of
                greedy decoding, in fewer passes; ``last_acceptance`` has the counts.

        Raises:
            ConfigError: speculative decoding together with sampling, beams or another option that it does not support.
        """
        if speculative:
            kwargs = speculative_options(kwargs)
        return super().generate(inputs, generation_config, **kwargs)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *args: Any, inputs_embeds: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare inputs as in transformers; over a ContextLM, also those that its static cache needs."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, *args, inputs_embeds=inputs_embeds, **kwargs
        )
        if self.config.over_context:
            inputs = static_inputs(inputs, self.config.backbone_config.chunk_size, **kwargs)
        return inputs

    def _check_cache(self, cache: Cache, heads: int) -> None:
        past, first = cache.get_seq_length(), self.config.trunk_cache_layers
        if any(cache.get_seq_length(first + i) != past for i in range(heads)):
            raise ConfigError(
                f"past_key_values was not filled for {heads} of this model's heads from the first token on; "
                "start with an empty cache"
            )
