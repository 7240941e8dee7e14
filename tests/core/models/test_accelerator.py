"""Every model in every phase on an accelerator that cannot be waited for; and the same values as where reading is free."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    DynamicCache,
    GPT2LMHeadModel,
    MistralConfig,
    Qwen2Config,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
    cache_utils,
    masking_utils,
)
from transformers.modeling_outputs import BaseModelOutput

import contextlm_models
import contextwise
import multitoken_models
from accelerator import DEVICE, FakeAccelerator, Synchronised, is_part_of
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.recipes import RECIPES
from contextwise.models import losses, masks
from contextwise.models.decoding import StaticDecoding
from contextwise.models.families import FAMILIES
from contextwise.models.losses import final_hidden_states
from contextwise.models.spec import _SPECS, register_models
from contextwise.models.variant.code import digest, name_code, read_code
from contextwise.models.variant.modeling import VariantConfig, VariantForCausalLM
from contextwise.training.model import TrainedModel, freeze_backbone
from contextwise.training.optimizer import create_optimizer
from contextwise.training.recipe import TrainingSettings
from contextwise_papers.intrinsic_entropy.parity import (
    ParityMLP,
    ParityMLPConfig,
    ParityTransformer,
    ParityTransformerConfig,
)
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM
from cue_models import TEXT, autoencoder, cue_model, proxy_model, sentence_encoder
from small import as_on_an_accelerator

LENGTH = 12


def stock_model(family: str) -> Any:
    return AutoModelForCausalLM.from_config(backbone(family))


def backbone(family: str) -> Any:
    if family not in ("mistral", "qwen2"):
        layers = "n_layer" if family == "gpt2" else "num_hidden_layers"
        return contextlm_models.backbone(family, **{layers: 2})
    shape = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "intermediate_size": 32}
    return MistralConfig(**shape, sliding_window=None) if family == "mistral" else Qwen2Config(**shape)


def contextlm(family: str, **options: Any) -> ContextLMForCausalLM:
    torch.manual_seed(0)
    model = ContextLMForCausalLM(ContextLMConfig(backbone(family), **options))
    contextlm_models.draw_parts(model)  # so that contexts matter
    return model


def over_context() -> MultiTokenForCausalLM:
    return MultiTokenForCausalLM(MultiTokenConfig(contextlm("llama").config, 3, "layer"))


def variant(name: str) -> VariantForCausalLM:
    file, _, own = name.partition(":")
    path = RECIPES / "variants" / file
    sha256 = digest(read_code(path))
    name_code(path, sha256)
    return VariantForCausalLM(VariantConfig(backbone("gpt2"), file, own, {}, sha256))


def retrofitted() -> ContextLMForCausalLM:
    model = ContextLMForCausalLM.from_backbone(stock_model("gpt2"))
    freeze_backbone(model)
    return model


def masked_model(model_class: Any = BertForMaskedLM, **options: Any) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 32, "max_position_embeddings": 24}
    return model_class(BertConfig(**shape, **options))


def encoder_decoder() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"vocab_size": 23, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0, dropout_rate=0.0))


STOCK: dict[str, Callable[[], Any]] = {family: partial(stock_model, family) for family in FAMILIES}
OURS: dict[str, Callable[[], Any]] = {
    **{f"ContextLM {family}": partial(contextlm, family) for family in ("gpt2", "llama")},
    "every layer": partial(contextlm, "gpt2", inject_every_layer=True, pooling="attention"),
    "add": partial(contextlm, "gpt2", injection="add", injection_layer=1, predictor_layers=1),
    "projection": partial(contextlm, "gpt_neox", injection="projection", pooling="mlp", predictor_layers=1),
    "norm": partial(contextlm, "qwen3", injection="norm_add", pooling="latent_attention", predictor_layers=1),
    "both norms": partial(contextlm, "gpt2", injection="own_norms", predictor_norm=True),
    "the paper's form": partial(contextlm, "gpt2", injection="paper"),
    "embedding norm": partial(contextlm_models.normed, "gpt2"),
    "retrofitted": retrofitted,
    **{head: partial(multitoken_models.multitoken, "gpt2", head) for head in ("layer", "linear")},
    "over ContextLM": over_context,
}
DECODERS = STOCK | OURS
CUE: dict[str, Callable[[], Any]] = {
    "CUE": cue_model,
    "CUE of contexts": partial(cue_model, sentence_inputs=False),
    "CUE of an LSTM": partial(cue_model, "lstm"),
    "CUE concatenated": partial(cue_model, form="concatenate", width=24),
    "proxy": proxy_model,
}
OTHERS: dict[str, Callable[[], Any]] = {
    "token order": partial(variant, "token_order.py:TokenOrder"),
    "next latent": partial(variant, "next_latent.py:NextLatent"),
    "LSTM": partial(sentence_encoder, "lstm"),
    "BERT": masked_model,
    "BERT of pairs": partial(masked_model, BertForPreTraining),
    "T5": encoder_decoder,
    "autoencoder": autoencoder,
    "parity MLP": lambda: ParityMLP(ParityMLPConfig(LENGTH - 1, 4, 6, 8)),
    "parity Transformer": lambda: ParityTransformer(ParityTransformerConfig(LENGTH - 1, 4, 16)),
}
MODELS = DECODERS | CUE | OTHERS


@cache
def on_device(name: str) -> Any:
    """The model of this name on the accelerator; it has no values that a test could change."""
    return MODELS[name]().to(DEVICE)


def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=DEVICE)


BATCHES: dict[str, dict[str, torch.Tensor]] = {
    "whole rows": {},
    "packed": {"position_ids": tokens()},
    "padded": {"attention_mask": tokens()},
}


def batch_of(name: str, kind: str) -> dict[str, torch.Tensor] | None:
    """A batch of this kind for the model of this name, as the trainer gives it; None if it takes no such batches."""
    if "parity" in name or name == "autoencoder":
        return (
            {"input_ids": tokens(), "labels": tokens(2, 1 if "parity" in name else LENGTH)}
            if not BATCHES[kind]
            else None
        )
    if kind == "packed" and (name in CUE or name == "T5"):
        return None  # one sentence in a row
    batch = {"input_ids": tokens(), "labels": tokens(), **BATCHES[kind]}
    if name in CUE and name != "proxy":
        batch |= {"contexts": torch.empty(2, 3, TEXT, device=DEVICE), "context_mask": tokens(2, 3).bool()}
    elif name == "proxy":
        batch["proxy_noise"] = torch.empty(2, 4, device=DEVICE)
    elif name == "BERT of pairs":
        batch |= {"token_type_ids": tokens(), "pair_label": tokens(1, 2)[0]}
    elif name == "T5":
        batch["labels"] = tokens(2, 7)
    if kind == "padded" and name not in (*DECODERS, "T5"):
        batch["labelled"] = tokens(1, 5)[0]
    return batch


def packs(name: str) -> bool:
    """Whether it is trained on packed rows; then its padded rows are those of an evaluation."""
    return batch_of(name, "packed") is not None


ALIKE = ("mistral", "qwen2", "qwen3", "every layer", "add", "projection", "norm", "retrofitted", "linear")
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
    batch = {key: value for key, value in batch_of(name, "padded").items() if key != "labelled"}
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


@pytest.mark.parametrize(
    ("name", "padded"),
    [
        *((name, False) for name in DECODERS if name in STOCK or name not in ALIKE),
        *((name, True) for name in [*OURS, "LSTM"] if name not in ALIKE),  # of stock models: the next test
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
    known = {"completes_chunk": True} if has_context else {}
    inputs = {"position_ids": tokens(length=6), "past_key_values": cache}
    with torch.no_grad():
        with FakeAccelerator(allowed=24) as prefill:
            model(tokens(length=6), **inputs)
        # Known: transformers makes the lengths of its layers on the host.
        assert set(prefill.files) == {cache_utils.__file__}
        with FakeAccelerator():
            model(tokens(length=1), **inputs | {"position_ids": tokens(length=1)}, **known)


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
