"""The same targets with different contexts visible, against a computation that takes one target at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.evaluation.scoring.truncated import Targets, choose_targets, truncated_passes
from contextwise.models import ContextLMConfig
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM

CONTEXTS = [1, 3, 8]


def multitoken(head, over_context=False):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=23, n_positions=12, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
    config = ContextLMConfig(backbone_config=config) if over_context else config
    return MultiTokenForCausalLM(MultiTokenConfig(config, future_tokens=2, head=head)).eval()


@pytest.fixture(scope="module")
def every_model(models):
    llama = LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    more = {"llama": LlamaForCausalLM(llama).eval(), "multitoken": multitoken("layer")}
    more |= {"multitoken-linear": multitoken("linear"), "multitoken-context": multitoken("linear", True)}
    return {**models, **more}


EVERY_KIND = ["gpt2", "gpt_neox", "contextlm", "llama", "multitoken", "multitoken-linear", "multitoken-context"]


def collected(batches):
    """context -> (nats, features) of all its batches."""
    result = {}
    for batch in batches:
        nats, features = result.setdefault(batch.context, ([], []))
        assert batch.start == sum(len(part) for part in nats) and batch.stop == batch.start + len(batch.nats)
        nats.append(batch.nats)
        features.append(batch.features)
    return {context: (np.concatenate(nats), features) for context, (nats, features) in result.items()}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_losses_and_features_equal_those_of_each_target_alone(kind, every_model, corpus_of):
    model, corpus = every_model[kind], corpus_of([30, 4, 17, 9])
    targets = choose_targets(corpus, 8, 15, seed=3)
    result = collected(truncated_passes(model, corpus, targets, CONTEXTS, batch_tokens=20, features="last"))
    assert list(result) == CONTEXTS
    for context, (nats, features) in result.items():
        features = torch.cat(features)
        assert nats.dtype == np.float32 and features.shape == (15, 16)
        for i, (document, position) in enumerate(zip(targets.document, targets.position, strict=True)):
            seen = torch.from_numpy(corpus.documents[document][position - context : position].astype(np.int64))
            with torch.no_grad():
                logits = model(input_ids=seen[None]).logits[0, -1]
                head = model.get_output_embeddings()(features[i])
            target = int(corpus.documents[document][position])
            assert nats[i] == pytest.approx(-float(logits.log_softmax(-1)[target]), abs=2e-5)
            torch.testing.assert_close(head, logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "llama"])
def test_layers_are_those_of_transformers(kind, every_model, corpus_of):
    model, corpus = every_model[kind], corpus_of([20])
    targets = choose_targets(corpus, 8, 5, seed=0)
    seen = np.stack([corpus.documents[0][p - 8 : p] for p in targets.position]).astype(np.int64)
    with torch.no_grad():
        states = model(input_ids=torch.from_numpy(seen), output_hidden_states=True).hidden_states
    assert len(states) == 3
    for layer, expected in [*enumerate(states), ("last", states[-1])]:
        (batch,) = truncated_passes(model, corpus, targets, [8], features=layer)
        torch.testing.assert_close(batch.features, expected[:, -1], atol=1e-5, rtol=1e-5)


def test_layers_of_the_models_here_are_what_their_blocks_read(every_model, corpus_of):
    corpus = corpus_of([20])
    targets = choose_targets(corpus, 8, 5, seed=0)
    layers = {}
    for kind in ("gpt2", "contextlm", "multitoken", "multitoken-context"):
        for layer in (0, 1, 2, "last"):
            (batch,) = truncated_passes(every_model[kind], corpus, targets, [8], features=layer)
            layers[kind, layer] = batch.features
        assert not torch.allclose(layers[kind, 0], layers[kind, 1])
    # The multi-token model is a trunk of two blocks and a block for its next-token head: three states, then the norm's.
    (normed,) = truncated_passes(every_model["multitoken"], corpus, targets, [8], features=3)
    torch.testing.assert_close(normed.features, layers["multitoken", "last"])
    torch.testing.assert_close(layers["contextlm", 2], layers["contextlm", "last"])
    backbone = every_model["multitoken"].backbone
    seen = np.stack([corpus.documents[0][p - 8 : p] for p in targets.position]).astype(np.int64)
    with torch.no_grad():
        states = backbone(input_ids=torch.from_numpy(seen), output_hidden_states=True).hidden_states
    torch.testing.assert_close(layers["multitoken", 1], states[1][:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "contextlm", "llama"])
def test_a_band_is_its_targets_alone_with_what_their_window_shows(kind, every_model, model_of, corpus_of):
    """A window of 32 tokens predicts four targets, of which the first sees 29; one of 16 predicts two, one of 10 one."""
    model = every_model[kind] if kind == "llama" else model_of(kind, n_positions=32)
    corpus = corpus_of([60, 4, 33, 50])
    targets = choose_targets(corpus, 32, 11, seed=3, block=4)
    assert len(targets) == 12 and (targets.position[3::4] >= 32).all()
    assert [targets.band(context) for context in (1, 10, 15, 16, 31, 32, 64)] == [1, 1, 1, 2, 2, 4, 4]
    result = collected(truncated_passes(model, corpus, targets, [10, 16, 32], batch_tokens=40))
    for i, (document, position) in enumerate(zip(targets.document, targets.position, strict=True)):
        for context, seen in ((10, 10), (16, 15 + i % 2), (32, 29 + i % 4)):
            tokens = torch.from_numpy(corpus.documents[document][position - seen : position].astype(np.int64))
            with torch.no_grad():
                log_p = model(input_ids=tokens[None]).logits[0, -1].log_softmax(-1)
            assert result[context][0][i] == pytest.approx(-float(log_p[corpus.documents[document][position]]), abs=2e-5)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_start_token_stands_before_every_window_and_is_not_one_of_its_tokens(kind, every_model, corpus_of):
    model, corpus = every_model[kind], corpus_of([30, 4, 17, 9])
    targets = choose_targets(corpus, 8, 6, seed=3)
    result = collected(truncated_passes(model, corpus, targets, CONTEXTS, start=5, features="last"))
    for i, (document, position) in enumerate(zip(targets.document, targets.position, strict=True)):
        for context in CONTEXTS:
            tokens = torch.tensor([[5, *corpus.documents[document][position - context : position].tolist()]])
            with torch.no_grad():
                log_p = model(input_ids=tokens).logits[0, -1].log_softmax(-1)
            assert result[context][0][i] == pytest.approx(-float(log_p[corpus.documents[document][position]]), abs=2e-5)


def test_blocks_are_consecutive_and_disjoint(corpus_of):
    targets = choose_targets(corpus_of([64, 40, 31, 200]), 32, 37, seed=2, block=4)
    document_NW, position_NW = (array.reshape(-1, 4) for array in (targets.document, targets.position))
    assert len(targets) == 40 and (document_NW == document_NW[:, :1]).all() and 2 not in document_NW
    assert (position_NW - position_NW[:, :1] == np.arange(4)).all() and (position_NW[:, 0] >= 29).all()
    assert len(set(zip(targets.document.tolist(), targets.position.tolist(), strict=True))) == 40
    everything = choose_targets(corpus_of([64, 40]), 32, 10**6, seed=0, block=4)
    assert len(everything) == 4 * ((64 - 29) // 4 + (40 - 29) // 4)


def test_features_of_blocks_are_refused(every_model, corpus_of):
    targets = choose_targets(corpus_of([40]), 16, 8, seed=0, block=2)
    with pytest.raises(ConfigError, match="features are of targets alone, but these are in blocks of 2"):
        list(truncated_passes(every_model["gpt2"], corpus_of([40]), targets, [16], features="last"))


@given(
    lengths=st.lists(st.integers(0, 15), min_size=1, max_size=6),
    longest=st.integers(1, 12),
    samples=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_targets_are_distinct_and_have_their_context(lengths, longest, samples, seed):
    class Lengths:
        pass

    corpus = Lengths()
    corpus.lengths = np.array(lengths)
    eligible = {(d, p) for d, length in enumerate(lengths) for p in range(longest, length)}
    if not eligible:
        with pytest.raises(DataError, match=f"longest of the {len(lengths)} documents has {max(lengths)} tokens"):
            choose_targets(corpus, longest, samples, seed)
        return
    targets = choose_targets(corpus, longest, samples, seed)
    pairs = list(zip(targets.document.tolist(), targets.position.tolist(), strict=True))
    assert pairs == sorted(set(pairs)) and set(pairs) <= eligible
    assert len(targets) == min(samples, len(eligible))
    again = choose_targets(corpus, longest, samples, seed)
    assert np.array_equal(again.position, targets.position)


def test_every_eligible_token_is_drawn_equally_often(corpus_of):
    corpus = corpus_of([10, 4, 7])  # 7 + 1 + 4 tokens have 3 before them
    counts = np.zeros(12)
    for seed in range(600):
        targets = choose_targets(corpus, 3, 4, seed)
        counts[targets.position - 3 + np.array([0, 7, 8])[targets.document]] += 1
    expected = 600 * 4 / 12
    # Each count is near a binomial of variance 600 · 1/3 · 2/3; five standard deviations.
    assert np.abs(counts - expected).max() < 5 * (600 * 2 / 9) ** 0.5


def test_the_training_mode_comes_back_and_nothing_stays_in_inference_mode(corpus_of, model_of):
    model, corpus = model_of("gpt2").train(), corpus_of([30])
    passes = truncated_passes(model, corpus, choose_targets(corpus, 8, 9, 0), [8], batch_tokens=16)
    next(passes)
    assert not torch.is_inference_mode_enabled() and not model.training
    passes.close()
    assert model.training


@pytest.mark.parametrize(
    ("contexts", "options", "message"),
    [
        ([4, 13], {}, "a context of 13 tokens does not fit the model, which has 12 positions; .* at most 12"),
        ([12], {"start": 5}, "a start token and a context of 12 tokens do not fit .* has 12 positions; .* at most 11"),
        ([4], {"features": 3}, "the layer is 3, but the model has hidden states 0 .* to 2"),
    ],
)
@pytest.mark.parametrize("kind", ["gpt2", "contextlm"])
def test_bad_options_are_refused(kind, every_model, corpus_of, contexts, options, message):
    targets = Targets(np.array([0]), np.array([20]))
    with pytest.raises(ConfigError, match=message):
        list(truncated_passes(every_model[kind], corpus_of([30]), targets, contexts, **options))


def test_a_token_beyond_the_vocabulary_is_named(every_model, corpus_of):
    corpus = corpus_of([30, 30])
    corpus.documents[1][12] = 99
    targets = Targets(np.array([0, 1]), np.array([9, 15]))
    with pytest.raises(DataError, match="document 1 holds token id 99, but the model's vocabulary has 23"):
        list(truncated_passes(every_model["gpt2"], corpus, targets, [8]))


def test_a_loss_that_is_not_finite_is_named(corpus_of, model_of):
    model, corpus = model_of("gpt2"), corpus_of([30])
    with torch.no_grad():
        model.transformer.wpe.weight[3] = float("nan")
    targets = Targets(np.array([0, 0]), np.array([9, 11]))
    with pytest.raises(CheckpointError, match="loss is not finite at token 9 of document 0, with 8 tokens"):
        list(truncated_passes(model, corpus, targets, [3, 8]))


def test_a_feature_that_is_not_finite_is_named(corpus_of, model_of):
    model, corpus = model_of("gpt2"), corpus_of([30])
    # What the second block reads is overwritten, for the second target only, and the loss stays finite.
    model.transformer.h[0].register_forward_hook(lambda *_: torch.full((2, 8, 16), torch.inf))
    model.transformer.h[1].register_forward_hook(lambda *_: torch.ones(2, 8, 16))
    targets = Targets(np.array([0, 0]), np.array([9, 11]))
    with pytest.raises(CheckpointError, match="feature is not finite at token 9 of document 0"):
        list(truncated_passes(model, corpus, targets, [8], features=1))


def test_a_model_without_hidden_states_is_refused(corpus_of, model_of, monkeypatch):
    model, corpus = model_of("gpt2"), corpus_of([30])
    whole = type(model).forward

    def silent(self, input_ids, use_cache=False, logits_to_keep=0, output_hidden_states=False):
        return whole(self, input_ids=input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep)

    monkeypatch.setattr(type(model), "forward", silent)
    targets = Targets(np.array([0]), np.array([9]))
    with pytest.raises(CheckpointError, match="returns no hidden states"):
        list(truncated_passes(model, corpus, targets, [8], features=1))
    assert len(list(truncated_passes(model, corpus, targets, [8], features="last"))) == 1
