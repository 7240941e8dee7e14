"""Every model in every phase on an accelerator that cannot be waited for; and the same values as where reading is free."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, GPT2LMHeadModel, StaticCache, cache_utils, masking_utils
from transformers.modeling_outputs import BaseModelOutput

import contextwise
import every_model
import multitoken_models
from accelerator import DEVICE, FakeAccelerator, Synchronised, is_part_of
from contextwise.models import losses, masks
from contextwise.models.decoding import StaticDecoding
from contextwise.models.families import FAMILIES
from contextwise.models.losses import final_hidden_states
from contextwise.models.spec import _SPECS, register_models
from contextwise.training.model import TrainedModel
from contextwise.training.optimizer import create_optimizer
from contextwise.training.recipe import TrainingSettings
from every_model import BATCHES, CUE, DECODERS, LENGTH, MODELS, OTHERS, OURS, STOCK, backbone, masked_model, packs
from small import as_on_an_accelerator


@cache
def on_device(name: str) -> Any:
    """The model of this name on the accelerator; it has no values that a test could change."""
    return MODELS[name]().to(DEVICE)


def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=DEVICE)


def batch_of(name: str, kind: str) -> dict[str, torch.Tensor] | None:
    return every_model.batch_of(name, kind, DEVICE)


ALIKE = ("mistral", "qwen2", "qwen3", "every layer", "add", "pools of an MLP", "normed gate", "retrofitted", "linear")
"""Models whose masks are those of others here: one kind of batch is enough."""
CUE_ALIKE = ("CUE of contexts", "CUE concatenated")
"""The same of models of sentences, which are not packed."""
STEPPED = ("ContextLM gpt2", "over ContextLM", "CUE of an LSTM", "T5", "BERT of pairs")
"""Models of which the optimizer takes a step: it sees tensors, and all that models have are here."""
EACH_DECODER = [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in DECODERS]
PHASES = [
    pytest.param(name, kind, id=f"{name}-{kind}", marks=pytest.mark.slow if kind == "padded" and packs(name) else ())
    for name, kind in product(MODELS, BATCHES)
    if batch_of(name, kind) is not None
    and (name not in ALIKE or kind == "packed")
    and (name not in CUE_ALIKE or kind == "padded")
    and (name in STEPPED or kind != "whole rows" or batch_of(name, "padded") is None)  # which take no way of their own
]


def train_step(model: Any, batch: dict[str, torch.Tensor], optimizer: str | None = None) -> None:
    wrapped = TrainedModel(model).train()
    with FakeAccelerator():
        wrapped(**batch).backward()
    if optimizer:
        update = create_optimizer(wrapped, TrainingSettings(steps=1, optimizer=optimizer), 1e-3)
        for group in update.param_groups:
            if "fused" in group:
                group |= {"fused": False, "foreach": True}  # the meta device has no fused kernel
        with FakeAccelerator():
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            update.step()
    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    assert all(p.device.type == DEVICE for p in trained)
    assert all(p.grad is None or p.grad.device.type == DEVICE for p in trained)
    assert any(p.grad is not None for p in trained)
    wrapped.zero_grad()
    model.eval()


def test_all_models_are_here():
    register_models()
    parts = (part for name in MODELS for part in on_device(name).modules() if hasattr(part, "config"))
    configs = {type(part.config) for part in parts}
    assert configs >= set(_SPECS)
    assert {on_device(family).config.model_type for family in STOCK} == set(FAMILIES)


@pytest.mark.parametrize(("name", "kind"), PHASES)
def test_a_training_step_waits_for_nothing(name, kind):
    steps = (name in STEPPED and kind == "whole rows") or name == "retrofitted"  # whose backbone is frozen
    train_step(on_device(name), batch_of(name, kind), "adamw" if steps else None)


@pytest.mark.parametrize("name", ["ContextLM gpt2", "LSTM", "T5"])
def test_a_step_of_muon_waits_for_nothing(name):
    train_step(on_device(name), batch_of(name, "whole rows"), "muon")


@pytest.mark.parametrize("name", ["gpt2", "ContextLM gpt2", "CUE"])
def test_a_step_with_gradient_checkpointing_waits_for_nothing(name):
    model = MODELS[name]().to(DEVICE)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    train_step(model, batch_of(name, "padded"))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_step_with_a_prefix_waits_for_nothing(packed, implementation):
    model = MODELS["gpt2"]().to(DEVICE)
    model.set_attn_implementation(implementation)
    batch = batch_of("gpt2", "packed" if packed else "whole rows")
    train_step(model, batch | {"prefix": tokens().bool(), "labelled": tokens(1, 5)[0]})


@pytest.mark.parametrize("name", [*OURS, *CUE, "LSTM"])
def test_logits_and_loss_wait_for_nothing(name):
    given = batch_of(name, "padded") or batch_of(name, "whole rows")
    batch = {key: value for key, value in given.items() if key != "labelled"}
    if name == "proxy":
        batch["proxy_targets"] = tokens()
    model = on_device(name).eval()
    with FakeAccelerator(), torch.no_grad():
        out = model(**batch)
    assert out.logits.device.type == out.loss.device.type == DEVICE


@pytest.mark.parametrize("name", [*EACH_DECODER, *CUE, *OTHERS])
def test_an_evaluation_waits_for_nothing(name):
    model = TrainedModel(on_device(name)).eval()
    with FakeAccelerator(), torch.no_grad():
        model(**batch_of(name, "padded") or batch_of(name, "whole rows"))


@pytest.mark.parametrize("name", EACH_DECODER)
def test_losses_of_tokens_wait_for_nothing(name):
    model = on_device(name).eval()
    losses._plain_heads[model] = True  # measured by values, once for each model
    for targets in (tokens(), torch.zeros(2, LENGTH, dtype=torch.long)):
        with FakeAccelerator(allowed=2 * (targets.device.type == "cpu")):  # targets of the host are copied in
            assert losses.token_losses(model, tokens(), targets).device.type == DEVICE


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "padded"),
    [
        *((name, False) for name in DECODERS if name in STOCK or name not in ALIKE),
        *((name, True) for name in OURS if name not in ALIKE),  # of stock models: the next test
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in OURS if name in ALIKE),
        ("LSTM", False),
    ],
)
def test_prefill_and_cached_steps_wait_for_nothing(name, padded):
    model, past = on_device(name).eval(), 0
    cache = DynamicCache(config=model.config) if name != "LSTM" else DynamicCache()
    with FakeAccelerator(), torch.no_grad():
        for length in (7, 1, 1, 5):
            past += length
            mask = {"attention_mask": tokens(length=past)} if padded else {}
            model(tokens(length=length), past_key_values=cache, use_cache=True, **mask)
    assert cache.get_seq_length() == past


@pytest.mark.parametrize("name", STOCK)
def test_stock_models_wait_in_transformers_alone(name):
    """Known: a stock model's own forward reads a padding mask, to leave it out where nothing is padding."""
    model = on_device(name).eval()
    with pytest.raises(Synchronised) as caught, FakeAccelerator(), torch.no_grad():
        model(tokens(), attention_mask=tokens())
    outside = [entry.path for entry in caught.traceback if not is_part_of(torch, entry.path)]
    after = [path for path in outside if path.name not in ("accelerator.py", Path(__file__).name)]
    assert after[-1] == Path(masking_utils.__file__)
    assert not any(is_part_of(contextwise, path) for path in after)


@pytest.mark.parametrize("name", EACH_DECODER)
def test_static_steps_wait_for_nothing(name):
    model = on_device(name).eval()
    cache = StaticCache(config=model.config, max_cache_len=24)
    has_context = any("context" in part for part, _ in model.named_modules())
    known = {"inside_chunks": False} if has_context else {}
    inputs = {"position_ids": tokens(length=6), "past_key_values": cache}
    with torch.no_grad():
        with FakeAccelerator(allowed=24) as prefill:
            model(tokens(length=6), **inputs)
        # Known: transformers makes the lengths of its layers on the host.
        assert set(prefill.files) == {cache_utils.__file__}
        with FakeAccelerator():
            model(tokens(length=1), **inputs | {"position_ids": tokens(length=1)}, **known)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "llama", "ContextLM gpt2", "layer"])
def test_recorded_steps_wait_for_nothing(name):
    model, has_context = on_device(name).eval(), name.startswith("ContextLM")
    with torch.no_grad():
        with FakeAccelerator(allowed=24) as prefill:
            steps = StaticDecoding(model, tokens(), 24, {})
        ours = [file for file in prefill.files if not is_part_of(transformers, file)]
        assert len(ours) == has_context  # the lengths of the rows: which steps complete a chunk
        with FakeAccelerator():
            for _ in range(5):
                assert steps.logits(tokens()[:, 0]).device.type == DEVICE
        assert all(not isinstance(step, partial) or step.func != steps._step for step in steps.recorded.values())


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "if": lambda x: 1 if (x > 0).any() else 0,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.detach().cpu(),
    "nonzero": torch.nonzero,
    "mask": lambda x: x[x > 0],
    "masked values": lambda x: x.detach().clone().index_put_((x > 0,), x.detach().flatten()),
    "slice": lambda x: x[:, : x.sum().long()],
    "unique": lambda x: x.detach().unique(),
    "host": lambda x: x + torch.ones(1, 1, x.shape[-1]),
    "host number": lambda x: x * torch.ones(()),
    "copied": lambda x: x + torch.ones(1, 1, x.shape[-1]).to(x.device),
    "tensor": lambda x: x * torch.tensor(2.0, device=x.device),
    "index": lambda x: x[:, [0, 1]],
    "in backward": lambda x: x.register_hook(lambda gradient: gradient.sum().item() and None),
}


class HandWritten(GPT2LMHeadModel):
    """A model whose forward does something with its states."""

    deed: Any = None

    def hidden_states(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        states = self.transformer(inputs_embeds=self.transformer.wte(input_ids)).last_hidden_state
        self.deed(states)
        return states


@cache
def hand_written() -> HandWritten:
    return HandWritten(backbone("gpt2")).to(DEVICE)


@pytest.mark.parametrize("read", READS)
def test_a_model_that_waits_is_noticed(read):
    model = hand_written()
    model.deed = READS[read]
    with pytest.raises(Synchronised):
        train_step(model, {"input_ids": tokens(), "labels": tokens()})


def test_a_hand_written_model_that_does_not_wait_passes():
    model = hand_written()
    model.deed = lambda x: x.masked_fill(x > 0, 1.0).cumsum(0)
    train_step(model, {"input_ids": tokens(), "labels": tokens()}, "adamw")


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
    [*product(sorted({*DECODERS} - {*ALIKE[:3]}), ["sdpa"]), *product(["gpt2", "ContextLM gpt2"], ["eager"])],
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


def test_padded_losses_of_an_encoder_are_the_same_without_reading(monkeypatch):
    wrapped = TrainedModel(masked_model().eval())
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
    cache = StaticCache(config=model.config, max_cache_len=2 * LENGTH)
    with pytest.raises(RuntimeError, match="pad on the left"):
        model(multitoken_models.draw(2, LENGTH), attention_mask=mask, past_key_values=cache)


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
