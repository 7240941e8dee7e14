"""Prefix models are asked as they were trained: losses and cached steps."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GPTNeoXConfig, GPTNeoXForCausalLM

from contextwise.base.errors import ConfigError
from contextwise.evaluation.scoring.truncated import Targets, truncated_passes
from contextwise.evaluation.scoring.windows import Plan, score_documents, window_losses
from contextwise.models import decoding
from contextwise.models.loading import load_model
from contextwise.models.masks import as_attention_mask, prefix_attention
from contextwise.models.prefix import reads_prefix, set_prefix, with_prefix
from contextwise.models.spec import pretraining_losses
from contextwise.objectives import Cut, Vocabulary, build_objective
from contextwise_evals.harness.model import score_rows
from small import small_gpt2


class Texts:
    end_of_text, path, split = 0, "memory", "train"

    def __len__(self):
        return len(self.documents)

    def __init__(self, *lengths):
        draw = np.random.default_rng(0)
        self.documents = [draw.integers(1, 40, size=n) for n in lengths]
        self.lengths = np.array(lengths)

    def document(self, index):
        return self.documents[index]


def model_of(kind="gpt2"):
    if kind == "gpt2":
        model = small_gpt2(64, 64, n_layer=2)
    else:
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=64, max_position_embeddings=64, **shape)).eval()
    for parameter in model.parameters():  # far from the uniform distribution
        parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    set_prefix(model.config)
    return with_prefix(model)


@torch.no_grad()
def logits(model, ids, prefix):
    """Of a whole row by one pass, with the mask written out."""
    n = len(ids)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    allowed[:prefix, :prefix] = True
    mask = as_attention_mask(allowed[None, None], model)
    return model(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]


def greedy(model, prompt, count):
    """The continuation by whole passes."""
    ids = [*prompt]
    for _ in range(count):
        ids.append(int(logits(model, ids, len(prompt))[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_generation_reads_the_prompt_as_a_prefix(kind):
    model = model_of(kind)
    prompts, count = [[3, 9, 4, 30, 17, 5], [21, 8, 8]], 12
    expected = [greedy(model, prompt, count) for prompt in prompts]
    differs = logits(model, prompts[0], len(prompts[0]))[-1] - logits(model, prompts[0], 1)[-1]
    assert differs.abs().max() > 1e-3  # from what a causal model would see
    ids = torch.tensor([prompts[0], [0, 0, 0, *prompts[1]]])  # padded on the left
    mask = torch.tensor([[1] * 6, [0] * 3 + [1] * 3])
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    for generate in (
        lambda *a, **o: model.generate(*a, **o),
        lambda *a, **o: model.generate(*a, use_cache=False, **o),
        lambda *a, **o: decoding.generate(model, *a, **o),
    ):
        alone = generate(ids[:1], attention_mask=mask[:1], **options)
        both = generate(ids, attention_mask=mask, **options)
        assert alone[0, :6].tolist() == prompts[0] and both[:, :6].tolist() == ids.tolist()
        assert alone[0, 6:].tolist() == expected[0]
        assert both[:, 6:].tolist() == expected


@pytest.mark.parametrize("assistant", ["prompt", "itself", "causal"])
def test_assisted_generation_gives_the_tokens_of_greedy_decoding(assistant):
    """The draft behind the prompt is not a part of the prefix, in the first pass either."""
    model = model_of()
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    assisted = {
        "prompt": {"prompt_lookup_num_tokens": 4},
        "itself": {"assistant_model": model},
        "causal": {"assistant_model": small_gpt2(64, 64)},
    }[assistant]
    for seed in range(8):
        ids = torch.randint(1, 40, (1, 5), generator=torch.Generator().manual_seed(seed)).repeat(1, 3)
        mask = torch.ones_like(ids)
        plain = model.generate(ids, attention_mask=mask, **options)
        assert torch.equal(model.generate(ids, attention_mask=mask, **options, **assisted), plain)


def test_the_cache_is_filled_with_the_prefix_mask():
    model, ids = model_of(), torch.tensor([[3, 9, 4, 30, 17, 5]])
    out = model.generate(ids, max_new_tokens=2, do_sample=False, return_dict_in_generate=True, pad_token_id=0)
    with torch.no_grad():
        both = as_attention_mask(torch.ones(1, 1, 6, 6, dtype=torch.bool), model)
        whole = model(input_ids=ids, attention_mask=both, use_cache=True).past_key_values
    for cached, expected in zip(out.past_key_values.layers, whole.layers, strict=True):
        torch.testing.assert_close(cached.keys[:, :, :6], expected.keys)
        torch.testing.assert_close(cached.values[:, :, :6], expected.values)


def test_scored_tokens_follow_a_prefix_of_what_is_not_scored():
    model, corpus = model_of(), Texts(30, 7)
    scores = score_documents(model, corpus, context=12, stride=4, batch_tokens=40)
    start = 0
    for length, document in zip(corpus.lengths.tolist(), corpus.documents, strict=True):
        sequence = [0, *document.tolist()]
        for first, skip in [(0, 0), *((s, 8) for s in range(4, length - 8, 4))]:
            window = sequence[first : first + 13]
            log_p = logits(model, window, skip + 1).log_softmax(-1)
            expected = [-log_p[i - 1, window[i]] for i in range(skip + 1, len(window))]
            found = scores.nats[start + first + skip : start + first + len(window) - 1]
            np.testing.assert_allclose(found, torch.stack(expected).numpy(), rtol=1e-4, atol=1e-4)
        start += length


@pytest.mark.parametrize("band", [1, 2])
def test_targets_of_a_band_follow_a_prefix_of_what_the_first_sees(band):
    model, corpus = model_of(), Texts(30)
    places = Targets(np.zeros(band, np.int64), np.arange(20, 20 + band), band)
    (batch,) = truncated_passes(model, corpus, places, [8 * band])
    seen, targets = corpus.document(0)[19 - 7 * band : 20].tolist(), corpus.document(0)[20 : 20 + band].tolist()
    log_p = logits(model, [*seen, *targets[:-1]], len(seen)).log_softmax(-1)
    expected = [-float(log_p[len(seen) - 1 + i, target]) for i, target in enumerate(targets)]
    assert batch.nats.tolist() == pytest.approx(expected, abs=1e-4)


def test_answers_of_the_harness_follow_a_prefix_of_the_question():
    pytest.importorskip("lm_eval")
    from contextwise_evals.harness.model import BoundedLM

    model = model_of()
    lm = BoundedLM.__new__(BoundedLM)
    lm._model, lm._max_length, lm._asking = model, 40, []
    requests = [(None, [3, 4, 5], [6, 7]), (None, [3, 4, 5, 6], [7]), (None, [9], [6, 7])]
    rows = lm._rows(requests)
    assert len(rows) == 3  # the first two read the same tokens, but not with the same prefix
    found = score_rows(model, rows)
    for number, (_, question, answer) in enumerate(requests):
        log_p = logits(model, [*question, *answer], len(question)).log_softmax(-1)
        own = log_p[-len(answer) - 1 : -1]
        assert found[number][0] == pytest.approx(float(own[range(len(answer)), answer].sum()), abs=1e-4)


def test_what_is_no_whole_prompt_is_refused():
    model = model_of()
    with pytest.raises(ConfigError, match="give input_ids"):
        model.generate(inputs_embeds=torch.zeros(1, 3, 16), max_new_tokens=2)
    ids, options = torch.tensor([[3, 9, 4, 30]]), {"max_new_tokens": 2, "pad_token_id": 0}
    for ways in ({"prefill_chunk_size": 2}, {"generation_config": GenerationConfig(prefill_chunk_size=2)}):
        with pytest.raises(ConfigError, match="give no prefill_chunk_size"):
            model.generate(ids, **options, **ways)
    first = model.generate(ids, return_dict_in_generate=True, **options)
    assert model.generate(first.sequences, past_key_values=first.past_key_values, **options).shape == (1, 8)


def test_a_saved_model_says_that_it_reads_a_prefix(tmp_path):
    model_of().save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    assert reads_prefix(loaded.config) and type(loaded).__name__ == "GPT2LMHeadModel"
    assert loaded.config.architectures == ["GPT2LMHeadModel"]
    set_prefix(loaded.config, False)
    assert not reads_prefix(loaded.config)


def test_prefix_attention_of_the_textbook():
    """T = 4, P = 2: the first two see each other, the others what is before them."""
    allowed = prefix_attention(torch.tensor([[True, True, False, False]]))[0, 0].int().tolist()
    assert allowed == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_scored_losses_are_those_of_training_on_the_same_examples():
    """Windows of the objective ``prefix``: what is before the suffix was scored by an earlier window."""
    objective, corpus = build_objective("prefix"), Texts(60)
    examples = objective.examples(corpus, Cut(12), 0, Vocabulary(None, 0))
    model = model_of()
    for index in range(4):
        example = examples.example(3, index)
        batch = {name: value[None] for name, value in example.items() if name != "window"}
        with torch.no_grad():
            trained = pretraining_losses(model, batch)
        place = [np.array([n]) for n in (0, 12 * index, 12, int(example["prefix"].sum()) - 1)]
        nats = window_losses(model, corpus, Plan(*place), np.array([0]))
        assert nats.sum() == pytest.approx(float(trained.sums[0]), rel=1e-5)
        assert (nats != 0).sum() == int(trained.counts[0])
