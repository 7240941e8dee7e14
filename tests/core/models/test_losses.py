"""Chunked losses against torch's own cross entropy, and token losses of any model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, GPT2LMHeadModel, LlamaConfig

from contextwise.models import ContextLMForCausalLM, losses, token_losses
from contextwise.models.losses import linear_cross_entropy
from examples import FEW


@FEW
@given(data=st.data())
def test_value_and_gradients_are_those_of_torch(data):
    n, d, v = (data.draw(st.integers(1, most)) for most in (40, 9, 30))
    torch.manual_seed(data.draw(st.integers(0, 100)))
    hidden, weight = torch.randn(n, d, dtype=torch.float64), torch.randn(v, d, dtype=torch.float64)
    targets = torch.randint(0, v, (n,))
    targets[torch.rand(n) < 0.3] = losses.IGNORED
    scale = data.draw(st.floats(0.1, 3))
    result = []
    for chunked in (True, False):
        h, w = hidden.float().requires_grad_(), weight.float().requires_grad_()
        if chunked:
            loss = linear_cross_entropy(h, w, targets)
        else:
            loss = cross_entropy(h @ w.t(), targets, ignore_index=losses.IGNORED, reduction="sum")
        (loss * scale).backward()
        result.append((loss.detach(), h.grad, w.grad))
    for mine, theirs in zip(*result, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_second_derivatives_are_refused():
    """They were those of a loss that is linear in the hidden states and the head."""
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 2, 3, 4]))
    with pytest.raises(RuntimeError, match="differentiable once; for second derivatives compute it from the logits"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert gradient.abs().sum() > 0


def test_pieces_do_not_matter(monkeypatch):
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(3, 100, 8), torch.randn(50, 8), torch.randint(0, 50, (3, 100))
    results = []
    for rows in (7, 100, 1000):
        monkeypatch.setattr(losses, "rows_at_once", lambda *_, rows=rows: rows)
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = linear_cross_entropy(h, w, targets)
        loss.backward()
        results.append((loss.detach(), h.grad, w.grad))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


def test_loss_and_logits_are_those_of_transformers():
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).eval()
    ours = ContextLMForCausalLM.from_backbone(model)  # its contexts are zero until it is trained
    ids = torch.randint(0, 30, (2, 9))
    labels = ids.masked_fill(torch.rand(2, 9) < 0.3, losses.IGNORED)
    for keep in (0, 1, 4, torch.tensor([0, 5])):
        out = ours(ids, labels=labels, logits_to_keep=keep)
        torch.testing.assert_close(out.logits, model(ids, logits_to_keep=keep).logits)
        torch.testing.assert_close(out.loss, model(ids, labels=labels).loss)
    out = ours.train()(ids, labels=labels, num_items_in_batch=7)
    assert out.logits is None
    torch.testing.assert_close(out.loss, model(ids, labels=labels, num_items_in_batch=7).loss)
    out = ours(ids)
    assert out.loss is None and out.logits.shape == (2, 9, 30)


def test_frozen_parts_get_no_gradient():
    hidden, weight = torch.randn(5, 4), torch.randn(9, 4)
    targets = torch.randint(0, 9, (5,))
    h = hidden.clone().requires_grad_()
    linear_cross_entropy(h, weight, targets).backward()
    assert h.grad is not None
    w = weight.clone().requires_grad_()
    linear_cross_entropy(hidden, w, targets).backward()
    assert w.grad is not None
    assert not linear_cross_entropy(hidden, weight, targets).requires_grad


def test_the_loss_under_autocast_is_close():
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 32, requires_grad=True), (torch.randn(100, 32) / 6).requires_grad_()
    targets = torch.randint(0, 100, (64,))
    expected = linear_cross_entropy(hidden, weight, targets)
    with torch.autocast("cpu", torch.bfloat16):
        result = linear_cross_entropy(hidden, weight, targets)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=0)
    result.backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def test_bf16_loss_is_that_of_its_logits_in_float32_whatever_rows_stay_in_the_caches():
    torch.manual_seed(0)
    vocabulary, rows = 70_000, 3 * torch.get_num_threads() + 1  # one row of this vocabulary for each thread at a time
    hidden, weight = torch.randn(rows, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows,))
    targets[1] = losses.IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    low = [tensor.detach().bfloat16() for tensor in (hidden, weight)]
    logits = (low[0] @ low[1].t()).float().requires_grad_()
    expected = cross_entropy(logits, targets, ignore_index=losses.IGNORED, reduction="sum")
    (of_logits,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(loss, expected)
    expected_gradients = of_logits @ low[1].float(), of_logits.t() @ low[0].float()
    for gradient, exact in zip(gradients, expected_gradients, strict=True):
        assert (gradient - exact).norm() < 0.01 * exact.norm()


def test_no_tensor_as_large_as_all_logits(monkeypatch):
    """The claim itself: nothing of tokens x vocabulary elements is ever made."""
    n, v = 512, 300
    monkeypatch.setattr(losses, "rows_at_once", lambda *_: 64)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    hidden, weight = torch.randn(n, 16, requires_grad=True), torch.randn(v, 16, requires_grad=True)
    with Watch():
        linear_cross_entropy(hidden, weight, torch.randint(0, v, (n,))).backward()
    assert 64 * v <= largest < n * v // 4


SHAPE = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8}


def stock(kind):
    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()
    config = LlamaConfig(**SHAPE) if kind == "llama" else Gemma2Config(**SHAPE, final_logit_softcapping=0.5)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cap_that_small_logits_hardly_show_is_noticed(dtype):
    """At random weights Gemma2's cap of 30 changes logits by a thousandth; trained without it, the model would be another."""
    capped, plain = (
        AutoModelForCausalLM.from_config(Gemma2Config(**SHAPE, final_logit_softcapping=cap)).to(dtype).eval()
        for cap in (30.0, None)
    )
    assert not losses.has_plain_head(capped) and losses.has_plain_head(plain)


def test_logits_that_are_slightly_scaled_are_noticed():
    model = stock("llama")
    forward = model.forward

    def scaled(*arguments, **options):
        out = forward(*arguments, **options)
        return out.__class__(logits=out.logits * 1.0003)

    model.forward = scaled
    assert not losses.has_plain_head(model)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_token_losses_of_any_model(kind):
    """gemma2 caps its logits: a head that is applied by hand would give other numbers, and must be noticed."""
    model = stock(kind)
    tokens = torch.randint(0, 97, (3, 20))
    targets = torch.roll(tokens, -1, 1)
    targets[0, -5:] = losses.IGNORED
    logits = model(tokens, use_cache=False).logits
    expected = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=losses.IGNORED, reduction="none")
    result = token_losses(model, tokens, targets)
    torch.testing.assert_close(result, expected.view(3, 20), atol=1e-5, rtol=1e-5)
    assert torch.count_nonzero(result[0, -5:]) == 0
    assert losses.has_plain_head(model) == (kind != "gemma2")
