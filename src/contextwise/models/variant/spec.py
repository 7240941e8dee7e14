"""The specification of variants of the user's own: training losses, and FLOPs as torch counts them."""

import copy
from typing import Any

import torch
from torch import Tensor

from contextwise.base.errors import ConfigError
from contextwise.base.progress import say_once
from contextwise.models.counting import counted_flops, step_flops
from contextwise.models.spec import Batch, Losses, ModelSpec, Parts, labelled_losses, losses_of_logits, register_model
from contextwise.models.variant.code import reason
from contextwise.models.variant.modeling import VariantConfig, VariantForCausalLM


class VariantSpec(ModelSpec):
    """A model of the user's own: the next-token loss of its logits, and losses of its own in training."""

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        """Operations of all products of a training step on one example, as torch counts them, without the vocabulary head's."""
        config = model.config

        def again() -> float:
            return self._counted(VariantForCausalLM(copy.deepcopy(config)), inputs)

        def failure(error: Exception) -> str:
            return f"{config.source} fails in a training step of {inputs} tokens: {reason(error, config.file)}"

        counted = counted_flops(model, inputs, lambda: self._counted(model, inputs), again, failure)
        return counted - inputs * self.flops_per_target(config)

    def _counted(self, model: VariantForCausalLM, length: int) -> float:
        tokens = torch.zeros((1, length), dtype=torch.long, device=model.device)
        steps: list[Losses] = []

        def loss() -> Tensor:
            steps.append(self.losses(model.train(), {"input_ids": tokens, "labels": tokens}))
            return steps[0].minimised()

        flops, missed = step_flops(model, loss)
        losses = steps[0]
        for name, total in zip(losses.names, losses.sums, strict=True):
            if not total.is_meta and not total.isfinite():
                raise ConfigError(
                    f"{model.config.source} has a loss ({name}) of {total.item()} in its first training step; look for what "
                    "divides by zero or overflows there"
                )
        if missed:
            more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
            say_once(
                f"note: torch sees no product of {model.config.source} with the matrix {missed[0]}{more} itself; if kernels of "
                "your own multiply by it, the FLOPs are too low"
            )
        return flops

    def losses(self, model: VariantForCausalLM, batch: Batch) -> Losses:
        """The next-token loss; in training with the model's own losses, as means over the targets times their number."""
        labels = batch["labels"]
        hidden_BTD, logits_BTV = _run(model, batch, self.inputs(model, batch))
        if logits_BTV is None:
            head = model.get_output_embeddings()
            tokens = labelled_losses(hidden_BTD, labels, head, labelled=batch.get("labelled"))
        else:
            tokens = losses_of_logits(logits_BTV, labels)
        if not model.training:
            return tokens
        known = {"position_ids": batch.get("position_ids"), "logits": logits_BTV}
        own = model.training_losses(hidden_BTD, batch["input_ids"], labels, **known)
        means = list(own.values()) if isinstance(own, dict) else [None]
        if not all(isinstance(mean, Tensor) and mean.dim() == 0 for mean in means) or (model.part and not own):
            raise ConfigError(
                f"{model.config.source} returns no losses of training; they should be a dictionary with a name and a mean (a "
                "tensor of one number) for each"
            )
        count = tokens.counts[0]
        sums = [tokens.sums[0], *(mean * count for mean in own.values())]
        return Losses(("tokens", *own), torch.stack(sums), count.expand(len(sums)))


def _run(model: VariantForCausalLM, batch: Batch, inputs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The input (B, T, D) of the vocabulary head, and the logits (B, T, V) where the user's code computes or reads them."""
    head = model.get_output_embeddings()
    if not model.own_forward:
        hidden_BTD = model.hidden_states(input_ids=batch["input_ids"], **inputs)
        return hidden_BTD, head(hidden_BTD) if model.training and model.reads_logits else None
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        out = model(input_ids=batch["input_ids"], **inputs)
    finally:
        hook.remove()
    logits, (rows, length), vocabulary = getattr(out, "logits", None), batch["labels"].shape, model.config.vocab_size
    if logits is None or logits.dim() != 3 or logits.shape[:2] != (rows, length) or logits.shape[2] < vocabulary:
        shape = None if logits is None else tuple(logits.shape)
        raise ConfigError(
            f"{model.config.source} is no causal language model: its output has logits of shape {shape}, which should be "
            f"(rows, positions, vocabulary): ({rows}, {length}, {vocabulary})"
        )
    return seen[-1] if seen else logits, logits


register_model(VariantConfig, VariantForCausalLM, VariantSpec(VariantForCausalLM))
