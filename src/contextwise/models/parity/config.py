"""Configurations of the models of the parity task."""

from typing import Any

from transformers import GPTNeoXConfig, PreTrainedConfig

from contextwise.base.errors import ConfigError

ANSWERS = 2


class ParityConfig(PreTrainedConfig):
    """Base configuration: inputs are ``bits`` bit tokens (0, 1, or 2 for masked) and one of ``tasks`` task tokens (>= 3)."""

    def __init__(self, bits: int = 60, tasks: int = 100, **kwargs: Any) -> None:
        self.bits, self.tasks = bits, tasks
        if min(bits, tasks) < 1:
            raise ConfigError(f"bits is {bits} and tasks {tasks}, but both must be at least 1")
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of answers that the head distinguishes."""
        return ANSWERS

    @property
    def input_tokens(self) -> int:
        """Size of the input vocabulary: bits, mask and tasks."""
        return 3 + self.tasks


class ParityTransformerConfig(ParityConfig):
    """Configuration of :class:`~contextwise.models.parity.ParityTransformer`.

    Args:
        bits, tasks: size of the parity task.
        hidden_size, intermediate_size, num_hidden_layers, rope_theta: by default those of the paper (intrinsic entropy,
            Section 4.3).
        num_attention_heads: not given in the paper.

    Raises:
        ConfigError: the width is not divisible by the heads, or the width of a head is odd.
    """

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

    def backbone(self) -> GPTNeoXConfig:
        """The configuration of the stock decoder: rotary positions over whole heads, sequential attention and MLP."""
        return GPTNeoXConfig(
            vocab_size=self.input_tokens,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            max_position_embeddings=self.bits + 1,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": 1.0,
            },
            use_parallel_residual=False,
            use_cache=False,
        )

    @property
    def max_position_embeddings(self) -> int:
        return self.bits + 1


class ParityMLPConfig(ParityConfig):
    """Configuration of :class:`~contextwise.models.parity.ParityMLP`.

    Args:
        bits, tasks: size of the parity task; the input has exactly ``bits`` bits.
        feature_size: width of the context feature (80 in the paper).
        width: width of the hidden layers of both MLPs; not given in the paper.
        layers: hidden layers of each MLP; not given in the paper.
    """

    model_type = "parity_mlp"
    # For counting operations: there is no attention.
    num_hidden_layers, num_attention_heads = 0, 1

    def __init__(
        self,
        bits: int = 100,
        tasks: int = 50,
        feature_size: int = 80,
        width: int = 512,
        layers: int = 1,
        **kwargs: Any,
    ) -> None:
        self.feature_size, self.width, self.layers = feature_size, width, layers
        if min(feature_size, width, layers) < 1:
            raise ConfigError(
                f"feature_size is {feature_size}, width {width} and layers {layers}, but all must be at least 1"
            )
        super().__init__(bits, tasks, **kwargs)

    @property
    def hidden_size(self) -> int:
        """Width of the head's input."""
        return self.width
