"""Text from a model, and ``contextwise generate`` as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer

from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.generation import allowed_new_tokens, encode_prompt, reads_sentences, sample_text
from contextwise.evaluation.sampling import Sampling
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from small import save_model, small_gpt2, write_run

POSITIONS = 48
TOKENIZER = byte_tokenizer().tokenizer
END = TOKENIZER.eos_token_id


def gpt2(seed: int = 0, positions: int = POSITIONS) -> GPT2LMHeadModel:
    ends = {"bos_token_id": END, "eos_token_id": END}
    return small_gpt2(positions=positions, seed=seed, initializer_range=0.5, **ends)


def context_lm(seed: int = 0) -> ContextLMForCausalLM:
    torch.manual_seed(seed)
    return ContextLMForCausalLM(ContextLMConfig(backbone_config=gpt2().config, injection="add")).eval()


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    """Two runs, as far as generation looks at them."""
    models = {"plain": gpt2(), "context": context_lm()}
    return [RunFolder(write_run(tmp_path / name, model, TOKENIZER, {"name": name})) for name, model in models.items()]


@pytest.mark.parametrize("make", [gpt2, context_lm])
def test_greedy_text_is_the_likeliest_token_at_each_step(make: Callable[[], Any]) -> None:
    model = make()
    ids = encode_prompt(TOKENIZER, "def f(")
    for _ in range(20):
        with torch.no_grad():
            following = model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
        if following == END:
            break
        ids = torch.cat([ids, following[None, None]], dim=1)
    expected = TOKENIZER.decode(ids[0, len("def f(") :])
    assert sample_text(model, TOKENIZER, "def f(", max_new_tokens=20, sampling=Sampling(greedy=True)) == [expected]


def test_an_empty_prompt_is_the_end_of_a_document() -> None:
    assert encode_prompt(TOKENIZER, "").tolist() == [[END]]


def test_a_sentence_model_starts_behind_the_end_of_text(tmp_path: Path) -> None:
    assert encode_prompt(TOKENIZER, "ab", starts_sentence=True).tolist() == [[END, *b"ab"]]
    assert encode_prompt(TOKENIZER, "", starts_sentence=True).tolist() == [[END]]
    for objective, starts in (("sentence", True), ("causal", False)):
        write_run(tmp_path / objective, gpt2(), TOKENIZER, {"objective": {"name": objective}})
        assert reads_sentences(tmp_path / objective) == starts
    assert not reads_sentences(tmp_path / "sentence" / "model")  # no run: nothing says so


def test_an_empty_prompt_without_such_a_token_is_refused() -> None:
    tokenizer = byte_tokenizer().tokenizer
    tokenizer.eos_token = None
    with pytest.raises(
        ConfigError, match=r"the prompt is empty, and the model has no end-of-text token .* give some text"
    ):
        encode_prompt(tokenizer, "")


def test_the_seed_decides_the_text() -> None:
    model = gpt2()

    def text(seed: int, samples: int = 1) -> list[str]:
        return sample_text(model, TOKENIZER, "x", max_new_tokens=30, sampling=Sampling(seed=seed), samples=samples)

    assert text(1) == text(1) != text(2)
    three = text(1, samples=3)
    assert three[0] == text(1)[0]
    assert len(set(three)) == 3


def test_top_k_of_one_is_greedy() -> None:
    model = gpt2()
    one = sample_text(model, TOKENIZER, "x", sampling=Sampling(top_k=1, seed=3), max_new_tokens=20)
    assert Sampling(temperature=1e-9, seed=3).arguments() == Sampling(greedy=True).arguments()
    assert one == sample_text(model, TOKENIZER, "x", sampling=Sampling(greedy=True), max_new_tokens=20)


def test_a_models_own_sampling_settings_are_overruled() -> None:
    plain, opinionated = gpt2(), gpt2()
    opinionated.generation_config.do_sample = True
    opinionated.generation_config.top_k = 2
    opinionated.generation_config.num_beams = 3
    for sampling in (Sampling(seed=5), Sampling(greedy=True)):
        texts = [sample_text(model, TOKENIZER, "x", sampling=sampling) for model in (plain, opinionated)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 1e9}, "the temperature is 1000000000.0, but must lie between 0 and 1000"),
        ({"temperature": float("nan")}, "the temperature is nan"),
        ({"top_k": 0}, "the top_k is 0, but must lie between 1 and"),
        ({"top_p": 1.5}, "the top_p is 1.5, but must lie between 1e-06 and 1"),
        ({"seed": -1}, "the seed is -1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**settings)


def test_the_text_ends_with_the_models_last_position() -> None:
    assert allowed_new_tokens(gpt2(), 40, 100) == POSITIONS - 40
    assert allowed_new_tokens(gpt2(), 40, 5) == 5
    model = gpt2(seed=1)
    with torch.no_grad():  # a text that does not end by itself
        model.transformer.wte.weight[END] = 0

    class Counter(BaseStreamer):
        tokens = 0

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.numel()

        def end(self) -> None:
            pass

    counter = Counter()
    sample_text(model, TOKENIZER, "x" * 40, sampling=Sampling(greedy=True), streamer=counter)
    assert counter.tokens == POSITIONS


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with a model of its own."""
    save_model(tmp_path / "gpt2", gpt2())
    return tmp_path


@pytest.mark.parametrize("option", ["--num-samples", "-n"])
def test_generate_separates_several_texts(contextwise: Any, option: str) -> None:
    status, output, _ = contextwise(f"generate gpt2 x {option} 3 --max-new-tokens 5 --seed 7")
    texts = sample_text(gpt2(), TOKENIZER, "x", max_new_tokens=5, sampling=Sampling(seed=7), samples=3)
    assert status == 0
    assert output == "\n--------\n".join(f"x{text}" for text in texts) + "\n"
    output = contextwise(f"generate gpt2 x {option} 3 --max-new-tokens 5 --seed 7 --json")[1]
    assert json.loads(output) == {"prompt": "x", "texts": texts}


def test_generate_reports_where_the_positions_end(contextwise: Any) -> None:
    status, _, errors = contextwise("generate gpt2", "x" * 40)
    assert status == 0
    assert "ends after 8 tokens at most: the model has 48 positions, and the prompt takes 40" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"gpt2 {'x' * 60}", "the prompt has 60 tokens, but the model has only 48 positions"),
        ("gpt2 x --temperature -1", "the temperature is -1"),
        ("gpt2 x --dtype int8", "dtype is 'int8'"),
        ("gpt2 x --max-new-tokens 0", "--max-new-tokens"),
        (". x", "contains no model"),
    ],
)
def test_bad_input_is_refused(contextwise: Any, arguments: str, message: str) -> None:
    contextwise.refused(f"generate {arguments}", message)
