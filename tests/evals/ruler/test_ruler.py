"""``contextwise measure ruler``, as it is typed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from contextwise.data.tokenizers import byte_tokenizer
from small import save_model, small_gpt2, write_rows


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes with random weights, and questions."""
    folder = tmp_path_factory.mktemp("ruler")
    save_model(folder / "models" / "tiny", small_gpt2(positions=2300, initializer_range=0.3))
    shutil.copytree(folder / "models" / "tiny", folder / "models" / "chat")
    tokenizer = byte_tokenizer().tokenizer
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [answer] "
    tokenizer.save_pretrained(folder / "models" / "chat")
    rows = [
        {
            "id": str(i),
            "title": f"Towns {i // 5}",
            "context": f"The town of X{i} lies at the river number {i}. " * 2,
            "question": f"At which river does X{i} lie?",
            "answers": {"text": [f"number {i}"], "answer_start": [31]},
        }
        for i in range(40)
    ]
    write_rows(folder / "towns.jsonl", rows)
    (folder / "wrong.jsonl").write_text('{"text": "a", "label": 0}\n')
    return folder


@pytest.mark.long
def test_all_tasks_are_asked_and_reported(contextwise: Any, workplace: Path) -> None:
    command = "measure ruler models/tiny --qa towns.jsonl --length 1200 --visible 100,1200"
    command += " --samples 3 --gamma 2 --no-example"
    words = contextwise.words(command)
    (out,) = (workplace / "evaluation" / "tiny").glob("ruler-1200-gamma-2-*")
    summary = json.loads((out / "summary.json").read_text())
    rows = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert list(summary["results"]) == ["qa_1", "fwe", "cwe", "vt"] and len(rows) == 12
    titles = ("document QA", "frequent words", "common words", "variable tracking")
    for name, title in zip(summary["results"], titles, strict=True):
        assert f"{name}, {title}: 3 questions, texts of" in words
    for result in summary["results"].values():
        for row in result["accuracies"]:
            assert f"{row['visible']:,} {row['accuracy']['value']:.4f} [" in words
            assert f"] {row['in_view']:.1%} {row['best_share']:.1%}" in words
    for wanted in ("gamma 2: P(x) ~ (1 - x/1,200)^2", f"written to evaluation/tiny/{out.name}/"):
        assert wanted in words
    # Asked again, in JSON, it is the same measurement: nothing is answered a second time.
    assert json.loads(contextwise(f"{command} --json")[1]) == summary


def test_a_chat_model_is_asked_through_its_template(contextwise: Any, workplace: Path) -> None:
    command = "measure ruler models/chat --tasks vt --length 1200 --visible 300 --samples 2"
    words = contextwise.words(f"{command} --chat --out chat --device cpu")
    assert "models/chat, in its chat template: texts of up to 1,200 tokens" in words
    assert "chat template" not in contextwise.words(f"{command} --out plain")
    chat, without = ((workplace / name / "answers.jsonl").read_text() for name in ("chat", "plain"))
    assert chat != without  # the marks of the template were read
    for a, b in zip(map(json.loads, chat.splitlines()), map(json.loads, without.splitlines()), strict=True):
        assert (a["question"], a["needles"], a["answers"]) == (b["question"], b["needles"], b["answers"])


def test_needles_are_measured_and_reported(contextwise: Any, workplace: Path) -> None:
    command = "measure needles models/tiny --length 1200 --masked 0,600,1200 --samples 4"
    words = contextwise.words(command)
    (out,) = (workplace / "evaluation" / "tiny").glob("needles-1200-*")
    summary = json.loads((out / "summary.json").read_text())
    for row, seen in zip(summary["rows"], ("100% 100%", "0% 100%", "0% 0%"), strict=True):
        assert f"{row['masked']:,} {row['nats']['value']:.4f} [" in words and seen in words
    assert f"written to evaluation/tiny/{out.name}/" in words
    assert json.loads(contextwise(f"{command} --json")[1]) == summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("models/none --tasks vt", "there is no run and no model at models/none"),
        ("--qa wrong.jsonl", "wrong.jsonl:1: context is missing, question is missing, answers is missing"),
        ("--qa none.jsonl", "qa is none.jsonl, which cannot be read: No such file"),
        ("--tasks vt --samples 1", "has 2,300 positions, but a question of vt needs"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(contextwise: Any, arguments: str, message: str) -> None:
    model = "" if arguments.startswith("models/") else "models/tiny "
    contextwise.refused(f"measure ruler {model}{arguments}", message)
