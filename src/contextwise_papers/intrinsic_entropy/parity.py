"""Models of the parity task (intrinsic entropy, Section 4.3 and Appendix J.3): a causal Transformer, and an MLP.

Both have the same inputs and classify between two answers. Their context feature is a hidden state of the Transformer at the
task token, by default the last, and in the MLP a vector that does not depend on the task.

Shapes: B samples, L bits, T = L + 1 tokens, K tasks, D channels, F channels of the context feature.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    GPTNeoXConfig,
    GPTNeoXModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from contextwise.models import ModelSpec, final_hidden_states, register_model
from contextwise.models.spec import Parts
from contextwise.settings import ConfigError

ANSWERS = 2


class ParityConfig(PreTrainedConfig):
    """Base configuration: inputs are ``bits`` bit tokens (0, 1, or 2 for masked) and one of ``tasks`` task tokens (>= 3)."""

    vocab_size = ANSWERS  # of the head, not of the inputs

    def __init__(self, bits: int = 60, tasks: int = 100, **kwargs: Any) -> None:
        self.bits, self.tasks = bits, tasks
        super().__init__(**kwargs)


class ParityTransformerConfig(ParityConfig):
    """Configuration of :class:`ParityTransformer`; by default the paper's (Section 4.3), which does not give the heads."""

    model_type = "parity_transformer"

    def __init__(
        self,
        bits: int = 60,
        tasks: int = 100,
        hidden_size: int = 208,
        intermediate_size: int | None = None,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 4,
        rope_theta: float = 4000.0,
        **kwargs: Any,
    ) -> None:
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.intermediate_size = intermediate_size or 4 * hidden_size
        self.num_attention_heads, self.rope_theta = num_attention_heads, rope_theta
        if hidden_size % (2 * num_attention_heads):
            raise ConfigError(
                f"a width of {hidden_size} is not divisible by {num_attention_heads} heads into pairs of channels; choose "
                "another width or number of heads"
            )
        super().__init__(bits, tasks, **kwargs)

    @property
    def max_position_embeddings(self) -> int:
        return self.bits + 1

    def backbone(self) -> GPTNeoXConfig:
        """The configuration of the stock decoder: rotary positions over whole heads, sequential attention and MLP."""
        rope = {"rope_type": "default", "rope_theta": self.rope_theta, "partial_rotary_factor": 1.0}
        return GPTNeoXConfig(
            vocab_size=3 + self.tasks,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters=rope,
            use_parallel_residual=False,
            use_cache=False,
        )


class ParityMLPConfig(ParityConfig):
    """Configuration of :class:`ParityMLP`; the paper gives the width of the feature, 80, but not that of the hidden layers."""

    model_type = "parity_mlp"
    # For counting operations: there is no attention.
    num_hidden_layers, num_attention_heads = 0, 1
    attribute_map = {"hidden_size": "width"}  # noqa: RUF012 - the name and form that transformers reads

    def __init__(
        self, bits: int = 100, tasks: int = 50, feature_size: int = 80, width: int = 512, layers: int = 1, **kwargs: Any
    ) -> None:
        self.feature_size, self.width, self.layers = feature_size, width, layers
        super().__init__(bits, tasks, **kwargs)


class ParityModel(PreTrainedModel):
    """Base class of both models: the answer head and the loss.

    ``context_feature(input_ids)`` is the feature whose spectrum is measured, (B, F), and ``hidden_states(input_ids)`` the
    head's input, (B, 1, D).
    """

    config: ParityConfig
    answer: nn.Linear
    hidden_states: Any

    def get_output_embeddings(self) -> nn.Linear:
        return self.answer

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: keep torch's initialization; a stock backbone initializes its own weights."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> SequenceClassifierOutput:
        """Classify the answers of samples, (B, T) bits (2 for masked) and then the task; ``labels`` 0 or 1, (B, 1) or (B,)."""
        logits = self.answer(self.hidden_states(input_ids)[:, 0])
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.float(), labels.reshape(-1))
        return SequenceClassifierOutput(loss=loss, logits=logits)


class ParityTransformer(ParityModel):
    """A stock causal decoder over bits and task; the last token's state predicts the answer.

    The paper's size is 3 layers, width 208, FFN 832, rotary positions with base 4000.
    """

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

    def context_feature(self, input_ids: Tensor, blocks: int | None = None) -> Tensor:
        """The state at the task token after so many blocks, (B, D); after all of them, and a norm, by default."""
        if blocks is None:
            return self.hidden_states(input_ids)[:, 0]
        return self.backbone(input_ids, output_hidden_states=True).hidden_states[blocks][:, -1]

    def hidden_states(self, input_ids: Tensor, **_: Any) -> Tensor:
        return final_hidden_states(self.backbone, input_ids=input_ids)[:, -1:]


class ParityMLP(ParityModel):
    """An MLP from the context's bits to a feature, and one from that and the one-hot task to the answer (Figure 16)."""

    config: ParityMLPConfig

    def __init__(self, config: ParityMLPConfig) -> None:
        super().__init__(config)
        self.context = _mlp(config.bits, config.width, config.layers)
        self.feature = nn.Linear(config.width, config.feature_size)
        self.output = _mlp(config.feature_size + config.tasks, config.width, config.layers)
        self.answer = nn.Linear(config.width, ANSWERS, bias=False)
        self.post_init()

    def context_feature(self, input_ids: Tensor) -> Tensor:
        """The feature (B, F) of the bits, encoded as -1 and 1, and 0 for the mask token."""
        bits = input_ids[:, : self.config.bits]
        signs = (bits.eq(1).to(self.dtype)) - bits.eq(0).to(self.dtype)
        return self.feature(self.context(signs))

    def answers(self, input_ids: Tensor, tasks: int) -> Tensor:
        """The likelier answers (B, tasks) to the first so many tasks, all decoded from the one context feature."""
        feature_BF = self.context_feature(input_ids)
        task_KK = torch.eye(self.config.tasks, dtype=self.dtype, device=self.device)[:tasks]
        given = [torch.cat([feature_BF, task_K.expand(len(feature_BF), -1)], dim=-1) for task_K in task_KK]
        return torch.stack([self.answer(self.output(one)).argmax(-1) for one in given], dim=1)

    def hidden_states(self, input_ids: Tensor, **_: Any) -> Tensor:
        task = nn.functional.one_hot(input_ids[:, -1] - 3, self.config.tasks).to(self.dtype)
        feature = self.context_feature(input_ids)
        return self.output(torch.cat([feature, task], dim=-1))[:, None]


def _mlp(inputs: int, width: int, layers: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for layer in range(layers):
        parts += [nn.Linear(inputs if layer == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*parts)


class MLPSpec(ModelSpec):
    """One vector per sample, for any number of bits."""

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        return super().flops_per_example(model, 1)


for _config, _model, _spec in (
    (ParityMLPConfig, ParityMLP, MLPSpec),
    (ParityTransformerConfig, ParityTransformer, ModelSpec),
):
    register_model(_config, _model, _spec(_model), AutoModelForSequenceClassification)
