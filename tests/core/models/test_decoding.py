"""Recorded decoding steps give what transformers' own loop gives."""

from functools import partial

import pytest
import torch
from transformers import TextStreamer

from contextlm_models import VOCABULARY, contextlm, draw, stock_model
from contextwise.base.errors import ConfigError
from contextwise.models import decoding
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM
from cue_models import sentence_encoder
from multitoken_models import multitoken

PADDED = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0, 0, 0, 0, 0, 1]])
OPTIONS = {"attention_mask": PADDED, "max_new_tokens": 20, "pad_token_id": 0, "do_sample": False}


def over_context():
    return MultiTokenForCausalLM(MultiTokenConfig(contextlm("gpt2", chunk_size=3).config, 2)).eval()


MODELS = {
    **{family: partial(stock_model, family) for family in ("gpt2", "gpt_neox", "llama", "qwen3")},
    **{f"ContextLM {family}": partial(contextlm, family, chunk_size=3) for family in ("gpt2", "llama")},
    "every layer": partial(contextlm, "gpt2", inject_every_layer=True, pooling="attention"),
    "multi-token": partial(multitoken, "gpt2", "layer"),
    "over ContextLM": over_context,
}


def prompts(rows=3, vocabulary=VOCABULARY):
    return 1 + draw(rows, 6) % (vocabulary - 1)


def passes(model):
    """Counts the forward passes of the model."""
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_transformers(name, device):
    model = MODELS[name]().to(device)
    ids, given = prompts(vocabulary=model.config.vocab_size).to(device), OPTIONS | {"attention_mask": PADDED.to(device)}
    expected = model.generate(ids, **given)
    # A token that some rows generate early, as the end of text: these rows are padded from there on.
    ends = {"eos_token_id": int(expected[0, 10])}
    stopped = model.generate(ids, **given | ends)
    calls = passes(model)
    assert torch.equal(decoding.generate(model, ids, **given), expected)
    assert len(calls) == (3 if "ontext" in name or name == "every layer" else 2)  # the prompt, and the recordings
    assert torch.equal(decoding.generate(model, ids, **given | ends), stopped)


@pytest.mark.parametrize("name", ["gpt2", "ContextLM llama"])
def test_draws_and_streams_are_those_of_transformers(name):
    model, shown = MODELS[name](), ([], [])
    options = OPTIONS | {"do_sample": True, "top_k": 20, "temperature": 0.8, "repetition_penalty": 1.2}
    options["attention_mask"] = None

    class Kept(TextStreamer):
        def __init__(self, tokens):
            self.tokens = tokens

        def put(self, value):
            self.tokens.append(value.tolist())

        def end(self):
            self.tokens.append("end")

    torch.manual_seed(7)
    expected = model.generate(prompts(1), streamer=Kept(shown[0]), **options)
    torch.manual_seed(7)
    assert torch.equal(decoding.generate(model, prompts(1), streamer=Kept(shown[1]), **options), expected)
    assert shown[0] == shown[1]
    assert shown[0][-1] == "end"


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_one_row_in_bfloat16_and_other_attention(implementation):
    model = contextlm("gpt2", chunk_size=3).bfloat16()
    model.set_attn_implementation(implementation)
    options = OPTIONS | {"attention_mask": None}
    static = model.generate(prompts(1), cache_implementation="static", **options)
    assert torch.equal(decoding.generate(model, prompts(1), **options), static)


def test_a_step_that_depends_on_values_is_run_by_the_model_each_time():
    model = stock_model("gpt2")

    def switch(module, inputs, output):
        return -output if output[0, -1, 0] > 0 else output

    model.transformer.wte.register_forward_hook(switch)
    expected = model.generate(prompts(), **OPTIONS)
    calls = passes(model)
    assert torch.equal(decoding.generate(model, prompts(), **OPTIONS), expected)
    assert len(calls) == 20


def test_what_cannot_be_recorded_is_left_to_transformers():
    lstm = sentence_encoder("lstm").eval()
    ids, options = 1 + draw(2, 6) % 20, OPTIONS | {"attention_mask": None}
    assert torch.equal(decoding.generate(lstm, ids, **options), lstm.generate(ids, **options))
    model = stock_model("gpt2")
    whole = decoding.generate(model, ids, return_dict_in_generate=True, **options)
    assert torch.equal(whole.sequences, model.generate(ids, **options))
    assert whole.past_key_values.get_seq_length() == 25
    with pytest.raises(ConfigError, match="call the model's own generate"):
        decoding.generate(model, ids, num_beams=2, **options)
