"""The specification of multi-token models: losses of all heads in training, and FLOPs."""

from typing import Any

from contextwise.models import Losses, ModelSpec, register_model
from contextwise.models.spec import Batch, Parts, block_operations, spec_of
from contextwise_papers.objectives.multitoken.config import MultiTokenConfig
from contextwise_papers.objectives.multitoken.modeling import MultiTokenForCausalLM


class MultiTokenSpec(ModelSpec):
    """A decoder whose backbone may be a ContextLM, with several heads that are trained together."""

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        config: MultiTokenConfig = model.config
        if config.head == "layer":
            extra = block_operations(model.heads, config.backbone_config, length, config.future_tokens)
        return spec_of(config.backbone_config).operations(model.backbone, length, extra)

    def flops_per_target(self, config: Any, trained: Parts = None) -> float:
        return 3.0 * 2 * config.future_tokens * (config.hidden_size * config.vocab_size)

    def losses(self, model: Any, batch: Batch) -> Losses:
        """The losses of all heads in training; that of the next-token head in evaluation."""
        if not model.training:
            return super().losses(model, batch)
        loss = model.multi_token_loss(batch["input_ids"], batch["labels"], **self.inputs(model, batch))
        names = ("tokens", *(f"head_{i}" for i in range(2, len(loss.head_sums) + 1)))
        # The sums of the heads are logged; the gradient is that of the total.
        sums = loss.head_sums + (loss.total - loss.total.detach()) / len(names)
        return Losses(names, sums, loss.head_targets)


register_model(MultiTokenConfig, MultiTokenForCausalLM, MultiTokenSpec())
