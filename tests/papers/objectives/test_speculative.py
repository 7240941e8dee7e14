"""Self-speculative decoding against greedy decoding, token for token."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad
from transformers import DynamicCache, GenerationConfig, StoppingCriteria

from contextwise import ContextLMConfig
from contextwise.base.errors import ConfigError
from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM, speculative
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


def batch(lengths, seed=0):
    """Left-padded prompts of these lengths: tokens and attention mask."""
    draw = torch.Generator().manual_seed(seed)
    most = max(lengths)
    rows = [sequences(1, n, draw)[0] for n in lengths]
    tokens = torch.stack([pad(row, (most - len(row), 0)) for row in rows])
    return tokens, torch.stack([pad(torch.ones_like(row), (most - len(row), 0)) for row in rows])


def both(model, lengths, seed=0, **options):
    """Greedy and speculative output for the same prompts."""
    tokens, mask = batch(lengths, seed)
    options = GREEDY | {"attention_mask": mask} | options
    return model.generate(tokens, **options), model.generate(tokens, speculative=True, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "head", "n"),
    [
        *(("gpt2", "layer", 1), ("gpt2", "linear", 4), ("llama", "linear", 1), ("llama", "layer", 4)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product(["gpt_neox"], ["layer", "linear"], [1, 4])),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("gpt2", "layer", 4), ("gpt2", "linear", 1), ("llama", "linear", 4), ("llama", "layer", 1))
        ),
    ],
)
def test_untrained_models_give_the_greedy_output(family, head, n):
    model = untrained(family, head, n)
    for lengths in ([7], [5, 9, 2]):
        for options in ({"max_new_tokens": 20}, {"max_length": 25, "eos_token_id": [3, 8]}):
            greedy, result = both(model, lengths, **options)
            assert torch.equal(result, greedy)


@pytest.mark.long
@FEW
@given(data=st.data())
def test_trained_models_give_the_greedy_output(trained, data):
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    options = {"max_new_tokens": data.draw(st.integers(1, 30))}
    if data.draw(st.booleans()):
        options["eos_token_id"] = data.draw(st.lists(st.integers(1, 22), min_size=1, max_size=3, unique=True))
    if data.draw(st.booleans()):
        options |= {"repetition_penalty": 1.3, "min_new_tokens": 1, "no_repeat_ngram_size": 5}
    greedy, result = both(trained, lengths, seed=data.draw(st.integers(0, 99)), **options)
    assert torch.equal(result, greedy)


@pytest.mark.parametrize("recorded", [True, False])
def test_rows_accept_their_own_numbers_of_tokens_or_go_on_together(trained, recorded, monkeypatch):
    if not recorded:
        monkeypatch.setattr(speculative, "_recordable", lambda *_: False)
    counts = []
    count = speculative._Decoder._count
    monkeypatch.setattr(
        speculative._Decoder, "_count", lambda self, *args: (counts.append(args[-1]), count(self, *args))[1]
    )
    greedy, result = both(trained, [4, 9, 17], seed=1, max_new_tokens=30, eos_token_id=7)
    assert torch.equal(result, greedy)
    report = trained.last_acceptance
    assert report.steps == len(counts)
    assert report.row_steps == sum(len(gained) for gained in counts)
    if recorded and not trained.config.over_context:
        assert any(len(set(gained)) > 1 for gained in counts)


def test_recorded_steps_of_one_row_count_as_others_do(trained, monkeypatch):
    options = {"max_new_tokens": 30, "eos_token_id": 7}
    both(trained, [11], **options)
    recorded = trained.last_acceptance
    monkeypatch.setattr(speculative, "_recordable", lambda *_: False)
    both(trained, [11], **options)
    assert trained.last_acceptance == recorded


def test_a_full_cache_of_rows_closes_its_gaps(trained, monkeypatch):
    closed = []
    if not speculative._recordable(trained, torch.zeros(1, 4), GenerationConfig(max_length=40)):
        pytest.skip("steps of this model are not recorded")
    close = speculative._RecordedDecoder._close_gaps
    monkeypatch.setattr(
        speculative._RecordedDecoder, "_close_gaps", lambda self: (closed.append(self.index), close(self))[1]
    )
    monkeypatch.setattr(speculative, "SLACK", 0)
    greedy, result = both(trained, [11, 9, 2, 3], seed=3, max_new_tokens=40)
    assert torch.equal(result, greedy) and closed


def test_acceptance_is_reported(trained, monkeypatch):
    monkeypatch.setattr(speculative, "_recordable", lambda *_: False)
    tokens, _ = batch([12], seed=10)
    passes = []
    handle = trained.backbone.get_input_embeddings().register_forward_hook(lambda *_: passes.append(1))
    out = trained.generate(tokens, speculative=True, max_new_tokens=30, **GREEDY)
    handle.remove()
    report = trained.last_acceptance
    assert 0 < report.accepted < report.drafted <= 3 * report.steps
    assert report.fraction == report.accepted / report.drafted > 0.2
    assert report.mean_accepted == report.accepted / report.steps
    # One token from the prompt's pass; then one, and the accepted ones, from each step.
    assert len(passes) == 1 + report.steps < 30
    assert out.shape[1] - 12 == 1 + report.steps + report.accepted == 30


def test_acceptance_is_nan_without_proposals():
    model = untrained("gpt2", "layer")
    model.generate(batch([4])[0], speculative=True, max_new_tokens=1, **GREEDY)
    report = model.last_acceptance
    assert (report.steps, report.drafted) == (0, 0)
    assert report.fraction != report.fraction and report.mean_accepted != report.mean_accepted


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_all_of_the_learned_positions_can_be_used(trained, seed):
    """Rows reach the last position in different steps; none is fed a token behind it."""
    greedy, result = both(trained, [11, 9, 11, 11, 3], seed=seed, max_length=LONGEST)
    assert result.shape[1] == LONGEST
    assert torch.equal(result, greedy)


def test_the_end_of_sequence_cuts_accepted_tokens(trained, monkeypatch):
    """An end inside the accepted tokens: nothing behind it is output, and the cache holds nothing of it."""
    monkeypatch.setattr(speculative, "_recordable", lambda *_: False)
    tokens, _ = batch([12])
    free = trained.generate(tokens, max_new_tokens=24, **GREEDY)[0, 12:].tolist()
    for end in set(free):
        cache = DynamicCache(config=trained.config)
        options = {"max_new_tokens": 24, "eos_token_id": end, "past_key_values": cache} | GREEDY
        out = trained.generate(tokens, speculative=True, **options)
        assert out[0, 12:].tolist() == free[: free.index(end) + 1]
        assert cache.get_seq_length() == out.shape[1] - 1


def test_a_conversation_continues_with_its_cache(trained, monkeypatch):
    monkeypatch.setattr(speculative, "_recordable", lambda *_: False)
    tokens, _ = batch([10])
    cache = DynamicCache(config=trained.config)
    options = {"max_new_tokens": 9} | GREEDY
    first = trained.generate(tokens, speculative=True, past_key_values=cache, **options)
    more = torch.cat([first, tokens[:, :4]], dim=1)
    second = trained.generate(more, speculative=True, past_key_values=cache, **options)
    assert torch.equal(second, trained.generate(more, **options))
    assert cache.get_seq_length() == second.shape[1] - 1


class TwentyFour(StoppingCriteria):
    """Ends a row of 24 tokens, padding not counted: at different steps for prompts of different lengths."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.ne(0).sum(dim=1) >= 24


def test_custom_criteria_processors_and_prefixes_are_applied(trained):
    """Without an end-of-sequence token greedy decoding continues a row that has ended, until all have."""
    for ends in ({}, {"eos_token_id": 5}):
        options = {"max_new_tokens": 40, "stopping_criteria": [TwentyFour()]} | ends
        greedy, result = both(trained, [9, 12, 4], **options)
        assert torch.equal(result, greedy)
        if not ends:
            assert result.shape[1] == 12 + 20

    def allowed(row, tokens):
        return [1 + row, 5, 9, 1 + (int(tokens[-1]) + 1) % 22]

    greedy, result = both(trained, [9, 4, 12], max_new_tokens=20, prefix_allowed_tokens_fn=allowed)
    assert torch.equal(result, greedy)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"do_sample": True}, "speculative decoding is greedy"),
        ({"num_beams": 2}, "speculative decoding is greedy"),
        ({"prompt_lookup_num_tokens": 2}, "speculative decoding is greedy"),
        ({"return_dict_in_generate": True}, "returns tokens alone; remove return_dict_in_generate"),
        ({"streamer": print}, "supports no streamer; remove streamer"),
        ({"stop_strings": ["a"]}, "supports no stop_strings; remove stop_strings"),
        ({"generation_config": GenerationConfig(stop_strings="a")}, "supports no stop_strings"),
        ({"guidance_scale": 1.5}, "supports no guidance"),
        ({"custom_generate": print}, "remove custom_generate"),
        ({"synced_gpus": True}, "set synced_gpus to False"),
        ({"use_cache": False}, "needs the dynamic cache"),
        ({"cache_implementation": "static"}, "needs the dynamic cache"),
    ],
)
def test_unsupported_options_are_rejected(options, words):
    model = untrained("llama", "layer")
    with pytest.raises(ConfigError, match=words):
        model.generate(batch([5])[0], speculative=True, max_new_tokens=4, **{"pad_token_id": 0, **options})


@pytest.mark.parametrize("head", ["layer", "linear"])
def test_an_early_exit_drafts_or_is_refused(head):
    model, options = untrained("llama", head), {"max_new_tokens": 8} | GREEDY
    prompt = batch([5])[0]
    expected, layers = model.generate(prompt, **options).tolist(), model.config.num_hidden_layers
    if head == "layer":
        with pytest.raises(ConfigError, match="head='layer' cannot run fewer blocks; leave out assistant_early_exit"):
            model.generate(prompt, assistant_early_exit=1, **options)
    else:
        assert model.generate(prompt, assistant_early_exit=1, **options).tolist() == expected
    assert model.config.num_hidden_layers == layers
    assert model.generate(prompt, **options).tolist() == expected


def test_unsupported_prompts_are_rejected():
    model = untrained("llama", "layer")
    tokens, _ = batch([5])
    options = {"speculative": True, "max_new_tokens": 4} | GREEDY
    with pytest.raises(ConfigError, match="needs input_ids"):
        model.generate(inputs_embeds=model.get_input_embeddings()(tokens), **options)
    cache = DynamicCache(config=model.config)
    model(tokens, past_key_values=cache, use_cache=True, heads=4)
    whole = torch.ones(1, 8, dtype=torch.long)
    with pytest.raises(ConfigError, match="all tokens of the prompt"):
        model.generate(tokens[:, :3], attention_mask=whole, past_key_values=cache, **options)
    plain = DynamicCache(config=model.config)
    model(tokens, past_key_values=plain, use_cache=True)
    with pytest.raises(ConfigError, match="not filled for 4 of this model's heads"):
        model.generate(torch.cat([tokens, tokens], 1), past_key_values=plain, **options)
