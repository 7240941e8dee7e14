"""Two needles: the texts, the answers' nats against a slow computation, and a reader whose losses are known."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, Interrupted
from contextwise.data.tokenizers import byte_tokenizer, learn_bpe
from contextwise.evaluation.kernel import Subject, Work, measure
from contextwise.models import token_losses
from contextwise.models.prefix import set_prefix, with_prefix
from contextwise_evals.answering.prompts import Encoder
from contextwise_evals.ruler.questions import NOISE, Size
from contextwise_papers.intrinsic_entropy.needles import (
    Needles,
    all_nats,
    answer_ids,
    answer_nats,
    needle_rows,
    two_needle_question,
)
from embedding_models import longrope
from measured import make_model
from small import save_model, small_gpt2

BYTES = byte_tokenizer().tokenizer
SURE = 0.99


def sum_of(text: str) -> str | None:
    """The answer, if both needles are in the text; from the text alone."""
    first = re.search(r"(?<![a-zA-Z])(\w+) has (\d) (\w+)\.", text)
    second = re.search(r"(?<![a-zA-Z])(\w+) has (\d) (\w+) more than (\w+)\.", text)
    if not first or not second or (second[4], second[3]) != (first[1], first[3]):
        return None
    return str(int(first[2]) + int(second[2]))


class Adder(torch.nn.Module):
    """Stands for a model: sure of the digit after "has " if it sees both needles, at a loss among ten digits if not."""

    device = torch.device("cpu")
    config = GPT2Config(vocab_size=257)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(257, 1)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        logits = torch.full((*input_ids.shape, 257), -1e4)
        for row, ids in enumerate(input_ids.tolist()):
            text = BYTES.decode(ids)
            if (end := text.find("Answer: ")) < 0:  # no question
                continue
            answer = sum_of(text[:end])
            space = text.index(" has", end) + 3
            logits[row, space, ord(" ")] = 0.0
            digits = [ord(str(digit)) for digit in range(10)]
            logits[row, space + 1, digits] = math.log((1 - SURE) / 9) if answer else 0.0
            if answer:
                logits[row, space + 1, ord(answer)] = math.log(SURE)
        return SimpleNamespace(logits=logits)


def test_the_answer_follows_from_the_text_and_the_needles_are_at_their_positions() -> None:
    for index in range(20):
        question = two_needle_question(Size(3000, 0.0, len), index, far=0.8, near=0.3)
        assert sum_of(question.body) == question.answers[0] and len(question.body) > 3000 - len(NOISE) - 80
        (far, _), (near, end) = question.needles
        assert 1 - far / 3000 == pytest.approx(0.8, abs=0.05) and 1 - near / 3000 == pytest.approx(0.3, abs=0.05)
        assert sum_of(question.body[far:end]) == question.answers[0]
        assert sum_of(question.body[far + 1 :]) is sum_of(question.body[:near]) is None
    assert question != two_needle_question(Size(3000, 0.0, len, seed=1), index, 0.8, 0.3)


def test_the_loss_of_an_adder_rises_when_the_first_needle_goes(tmp_path: Path, stop_at: Any) -> None:
    encoder, size = Encoder(BYTES), Size(1200, 0.0, len)
    examples = [encoder.encode(two_needle_question(size, i)) for i in range(6)]
    answers = [answer_ids(encoder, example.question) for example in examples]
    assert [BYTES.decode(ids) for ids in answers] == [f" {e.question.answers[0]}" for e in examples]
    gone = [len(e.body) - e.needles[0].reach for e in examples]  # so many may be masked, and not one more
    steps = [0, min(gone), max(gone) + 1, 1200]
    adder = Subject(Adder(), batch_tokens=4000)  # type: ignore[arg-type]
    nats = all_nats(adder, examples, answers, steps, Work(tmp_path / "whole", "", {}))
    work = Work(tmp_path / "stopped", "", {})
    stop_at(4)
    with pytest.raises(Interrupted, match="after [0-9]+ of 24 answers"):
        all_nats(adder, examples, answers, steps, work)
    stop_at(0)
    assert np.array_equal(all_nats(adder, examples, answers, steps, work), nats)
    rows = needle_rows(examples, [2] * 6, steps, nats)
    for row, expected in zip(rows, (-math.log(SURE), -math.log(SURE), math.log(10), math.log(10)), strict=True):
        assert row["nats"]["value"] == pytest.approx(expected / 2, abs=1e-5)
        assert row["perplexity"]["value"] == pytest.approx(math.exp(expected / 2), abs=1e-4)
    assert [row["far_in_view"] for row in rows] == [1, 1, 0, 0]
    # Gone with the first: the second needle's part is hidden
    assert [row["near_in_view"] for row in rows] == [1, 1, 1, 0]


def test_a_signal_while_the_texts_are_made_ends_at_once(stop_at: Any, tmp_path: Path) -> None:
    stop_at(2)
    subject = Subject(small_gpt2(positions=2048), tokenizer=byte_tokenizer().tokenizer)
    with pytest.raises(Interrupted, match="stopped while the texts were made"):
        Needles(length=1200, samples=50, masked=[0]).run(subject, None, Work(tmp_path / "work", "", {}))


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "contextlm"])
def test_nats_are_those_of_token_after_token(kind: str) -> None:
    model, draw = make_model(kind), np.random.default_rng(2)
    prompts = [draw.integers(1, 23, n).tolist() for n in (1, 9, 4)]
    answers = [draw.integers(1, 23, n).tolist() for n in (2, 1, 3)]
    slow = []
    for prompt, answer in zip(prompts, answers, strict=True):
        total, ids = 0.0, list(prompt)
        for token in answer:
            with torch.no_grad():
                total -= float(model(torch.tensor([ids])).logits[0, -1].softmax(-1)[token].log())
            ids.append(token)
        slow.append(total)
    assert answer_nats(model, prompts, answers) == pytest.approx(slow, abs=1e-4)


def test_an_answer_does_not_depend_on_longer_prompts_where_frequencies_follow_the_length() -> None:
    model, draw = longrope(), np.random.default_rng(2)  # other frequencies beyond 12 tokens
    prompts = [draw.integers(1, 250, n).tolist() for n in (30, 5, 14, 9)]
    answers = [draw.integers(1, 250, 2).tolist() for _ in prompts]
    alone = [answer_nats(model, [prompt], [answer])[0] for prompt, answer in zip(prompts, answers, strict=True)]
    assert answer_nats(model, prompts, answers) == pytest.approx(alone, abs=1e-4)


def test_a_prefix_model_reads_the_prompt_as_it_was_trained() -> None:
    model = with_prefix(small_gpt2(23, 48, n_layer=2))
    for parameter in model.parameters():
        parameter.data.mul_(4)
    set_prefix(model.config)
    prompts, answers = [[1, 2, 3, 4], [5, 6, 7]], [[8, 9], [10]]
    expected = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([[*prompt, *answer]])
        seen = torch.arange(ids.shape[1])[None] < len(prompt)
        with torch.no_grad():
            losses = token_losses(model, ids[:, :-1], ids[:, 1:], prefix=seen[:, :-1])[0]
        expected.append(float(losses[-len(answer) :].sum()))
    assert answer_nats(model, prompts, answers) == pytest.approx(expected, abs=1e-5)
    set_prefix(model.config, False)
    assert answer_nats(model, prompts, answers) != pytest.approx(expected, abs=1e-2)


def test_answer_tokens_of_a_bpe_follow_the_prompt() -> None:
    encoder = Encoder(learn_bpe([NOISE + " has 8", " has 8" * 5], 400).tokenizer)
    question = two_needle_question(Size(200, 0.0, encoder.count), 0)
    before = question.ending + question.answer_prefix
    assert encoder.ids(before) + answer_ids(encoder, question) == encoder.ids(f"{before} {question.answers[0]}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = small_gpt2(positions=700, seed=1, initializer_range=0.3)
    return str(save_model(tmp_path_factory.mktemp("needles") / "tiny", model))


def test_a_measurement_of_a_model_equals_a_loop(tmp_path: Any, tiny: str) -> None:
    from contextwise.models import load_model

    settings = Needles(length=500, masked=[0, 200, 500], samples=3)
    summary = measure(tiny, settings, batch_tokens=1500, out=tmp_path / "n").summary
    model, encoder, size = load_model(tiny), Encoder(BYTES), Size(500, 0.0, len)
    for row in summary["rows"]:
        nats = 0.0
        for index in range(3):
            example = encoder.encode(two_needle_question(size, index))
            ids = [*example.head, *example.body[row["masked"] :], *example.tail]
            answer = list(f" {example.question.answers[0]}".encode())
            with torch.no_grad():
                logits = model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
            nats += float(torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="sum"))
        assert row["nats"]["value"] == pytest.approx(nats / 6, abs=1e-5)
        assert row["nats"]["low"] <= row["nats"]["value"] <= row["nats"]["high"]
    by_default = measure(tiny, Needles(length=500, samples=2), out=tmp_path / "default").summary["rows"]
    assert len(by_default) == 17 and by_default[-1]["masked"] == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 100}, r"length is 100, but a text with two needles has \d+ tokens at least"),
        ({"samples": 0}, "samples is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"length": 500, "masked": [0, 501]}, "masked holds 501; give numbers from 0 to the length, 500"),
        ({"length": 500, "masked": [-1]}, "masked holds -1"),
        ({"length": 700}, r"has 700 positions, but a text needs \d+ with its answer .* or a smaller `length`"),
        ({"length": 500, "near": 0.9}, "near is 0.9; it must be below far, 0.75"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Any, tiny: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measure(tiny, validate(Needles, options, "needles"), out=tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_damaged_models_are_refused(tmp_path: Any, tiny: str) -> None:
    from contextwise.models import load_model

    model = load_model(tiny)
    with torch.no_grad():
        model.transformer.wte.weight[:] = math.nan
    save_model(tmp_path / "nan", model)
    with pytest.raises(CheckpointError, match="not finite"):
        measure(tmp_path / "nan", Needles(length=400, samples=1), out=tmp_path / "new")
