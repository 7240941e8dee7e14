"""The models of the parity task (intrinsic entropy, Section 4.3 and Appendix J.3).

Both have the same inputs and classify between two answers. Their context feature is the last hidden state of the
Transformer at the task token, and in the MLP a vector that does not depend on the task.

Shapes: B samples, L bits, T = L + 1 tokens, K tasks, D channels, F channels of the context feature.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn
from transformers import GPTNeoXModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from contextwise.models.parity.config import ANSWERS, ParityConfig, ParityMLPConfig, ParityTransformerConfig


class ParityModel(PreTrainedModel, ABC):
    """Base class of both models: the answer head and the loss."""

    config_class = ParityConfig
    base_model_prefix = ""
    answer: nn.Linear

    def get_output_embeddings(self) -> nn.Linear:
        return self.answer

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: keep torch's initialization; a stock backbone initializes its own weights."""

    @abstractmethod
    def context_feature(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The feature whose spectrum is measured: (B, T) to (B, F)."""

    @abstractmethod
    def hidden_states(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Compute the head's input: (B, T) to (B, 1, D)."""

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Classify the answers of samples.

        Args:
            input_ids: (B, T), the bits (0, 1, or 2 for masked), then the task token.
            labels: (B, 1) or (B,), the answers, 0 or 1.

        Returns:
            ``logits`` (B, 2), and ``loss``, their mean cross entropy in nats, if there are labels.
        """
        logits = self.answer(self.hidden_states(input_ids)[:, 0])
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.float(), labels.reshape(-1))
        return SequenceClassifierOutput(loss=loss, logits=logits)


class ParityTransformer(ParityModel):
    """A stock causal decoder over bits and task; the last token's state predicts the answer.

    The paper's size is 3 layers, width 208, FFN 832, rotary positions with base 4000.
    """

    config_class = ParityTransformerConfig
    config: ParityTransformerConfig
    _no_split_modules = ["GPTNeoXLayer"]  # noqa: RUF012

    def __init__(self, config: ParityTransformerConfig) -> None:
        super().__init__(config)
        self.backbone = GPTNeoXModel(config.backbone())
        self.answer = nn.Linear(config.hidden_size, ANSWERS, bias=False)
        self.post_init()
        # With the stock initialization (0.02) the loss of narrow models stays at log 2 for thousands of steps.
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def context_feature(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.hidden_states(input_ids)[:, 0]

    def hidden_states(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.backbone(input_ids=input_ids, use_cache=False).last_hidden_state[:, -1:]


class ParityMLP(ParityModel):
    """An MLP from the context's bits to a feature, and one from that and the one-hot task to the answer (Figure 16)."""

    config_class = ParityMLPConfig
    config: ParityMLPConfig
    _no_split_modules: list[str] = []  # noqa: RUF012
    signs: torch.Tensor

    def __init__(self, config: ParityMLPConfig) -> None:
        super().__init__(config)
        self.context = _mlp(config.bits, config.width, config.layers)
        self.feature = nn.Linear(config.width, config.feature_size)
        self.output = _mlp(config.feature_size + config.tasks, config.width, config.layers)
        self.answer = nn.Linear(config.width, ANSWERS, bias=False)
        self.post_init()

    def context_feature(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The feature (B, F) of the bits, encoded as -1 and 1, and 0 for the mask token."""
        bits = input_ids[:, : self.config.bits]
        signs = (bits.eq(1).to(self.dtype)) - bits.eq(0).to(self.dtype)
        return self.feature(self.context(signs))

    def hidden_states(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        task = nn.functional.one_hot(input_ids[:, -1] - 3, self.config.tasks).to(self.dtype)
        feature = self.context_feature(input_ids)
        return self.output(torch.cat([feature, task], dim=-1))[:, None]


def _mlp(inputs: int, width: int, layers: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for layer in range(layers):
        parts += [nn.Linear(inputs if layer == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*parts)
