"""Multi-token prediction: a decoder-only backbone that predicts the next n tokens at each position.

The whole model on a page::

    h = trunk(x)                                  # the backbone's blocks, shared by all heads
    head="linear":  logits_i = W_i norm(h)        # i = 1..n; W_1 is the backbone's own vocabulary matrix
    head="layer":   logits_i = W norm(block_i(h)) # norm and W shared; each head has one more block of the backbone's class
    loss = sum over i of the cross entropy of logits_i at t against token t+i   # objectives, Section 6.2.6

Generation runs the trunk and the first head only, at the cost of a stock model. Speculative generation runs all heads, and
verifies the tokens that heads 2..n propose in the next forward pass (``speculative.py``).

The backbone is a stock transformers model; none of its arithmetic is reimplemented.

Shapes: B rows, T positions, D channels, V tokens in the vocabulary, n heads.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from contextwise.models import IGNORED
from contextwise.models.composition import ComposedForCausalLM, check_labels, pretrained_backbone, stock_parts
from contextwise.models.contextlm.cache import static_inputs
from contextwise.models.families import CACHE
from contextwise.models.losses import kept_positions, losses_of_heads
from contextwise.settings import ConfigError
from contextwise_papers.objectives.multitoken.config import MultiTokenConfig, shorten
from contextwise_papers.objectives.multitoken.speculative import Acceptance, HeadCandidates


class FutureLoss(NamedTuple):
    """Summed cross entropies of the heads, in nats."""

    total: Tensor
    """Sum over all heads and positions: a float32 scalar, differentiable."""
    head_sums: Tensor
    """Sum of each head: (n,), detached."""
    head_targets: Tensor
    """Number of targets of each head: (n,)."""


def future_targets(next_BT: Tensor, future_tokens: int, position_ids: Tensor | None = None) -> list[Tensor]:
    """The targets of all heads, n tensors (B, T), from those of the next-token head; -100 is ignored.

    Head i has token t+i at position t, and -100 at the last i-1 positions, whose targets are beyond the window. With
    ``position_ids``, (B, T) or (1, T), for packed documents, heads 2..n have no targets after the end of the current document
    (the next-token head always has those of ``next_BT``).
    """
    length = next_BT.shape[1]

    def shifted(x: Tensor, ahead: int, fill: int) -> Tensor:
        return nn.functional.pad(x[:, ahead:], (0, min(ahead, length)), value=fill)

    targets = [shifted(next_BT, ahead, IGNORED) for ahead in range(future_tokens)]
    if position_ids is not None:
        # The index of the first token of each token's document identifies the document.
        start_BT = torch.arange(length, device=position_ids.device) - position_ids
        for ahead in range(1, future_tokens):
            beyond = shifted(start_BT, ahead, length + 1) != start_BT
            targets[ahead] = targets[ahead].masked_fill(beyond, IGNORED)
    return targets


@dataclass
class FutureStates(BaseModelOutputWithPast):
    """The inputs of the vocabulary matrices: ``states`` of all heads that were run, ``last_hidden_state`` of the first.

    ``heads``: number of heads whose logits are asked for.
    """

    states: tuple[Tensor, ...] | None = None
    heads: int | None = None


@dataclass
class MultiTokenOutput(CausalLMOutputWithPast):
    """The model's output; ``logits`` are those of the next-token head.

    Args:
        head_losses: mean cross entropy of each head over its targets, nats: (n,), detached; 0 for a head without targets.
        head_targets: number of targets of each head: (n,).
        future_logits: logits of heads 2..``heads``: (B, T, heads - 1, V), if the argument ``heads`` is above 1.
    """

    head_losses: Tensor | None = None
    head_targets: Tensor | None = None
    future_logits: Tensor | None = None


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
    # The trunk's modules are named by the backbone; the block of the next-token head follows them.
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": "heads.0",
        "attentions": ["heads.0.attn", "heads.0.attention", "heads.0.self_attn"],
    }

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
        backbone, n = self.backbone.config, config.future_tokens
        heads: list[nn.Module]
        if config.head == "layer":
            # The layer numbers continue those of the trunk, so that these blocks use separate cache layers.
            first = config.trunk_cache_layers
            heads = [self.family.new_block(self.stock.config, first + i) for i in range(n)]
        else:
            heads = [nn.Linear(backbone.hidden_size, backbone.vocab_size, bias=False) for _ in range(n - 1)]
        self.heads = nn.ModuleList(heads)
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
        the block of the first head. ``backbone`` is a run, a folder, a name on the Hub or a loaded model (also a ContextLM).

        Raises:
            CheckpointError: the backbone could not be loaded.
            ConfigError: the backbone's family has no adapter, its vocabulary head has a bias, it reads its prompts as a prefix,
                it has too few layers for a trunk, or it adds a context before its last block.
        """
        source = pretrained_backbone(backbone, "the heads here have")
        matrix = source.get_output_embeddings()
        config = deepcopy(source.config)
        if head == "layer":
            shorten(config)
        config = MultiTokenConfig(config, future_tokens, head)
        model = cls._from_config(config, dtype=source.dtype).to(source.device)  # its rotary frequencies stay in float32
        # With head="layer" the trunk is one block shorter: the last block's weights go to the heads instead.
        base, norm = (source, None) if model.config.over_context else stock_parts(source)
        model.backbone.load_state_dict(base.state_dict(), strict=head != "layer")
        if norm is not None:
            model.embedding_norm.load_state_dict(norm.state_dict())
        model.get_output_embeddings().load_state_dict(matrix.state_dict())
        stock = source.backbone if model.config.over_context else base
        copied = model.family.blocks(stock)[-1] if head == "layer" else matrix
        for module in model.heads:
            module.load_state_dict(copied.state_dict())
        model.generation_config = deepcopy(source.generation_config)
        return model

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
            size = embeddings.num_embeddings
            self.heads = nn.ModuleList(self._get_resized_lm_head(head, size) for head in self.heads)
        return embeddings

    def vocabulary_head(self, i: int) -> Any:
        """The vocabulary matrix of head i, counted from 1."""
        own = i > 1 and self.config.head == "linear"
        return self.heads[i - 2] if own else self.get_output_embeddings()

    def future_states(
        self,
        input_ids: Tensor | None = None,
        heads: int | None = None,
        past_key_values: Cache | None = None,
        **inputs: Any,
    ) -> list[Tensor]:
        """Compute the inputs of the vocabulary matrices of the first ``heads`` heads (by default all): (B, T, D) each.

        Args:
            input_ids: (B, T) tokens that are not yet in ``past_key_values``.
            past_key_values: a cache, filled in place; it must have been filled for these heads from the first token on.
            inputs: further inputs of the trunk: ``attention_mask`` (B, past + T), 0 for padding (positions count from each
                row's first real token); ``position_ids`` (B, T): where they do not increase by one a new document begins,
                which attention does not cross; ``inputs_embeds``.

        Raises:
            ConfigError: an input has a wrong shape, is longer than the backbone's learned positions, or comes with a cache
                of another model.
        """
        heads = self.config.future_tokens if heads is None else heads
        if not 1 <= heads <= self.config.future_tokens:
            raise ConfigError(f"heads is {heads}, but this model has heads 1 to {self.config.future_tokens}")
        if past_key_values is not None and self.config.head == "layer":
            past, first = past_key_values.get_seq_length(), self.config.trunk_cache_layers
            known = isinstance(past, int)  # a static cache has its length on the device, which is not waited for
            if known and any(past_key_values.get_seq_length(first + i) != past for i in range(heads)):
                raise ConfigError(
                    f"past_key_values was not filled for {heads} of this model's heads from the first token on; "
                    "start with an empty cache"
                )
        inputs |= {"input_ids": input_ids, "past_key_values": past_key_values}
        if self.config.over_context:
            further = self.config.future_tokens if self.config.head == "layer" else 0
            trunk = self.backbone.decoded(**inputs, further_layers=further)
        else:
            trunk = self.decoded(**inputs)
        family, stock, shared = self.family, self.stock, (trunk.mask, trunk.rotary, trunk.cache)
        if self.config.head == "linear":
            return [family.norm(stock, trunk.h_BTD)] * heads
        return [
            family.norm(stock, family.run(block, trunk.h_BTD, *shared, **trunk.kwargs)) for block in self.heads[:heads]
        ]

    def hidden_states(self, input_ids: Tensor | None = None, **inputs: Any) -> Tensor:
        """Compute the input of the next-token head's vocabulary matrix: (B, T, D). Inputs as for :meth:`future_states`."""
        return self.future_states(input_ids, heads=1, **inputs)[0]

    def multi_token_loss(
        self, input_ids: Tensor | None, targets: Tensor, position_ids: Tensor | None = None, **inputs: Any
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

    def _loss(self, states: list[Tensor], targets: Tensor, position_ids: Tensor | None) -> FutureLoss:
        """The loss of all heads, which are scored one after another, each in pieces (``losses_of_heads``)."""
        heads = [self.vocabulary_head(i) for i in range(1, len(states) + 1)]
        targets_of_heads = future_targets(targets, len(states), position_ids)
        counts = torch.stack([each.ne(IGNORED).sum() for each in targets_of_heads])
        return FutureLoss(*losses_of_heads(states, heads, targets_of_heads), counts)

    def _base_outputs(self, scored: bool = False, heads: int = 1, **inputs: Any) -> FutureStates:
        """Run the first ``heads`` heads, or all of them for a loss."""
        states = self.future_states(**inputs, heads=None if scored else heads)
        return FutureStates(last_hidden_state=states[0], states=tuple(states), heads=heads)

    def outputs(
        self,
        base: FutureStates,
        targets: Tensor | None,
        logits_to_keep: int | Tensor,
        items: Tensor | int | None,
        position_ids: Tensor | None,
    ) -> MultiTokenOutput:
        """Compute logits of the next-token head, and the loss of all heads given targets.

        ``model(..., heads=k)`` returns the logits of heads 2..k as ``future_logits``; with targets all heads are run.

        The loss of training is that of Section 6.2.6, summed over heads and positions, divided by the number of targets of
        the next-token head (or by ``items``): the sum of n cross entropies, about n times that of one head. In evaluation
        mode the loss is that of the next token, ``head_losses[0]``, which compares with that of any model.

        Raises:
            ConfigError: a Trainer computes a loss of its own, from the logits of the next token alone.
        """
        if self.training and targets is None and items is not None and (base.heads or 1) < self.config.future_tokens:
            raise ConfigError(
                "label_smoothing_factor and compute_loss_func of a Trainer read the logits of the next token alone, so that "
                f"heads 2 to {self.config.future_tokens} would not be trained; leave them out"
            )
        states = list(base.states or ())
        loss = head_losses = counts = logits = future_logits = None
        if targets is not None:
            total, sums, counts = self._loss(states, targets, position_ids)
            head_losses = sums / counts.clamp(min=1)
            if not self.training:  # `sums` have no gradients
                graded = torch.is_grad_enabled()
                total = losses_of_heads(states[:1], [self.vocabulary_head(1)], [targets])[0] if graded else sums[0]
            loss = total / (counts[0].clamp(min=1) if items is None else items)
        if targets is None or not self.training:
            kept = kept_positions(logits_to_keep)
            logits = self.vocabulary_head(1)(states[0][:, kept])
            heads = base.heads or 1
            if heads > 1:
                more = [self.vocabulary_head(i)(states[i - 1][:, kept]) for i in range(2, heads + 1)]
                future_logits = torch.stack(more, dim=2)
        recorded = (getattr(base, CACHE), base.hidden_states, base.attentions)
        return MultiTokenOutput(loss, logits, *recorded, head_losses, counts, future_logits)

    def generate(  # type: ignore[override]
        self, inputs: Tensor | None = None, generation_config: Any = None, *, speculative: bool = False, **kwargs: Any
    ) -> Any:
        """Generate with transformers' ``generate()`` and the next-token head; options are passed by name.

        Args:
            speculative: propose tokens with heads 2..n, and verify them in the next forward pass: the same tokens as without,
                in fewer passes. For one text; ``last_acceptance`` has the counts. Options are those of assisted decoding.

        Raises:
            ConfigError: speculative decoding with a cache that is not empty.
        """
        if speculative:  # the number of tokens makes transformers ask for candidates
            kwargs |= {"prompt_lookup_num_tokens": self.config.future_tokens, "heads": self.config.future_tokens}
        return super().generate(inputs, generation_config, **kwargs)

    def _get_candidate_generator(
        self, generation_config: Any, model_kwargs: dict[str, Any], **kwargs: Any
    ) -> CandidateGenerator:
        if "heads" not in model_kwargs:
            return super()._get_candidate_generator(generation_config, model_kwargs=model_kwargs, **kwargs)
        if model_kwargs[CACHE].get_seq_length():  # transformers would read the whole prompt behind what is cached
            raise ConfigError("speculative decoding begins with an empty cache; leave past_key_values out")
        candidates = HeadCandidates(generation_config.max_length)
        self.last_acceptance = candidates.acceptance
        return candidates

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *args: Any,
        inputs_embeds: Tensor | None = None,
        heads: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare inputs as in transformers; over a ContextLM, also those that its static cache needs."""
        prepare = super().prepare_inputs_for_generation
        inputs = prepare(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)
        if heads is not None:
            inputs["heads"] = heads
        if self.config.over_context:
            inputs = static_inputs(inputs, self.config.backbone_config.chunk_size, **kwargs)
        return inputs
