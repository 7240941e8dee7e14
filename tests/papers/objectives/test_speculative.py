"""Self-speculative decoding against greedy decoding, token for token."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad
from transformers import DynamicCache

from contextwise import ContextLMConfig
from contextwise.base.errors import ConfigError
from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM
from examples import FEW
from multitoken_models import LONGEST, VOCABULARY, backbone

GREEDY = {"do_sample": False, "pad_token_id": 0}


def untrained(family, head, n=4):
    torch.manual_seed(0)
    return MultiTokenForCausalLM(MultiTokenConfig(backbone(family), n, head)).eval()


def sequences(rows, length, draw):
    """Runs of numbers, repeated with a period of their own, and now and then disturbed."""
    start = torch.randint(1, VOCABULARY, (rows, 1), generator=draw)
    period = torch.randint(3, 8, (rows, 1), generator=draw)
    tokens = 1 + (start + torch.arange(length) % period) % (VOCABULARY - 1)
    noise = torch.randint(1, VOCABULARY, (rows, length), generator=draw)
    return torch.where(torch.rand(rows, length, generator=draw) < 0.05, noise, tokens)


def train(family, head):
    """A model that has learned the sequences well enough to be right often, and wrong often."""
    torch.manual_seed(1)
    config = backbone(family.removeprefix("contextlm-"), width=32)
    if family.startswith("contextlm"):
        config = ContextLMConfig(config, chunk_size=3, predictor_layers=1, inject_every_layer=True)
    model = MultiTokenForCausalLM(MultiTokenConfig(config, 4, head)).train()
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(120):
        tokens = sequences(16, 24, draw)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture(
    scope="module",
    params=[
        ("gpt2", "layer"),
        pytest.param(("gpt_neox", "layer"), marks=pytest.mark.slow),
        pytest.param(("llama", "linear"), marks=pytest.mark.slow),
        pytest.param(("contextlm-gpt2", "layer"), marks=pytest.mark.slow),
        pytest.param(("contextlm-llama", "linear"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def trained(request):
    return train(*request.param)


def prompt(length, seed=0):
    return sequences(1, length, torch.Generator().manual_seed(seed))


def both(model, tokens, **options):
    """Greedy and speculative output for the same prompt."""
    return model.generate(tokens, **GREEDY, **options), model.generate(tokens, speculative=True, **GREEDY, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "head", "n"),
    [
        *(("gpt2", "layer", 1), ("gpt2", "linear", 4), ("llama", "linear", 1), ("llama", "layer", 4)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product(["gpt_neox"], ["layer", "linear"], [1, 4])),
    ],
)
def test_untrained_models_give_the_greedy_output(family, head, n):
    model = untrained(family, head, n)
    for options in ({"max_new_tokens": 20}, {"max_length": 25, "eos_token_id": [3, 8]}):
        greedy, result = both(model, prompt(7), **options)
        assert torch.equal(result, greedy)


@pytest.mark.long
@FEW
@given(data=st.data())
def test_trained_models_give_the_greedy_output(trained, data):
    options = {"max_new_tokens": data.draw(st.integers(1, 30))}
    if data.draw(st.booleans()):
        options["eos_token_id"] = data.draw(st.lists(st.integers(1, 22), min_size=1, max_size=3, unique=True))
    if data.draw(st.booleans()):
        options |= {"repetition_penalty": 1.3, "min_new_tokens": 1, "no_repeat_ngram_size": 5}
    tokens = prompt(data.draw(st.integers(1, 20)), seed=data.draw(st.integers(0, 99)))
    if data.draw(st.booleans()):  # padded on the left
        tokens, mask = pad(tokens, (3, 0)), pad(torch.ones_like(tokens), (3, 0))
        options["attention_mask"] = mask
    greedy, result = both(trained, tokens, **options)
    assert torch.equal(result, greedy)


def test_acceptance_is_reported(trained):
    tokens, passes, kept = prompt(12, seed=10), [], []
    embedding = trained.backbone.get_input_embeddings().register_forward_hook(lambda *_: passes.append(1))
    model = trained.register_forward_hook(lambda *args: kept.append(args[-1].future_logits.shape[1]))
    out = trained.generate(tokens, speculative=True, max_new_tokens=30, **GREEDY)
    embedding.remove()
    model.remove()
    report = trained.last_acceptance
    assert 0 < report.accepted < report.drafted <= 3 * report.steps
    assert report.fraction == report.accepted / report.drafted > 0.2
    # One token from the prompt's pass; then one, and the accepted ones, from each step.
    assert len(passes) == 1 + report.steps < 30
    assert out.shape[1] - 12 == 1 + report.steps + report.accepted == 30
    assert kept[0] == 1 and sum(kept) == 1 + report.steps + report.drafted  # no logits of the prompt's other tokens


def test_acceptance_is_nan_without_proposals():
    model = untrained("gpt2", "layer")
    model.generate(prompt(4), speculative=True, max_new_tokens=1, **GREEDY)
    report = model.last_acceptance
    assert (report.steps, report.drafted) == (0, 0)
    assert report.fraction != report.fraction


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_all_of_the_learned_positions_can_be_used(trained, seed):
    greedy, result = both(trained, prompt(11, seed), max_length=LONGEST)
    assert result.shape[1] == LONGEST
    assert torch.equal(result, greedy)


def test_the_end_of_sequence_cuts_accepted_tokens(trained):
    """An end inside the accepted tokens: nothing behind it is output, and the cache holds nothing of it."""
    tokens = prompt(12)
    free = trained.generate(tokens, max_new_tokens=24, **GREEDY)[0, 12:].tolist()
    for end in set(free):
        cache = DynamicCache(config=trained.config)
        options = {"max_new_tokens": 24, "eos_token_id": end, "past_key_values": cache} | GREEDY
        out = trained.generate(tokens, speculative=True, **options)
        assert out[0, 12:].tolist() == free[: free.index(end) + 1]
        assert cache.get_seq_length() == out.shape[1] - 1


def test_a_filled_cache_is_refused(trained):
    tokens, cache = prompt(10), DynamicCache(config=trained.config)
    trained(tokens, past_key_values=cache, use_cache=True, heads=4)
    with pytest.raises(ConfigError, match="empty cache; leave past_key_values out"):
        trained.generate(tokens, speculative=True, past_key_values=cache, max_new_tokens=9, **GREEDY)


def test_sampling_draws_from_the_models_distribution():
    """The second token, of which the first is given: proposals that are accepted do not change how often each comes."""
    model = untrained("gpt2", "linear", 2)
    tokens = prompt(3)
    torch.manual_seed(0)
    options = {"max_new_tokens": 2, "do_sample": True, "pad_token_id": 0, "top_k": 2}
    plain, speculative = (
        [tuple(model.generate(tokens, speculative=way, **options)[0, 3:].tolist()) for _ in range(300)]
        for way in (False, True)
    )
    for text in set(plain) | set(speculative):
        assert abs(plain.count(text) - speculative.count(text)) < 60


@pytest.mark.parametrize(
    ("rows", "options", "words"), [(2, {}, "batch_size = 1"), (1, {"use_cache": False}, "requires")]
)
def test_what_assisted_decoding_lacks_is_refused(rows, options, words):
    with pytest.raises((ValueError, RuntimeError), match=words):
        untrained("llama", "layer").generate(
            prompt(5).expand(rows, -1), speculative=True, max_new_tokens=4, **GREEDY, **options
        )


@pytest.mark.parametrize("head", ["layer", "linear"])
def test_an_early_exit_drafts_or_is_refused(head):
    model, options = untrained("llama", head), {"max_new_tokens": 8} | GREEDY
    tokens = prompt(5)
    expected, layers = model.generate(tokens, **options).tolist(), model.config.num_hidden_layers
    if head == "layer":
        with pytest.raises(ConfigError, match="head='layer' cannot run fewer blocks; leave out assistant_early_exit"):
            model.generate(tokens, assistant_early_exit=1, **options)
    else:
        assert model.generate(tokens, assistant_early_exit=1, **options).tolist() == expected
    assert model.config.num_hidden_layers == layers
    assert model.generate(tokens, **options).tolist() == expected
