"""Every model on a GPU: the losses and gradients of the CPU, bf16 near them, and no wait of the host for the device."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from contextlm_models import contextlm, draw
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.model import TrainedModel
from contextwise.training.optimizer import create_optimizer
from every_model import BATCHES, DECODERS, MODELS, batch_of, drawn_batch

CASES = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name, kind in product(MODELS, BATCHES)
    if batch_of(name, kind, "meta") is not None
]
OF_DECODERS = [case for case in CASES if case.values[0] in DECODERS]


def moved(batch: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in batch.items()}


def loss_and_gradients(name: str, model: Any, kind: str, bf16: bool = False) -> tuple[torch.Tensor, list[Any]]:
    """Of a batch, on the CPU; in bf16 as the Trainer computes them. The decoders have no dropout and are in training mode."""
    device = next(model.parameters()).device.type
    wrapped = TrainedModel(model).train(name in DECODERS)
    model.zero_grad()
    # cuDNN computes gradients of recurrent layers in training mode only.
    with torch.backends.cudnn.flags(enabled=False), torch.autocast(device, torch.bfloat16, enabled=bf16):
        loss = wrapped(**moved(drawn_batch(name, kind), device))
    loss.backward()
    # Copies: the model's own gradients move with it.
    return loss.detach().cpu(), [p.grad.cpu().clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_losses_and_gradients_are_those_of_the_cpu(name: str, kind: str) -> None:
    model = MODELS[name]()
    expected_loss, expected = loss_and_gradients(name, model, kind)
    loss, gradients = loss_and_gradients(name, model.cuda(), kind)
    torch.testing.assert_close(loss, expected_loss, atol=1e-5, rtol=1e-5)
    assert len(gradients) == len(expected)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("name", "kind"), OF_DECODERS)
def test_bf16_is_near_fp32(name: str, kind: str, device: str) -> None:
    model = MODELS[name]().to(device)
    expected_loss, expected = loss_and_gradients(name, model, kind)
    loss, gradients = loss_and_gradients(name, model, kind, bf16=True)
    torch.testing.assert_close(loss, expected_loss, atol=0.01, rtol=0.01)
    ours, theirs = (torch.cat([gradient.flatten() for gradient in each]) for each in (gradients, expected))
    assert (ours - theirs).norm() <= 0.05 * theirs.norm()


@pytest.mark.cuda
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("name", "kind"), OF_DECODERS)
def test_a_training_step_waits_for_nothing_on_a_gpu(name: str, kind: str, optimizer: str) -> None:
    """As the tests with an accelerator that is made up say it; a first step allocates and chooses kernels."""
    wrapped = TrainedModel(MODELS[name]().cuda()).train()
    batch = moved(drawn_batch(name, kind), "cuda")
    update = create_optimizer(wrapped, TrainingSettings(steps=1, optimizer=optimizer), 1e-3, bf16=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            wrapped(**batch).backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        update.step()
        update.zero_grad()

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_cuda_graphs_generate_the_same() -> None:
    """With a static cache transformers compiles the step of a model on a GPU into CUDA graphs, by itself."""
    model, tokens = contextlm("gpt2", chunk_size=3).cuda(), 1 + draw(2, 6).cuda() % 60
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, **options)
    assert torch.equal(model.generate(tokens, cache_implementation="static", **options), expected)
