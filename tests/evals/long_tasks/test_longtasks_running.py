"""A whole measurement on long tasks: beyond the trained length, interrupted and resumed, and what is refused."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.evaluation.kernel import measure
from contextwise.models import ContextLMConfig, ContextLMForCausalLM, load_model
from contextwise.models.rope import extend_positions, frequencies_for
from contextwise_evals.long_tasks import LongBench, read_range
from longtasks_files import BYTES, leval_line, longbench_line, needs_longbench
from small import save_model, small_gpt2, write_rows

pytestmark = needs_longbench

TRAINED = 256
PROMPT = "Read the text, and answer the question about it.\n\n{context}\n\nQuestion: {input}\nAnswer:"


def llama():
    return LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=TRAINED, initializer_range=0.5, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A plain model and a ContextLM with rotary positions, and one with learned ones; of bytes, with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    made = {
        "plain": LlamaForCausalLM(llama()),
        "contextlm": ContextLMForCausalLM(ContextLMConfig(backbone_config=llama(), chunk_size=4, injection="add")),
        "learned": small_gpt2(positions=TRAINED, eos_token_id=256),
    }
    for name, model in made.items():
        save_model(folder / name, model)
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    lines = [longbench_line(i, max_new_tokens=12, prompt=PROMPT) for i in range(4)]
    lines += [longbench_line(i, dataset="lcc", context="x = 1\n" * i, input="y =", answers=["y = 2"]) for i in (3, 60)]
    return write_rows(tmp_path_factory.mktemp("files") / "made.jsonl", lines)


def measured(models, file, out, name="plain", batch_tokens=4000, **values):
    settings = {"files": [file], "visible": [64, 200, 800], "rope": "dynamic", "new_tokens": 12, **values}
    return measure(models / name, LongBench(**settings), out=out, batch_tokens=batch_tokens)


def rows_of(result):
    return result.rows_of("answers")


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "contextlm"])
def test_answers_beyond_the_trained_length_are_those_of_full_passes(models, file, tmp_path, name):
    """Written again token by token, without a cache and without a batch, at the frequencies of the whole length."""
    found = measured(models, file, tmp_path / "out", name)
    assert found.summary["trained_context"] == TRAINED
    model = load_model(str(models / name))
    longest = max(row["prompt_tokens"] for row in rows_of(found)) + 12
    assert longest > 2 * TRAINED and found.summary["rope_factor"] == pytest.approx(longest / TRAINED)
    extend_positions(model, longest, "dynamic")
    line = json.loads(file.read_text().splitlines()[1])
    whole = BYTES(PROMPT.format(**line)).input_ids
    for answered, prompt in zip(
        rows_of(found)[1]["answered"], (whole[:32] + whole[-32:], whole[:100] + whole[-100:], whole), strict=True
    ):
        written = []
        while len(written) < 12 and 256 not in written:
            with torch.no_grad(), frequencies_for(model, len(prompt) + 12):
                written.append(int(model(torch.tensor([prompt + written]), use_cache=False).logits[0, -1].argmax()))
        assert answered["answer"] == BYTES.decode(written, skip_special_tokens=True)
        assert answered["seen"] == len(prompt)


@pytest.mark.long
@pytest.mark.parametrize("keep", ["ends", "nearest"])
def test_as_much_as_there_is_gives_the_same_as_no_limit(models, file, tmp_path, keep):
    longest = max(row["prompt_tokens"] for row in rows_of(measured(models, file, tmp_path / "first")))
    options = {"keep": keep, "rope_factor": 3.0}
    exact = rows_of(measured(models, file, tmp_path / "exact", visible=[longest], **options))
    more = rows_of(measured(models, file, tmp_path / "more", visible=[longest + 500], **options))
    whole = measured(models, file, tmp_path / "whole", visible=["all"], **options)
    less = rows_of(measured(models, file, tmp_path / "less", visible=[longest - 300], **options))
    assert whole.summary["visible"] == [longest]
    for a, b, c, d in zip(exact, more, rows_of(whole), less, strict=True):
        assert a["answered"][0]["answer"] == b["answered"][0]["answer"] == c["answered"][0]["answer"]
        if a["prompt_tokens"] <= longest - 300:
            assert d["answered"][0]["answer"] == a["answered"][0]["answer"]
    assert [row["answered"] for row in less] != [row["answered"] for row in exact]


@pytest.mark.long
def test_an_answer_does_not_depend_on_what_it_is_answered_beside(models, file, tmp_path):
    together = rows_of(measured(models, file, tmp_path / "together", batch_tokens=100_000))
    alone = rows_of(measured(models, file, tmp_path / "alone", batch_tokens=1))
    assert together == alone


@pytest.mark.long
def test_an_interrupted_measurement_ends_like_an_uninterrupted_one(models, file, tmp_path, stop_at):
    whole = measured(models, file, tmp_path / "whole", batch_tokens=1)
    for number, message in ((3, "while the questions were encoded"), (7 + 7, r"stopped after \d+ of 17 answers")):
        stop_at(number)
        with pytest.raises(Interrupted, match=f"{message}; run the same command again"):
            measured(models, file, tmp_path / "cut", batch_tokens=1)
        assert not (tmp_path / "cut").exists()
    stop_at(0)
    cut = measured(models, file, tmp_path / "cut", batch_tokens=1)
    assert not list(tmp_path.glob("*.unfinished"))
    assert (cut.path / "answers.jsonl").read_bytes() == (whole.path / "answers.jsonl").read_bytes()
    assert {**cut.summary, "seconds": 0} == {**whole.summary, "seconds": 0}
    # A finished measurement is not made again; a file with the same content is the same file.
    stop_at(1)
    copy = write_rows(tmp_path / "copy.jsonl", map(json.loads, file.read_text().splitlines()))
    assert measured(models, copy, tmp_path / "cut", batch_tokens=1).summary == cut.summary
    with pytest.raises(ConfigError, match="holds another result of contextwise measure longbench"):
        measured(models, file, tmp_path / "cut", batch_tokens=1, limit=2)


def test_the_summary_is_what_the_answers_say(models, file, tmp_path):
    found = measured(models, file, tmp_path / "out")
    rows = rows_of(found)
    assert found.summary["visible"] == [64, 200, 800]
    for name, dataset in found.summary["datasets"].items():
        mine = [row for row in rows if row["dataset"] == name]
        assert dataset["questions"] == len(mine)
        for i, row in enumerate(dataset["scores"]):
            mean = sum(r["answered"][i]["score"] for r in mine) / len(mine)
            assert row["score"]["value"] == pytest.approx(mean)
            assert dataset["whole"][i] == sum(r["prompt_tokens"] <= row["visible"] for r in mine) / len(mine)
    groups = found.summary["groups"]
    assert {name: group["datasets"] for name, group in groups.items()} == {
        "Multi-Doc": ["hotpotqa"],
        "Code & Class.": ["lcc"],
    }
    for i, row in enumerate(found.summary["overall"]["scores"]):
        values = [group["scores"][i]["score"]["value"] for group in groups.values()]
        assert row["score"]["value"] == pytest.approx(sum(values) / 2)
        assert row["score"]["low"] <= row["score"]["value"] <= row["score"]["high"]


def test_lengths_limit_and_notes(models, file, tmp_path):
    leval = write_rows(tmp_path / "leval_quiz.jsonl", [leval_line(0), leval_line(1)])
    options = {"visible": [64, 100], "lengths": "0-2000", "limit": 3, "new_tokens": 2}
    settings = LongBench(files=[file, leval], **options)
    found = measure(models / "plain", settings, out=tmp_path / "out").summary
    asked = {name: dataset["questions"] for name, dataset in found["datasets"].items()}
    # hotpotqa has 0, 1000, 2000 and 3000 words, lcc 3000 and 60000
    assert asked == {"hotpotqa": 2, "quiz": 3}
    assert found["notes"] == ["4 of 10 questions were left out for their text's length"]
    with pytest.raises(DataError, match=r"from 1 to below 50 words: the shortest has 0, the longest 60,000"):
        measure(models / "plain", LongBench(files=[file], lengths="1-50"), out=tmp_path / "new")


@pytest.mark.long
def test_by_default_the_models_room_is_halved_three_times(models, file, tmp_path):
    settings = LongBench(files=[file], new_tokens=16)
    found = measure(models / "contextlm", settings, out=tmp_path / "out").summary
    assert found["visible"] == [30, 60, 120, 240] and found["rope_factor"] is None


@pytest.mark.long
def test_a_text_longer_than_the_model(models, file, tmp_path):
    options = {"rope": None, "visible": ["all"]}
    with pytest.raises(ConfigError) as error:
        measured(models, file, tmp_path / "out", **options)
    longest = max(row["prompt_tokens"] for row in rows_of(measured(models, file, tmp_path / "first")))
    assert str(error.value).startswith(
        f"{models / 'plain'} has 256 positions, but the question at {file}:1 needs {longest + 12:,} with its answer at "
        f"`visible` {longest:,}; "
    )
    assert str(error.value).endswith("give `visible` 244 at most, or `rope` dynamic")
    measured(models, file, tmp_path / "fits", rope=None, visible=[244])
    with pytest.raises(ConfigError, match="give `visible` 244 at most, or a model with rotary positions"):
        measured(models, file, tmp_path / "out", "learned", **options)
    with pytest.raises(ConfigError, match="positions of this gpt2 are not rotary and cannot be extended"):
        measured(models, file, tmp_path / "out", "learned")
    with pytest.raises(ConfigError, match="answers take up to 300 of them, .* give fewer new tokens"):
        measured(models, file, tmp_path / "out", rope=None, visible=None, new_tokens=300)
    with pytest.raises(ConfigError, match="holds nothing of a text: the prompt around it"):
        measured(models, file, tmp_path / "out", visible=[20], keep="nearest")


@pytest.mark.parametrize(("field", "own", "known"), [("group", "Mine", "Multi-Doc"), ("metric", "count", "qa_f1")])
def test_a_data_set_has_one_group_and_metric(models, tmp_path, field, own, known):
    lines = [longbench_line(0), longbench_line(1, **{field: own})]
    with pytest.raises(DataError, match=rf"x\.jsonl:2: the {field} of 'hotpotqa' is '{own}', but '{known}' at"):
        measured(models, write_rows(tmp_path / "x.jsonl", lines), tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"files": []}, "files is"),
        ({"files": ["a", "a"]}, "a file of questions is given twice"),
        ({"keep": "start"}, "keep is 'start', but must be one of ends, nearest"),
        ({"rope_factor": 2.0}, "rope_factor is given without `rope`"),
        ({"rope": "dynamic"}, "give `visible` too"),
        ({"visible": [1, 5]}, "`visible` has 1, but must be at least 2"),
        ({"lengths": "4000"}, "lengths is '4000'; give words from-below"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(values, message):
    with pytest.raises(ConfigError, match=message):
        validate(LongBench, {"files": ["a"], **values}, "longbench")


def test_ranges_as_they_are_typed():
    assert read_range("0-4000") == (0, 4000) and read_range(" 8000- ") == (8000, None)
    for wrong in ("4000", "4000-0", "-4000", "5-5", "a-b"):
        with pytest.raises(ConfigError, match="give words from-below, such as 0-4000"):
            read_range(wrong)
