"""Answers for judges: conversations, the files' formats, interruption, and texts that are too long."""

import gzip
import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.base.progress import interruption
from contextwise.cli import app
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.sampling import Sampling
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise_evals.answering.readers import ModelReader
from contextwise_papers.contextlm.answers import Answers, Question, read_questions
from contextwise_papers.contextlm.speaker import Speaker
from contextwise_papers.objectives.alpaca import CHAT_TEMPLATE, prompt_text
from small import write_rows

GREEDY = Sampling(greedy=True)
TURNS = ("Name a colour.", "And another one?", "Which is the darker of the two?")
OTHER_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


def tokenizer():
    return byte_tokenizer().tokenizer


def small_model(kind, positions=700, seed=0):
    torch.manual_seed(seed)
    shared = {"vocab_size": len(tokenizer()), "bos_token_id": 256, "eos_token_id": 256}
    if kind == "llama":
        llama = LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=positions,
            initializer_range=0.6,
            **shared,
        )
        return LlamaForCausalLM(llama).eval()
    gpt2 = GPT2Config(n_positions=positions, n_embd=16, n_layer=2, n_head=2, initializer_range=0.6, **shared)
    if kind == "gpt2":
        model: PreTrainedModel = GPT2LMHeadModel(gpt2)
    else:
        model = ContextLMForCausalLM(ContextLMConfig(backbone_config=gpt2, chunk_size=4, injection="add"))
    # Else positions drown the text, and any cache would give the same answers.
    model.get_parameter("transformer.wpe.weight" if kind == "gpt2" else "backbone.wpe.weight").data.mul_(0.2)
    return model.eval()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers") / "tiny"
    small_model("contextlm").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def mt_bench(tmp_path):
    file = tmp_path / "question.jsonl"
    rows = [
        {"question_id": 81 + i, "category": category, "turns": [f"Question {i}?", f"And {i} again?"]}
        for i, category in enumerate(["writing", "math", "stem"])
    ]
    write_rows(file, rows)
    return file


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.5, seed=3)])
def test_what_was_said_before_changes_an_answer(sampling):
    speaker = Speaker(small_model("contextlm"), tokenizer())
    texts, problems = speaker.answer(TURNS, 23, sampling)
    assert speaker.answer(TURNS, 23, sampling)[0] == texts and len(texts) == 3 and problems == [None] * 3
    other, _ = speaker.answer(("Red!", *TURNS[1:]), 23, sampling)
    assert other[2] != texts[2]


def test_an_answer_ends_at_the_models_end_and_at_the_tokenizers(monkeypatch):
    model, known, written, write = small_model("gpt2"), tokenizer(), [], ModelReader.write
    monkeypatch.setattr(ModelReader, "write", lambda *a, **given: written.append(write(*a, **given)) or written[-1])
    model.generation_config.eos_token_id = 3
    speaker = Speaker(model, known)
    assert speaker.ends == [3, known.eos_token_id]
    speaker.answer(TURNS[:1], 9, GREEDY)
    ((whole,),) = written
    assert len(whole) == 9
    model.generation_config.eos_token_id = whole[1]
    Speaker(model, known).answer(TURNS[:1], 9, GREEDY)
    assert written[1] == [whole[:2]]


def test_the_chat_template_writes_the_published_prompt():
    known = tokenizer()
    first = [{"role": "user", "content": "Name a colour."}]
    written = known.apply_chat_template(first, chat_template=CHAT_TEMPLATE, tokenize=False)
    assert written == known.eos_token + prompt_text("Name a colour.")
    ids = Speaker(small_model("gpt2"), known).prompt(first)
    assert ids[0] == known.eos_token_id and ids.count(known.eos_token_id) == 1
    second = known.apply_chat_template(
        [*first, {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another?"}],
        chat_template=CHAT_TEMPLATE,
        tokenize=False,
    )
    assert second.endswith("### Response:Red.\n\n### Instruction:\nAnother?\n\n### Response:")


def test_a_model_with_a_chat_template_is_asked_through_it():
    known = tokenizer()
    known.chat_template = OTHER_TEMPLATE
    messages = [{"role": "user", "content": "Hello"}]
    model = small_model("gpt2")
    assert known.decode(Speaker(model, known).prompt(messages)) == "<user>Hello<assistant>"
    assert "### Instruction:\nHello" in known.decode(Speaker(model, known, "alpaca").prompt(messages))
    known.chat_template = "{{ raise_exception('one turn only') }}"
    with pytest.raises(ConfigError, match="refuses the conversation .one turn only.; give the template alpaca"):
        Speaker(model, known).prompt(messages)
    with pytest.raises(ConfigError, match="no chat template; give the template alpaca"):
        Speaker(model, tokenizer(), "chat")


def test_mt_bench_answers_are_fastchats(model_folder, mt_bench, tmp_path):
    result = measure(model_folder, Answers(questions=mt_bench, max_new_tokens=6), out=tmp_path / "a")
    out, rows = result.file, result.rows
    assert out.name == "mt-bench-answers.jsonl"
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert written == rows and [row["question_id"] for row in rows] == [81, 82, 83]
    for row in rows:
        assert set(row) == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
        assert row["model_id"] == "tiny" and [len(choice["turns"]) for choice in row["choices"]] == [2]


def test_alpaca_eval_outputs_are_a_list(model_folder, tmp_path):
    file = tmp_path / "eval.json.gz"
    with gzip.open(file, "wt") as out:
        json.dump([{"dataset": "helpful", "instruction": "Say yes.\u2028", "output": "Yes.", "generator": "x"}], out)
    settings = Answers(questions=file, max_new_tokens=6, model_id="ours")
    (row,) = json.loads(measure(model_folder, settings, out=tmp_path / "o").file.read_text())
    assert row["dataset"] == "helpful" and row["instruction"] == "Say yes.\u2028" and row["generator"] == "ours"
    assert isinstance(row["output"], str)


def test_a_stopped_run_resumes_and_a_finished_one_is_not_made_again(model_folder, mt_bench, tmp_path, monkeypatch):
    def answered(folder, **values):
        return measure(model_folder, Answers(questions=mt_bench, max_new_tokens=6, **values), out=tmp_path / folder)

    whole = answered("a")
    checks = iter(range(99))
    with monkeypatch.context() as patch:
        patch.setattr(type(interruption), "requested", property(lambda self: next(checks) == 1))
        with pytest.raises(Interrupted, match="stopped after 1 of 3 questions; run the same command again to resume"):
            answered("b")
    assert not (tmp_path / "b").exists()
    with (tmp_path / "b.unfinished" / "questions.jsonl").open("a") as file:
        file.write('{"key": "half a li')  # killed while it wrote
    checks = []
    with monkeypatch.context() as patch:
        patch.setattr(type(interruption), "requested", property(lambda self: bool(checks.append(1))))
        resumed = answered("b")
    assert len(checks) == 2 and not (tmp_path / "b.unfinished").exists()
    assert [row["choices"] for row in resumed.rows] == [row["choices"] for row in whole.rows]
    monkeypatch.setattr(type(interruption), "requested", True)
    assert answered("b").summary == resumed.summary
    with pytest.raises(ConfigError, match="holds another result of contextwise measure answers"):
        answered("b", seed=1)


def test_a_turn_that_is_too_long_is_kept_as_an_error(tmp_path, mt_bench):
    small_model("gpt2", positions=170).save_pretrained(tmp_path / "short")
    tokenizer().save_pretrained(tmp_path / "short")
    rows = measure(tmp_path / "short", Answers(questions=mt_bench), out=tmp_path / "a").rows
    assert all(row["choices"][0]["turns"][1] == "" for row in rows)
    first, second = rows[0]["errors"]
    assert first is None and "but the model has only 170 positions" in second


def test_published_temperatures_follow_the_category():
    settings = Answers(questions="unread", temperature="published")
    names = ("math", "writing", "stem", "roleplay")
    found = {name: settings.sampling(Question(1, name, (f"Some {name}?",))) for name in names}
    assert len({sampling.seed for sampling in found.values()}) == 4
    assert found["math"] == settings.sampling(Question(2, "math", ("Some math?",)))
    assert found["math"].greedy and not found["writing"].greedy
    assert [found[name].temperature for name in ("writing", "stem", "roleplay")] == [0.7, 0.1, 0.7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{", "x.jsonl:1 is not JSON"),
        ("[1]", "x.jsonl entry 1 is not a JSON object"),
        ('{"text": "a"}', "x.jsonl:1: instruction is missing .fields: 'text'."),
        ('{"turns": ["a"], "question_id": 1}\n{"turns": [], "question_id": 2}', "x.jsonl:2: turns is "),
        ('{"turns": ["a"], "question_id": 1}\n{"turns": ["b"], "question_id": 1}', "question '1' a second time"),
    ],
)
def test_a_wrong_file_of_questions_gets_one_sentence(tmp_path, content, message):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_questions(tmp_path / "x.jsonl")


def test_the_command_counts_what_was_too_long(tmp_path, mt_bench):
    small_model("gpt2", positions=170).save_pretrained(tmp_path / "short")
    tokenizer().save_pretrained(tmp_path / "short")
    command = ["measure", "answers", str(tmp_path / "short"), str(mt_bench), "--out", str(tmp_path / "a")]
    done = CliRunner().invoke(app, [*command, "--limit", "2"])
    assert done.exit_code == 0 and len((tmp_path / "a" / "mt-bench-answers.jsonl").read_text().splitlines()) == 2
    assert "2 of them have a turn without an answer; the first: the prompt has" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature.* is -1.0"),
        ({"temperature": "warm"}, "temperature.* is 'warm'"),
        ({"template": "vicuna"}, "template is 'vicuna'"),
    ],
)
def test_settings_out_of_range(values, message):
    with pytest.raises(ConfigError, match=message):
        validate(Answers, {"questions": "unread", **values}, "answers")
