"""Models on an accelerator, for which torch's meta device stands in: its tensors have no values that could be read.

A value that is read (``.item()``, ``bool(tensor)``, ``nonzero``) is an error there, where a real accelerator would wait for all
work before it; so is a tensor that was left on the CPU.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import contextlm_models
import multitoken_models
import pytest
import torch
from cue.cue_models import TEXT, cue_model, proxy_model, sentence_encoder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertForMaskedLM, DynamicCache, StaticCache
from transformers.modeling_outputs import BaseModelOutput

from contextwise.models import MultiTokenConfig, MultiTokenForCausalLM, losses, masks
from contextwise.models.losses import final_hidden_states
from contextwise.training.model import TrainedModel
from contextwise.training.optimizer import create_optimizer
from contextwise.training.recipe import TrainingSettings
from small import as_on_an_accelerator

DEVICE = "meta"
LENGTH = 12


class OneDevice(TorchDispatchMode):
    """Refuses operations that mix the accelerator's tensors with those of the CPU, except numbers (0-dimensional)."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim() > 0]
        devices = {tensor.device.type for tensor in tensors}
        copies = function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        assert copies or len(devices) < 2, f"{function} mixes {sorted(devices)}"
        return function(*args, **(kwargs or {}))


def over_context() -> MultiTokenForCausalLM:
    return MultiTokenForCausalLM(MultiTokenConfig(contextlm_models.contextlm("llama").config, 3, "layer"))


def masked_model(**options: Any) -> BertForMaskedLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 32, "max_position_embeddings": 24}
    return BertForMaskedLM(BertConfig(**shape, **options))


FAMILIES = ("gpt2", "gpt_neox", "llama")
DECODERS: dict[str, Callable[[], Any]] = {
    **{family: partial(contextlm_models.stock_model, family) for family in FAMILIES},
    **{f"ContextLM {family}": partial(contextlm_models.contextlm, family) for family in ("gpt2", "llama")},
    "every layer": partial(contextlm_models.contextlm, "gpt2", inject_every_layer=True, pooling="attention"),
    "add": partial(contextlm_models.contextlm, "gpt2", injection="add", injection_layer=1),
    **{head: partial(multitoken_models.multitoken, "gpt2", head) for head in ("layer", "linear")},
    "over ContextLM": over_context,
}
MODELS = pytest.mark.parametrize("name", DECODERS)
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["adamw", "muon"])


def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=DEVICE)


BATCHES: dict[str, dict[str, torch.Tensor]] = {
    "whole rows": {},
    "packed": {"position_ids": tokens()},
    "padded": {"attention_mask": tokens()},
}


def train_step(model: Any, batch: dict[str, torch.Tensor], optimizer: str = "adamw") -> None:
    wrapped = TrainedModel(model.to(DEVICE)).train()
    update = create_optimizer(wrapped, TrainingSettings(steps=1, optimizer=optimizer), 1e-3)
    for part in getattr(update, "parts", [update]):
        for group in part.param_groups:
            if "fused" in group:
                group |= {"fused": False, "foreach": True}  # the meta device has no fused kernel
    with OneDevice():
        loss = wrapped(tokens(), tokens(), **batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        update.step()
    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    assert all(p.device.type == DEVICE for p in trained)
    assert all(p.grad is None or p.grad.device.type == DEVICE for p in trained)


@MODELS
@pytest.mark.parametrize("batch", BATCHES)
def test_a_training_step_reads_nothing(name, batch):
    train_step(DECODERS[name](), BATCHES[batch])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
def test_a_training_step_of_a_masked_model_reads_nothing(packed, labelled):
    batch = {"position_ids": tokens()} if packed else {"attention_mask": tokens()}
    if labelled:
        batch["labelled"] = torch.zeros(5, dtype=torch.long, device=DEVICE)
    train_step(masked_model(), batch)


def test_a_prefix_reads_nothing():
    train_step(DECODERS["gpt2"](), {"prefix": tokens().bool(), "labelled": tokens(1, 5)[0]})


def test_a_padded_lstm_reads_nothing():
    with OneDevice():
        sentence_encoder("lstm").to(DEVICE)(tokens(), attention_mask=tokens(), use_cache=False)


def test_the_losses_of_tokens_are_computed_without_reading():
    model = DECODERS["gpt2"]().to(DEVICE).eval()
    losses._plain_heads[model] = True  # measured by values, once for each model
    for targets in (tokens(), torch.zeros(2, LENGTH, dtype=torch.long)):
        assert losses.token_losses(model, tokens(), targets).device.type == DEVICE


@pytest.mark.parametrize("read", [torch.Tensor.item, bool, torch.Tensor.nonzero, torch.Tensor.tolist])
def test_a_model_that_reads_a_value_is_noticed(read):
    model = DECODERS["ContextLM gpt2"]()
    model.context.gate.register_forward_hook(lambda *outputs: read(outputs[-1].sum()) and None)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        train_step(model, {})


def test_a_model_that_leaves_a_tensor_on_the_cpu_is_noticed():
    model = DECODERS["ContextLM gpt2"]()
    model.context.gate.register_forward_hook(lambda *outputs: outputs[-1] + torch.ones(1, 1, 16))
    with pytest.raises((AssertionError, RuntimeError), match=r"mixes|meta"):
        train_step(model, {})


@OPTIMIZERS
def test_an_optimizers_step_reads_nothing(optimizer):
    train_step(DECODERS["ContextLM gpt2"](), {}, optimizer)


@pytest.mark.parametrize(
    "build",
    [cue_model, partial(cue_model, sentence_inputs=False), proxy_model, partial(sentence_encoder, "lstm")],
    ids=["CUE", "contexts alone", "proxy", "LSTM"],
)
def test_a_training_step_of_cue_reads_nothing(build):
    model = build()
    contexts = {"contexts": torch.empty(2, 3, TEXT, device=DEVICE), "context_mask": tokens(2, 3).bool()}
    if getattr(model, "proxy", None) is not None:
        contexts = {"proxy_noise": torch.empty(2, 4, device=DEVICE)}
    elif getattr(model, "context_encoder", None) is None:
        contexts = {}
    train_step(model, contexts)


@MODELS
def test_prefill_and_cached_steps_read_nothing(name):
    model = DECODERS[name]().to(DEVICE).eval()
    cache = DynamicCache(config=model.config)
    with OneDevice(), torch.no_grad():
        for length in (7, 1, 1, 1, 1, 5):
            model(tokens(length=length), past_key_values=cache, use_cache=True)
        if name not in FAMILIES:  # transformers reads the padding masks of its own models
            model(tokens(), attention_mask=tokens(), past_key_values=DynamicCache(config=model.config))


@pytest.mark.parametrize("name", ["gpt2", "llama", "ContextLM gpt2", "ContextLM llama"])
def test_static_steps_read_nothing(name):
    model = DECODERS[name]().to(DEVICE).eval()
    cache = StaticCache(config=model.config, max_cache_len=24)
    known = {"completes_chunk": True} if name.startswith("ContextLM") else {}
    with OneDevice(), torch.no_grad():
        for length in (6, 1, 1):
            step = known if length == 1 else {}
            model(tokens(length=length), position_ids=tokens(length=length), past_key_values=cache, **step)


def draw_batch(kind: str) -> dict[str, torch.Tensor]:
    positions = torch.arange(LENGTH).expand(2, -1).clone()
    if kind == "packed":
        positions[0, 5:] -= 5
        positions[1, 8:] -= 8
        return {"position_ids": positions}
    padding = torch.ones(2, LENGTH, dtype=torch.long)
    padding[1, :4] = 0
    return {"attention_mask": padding} if kind == "padded" else {}


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*product(DECODERS, ["sdpa"]), *product(["gpt2", "ContextLM gpt2"], ["eager"])],
)
@pytest.mark.parametrize("kind", BATCHES)
def test_losses_are_the_same_without_reading(name, kind, implementation, monkeypatch):
    model = DECODERS[name]().eval()
    model.set_attn_implementation(implementation)
    draw = multitoken_models.draw(2, LENGTH + 1)
    targets, batch = draw[:, 1:].clone(), draw_batch(kind)
    targets[:, :5] = -100  # padding predicts nothing
    wrapped = TrainedModel(model)
    expected = wrapped(draw[:, :-1], targets, **batch)
    as_on_an_accelerator(monkeypatch)
    assert masks.readable_without_sync(draw) is False
    torch.testing.assert_close(wrapped(draw[:, :-1], targets, **batch), expected, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("build", [masked_model, partial(sentence_encoder, "lstm")], ids=["masked", "LSTM"])
def test_padded_losses_are_the_same_without_reading(build, monkeypatch):
    wrapped = TrainedModel(build().eval())
    ids, mask = multitoken_models.draw(2, LENGTH), draw_batch("padded")["attention_mask"]
    targets = ids.masked_fill(torch.arange(LENGTH) % 3 > 0, -100).masked_fill(~mask.bool(), -100)
    batch = {"attention_mask": mask}
    expected = wrapped(ids, targets, **batch)
    expected.backward()
    gradients = [parameter.grad for parameter in wrapped.parameters()]
    wrapped.zero_grad()
    as_on_an_accelerator(monkeypatch)
    labelled = targets.flatten().ne(-100).nonzero()[:, 0]
    torch.testing.assert_close(wrapped(ids, targets, **batch), expected, atol=2e-6, rtol=1e-6)
    loss = wrapped(ids, targets, **batch, labelled=labelled)
    torch.testing.assert_close(loss, expected, atol=2e-6, rtol=1e-6)
    loss.backward()
    torch.testing.assert_close([p.grad for p in wrapped.parameters()], gradients, atol=2e-6, rtol=1e-5)


def test_losses_of_tokens_are_the_same_without_reading(monkeypatch):
    model, ids = DECODERS["ContextLM gpt2"]().eval(), multitoken_models.draw(2, LENGTH)
    targets = ids.masked_fill(torch.arange(LENGTH) % 3 > 0, -100)
    expected = losses.token_losses(model, ids, targets)
    as_on_an_accelerator(monkeypatch)
    torch.testing.assert_close(losses.token_losses(model, ids, targets), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "ContextLM gpt2", "ContextLM llama", "layer", "over ContextLM"])
def test_padded_rows_decode_the_same_without_reading(name, monkeypatch):
    model, padding = DECODERS[name]().eval(), draw_batch("padded")["attention_mask"]
    draw = multitoken_models.draw(2, LENGTH)

    def logits() -> torch.Tensor:
        cache, parts, start = DynamicCache(config=model.config), [], 0
        for end in (7, 8, 9, LENGTH):
            mask = padding[:, :end]
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, start:]
            step = {"attention_mask": mask, "position_ids": positions, "past_key_values": cache}
            parts.append(model(draw[:, start:end], **step, use_cache=True).logits)
            start = end
        return torch.cat(parts, dim=1)[padding.bool()]

    with torch.no_grad():
        expected = logits()
        as_on_an_accelerator(monkeypatch)
        torch.testing.assert_close(logits(), expected, atol=2e-6, rtol=1e-5)


def test_padding_on_the_right_is_refused_on_the_device(monkeypatch):
    model = DECODERS["ContextLM gpt2"]().eval()
    as_on_an_accelerator(monkeypatch)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, -2:] = 0
    with pytest.raises(RuntimeError, match="pad on the left"):
        model(multitoken_models.draw(2, LENGTH), attention_mask=mask, past_key_values=DynamicCache())


def test_an_attention_that_takes_no_masks_gets_the_positions(monkeypatch):
    model, batch = DECODERS["gpt2"]().eval(), draw_batch("packed")
    passed: list[Any] = []
    monkeypatch.setattr(model.base_model, "forward", lambda **inputs: passed.append(inputs) or model_output())
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    as_on_an_accelerator(monkeypatch)
    final_hidden_states(model, input_ids=multitoken_models.draw(2, LENGTH), **batch)
    assert passed[0]["position_ids"] is batch["position_ids"]


def model_output() -> BaseModelOutput:
    return BaseModelOutput(last_hidden_state=torch.zeros(2, LENGTH, 16))
