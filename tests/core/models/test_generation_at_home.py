"""ContextLM under transformers' ``generate()``: chats that continue with a cache, streamed text, sampling, embeddings."""

from threading import Thread

import pytest
import torch
from torch.nn.functional import pad
from transformers import StaticCache, TextIteratorStreamer, TextStreamer

from contextlm_models import FAMILIES, LONGEST, backbone, contextlm, draw
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.data.tokenizers import learn_bpe
from small import SENTENCE

CHUNKS = pytest.mark.parametrize("w", [1, 3, *(pytest.param(w, marks=pytest.mark.slow) for w in (4, 7))])
GREEDY = {"do_sample": False, "pad_token_id": 0}
WHOLE = {"return_dict_in_generate": True, "output_logits": True}


def words(rows, length, seed=0):
    """Tokens without 0, the padding."""
    return draw(rows, length, seed).clamp(min=1)


class Counted:
    """How many tokens each forward pass of a model was given."""

    def __init__(self, model):
        self.lengths = []
        model.get_input_embeddings().register_forward_hook(
            lambda module, inputs, out: self.lengths.append(inputs[0].shape[1])
        )

    def first_of_next(self):
        """To be called before a generation: the returned function tells the length of its first pass."""
        at = len(self.lengths)
        return lambda: self.lengths[at]


def chat(model, tokens, mask, cache=None, new=3, users=(2, 5, 4)):
    """Turns of a user and the model; each answer from the cache of the last turn is that from no cache at all."""
    counted = Counted(model)
    options = GREEDY | WHOLE | {"max_new_tokens": new}
    for turn, user in enumerate(users):
        if turn:
            tokens = torch.cat([tokens, words(len(tokens), user, seed=turn)], 1)
            mask = pad(mask, (0, tokens.shape[1] - mask.shape[1]), value=1)
        read = counted.first_of_next()
        out = model.generate(tokens, attention_mask=mask, past_key_values=cache, **options)
        # The last token of an answer was never read by the model.
        assert read() == (user + 1 if turn else tokens.shape[1])
        whole = model.generate(tokens, attention_mask=mask, use_cache=False, **options)
        assert torch.equal(out.sequences, whole.sequences), turn
        torch.testing.assert_close(
            torch.stack(out.logits), torch.stack(whole.logits), atol=1e-5, rtol=1e-4, msg=f"turn {turn}"
        )
        tokens, cache = out.sequences, out.past_key_values
    assert cache.get_seq_length() == tokens.shape[1] - 1


@FAMILIES
@CHUNKS
def test_a_chat_continues_from_its_cache(family, w):
    """Prompts of w lengths on end: the turns' borders lie at every place of a chunk, its own border included."""
    model = contextlm(family, chunk_size=w, inject_every_layer=w == 4)
    for length in range(5, 5 + w):
        tokens = words(1, length)
        chat(model, tokens, torch.ones_like(tokens))


@FAMILIES
@CHUNKS
def test_a_padded_batch_of_chats_continues_from_its_cache(family, w):
    """Rows of different lengths reach their chunks' borders at different steps."""
    model = contextlm(family, chunk_size=w, inject_every_layer=w == 4)
    lengths = [3, 6, 8]
    rows = [words(1, n, seed=n)[0] for n in lengths]
    tokens = torch.stack([pad(row, (max(lengths) - len(row), 0)) for row in rows])
    chat(model, tokens, tokens.ne(0).long())


@FAMILIES
def test_chats_continue_from_a_static_cache(family):
    model = contextlm(family, chunk_size=4)
    tokens = words(2, 9)
    tokens[1, :3] = 0
    chat(model, tokens, tokens.ne(0).long(), StaticCache(config=model.config, max_cache_len=LONGEST))


@FAMILIES
def test_a_turn_given_by_its_new_tokens_alone(family):
    """generate() also takes the new tokens only, beside a mask of all."""
    model = contextlm(family, chunk_size=4)
    tokens, user = words(2, 6), words(2, 3, seed=1)
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=5, **GREEDY, **WHOLE)
    whole = torch.cat([out.sequences, user], 1)
    options = {"attention_mask": torch.ones_like(whole), "max_new_tokens": 5, **GREEDY}
    unread = torch.cat([out.sequences[:, -1:], user], 1)
    result = model.generate(unread, past_key_values=out.past_key_values, **options)
    expected = model.generate(whole, use_cache=False, **options)
    assert torch.equal(result[:, unread.shape[1] :], expected[:, whole.shape[1] :])


@pytest.mark.long
@FAMILIES
@pytest.mark.parametrize("beams", [1, 3])
def test_sampling_with_cache_equals_without(family, beams):
    model = contextlm(family, chunk_size=4)
    tokens = pad(words(2, 7), (2, 0))
    options = {"attention_mask": tokens.ne(0).long(), "max_new_tokens": 13, "do_sample": True}
    options |= {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "num_beams": beams, "pad_token_id": 0}

    def sample(seed, **more):
        torch.manual_seed(seed)
        return model.generate(tokens, **options, **more)

    result = [sample(seed) for seed in range(3)]
    assert not torch.equal(result[0], result[1])
    for seed, one in enumerate(result):
        assert torch.equal(one, sample(seed, use_cache=False))


@pytest.fixture(scope="module")
def tokenizer():
    return learn_bpe([SENTENCE] * 3, 300).tokenizer


@FAMILIES
@pytest.mark.parametrize("skip_prompt", [False, True])
def test_streamers_give_the_text_of_what_is_generated(family, skip_prompt, tokenizer, capsys):
    torch.manual_seed(0)
    config = ContextLMConfig(backbone(family, vocab_size=len(tokenizer)), chunk_size=4)
    model = ContextLMForCausalLM(config).eval()
    inputs = tokenizer("the model reads the", return_tensors="pt", return_token_type_ids=False)
    options = {"max_new_tokens": 24, "do_sample": True, "pad_token_id": tokenizer.eos_token_id}
    # Single bytes: learned pieces begin words, and text comes by the word
    options["suppress_tokens"] = list(range(1, 257))

    def generate(streamer=None):
        torch.manual_seed(1)
        return model.generate(**inputs, **options, streamer=streamer)

    tokens = generate()[0, inputs.input_ids.shape[1] if skip_prompt else 0 :]
    text = tokenizer.decode(tokens)
    capsys.readouterr()
    generate(TextStreamer(tokenizer, skip_prompt=skip_prompt))
    assert capsys.readouterr().out == text + "\n"
    pieces = TextIteratorStreamer(tokenizer, skip_prompt=skip_prompt, timeout=60)
    thread = Thread(target=generate, args=(pieces,))
    thread.start()
    result = list(pieces)
    thread.join()
    assert "".join(result) == text
    assert len([piece for piece in result if piece]) > 1
