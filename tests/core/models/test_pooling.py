"""Poolings against what their docstrings say, by worked examples and by torch's own attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from contextwise.models.contextlm.layers import AttentionPooling, LatentAttentionPooling, MeanPooling, MLPPooling

W, D, HEADS = 3, 8, 2


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def chunks():
    return torch.randn(2, 5, W, D)


def test_the_mean_is_the_mean():
    h = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert MeanPooling(2, 2, 1)(h).tolist() == [2.0, 4.0]


def test_the_mlp_is_two_layers_over_the_vectors_side_by_side():
    pooling, h = MLPPooling(W, D, HEADS), chunks()[0, 0]
    side_by_side = torch.cat([h[0], h[1], h[2]])
    inner = functional.gelu(pooling.inner.weight @ side_by_side + pooling.inner.bias, approximate="tanh")
    torch.testing.assert_close(pooling(h), pooling.out.weight @ inner + pooling.out.bias)


def attention_of_torch(q, kv, out):
    """``nn.MultiheadAttention`` with the given projections."""
    stock = nn.MultiheadAttention(D, HEADS, batch_first=True)
    with torch.no_grad():
        stock.in_proj_weight.copy_(torch.cat([q.weight, kv.weight]) if kv is not None else q.weight)
        stock.in_proj_bias.copy_(torch.cat([q.bias, kv.bias]) if kv is not None else q.bias)
    stock.out_proj = out
    return stock


def test_self_attention_is_that_of_torch():
    pooling, h = AttentionPooling(W, D, HEADS), chunks()[0]
    nn.init.normal_(pooling.norm.weight)
    x = pooling.norm(h)
    mixed, _ = attention_of_torch(pooling.qkv, None, pooling.out)(x, x, x)
    torch.testing.assert_close(pooling(h), (h + mixed).mean(1), atol=1e-5, rtol=1e-4)


def test_latent_attention_reads_the_latents_with_the_tokens():
    pooling, h = LatentAttentionPooling(W, D, HEADS), chunks()[0]
    latents = pooling.latents.weight.expand(5, -1, -1)
    read, _ = attention_of_torch(pooling.q, pooling.kv, pooling.out)(pooling.norm(h), latents, latents)
    x = h + read
    x = x + pooling.outer(functional.gelu(pooling.inner(x), approximate="tanh"))
    torch.testing.assert_close(pooling(h), x.mean(1), atol=1e-5, rtol=1e-4)
