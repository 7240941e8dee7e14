"""The loss of multi-token prediction against the formula of its source, and what it keeps in memory."""

import math
import weakref

import pytest
import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils._python_dispatch import TorchDispatchMode

from contextwise.models import losses
from contextwise_papers.objectives.multitoken.modeling import future_targets
from multitoken_models import all_logits, as_stock_model, draw, multitoken

HEADS = pytest.mark.parametrize("head", ["layer", "linear"])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@HEADS
def test_loss_is_the_formula_written_out(family, head):
    """L = - sum_k sum_{t=1}^{T-k} log P_k(x_{t+k} | x_1 .. x_t), over the number of next tokens."""
    n, length = 3, 7
    model = multitoken(family, head, n)
    tokens = draw(2, length)
    labels = tokens.clone()
    labels[1, 2:4] = -100
    total, sums, counts = 0.0, [0.0] * n, [0] * n
    with torch.no_grad():
        for k in range(1, n + 1):
            log_p = as_stock_model(model, k)(tokens).logits.double().log_softmax(-1)
            for row in range(2):
                for t in range(1, length - k + 1):  # 1-based, as in the source: x_t is tokens[t - 1]
                    target = int(labels[row, t + k - 1])
                    if target != -100:
                        sums[k - 1] -= float(log_p[row, t - 1, target])
                        counts[k - 1] += 1
            total += sums[k - 1]
    evaluated, out = model(tokens, labels=labels), model.train()(tokens, labels=labels)
    assert evaluated.loss == evaluated.head_losses[0]  # the next token's, which compares with that of any model
    assert out.head_targets.tolist() == counts == [10, 8, 7]
    assert out.loss.item() == pytest.approx(total / counts[0], rel=1e-5)
    assert out.head_losses.tolist() == pytest.approx([s / c for s, c in zip(sums, counts, strict=True)], rel=1e-5)
    assert not out.head_losses.requires_grad
    shifted = pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(tokens, shift_labels=shifted).loss, out.loss)
    torch.testing.assert_close(evaluated.head_losses, out.head_losses)
    assert model(tokens, labels=labels).logits is None
    by_items = model(tokens, labels=labels, num_items_in_batch=5)
    assert by_items.loss.item() == pytest.approx(total / 5, rel=1e-5)
    assert model.multi_token_loss(tokens, shifted).total.item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
@HEADS
def test_gradients_are_those_of_all_logits_at_once(family, head):
    n = 3
    model = multitoken(family, head, n).train()
    tokens = draw(3, 12)
    logits = all_logits(model(tokens, heads=n))
    naive = sum(
        cross_entropy(logits[:, : 12 - k, k - 1].flatten(0, 1), tokens[:, k:].flatten(), reduction="sum")
        for k in range(1, n + 1)
    )
    naive = naive / (3 * 11)
    expected = torch.autograd.grad(naive, list(model.parameters()))
    out = model(tokens, labels=tokens)
    torch.testing.assert_close(out.loss, naive)
    (2 * out.loss).backward()
    for (name, parameter), gradient in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient, atol=1e-6, rtol=1e-4, msg=name)


@HEADS
def test_the_loss_of_evaluation_has_the_gradient_of_the_next_token(head):
    """A loaded model is in evaluation mode; its loss had no gradient at all."""
    model, tokens = multitoken("llama", head).eval(), draw(3, 12)
    out = model(tokens, labels=tokens)
    expected = cross_entropy(model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    weights = [model.get_input_embeddings().weight, model.vocabulary_head(1).weight]
    for own, wanted in zip(torch.autograd.grad(out.loss, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, labels=tokens).loss, expected)


@HEADS
def test_frozen_parts_get_no_gradient(head):
    model = multitoken("llama", head).train()
    model.backbone.requires_grad_(False)
    model.lm_head.requires_grad_(False)
    tokens = draw(2, 9)
    model(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.heads.parameters())
    model.requires_grad_(False)
    assert not model(tokens, labels=tokens).loss.requires_grad


class Largest(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@HEADS
def test_logits_memory_does_not_grow_with_the_heads(head, monkeypatch):
    monkeypatch.setattr(losses, "rows_at_once", lambda *_: 8)
    largest = {}
    for n in (1, 4):
        model = multitoken("llama", head, n, vocab_size=500).train()
        tokens = draw(4, 32)
        with Largest() as seen:
            model(tokens, labels=tokens).loss.backward()
        largest[n] = seen.elements
    assert largest[4] == largest[1] < 4 * 32 * 500


def test_a_shared_head_keeps_one_gradient_of_its_matrix():
    kept = []
    model = multitoken("llama", "layer", 4, vocab_size=500).train()
    tokens = draw(2, 10)

    def pack(x):
        if tuple(x.shape) == (500, 16):
            kept.append(weakref.ref(x))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = model(tokens, labels=tokens).loss
    assert sum(gradient() is not None for gradient in kept) == 1
    loss.backward()


@HEADS
@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_sequences_have_fewer_targets(head, length):
    model = multitoken("gpt2", head, 4).train()
    tokens = draw(2, length)
    out = model(tokens, labels=tokens)
    assert out.head_targets.tolist() == [2 * max(0, length - k) for k in (1, 2, 3, 4)]
    out.loss.backward()
    assert math.isfinite(out.loss.item()) and torch.isfinite(out.head_losses).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    nothing = model(tokens, labels=torch.full_like(tokens, -100))
    assert nothing.loss.item() == 0


def test_no_target_is_after_the_end_of_its_document():
    """Documents abc and defg in one row, and what each head is asked for at each position."""
    b, c, d, e, f, g, after = range(7)
    following = torch.tensor([[b, c, d, e, f, g, after]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    one, two, three = future_targets(following, 3, positions)
    assert one.tolist() == [[b, c, d, e, f, g, after]]
    assert two.tolist() == [[c, d, -100, f, g, after, -100]]
    assert three.tolist() == [[d, -100, -100, g, after, -100, -100]]
    assert future_targets(following, 3)[1].tolist() == [[c, d, e, f, g, after, -100]]
