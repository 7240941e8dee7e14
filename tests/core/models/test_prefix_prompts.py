"""Prefix models are asked as they were trained: losses, cached steps and prompts with a form."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GPTNeoXConfig, GPTNeoXForCausalLM

from contextwise.base.errors import ConfigError
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.scoring.truncated import Targets, truncated_passes
from contextwise.evaluation.scoring.windows import Plan, score_documents, window_losses
from contextwise.models import decoding, token_losses
from contextwise.models.loading import load_model
from contextwise.models.masks import as_attention_mask, prefix_attention
from contextwise.models.prefix import in_form, prompt_form, set_prompt_form, with_prefix
from contextwise.models.spec import pretraining_losses
from contextwise.objectives import NO_LOSS, Cut, SpecialToken, Vocabulary, add_special_tokens, build_objective
from contextwise.objectives.kind import PromptForm
from contextwise_evals.harness.model import score_rows
from small import small_gpt2

UL2 = PromptForm(before=(50, 51), after=(52,), opening=(53,))


def vocabulary(objective):
    """Bytes with the objective's special tokens."""
    tokenizer = byte_tokenizer().tokenizer
    add_special_tokens(tokenizer, objective.special_tokens)
    return Vocabulary(tokenizer, 0)


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


def model_of(kind="gpt2", form=PromptForm()):  # noqa: B008 - it is frozen
    if kind == "gpt2":
        model = small_gpt2(64, 64, n_layer=2)
    else:
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=64, max_position_embeddings=64, **shape)).eval()
    for parameter in model.parameters():  # far from the uniform distribution
        parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    set_prompt_form(model.config, form)
    return with_prefix(model)


@torch.no_grad()
def logits(model, ids, prefix):
    """Of a whole row by one pass, with the mask written out."""
    n = len(ids)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    allowed[:prefix, :prefix] = True
    mask = as_attention_mask(allowed[None, None], model)
    return model(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]


def greedy(model, prompt, form, count):
    """The continuation by whole passes."""
    ids = [*form.before, *prompt, *form.after, *form.opening]
    prefix, start = len(ids) - len(form.opening), len(ids)
    for _ in range(count):
        ids.append(int(logits(model, ids, prefix)[-1].argmax()))
    return ids[start:]


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
@pytest.mark.parametrize("form", [PromptForm(), UL2])
def test_generation_reads_the_prompt_as_a_prefix(kind, form):
    model = model_of(kind, form)
    prompts, count = [[3, 9, 4, 30, 17, 5], [21, 8, 8]], 12
    expected = [greedy(model, prompt, form, count) for prompt in prompts]
    whole = [*form.before, *prompts[0], *form.after, *form.opening]
    differs = logits(model, whole, len(whole) - len(form.opening))[-1] - logits(model, whole, 1)[-1]
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


CASES = [(PromptForm(), "prompt"), (PromptForm(), "itself"), (UL2, "prompt"), (UL2, "causal")]


@pytest.mark.parametrize(("form", "assistant"), CASES)
def test_assisted_generation_gives_the_tokens_of_greedy_decoding(form, assistant):
    """The draft behind the prompt is not a part of the prefix, in the first pass either."""
    model = model_of("gpt2", form)
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


@pytest.mark.parametrize("form", [PromptForm(), UL2])
def test_scored_tokens_follow_a_prefix_of_what_is_not_scored(form):
    model, corpus = model_of("gpt2", form), Texts(30, 7)
    scores = score_documents(model, corpus, context=12, stride=4, batch_tokens=40)
    start = 0
    for length, document in zip(corpus.lengths.tolist(), corpus.documents, strict=True):
        sequence = [0, *document.tolist()]
        for first, skip in [(0, 0), *((s, 8) for s in range(4, length - 8, 4))]:
            window = sequence[first : first + 13]
            head = [*form.before, *window[: skip + 1], *form.after]
            ids = [*head, *form.opening, *window[skip + 1 :]]
            log_p = logits(model, ids, len(head)).log_softmax(-1)
            new = len(window) - skip - 1
            expected = [-log_p[len(ids) - new - 1 + i, ids[len(ids) - new + i]] for i in range(new)]
            found = scores.nats[start + first + skip : start + first + len(window) - 1]
            np.testing.assert_allclose(found, torch.stack(expected).numpy(), rtol=1e-4, atol=1e-4)
        start += length


def test_a_target_alone_has_all_before_it_as_its_prefix():
    model, corpus = model_of("gpt2", UL2), Texts(30)
    (batch,) = truncated_passes(model, corpus, Targets(np.array([0]), np.array([20])), [8])
    seen, target = corpus.document(0)[12:20].tolist(), int(corpus.document(0)[20])
    log_p = logits(model, [50, 51, *seen, 52, 53], 11)[-1].log_softmax(-1)
    assert batch.nats[0] == pytest.approx(-float(log_p[target]), abs=1e-4)


@pytest.mark.parametrize("form", [PromptForm(), UL2])
def test_targets_of_a_band_follow_a_prefix_of_what_the_first_sees(form):
    model, corpus = model_of("gpt2", form), Texts(30)
    (batch,) = truncated_passes(model, corpus, Targets(np.array([0, 0]), np.array([20, 21]), 2), [16])
    seen, targets = corpus.document(0)[5:20].tolist(), corpus.document(0)[20:22].tolist()
    head = [*form.before, *seen, *form.after]
    log_p = logits(model, [*head, *form.opening, targets[0]], len(head)).log_softmax(-1)
    expected = [-float(log_p[position, target]) for position, target in zip((-2, -1), targets, strict=True)]
    assert batch.nats.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("form", [PromptForm(), UL2])
def test_answers_of_the_harness_follow_a_prefix_of_the_question(form):
    pytest.importorskip("lm_eval")
    from contextwise_evals.harness.model import BoundedLM

    model = model_of("gpt2", form)
    lm = BoundedLM.__new__(BoundedLM)
    lm._model, lm._max_length, lm._asking = model, 40, []
    requests = [(None, [3, 4, 5], [6, 7]), (None, [3, 4, 5, 6], [7]), (None, [9], [6, 7])]
    rows = lm._rows(requests)
    assert len(rows) == 3  # the first two read the same tokens, but not with the same prefix
    found = score_rows(model, rows)
    for number, (_, question, answer) in enumerate(requests):
        head = [*form.before, *question, *form.after]
        log_p = logits(model, [*head, *form.opening, *answer], len(head)).log_softmax(-1)
        own = log_p[-len(answer) - 1 : -1]
        assert found[number][0] == pytest.approx(float(own[range(len(answer)), answer].sum()), abs=1e-4)


@pytest.mark.parametrize("way", ["option", "configuration", "model", "both"])
@pytest.mark.parametrize("lengths", [{"max_length": 19}, {"max_length": 10, "min_length": 10}])
def test_a_length_counts_the_given_prompt_wherever_it_is_given(way, lengths):
    model, prompt = model_of("gpt2", UL2), torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    given, options = GenerationConfig(pad_token_id=0, do_sample=False), {}
    if way == "model":
        model.generation_config = GenerationConfig(**lengths)
    elif way == "option":
        given, options = None, lengths
    else:
        given.update(**lengths if way == "configuration" else dict.fromkeys(lengths, 63))
        options = {} if way == "configuration" else lengths
    for _ in range(2):  # the given configuration stays as it is
        out = model.generate(prompt, generation_config=given, **options)
        assert out.shape == (1, lengths["max_length"]) and out[0, :7].tolist() == prompt[0].tolist()
    model.generation_config = GenerationConfig(max_length=30, min_length=7 + 9, eos_token_id=out[0, 7].item())
    assert len(model.generate(prompt, do_sample=False, pad_token_id=0)[0]) >= 16


@pytest.mark.parametrize("form", [PromptForm(), UL2])
def test_what_is_no_whole_prompt_is_refused(form):
    model = model_of("gpt2", form)
    with pytest.raises(ConfigError, match="give input_ids"):
        model.generate(inputs_embeds=torch.zeros(1, 3, 16), max_new_tokens=2)
    ids, options = torch.tensor([[3, 9, 4, 30]]), {"max_new_tokens": 2, "pad_token_id": 0}
    for ways in ({"prefill_chunk_size": 2}, {"generation_config": GenerationConfig(prefill_chunk_size=2)}):
        with pytest.raises(ConfigError, match="give no prefill_chunk_size"):
            model.generate(ids, **options, **ways)
    first = model.generate(ids, return_dict_in_generate=True, **options)
    if form.tokens:
        with pytest.raises(ConfigError, match="without past_key_values"):
            model.generate(first.sequences, past_key_values=first.past_key_values, **options)
    else:
        assert model.generate(first.sequences, past_key_values=first.past_key_values, **options).shape == (1, 8)


def test_tokens_of_a_form_stand_behind_the_padding():
    ids, mask = torch.tensor([[1, 2, 3, 4], [0, 0, 5, 6]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    framed, real = in_form(ids, mask, UL2)
    assert framed.tolist() == [[50, 51, 1, 2, 3, 4, 52, 53], [0, 0, 50, 51, 5, 6, 52, 53]]
    assert real.tolist() == [[1] * 8, [0] * 2 + [1] * 6]


def test_the_form_is_saved_with_the_model(tmp_path):
    model_of("gpt2", UL2).save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    assert prompt_form(loaded.config) == UL2 and type(loaded).__name__ == "GPT2LMHeadModel"
    assert loaded.config.architectures == ["GPT2LMHeadModel"]
    set_prompt_form(loaded.config, None)
    assert prompt_form(loaded.config) is None


def test_prefix_attention_of_the_textbook():
    """T = 4, P = 2: the first two see each other, the others what is before them."""
    allowed = prefix_attention(torch.tensor([[True, True, False, False]]))[0, 0].int().tolist()
    assert allowed == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_scored_losses_are_those_of_training_on_the_same_examples():
    """Windows of the objective ``prefix``: what is before the suffix was scored by an earlier window."""
    objective, corpus = build_objective("prefix"), Texts(60)
    examples = objective.examples(corpus, Cut(12), 0, vocabulary(objective))
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


def test_scored_losses_are_those_of_training_of_a_ul2_decoder():
    """Mode S: the same forward pass, less the losses of the sentinel and the end."""
    objective = build_objective("ul2", model="decoder", sentinels=40)
    words, corpus = vocabulary(objective), Texts(4000)
    examples = objective.examples(corpus, Cut(140), 0, words)
    model = small_gpt2(words.size, 160, n_layer=2)
    set_prompt_form(model.config, objective.prompt_form(words))
    mode = words.ids([SpecialToken("[S2S]")], "ul2")
    of_mode = [i for i in range(examples.count(0)) if examples.example(0, i)["input_ids"][:1].tolist() == mode]
    assert len(of_mode) > 2
    for index in of_mode[:3]:
        example = examples.example(0, index)
        tokens = examples.restore(example)
        labels, prefix = example["labels"], example["prefix"]
        trained = token_losses(model, example["input_ids"][None], labels[None], prefix=prefix[None])[0]
        trained = trained[labels != NO_LOSS][1:-1].numpy()
        start, kept = int(examples._starts[index]), int(prefix.sum()) - 2
        place = [np.array([n]) for n in (0, start, len(tokens) - 1, kept - 1)]
        nats = window_losses(model, corpus, Plan(*place), np.array([0]))[0]
        np.testing.assert_allclose(nats[kept - 1 :], trained, rtol=1e-4, atol=1e-5)
