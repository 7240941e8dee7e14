"""The context encoder: a set goes in, whatever its order, its padding and its size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from contextwise.base.errors import ConfigError
from contextwise_papers.cue.config import CueContextConfig
from contextwise_papers.cue.parts import CueContextEncoder
from cue_models import CUE, TEXT, context_encoder
from examples import FEW

layers = pytest.mark.parametrize("layers", [0, 1, 2])
ENCODERS = {count: context_encoder(layers=count) for count in (0, 1, 2)}


def close(result, expected):
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


def sets(size, rows=1, seed=0):
    return torch.randn(rows, size, TEXT, generator=torch.Generator().manual_seed(seed))


@layers
@FEW
@given(data=st.data(), size=st.integers(1, 9))
def test_the_order_of_a_set_does_not_matter(layers, data, size):
    order = data.draw(st.permutations(range(size)))
    mask = torch.tensor([data.draw(st.lists(st.booleans(), min_size=size, max_size=size))])
    vectors, encoder = sets(size), ENCODERS[layers]
    close(encoder(vectors[:, order], mask[:, order]), encoder(vectors, mask))


@layers
@FEW
@given(size=st.integers(0, 5), padding=st.integers(1, 4), junk=st.sampled_from([0.0, 1e6, torch.nan, torch.inf]))
def test_values_in_missing_slots_do_not_matter(layers, size, padding, junk):
    encoder, vectors = ENCODERS[layers], sets(size)
    padded = torch.cat([torch.full((1, padding, TEXT), junk), vectors], dim=1)
    mask = torch.arange(size + padding)[None] >= padding
    alone = encoder(vectors) if size else encoder.empty[None]
    close(encoder(padded, mask), alone)


@layers
def test_a_row_does_not_depend_on_the_sets_beside_it(layers):
    encoder, vectors = ENCODERS[layers], sets(5, rows=6)
    sizes = torch.arange(6)
    together = encoder(vectors, torch.arange(5) < sizes[:, None])
    for size, row in enumerate(together):
        close(row, encoder(vectors[size : size + 1, :size])[0])


@layers
def test_a_set_of_one_is_that_contexts_own_embedding(layers):
    encoder, vectors = ENCODERS[layers], sets(1)
    own = encoder.project(vectors[:, 0])
    for block in encoder.blocks:
        attended = block.self_attn.out_proj(
            nn.functional.linear(own, *(part.chunk(3)[2] for part in in_projection(block)))
        )
        own = block.norm1(own + attended)
        own = block.norm2(own + block.linear2(block.linear1(own).relu()))
    close(encoder(vectors), own)
    close(encoder(vectors.expand(-1, 3, -1)), own)  # the same context three times over says no more


def in_projection(block):
    return block.self_attn.in_proj_weight, block.self_attn.in_proj_bias


def test_without_blocks_e_cue_is_the_mean_of_the_projections():
    encoder, vectors = ENCODERS[0], sets(4)
    mask = torch.tensor([[True, False, True, True]])
    close(encoder(vectors, mask), encoder.project(vectors[:, [0, 2, 3]]).mean(1))


def test_contexts_meet_in_the_blocks():
    encoder, (one, other) = ENCODERS[2], sets(1, rows=2)
    both = encoder(torch.cat([one, other])[None])
    apart = (encoder(one[None]) + encoder(other[None])) / 2
    assert not torch.allclose(both, apart, atol=1e-3)


def test_the_empty_set_gives_the_learned_vector_which_starts_at_zero():
    fresh = CueContextEncoder(CueContextConfig(TEXT, CUE, heads=2))
    assert not fresh.empty.any()
    for vectors, mask in ((sets(0, 2), None), (sets(3, 2), torch.zeros(2, 3, dtype=torch.bool))):
        close(ENCODERS[2](vectors, mask), ENCODERS[2].empty.expand(2, -1))


@layers
def test_training_and_evaluation_give_the_same_numbers(layers):
    encoder, vectors = context_encoder(layers=layers), sets(5, rows=6)
    mask = torch.arange(5) < torch.arange(6)[:, None]
    with torch.no_grad():
        evaluated = encoder(vectors, mask)
    trained = encoder.train()(vectors, mask)
    assert trained.requires_grad
    assert trained.isfinite().all()
    close(trained.detach(), evaluated)


def test_every_parameter_gets_a_gradient_whatever_the_sets_are():
    for mask in (torch.ones(2, 3), torch.zeros(2, 3), torch.eye(3)[:2]):
        encoder = context_encoder().train()
        encoder(sets(3, rows=2), mask.bool()).square().sum().backward()
        gradients = [parameter.grad for parameter in encoder.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_dropped_contexts_are_those_of_a_smaller_set():
    vectors, encoder = sets(2).expand(400, -1, -1), context_encoder(context_dropout=0.3)
    one, other, both = encoder(vectors[:1, :1]), encoder(vectors[:1, 1:]), encoder(vectors[:1])
    close(encoder(vectors), both.expand(400, -1))  # none is dropped in evaluation
    torch.manual_seed(1)
    result = encoder.train()(vectors).detach()
    shares = []
    for expected in (both, one, other, encoder.empty[None]):
        same = (result - expected).abs().amax(1) < 1e-5
        shares.append(same.float().mean().item())
    assert sum(shares) == pytest.approx(1)
    assert shares == pytest.approx([0.49, 0.21, 0.21, 0.09], abs=0.06)
    torch.manual_seed(1)
    # Drawn from torch's generator, so that a run can be resumed
    assert torch.equal(encoder(vectors), result)


@layers
def test_attention_is_shared_out_among_the_contexts_there_are(layers):
    encoder, vectors = ENCODERS[layers], sets(5, rows=6)
    mask = torch.arange(5) < torch.arange(6)[:, None]
    weights = encoder.attention(vectors, mask)
    close(weights.sum(1), mask.any(1).float())
    assert not weights[~mask].any()
    assert (weights[mask] > 0).all()
    if layers == 0:
        close(weights[4], torch.tensor([0.25] * 4 + [0.0]))
    assert encoder.attention(sets(0)).shape == (1, 0)


def test_attention_of_one_block_is_the_softmax_of_its_queries_and_keys():
    encoder, vectors = ENCODERS[1], sets(3)
    x, block = encoder.project(vectors[0]), encoder.blocks[0]
    q, k, _ = nn.functional.linear(x, *in_projection(block)).chunk(3, dim=-1)
    heads = [slice(0, CUE // 2), slice(CUE // 2, CUE)]
    per_head = [(q[:, part] @ k[:, part].T / (CUE / 2) ** 0.5).softmax(-1) for part in heads]
    close(encoder.attention(vectors)[0], torch.stack(per_head).mean((0, 1)).detach())


def test_vectors_of_another_text_encoder_are_rejected():
    encoder = context_encoder(text_encoder={"name": "some-encoder"})
    with pytest.raises(ConfigError, match=r"shape \(2, 3, 11\), but .* vectors of some-encoder"):
        encoder(torch.zeros(2, 3, 11))
    with pytest.raises(ConfigError, match=r"context_mask has the shape \(2, 4\), but the contexts \(2, 3\)"):
        encoder(torch.zeros(2, 3, TEXT), torch.ones(2, 4))
