"""Model specifications: how a type of model is built, the FLOPs of its training, and its pretraining losses.

Losses are sums with counts, so that a step of several batches, on several processes, computes the mean over all targets. A
batch is a dictionary of tensors, described in :mod:`contextwise.objectives.objective`.

Operations: the matrix products of blocks and head (2 per weight and position) and of attention are counted over full rows, as
is the convention for model FLOPs utilization (PaLM, Appendix B): 6 N + 12 L D T per token of a decoder. The experts that a
token goes to count, the others do not. The backward pass counts twice the forward pass; for a frozen matrix after a trained one
it counts once, and before all trained ones not at all. Embedding look-ups, norms and softmax are not counted, nor a pair head.
Padding is counted, since it is computed.

Shapes: B rows, T positions, D channels.
"""

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from contextwise.base import plugins
from contextwise.base.errors import ConfigError, one_line
from contextwise.models.counting import counted_flops, step_flops
from contextwise.models.families import adapter, new_stock_model
from contextwise.models.loading import kind_of
from contextwise.models.losses import IGNORED, final_hidden_states, head_loss
from contextwise.models.masks import as_attention_mask, prefix_attention, readable_without_sync
from contextwise.models.matrices import matrices_of
from contextwise.objectives.kind import Kind

Batch = dict[str, Tensor]
Parts = Sequence[str] | None
"""The trained parts of a model with several; None for those that are usually trained."""


@dataclass
class Losses:
    """The losses of a batch by part. Training minimizes the sum of all parts.

    The first of several parts is the token loss, named ``tokens``: it is the ``loss`` of a run's metrics.
    """

    names: tuple[str, ...]
    """``("tokens",)`` of a decoder."""
    sums: Tensor
    """Nats, (P,), differentiable."""
    counts: Tensor
    """Number of targets of each part, (P,)."""

    def __post_init__(self) -> None:
        if len(self.names) > 1 and self.names[0] != "tokens":
            raise ValueError(f"the first of several losses is the token loss, named 'tokens', not {self.names[0]!r}")

    def minimised(self, targets: Tensor | None = None, pairs: Tensor | None = None) -> Tensor:
        """The sum of all parts: token losses (of every head) divided by ``targets``, the pair loss by ``pairs``.

        Args:
            targets, pairs: the divisors, for a batch that is a part of a larger step; by default the batch's own.
        """
        targets = self.counts[0] if targets is None else targets
        # Every head's sum is divided by the number of next-token targets (objectives, Section 6.2.6).
        pair_divisors = self.counts if pairs is None else pairs.expand(len(self.counts))
        divisors = [pair_divisors[i] if name == "pair" else targets for i, name in enumerate(self.names)]
        return sum(part / divisor.clamp(min=1e-6) for part, divisor in zip(self.sums, divisors, strict=True))  # type: ignore[return-value]


def labelled_losses(
    hidden: Tensor,
    labels: Tensor,
    head: Any,
    transform: Any = None,
    *,
    labelled: Tensor | None = None,
    dense: bool = False,
) -> Losses:
    """Compute the loss of labels (B, T) given hidden states (B, T, D); labels of -100 are ignored.

    The head, with or without a bias, is the larger part of a small model's computation. Unless ``dense`` is set it is applied
    only to positions with a label, after the layer ``transform``.

    Args:
        labelled: (N,) indices of the positions with a label, in the flattened batch; by default they are read from the labels,
            or all positions are scored where reading them would wait for an accelerator.
    """
    if labelled is None and not dense and readable_without_sync(labels):
        labelled = labels.flatten().ne(IGNORED).nonzero()[:, 0]
    if labelled is not None and not dense:
        hidden = hidden.flatten(0, 1).index_select(0, labelled)
        labels = labels.flatten().index_select(0, labelled)
    if transform is not None:
        hidden = transform(hidden)
    return Losses(("tokens",), head_loss(hidden, head, labels)[None], labels.ne(IGNORED).sum()[None])


def losses_of_logits(logits: Tensor, labels: Tensor) -> Losses:
    """Compute the loss of labels (B, T) given logits (B, T, V); labels of -100 are ignored."""
    logits, labels = logits.flatten(0, -2).float(), labels.flatten()
    total = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return Losses(("tokens",), total[None], labels.ne(IGNORED).sum()[None])


def matrix_weights(module: nn.Module) -> int:
    """Weights of the matrices in ``module`` that each position is multiplied by: those of its linear layers and gates."""
    return sum(weight.numel() for weight in matrices_of(module) if weight.dim() == 2)


def block_operations(blocks: nn.Module, config: Any, length: int, count: int) -> float:
    """Operations of ``count`` blocks on one of ``length`` positions: weights and attention."""
    heads = config.num_attention_heads
    attended = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * matrix_weights(blocks) + 4 * count * attended * length


class ModelSpec:
    """What training, evaluation and FLOPs counting use of a type of model; the methods are those of a causal language model.

    Args:
        model_class: the class to build; by default :meth:`pretraining_class`.

    Attributes:
        reads_sentences: whether a text is a single sentence, behind end-of-text.
        takes_contexts: whether the model may be given contexts of a text beside its tokens.
        loss_measure: name of the measure of its loss on documents.
    """

    reads_sentences: ClassVar[bool] = False
    takes_contexts: ClassVar[bool] = False
    loss_measure: ClassVar[str] = "evaluate"

    def __init__(self, model_class: Any = None) -> None:
        self.model_class = model_class

    def pretraining_class(self, config: PreTrainedConfig) -> Any:
        """The class, or Auto class, of transformers to pretrain a stock configuration with."""
        return AutoModelForCausalLM

    def build(self, config: Any) -> Any:
        """Build a newly initialized model."""
        if self.model_class:
            return self.model_class(config)
        return new_stock_model(self.pretraining_class(config), config)

    def operations(self, model: Any, length: int, extra: float = 0.0) -> float:
        """Forward operations of the blocks per position, for ``length`` positions, plus ``extra``."""
        base, config = getattr(model, "base_model", model), model.config
        return block_operations(base, config, length, config.num_hidden_layers) + extra

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        """Forward and backward operations per example, without the vocabulary head.

        Args:
            model: may be on the meta device.
            inputs: positions of the decoder, or of the encoder.
            outputs: positions of an encoder-decoder's decoder.
        """
        return 3.0 * inputs * self.operations(model, inputs)

    def flops_per_target(self, config: Any, trained: Parts = None) -> float:
        """Forward and backward operations of the vocabulary head (or all heads) per target token."""
        return 3.0 * 2 * config.hidden_size * config.get_text_config().vocab_size

    def losses(self, model: Any, batch: Batch) -> Losses:
        """Compute the pretraining losses of a batch."""
        hidden = final_hidden_states(model, input_ids=batch["input_ids"], **self.inputs(model, batch))
        head = model.get_output_embeddings()
        labelled, dense = batch.get("labelled"), "prefix" not in batch
        return labelled_losses(hidden, batch["labels"], head, labelled=labelled, dense=dense)

    def parts(self, model: Any) -> dict[str, nn.Module]:
        """The parts whose parameters a table lists, by name."""
        return dict(model.named_children())

    def stages(self, part: str) -> list[str]:
        """The stages of training that train a part; empty for a model that is trained in one."""
        return []

    def beside(self, config: Any) -> dict[str, int]:
        """Parameters of frozen networks whose outputs the model reads, by name."""
        return {}

    def exported(self, model: Any) -> Any:
        """The trained model as a run exports it: itself, or a stock model that computes the same."""
        return model

    def saved_parts(self, model: Any) -> dict[str, bool]:
        """The parts that an export saves by themselves, and whether each reads the tokens of the corpus."""
        return {}

    def generation_inputs(self, model: Any, source: str, contexts: Path) -> dict[str, Tensor]:
        """The inputs of ``generate()`` that a file of contexts gives to the model, loaded from ``source``.

        Raises:
            ConfigError: the model takes no contexts.
        """
        raise ConfigError(f"contexts is given, but {source} takes no contexts; leave it out")

    def inputs(self, model: Any, batch: Batch) -> dict[str, Any]:
        """The model's inputs beside the tokens: positions, and the attention mask of a prefix."""
        inputs: dict[str, Any] = {"position_ids": batch["position_ids"]} if "position_ids" in batch else {}
        if "prefix" in batch:
            allowed = prefix_attention(batch["prefix"], batch.get("position_ids"))
            inputs["attention_mask"] = as_attention_mask(allowed, model)
        return inputs


class DecoderSpec(ModelSpec):
    """A stock decoder; torch counts the operations of its blocks, such as experts, if there is no adapter for its family."""

    def flops_per_example(self, model: Any, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
        if adapter(model.config) is not None:
            return super().flops_per_example(model, inputs, outputs, trained)
        config = model.config
        plain = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}  # which read no values

        def flops(built: Any) -> float:
            ids = torch.zeros((1, inputs), dtype=torch.long, device=built.device)

            def loss() -> Tensor:
                return final_hidden_states(built, input_ids=ids, attention_mask=torch.ones_like(ids)).sum()

            return step_flops(built.train(), loss)[0]

        def on_meta() -> float:
            with without_weights():
                return flops(new_stock_model(self.pretraining_class(config), copy.deepcopy(config), **plain))

        def failure(error: Exception) -> str:
            return (
                f"the FLOPs of a model of type {config.model_type!r} cannot be counted: it fails in a training step of "
                f"{inputs} tokens ({type(error).__name__}: {one_line(error)}); choose another model"
            )

        return counted_flops(model, inputs, on_meta, lambda: flops(self.build(copy.deepcopy(config))), failure)


_SPECS: dict[type[PreTrainedConfig], ModelSpec] = {}
_STOCK: dict[str, ModelSpec] = {"decoder": DecoderSpec()}
_LOSSES: dict[str, Callable[[Any, Batch], Losses]] = {}
_IMPORTED: list[bool] = []  # whether the modules that register models were
_META_MODELS: dict[tuple[type, str], Any] = {}


def register_model(
    config_class: type[PreTrainedConfig],
    model_class: type[PreTrainedModel],
    spec: ModelSpec | None = None,
    auto_class: Any = AutoModelForCausalLM,
) -> None:
    """Register a model of this package with transformers' Auto classes, and its specification.

    Args:
        spec: by default that of the nearest base class of ``config_class`` with a specification.
        auto_class: the Auto class that loads the model.
    """
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_class.register(config_class, model_class, exist_ok=True)
    if auto_class is AutoModelForCausalLM:  # read by name: Trainer shifts the labels of label smoothing for these alone
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config_class.model_type] = model_class.__name__
    if spec is not None:
        _SPECS[config_class] = spec


def register_kind(kind: Kind, spec: ModelSpec) -> None:
    """Set the specification of the stock models of a kind."""
    _STOCK[kind] = spec


def register_losses(tensor: str, losses: Callable[[Any, Batch], Losses]) -> None:
    """Let ``losses`` compute those of batches with a tensor of this name, for a model of any kind."""
    _LOSSES[tensor] = losses


def register_models() -> None:
    """Import the modules that register the models of every kind and section (``contextwise.models``, ``.sections``); once."""
    if _IMPORTED:  # torch.compile would trace through a cached function, and break its graph
        return
    features = [*plugins.load("models").values(), *plugins.load("sections").values()]
    for module in sorted({module for each in features for module in getattr(each, "registers", ())}):
        importlib.import_module(module)
    _IMPORTED.append(True)


def spec_of(config: PreTrainedConfig) -> ModelSpec:
    """The specification of a configuration's model: that of the nearest registered base class, else of its kind."""
    register_models()
    own = next((_SPECS[base] for base in type(config).__mro__ if base in _SPECS), None)
    return own or _STOCK.get(kind_of(config), _STOCK["decoder"])


def has_own_spec(config: PreTrainedConfig) -> bool:
    """Whether a configuration is of a registered class, not of a stock model."""
    register_models()
    return any(base in _SPECS for base in type(config).__mro__)


def build_model(config: PreTrainedConfig) -> Any:
    """Build a newly initialized model: causal, masked, encoder-decoder, or any other type with a specification."""
    return spec_of(config).build(config)


def meta_model(config: PreTrainedConfig) -> Any:
    """The model of a configuration on the meta device; cached, as a plan needs the same few models many times."""
    key = type(config), config.to_json_string(use_diff=False)
    if key not in _META_MODELS:
        if len(_META_MODELS) == 64:
            _META_MODELS.clear()
        with without_weights():
            _META_MODELS[key] = build_model(config)
    return _META_MODELS[key]


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """While this lasts, models are built on the meta device, without the draws of their weights: they are slow there."""
    with torch.device("meta"), _NoDraws():
        yield


class _NoDraws(TorchFunctionMode):
    """Functions that would draw a tensor's values leave it as it is."""

    DRAWS = frozenset(
        {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, torch.Tensor.normal_, torch.Tensor.uniform_}
    )

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in self.DRAWS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def pretraining_losses(model: Any, batch: Batch) -> Losses:
    """Compute the losses of a batch (``input_ids``, ``labels``, ...) of an objective; see :meth:`ModelSpec.losses`."""
    spec = spec_of(model.config)
    return next((losses for name, losses in _LOSSES.items() if name in batch), spec.losses)(model, batch)


def training_flops_per_example(config: PreTrainedConfig, inputs: int, outputs: int = 0, trained: Parts = None) -> float:
    """Operations per example without the vocabulary head; see :meth:`ModelSpec.flops_per_example`."""
    return spec_of(config).flops_per_example(meta_model(config), inputs, outputs, trained)


def training_flops_per_target(config: PreTrainedConfig, trained: Parts = None) -> float:
    """Operations of the vocabulary head, or of all heads, per target token."""
    return spec_of(config).flops_per_target(config, trained)
