"""The model of a run: its configuration, its initial weights, and the module that computes the loss."""

import contextlib
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from contextwise.base.errors import ConfigError, Problem
from contextwise.base.plugins import is_ours
from contextwise.base.progress import say
from contextwise.data.corpus import Corpus
from contextwise.models.building import build_paired
from contextwise.models.contextlm import ContextLMForCausalLM
from contextwise.models.embedding_norm import with_embedding_norm
from contextwise.models.families import adapter
from contextwise.models.loading import kind_of, load_as, load_config, load_model, load_tokenizer, load_without_heads
from contextwise.models.losses import autocast_dtype, has_plain_head, token_losses
from contextwise.models.prefix import reads_prefix
from contextwise.models.probes import has_known_loss, keeps_documents_apart, reads_prefixes
from contextwise.models.rope import stock_config
from contextwise.models.spec import (
    Losses,
    build_model,
    has_own_spec,
    pretraining_losses,
    spec_of,
    training_flops_per_example,
    training_flops_per_target,
)
from contextwise.models.tokenizers import check_tokenizer
from contextwise.models.variant.modeling import VariantConfig
from contextwise.objectives import Objective
from contextwise.objectives.vocabulary import add_tokens_of
from contextwise.training.parametrization import parameter_scales, scale_initial_values
from contextwise.training.recipe import Recipe
from contextwise.training.settings import CorpusData, ModelSettings, prefix_problem, wrong_kind


def continued_tokenizer(source: str, corpus: Corpus) -> Any:
    """The tokenizer of a corpus, if any, with the further tokens of the model ``source``; a DataError if the two differ."""
    known = check_tokenizer(source, corpus, load_config(source).get_text_config().vocab_size)
    tokenizer = corpus.tokenizer()
    if tokenizer is not None and known is not None:
        add_tokens_of(load_tokenizer(source), tokenizer)
    return tokenizer


def pretrained_config(recipe: Recipe, model: Any) -> PreTrainedConfig:
    """The configuration of a pretrained model for a recipe whose section ``model`` is ``model``."""
    config, source, context = load_config(model.pretrained), model.pretrained, recipe.data.context
    kind, stock = kind_of(config), stock_config(config)
    problems = [problem for each in recipe.objectives for problem in wrong_kind(each, kind, source)]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < context:
        why, fix = (
            f"but {source} has only {positions} positions",
            "save a copy with more rotary positions (docs/train.md)",
        )
        if not getattr(stock, "rope_parameters", None):
            why, fix = f"{why}, which are not rotary", "take a model with rotary positions"
        problems.append(Problem(why, "data.context", context, f"choose at most {positions}, or {fix}"))
    if (prefix := next((each for each in recipe.singles if each.has_prefix), None)) is not None:
        if has_own_spec(config):
            problems.append(prefix_problem(prefix, f"the {config.model_type} model {source}"))
        window, kinds = getattr(stock, "sliding_window", None), getattr(stock, "layer_types", None)
        if window and window < context and (not kinds or "sliding_attention" in kinds):
            why = (
                f"which has a sliding window of {window} tokens, less than data.context ({context}), and the objective "
            )
            why += f"{prefix.name!r} has a mask of its own, which would replace it"
            problems.append(Problem(why, "model.pretrained", source, f"set data.context to {window} at most"))
    chunk, stages = getattr(config, "chunk_size", 0), getattr(recipe.data, "context_stages", {})
    if stages and chunk > min(stages):
        why = f"but {source} has chunks of {chunk} tokens, more than the first stage"
        problems.append(Problem(why, "data.context_stages", stages))
    if model.context_predictor is not None and reads_prefix(config):
        why = f"needs a model that reads its prompts causally, but {source} reads them as a prefix"
        problems.append(Problem(why, "model.context_predictor", fix="remove it, or start from a causal model"))
    if problems:
        raise ConfigError(*problems)
    return composed(config, model, recipe.singles)


def composed(config: PreTrainedConfig, model: ModelSettings, objectives: list[Objective]) -> PreTrainedConfig:
    """Add the parts of a recipe's section ``model`` to a stock configuration, and an encoder's pair head if there are pairs."""
    if kind_of(config) == "encoder":
        config.architectures = ["BertForPreTraining"] if any(each.has_pairs for each in objectives) else None
    for section in model.sections.values():
        config = section.compose(config)
    return with_embedding_norm(config)


def starting_model(recipe: Recipe, config: PreTrainedConfig) -> Any:
    """Build the model of a recipe with this configuration, in float32 on the CPU, ready to be trained.

    A CheckpointError or ConfigError if a pretrained model cannot be loaded, or its loss or attention is not supported.
    """
    if (model := recipe.model.start(recipe, config)) is None:
        paired = recipe.training.paired_initialization
        model = build_paired(config, recipe.seed) if paired else build_model(config)
        scale_initial_values(model, parameter_scales(recipe, config))
    _check_attention(recipe, model)
    return model


def _check_attention(recipe: Recipe, model: Any) -> None:
    """Refuse a variant, or a model of a family without an adapter, whose tokens see others than the recipe says."""
    config, variant = model.config, isinstance(model.config, VariantConfig)
    known = not variant and ((has_own_spec(config) and is_ours(type(config).__module__)) or adapter(config) is not None)
    if known or not isinstance(recipe.data, CorpusData):
        return
    what = config.source if variant else getattr(recipe.model, "pretrained", f"a model of type {config.model_type!r}")
    # Segments of pairs are from one document each.
    packed = {each.has_prefix for each in recipe.singles if not each.whole_steps and not each.has_pairs}
    prefix = next((each for each in recipe.singles if each.has_prefix), None)
    if prefix is not None and not reads_prefixes(model):
        raise ConfigError(prefix_problem(prefix, what))
    if recipe.cut.separate_documents and not all(keeps_documents_apart(model, each) for each in packed):
        raise ConfigError(
            f"documents of a row are kept apart (data.separate_documents), but tokens of {what} see the documents before "
            "theirs; set it to false, or choose a model whose attention follows position_ids, such as Llama or GPT-2"
        )


def continued_model(settings: Any, config: Any) -> Any:
    """Load a pretrained model, grow its vocabulary to the configuration's, and add ContextLM's pathway."""
    model = _pretrained(settings.pretrained, config)
    if config.vocab_size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(config.vocab_size)  # for the objective's special tokens
    if settings.context_predictor is not None:
        model = ContextLMForCausalLM.from_backbone(model, **settings.context_predictor.model_dump())
    settings.freeze(model)
    return model.train()


def _pretrained(source: str, config: PreTrainedConfig) -> Any:
    """Load the weights of ``source`` into the class to pretrain ``config`` with, in float32 on the CPU.

    A head that is missing in the weights (the pair head, for an encoder without one) has random weights.
    """
    kind = kind_of(config)
    if kind == "decoder":
        model = load_model(source, dtype=torch.float32, device="cpu")
        if getattr(model.get_output_embeddings(), "bias", None) is not None or not has_plain_head(model):
            raise ConfigError(
                f"{source} scales, caps or shifts its logits, which the training loss does not support; "
                "choose a model whose vocabulary head is a plain matrix"
            )
        return model
    wanted = spec_of(config).pretraining_class(config)
    if kind == "encoder":
        model, missing = load_without_heads(wanted, kind, source, torch.float32, "cpu")
        if missing:
            shown = ", ".join(dict.fromkeys(name.rsplit(".", 1)[0] for name in missing))
            say(f"note: {source} has no {shown}, which start at random")
    else:
        model = load_as(wanted, kind, source, torch.float32, "cpu")
    if not has_known_loss(model):
        like = "BERT" if kind == "encoder" else "T5"
        raise ConfigError(
            f"{source} is an {kind} of type {config.model_type!r}, whose loss is not supported; choose a model like {like}"
        )
    return model


def run_flops(
    recipe: Recipe, config: PreTrainedConfig, lengths: tuple[int, int]
) -> tuple[list[tuple[int, float]], float]:
    """The examples of each stage of a run, with the operations of one without the vocabulary head; and the head's per target.

    ``lengths`` are the inputs and outputs of an example, which a stage of shorter windows divides.
    """
    (inputs, outputs), trained, stages = lengths, recipe.model.trained, []
    for examples, context in recipe.windows:
        parts = recipe.data.context // context
        stages.append((examples, parts * training_flops_per_example(config, inputs // parts, outputs, trained)))
    return stages, training_flops_per_target(config, trained)


def compile_for(trained: "TrainedModel", whole: bool) -> None:
    """Compile a model for training, in place, block by block (seconds: one block stands for all).

    With ``whole`` as one graph, in which head and loss are fused, and which takes a GPU's host little Python (a minute).
    """
    kinds = set(trained._no_split_modules or [])
    blocks = [] if whole else [module for module in trained.modules() if type(module).__name__ in kinds]
    for module in blocks or [trained]:
        module.compile()


class TrainedModel(nn.Module):
    """Wraps a language model so that DDP, FSDP and torch.compile see the loss as part of the forward pass.

    The vocabulary head is applied in pieces inside the wrapped module, where sharded weights are gathered.
    """

    base_model_prefix = "none"  # else accelerate takes a part whose class has "Norm" in its name for the final norm

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.last: Losses | None = None  # of the last batch by part, detached
        blocks = [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or [])]
        embedding = None
        with contextlib.suppress(NotImplementedError):  # a model that transformers finds no embedding in
            embedding = model.get_input_embeddings()
        # What FSDP shards by itself: of the blocks that the class may have those that the model has, as accelerate demands, but
        # none with the embedding, which the head may share.
        self._no_split_modules = sorted({type(each).__name__ for each in blocks if embedding not in each.modules()})

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        targets: torch.Tensor | None = None,
        pairs: torch.Tensor | None = None,
        per_token: bool = False,
        **batch: torch.Tensor,
    ) -> torch.Tensor:
        """Compute the minimized loss: mean in nats over ``labels``, and over the objective's further targets.

        In evaluation mode it is computed in float32 whatever the precision of the training. ``targets`` and ``pairs`` are
        numbers of target tokens and of labelled pairs of the whole step, if this batch is a part of it. With ``per_token`` the
        result is the loss of each label of a decoder instead, (B, T) float32, without gradients.
        """
        device = input_ids.device.type
        exact: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if not self.training and autocast_dtype(device) is not None:
            exact = torch.autocast(device, enabled=False)
        with exact:
            if per_token:
                return token_losses(self.model, input_ids, labels)
            losses = pretraining_losses(self.model, {"input_ids": input_ids, "labels": labels, **batch})
        self.last = Losses(losses.names, losses.sums.detach(), losses.counts)
        return losses.minimised(targets, pairs)
