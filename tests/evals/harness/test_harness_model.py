"""The model as the harness asks it, against the harness's own class."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("lm_eval", reason="needs contextwise[eval]")

from harness_sets import BYTES, POSITIONS, model_of_bytes, request, sentence
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM

from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from contextwise.evaluation.kernel import Journal
from contextwise.evaluation.scoring.windows import score_documents
from contextwise.models.rope import forget_lengths
from contextwise_evals.harness.model import BoundedLM, Row, score_rows

KINDS = ("gpt2", "contextlm", "multitoken", "gemma2")


def bounded(model, batch_tokens=700, **options):
    return BoundedLM(model, BYTES, max_length=POSITIONS, batch_tokens=batch_tokens, **options)


def harness(model):
    return HFLM(pretrained=model, tokenizer=BYTES, backend="causal", max_length=POSITIONS, batch_size=3)


def requests(count=40):
    """Choices of one token after one context, none, many; contexts that end in a space; texts longer than the model."""
    draw = random.Random(1)
    found = [request("Is it so?", f" {letter}", document=0) for letter in "ABCD"]
    found += [request("", "alone"), request("ends in a space ", "x"), request("a", "b" * POSITIONS)]
    found += [request(sentence(draw, 60), f" {sentence(draw, 3)}", document=7)]
    while len(found) < count:
        found.append(request(sentence(draw, draw.randint(1, 20)), f" {sentence(draw, draw.randint(1, 6))}"))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_log_likelihoods_are_the_harness_s_own(kind):
    model = model_of_bytes(kind)
    asked = requests()
    ours = bounded(model).loglikelihood(asked)
    theirs = harness(model).loglikelihood(asked, disable_tqdm=True)
    # The harness sums in float32, whose resolution at 1,000 nats is 1e-4.
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in theirs], rel=5e-7, abs=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_model_would_write_is_greedy(kind):
    model, ids = model_of_bytes(kind), [1, 2, 3]
    with torch.no_grad():
        for _ in range(4):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    written = tuple(ids[-4:])
    other = (*written[:-1], (written[-1] + 1) % 257)
    found = score_rows(model, [Row(tuple(ids[:-1]), ((5, written), (2, other), (3, written[-1:])))])
    assert {index: greedy for index, (_, greedy) in found.items()} == {5: True, 2: False, 3: True}


@pytest.mark.parametrize("kind", KINDS)
def test_whole_texts_are_the_harness_s_own(kind):
    model = model_of_bytes(kind)
    draw = random.Random(2)
    lengths = (0, 1, 5, 24, 60, 120)  # words; the last two have several windows
    asked = [request(sentence(draw, words)) for words in lengths]
    ours = bounded(model).loglikelihood_rolling(asked)
    theirs = harness(model).loglikelihood_rolling(asked, disable_tqdm=True)
    assert ours == pytest.approx(theirs, abs=1e-3, rel=1e-6)
    assert ours[0] == 0


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_losses_of_full_windows_sum_to_the_harness_s_own(kind):
    model, draw = model_of_bytes(kind), random.Random(3)
    texts = [sentence(draw, words) for words in (1, 30, 60, 90, 120)]
    texts.append("e" * 2 * POSITIONS)
    tokens = [np.array(BYTES.encode(text)) for text in texts]
    corpus = SimpleNamespace(
        lengths=np.array([len(ids) for ids in tokens]), end_of_text=256, document=tokens.__getitem__
    )
    scores = score_documents(model, corpus, POSITIONS, POSITIONS, full_windows=True, batch_tokens=400)
    theirs = harness(model).loglikelihood_rolling([request(text) for text in texts], disable_tqdm=True)
    assert (-scores.document_sums()).tolist() == pytest.approx(theirs, rel=1e-6)


def test_a_request_does_not_depend_on_longer_ones_where_frequencies_follow_the_length():
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(
        **shape, vocab_size=257, max_position_embeddings=16, rope_parameters=rope, initializer_range=0.5
    )
    model = LlamaForCausalLM(config).eval()
    forget_lengths(model)
    asked = [
        request("a context of some length that is beyond it", " yes"),
        request("x" * 20, " no"),
        request("is", " it"),
    ]
    alone = [bounded(model).loglikelihood([one])[0][0] for one in asked]
    assert [nats for nats, _ in bounded(model).loglikelihood(asked)] == pytest.approx(alone, abs=1e-5)


def test_the_head_is_applied_to_the_continuations_alone():
    model = model_of_bytes()
    bounded(model).loglikelihood([request("a", "b")])  # the form of the head is measured once
    seen = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    one_place = [request("x" * 100, letter) for letter in "ABCD"]
    bounded(model).loglikelihood([*one_place, request("y" * 90, "word")])
    hook.remove()
    assert sum(seen) == 1 + 4  # four choices at one position, and four positions


@pytest.mark.parametrize("batch_tokens", [1, 50, 100_000, "pieces"])
def test_batches_and_pieces_change_nothing(batch_tokens, monkeypatch):
    model, asked = model_of_bytes("contextlm"), requests()
    expected = bounded(model).loglikelihood(asked)
    if batch_tokens == "pieces":
        monkeypatch.setattr("contextwise_evals.harness.model.rows_at_once", lambda *_: 3)
        batch_tokens = 700
    found = bounded(model, batch_tokens).loglikelihood(asked)
    assert [nats for nats, _ in found] == pytest.approx([nats for nats, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def test_texts_that_were_cut_are_counted_by_document():
    lm = bounded(model_of_bytes())
    long = "x" * (POSITIONS + 5)
    asked = [request(long, f" {letter}", task="t", document=3) for letter in "ABC"]
    asked += [request(long, "a", task="u", document=1), request("short", "a", task="u", document=2)]
    lm.loglikelihood(asked)
    assert dict(lm.cut) == {"t": {3}, "u": {1}}
    fits = BoundedLM(model_of_bytes(), BYTES, max_length=POSITIONS, batch_tokens=700)
    fits.loglikelihood([request("x" * (POSITIONS - 1), "ab")])  # the last token is no input
    assert not fits.cut


def without_numbers():
    model = model_of_bytes()
    model.lm_head.weight.data[5] = math.nan
    return model


def with_few_tokens():
    model = model_of_bytes()
    model.resize_token_embeddings(90)
    return model


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        pytest.param(
            lambda: bounded(model_of_bytes()).loglikelihood([request("a", "b" * (POSITIONS + 1), document=4)]),
            DataError, f"made_up: an answer of document 4 has {POSITIONS + 1} tokens", id="continuation too long",
        ),
        pytest.param(
            lambda: score_rows(model_of_bytes(), [Row((1, 2), ((0, (300,)),))]),
            CheckpointError, "makes the token 300, but the model knows only 257", id="tokenizer of another model",
        ),
        pytest.param(
            lambda: BoundedLM(
                model_of_bytes(), BYTES.__class__(tokenizer_object=BYTES.backend_tokenizer), batch_tokens=100
            ),
            CheckpointError, "neither a token for the beginning nor one for the end", id="tokenizer without any end",
        ),
        pytest.param(
            lambda: bounded(without_numbers()).loglikelihood([request("a", "b")]),
            CheckpointError, "NaN", id="logits that are no numbers",
        ),
        pytest.param(
            lambda: BoundedLM(model_of_bytes(), BYTES, max_length=12, batch_tokens=700).generate_until([asking("a")]),
            ConfigError, "made_up: an answer has up to 12 tokens, which leaves no room", id="answer too long",
        ),
        pytest.param(
            lambda: bounded(without_numbers()).generate_until([asking("a")]),
            CheckpointError, "NaN", id="logits of answers that are no numbers",
        ),
        pytest.param(
            lambda: bounded(with_few_tokens()).generate_until([asking("a")]),
            CheckpointError, "makes the token 97, but the model knows only 90", id="answers with another tokenizer",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        ask()


def test_a_request_to_stop_is_noticed_before_each_batch(stop_at):
    stop_at(2)
    lm = bounded(model_of_bytes(), batch_tokens=1)
    with pytest.raises(Interrupted, match="stopped after"):
        lm.loglikelihood(requests())


def asking(text, until=(), new=12, **about):
    return request(text, {"until": list(until), "max_gen_toks": new, "do_sample": False}, **about)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_harness_s_own(kind):
    """Of prompts of many lengths, with and without stops, and longer than the model."""
    model, draw = model_of_bytes(kind), random.Random(4)
    asked = [asking(sentence(draw, words), new=6 + words % 3) for words in range(1, 45)]
    alone = HFLM(pretrained=model, tokenizer=BYTES, backend="causal", max_length=POSITIONS, batch_size=1)
    theirs = alone.generate_until(asked, disable_tqdm=True)
    lm = bounded(model)
    assert lm.generate_until(asked) == theirs and len(set(theirs)) > 5
    assert lm.cut["made_up"]
    stopping = [asking(each.args[0], [text[2]]) for each, text in zip(asked, theirs, strict=True) if len(text) > 4]
    assert bounded(model).generate_until(stopping) == alone.generate_until(stopping, disable_tqdm=True)
    assert len(stopping) > 20


def test_a_kept_answer_is_that_of_its_prompt_length_and_stops(tmp_path):
    """Together and one after another; what is kept is not asked for again."""
    model = model_of_bytes()
    (text,) = bounded(model).generate_until([asking("a prompt")])
    asked = [asking("a prompt"), asking("a prompt", [text[4]]), asking("a prompt", new=3), asking("another")]
    alone = [bounded(model).generate_until([each])[0] for each in asked]
    assert len(set(alone)) == 4 and bounded(model).generate_until(asked) == alone
    with (tmp_path / "answers.jsonl").open("w+b") as file:
        journal = Journal(tmp_path / "answers.jsonl", file)
        for these in ([0], [1], [2], [0, 1, 2, 3, 3]):
            lm = BoundedLM(model, BYTES, max_length=POSITIONS, batch_tokens=700, journal=journal)
            assert lm.generate_until([asked[i] for i in these]) == [alone[i] for i in these]
        assert sorted(row["answer"] for row in journal.rows.values()) == sorted(alone)
