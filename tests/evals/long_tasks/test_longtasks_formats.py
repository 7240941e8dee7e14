"""Lines of LongBench's and L-Eval's files as questions, and what is said about wrong ones."""

import gzip
import json

import pytest

from contextwise.base.errors import DataError
from contextwise_evals.long_tasks.items import chosen_items, read_items
from longtasks_files import leval_line, longbench_line, needs_longbench
from small import write_rows

pytest.importorskip("lm_eval", reason="needs contextwise[eval]")


def test_a_longbench_line_is_a_question(tmp_path):
    path = write_rows(
        tmp_path / "lines.jsonl", [longbench_line(3), longbench_line(4, dataset="trec_e", all_classes=["number 104"])]
    )
    (first, second), notes = read_items([path])
    line = longbench_line(3)
    assert (first.context, first.question) == (line["context"], line["input"])
    assert (first.answers, first.length, first.chinese) == (("number 103",), 3000, False)
    assert (first.metric, first.group, first.new_tokens) == ("qa_f1", "Multi-Doc", 32)
    assert first.where == f"{path}:1" and not first.few_shot
    # LongBench-E's names are those of LongBench's tasks.
    assert (second.metric, second.group, second.new_tokens) == ("classification", "Code & Class.", 64)
    assert second.few_shot and notes == []


def test_a_line_may_say_its_own_prompt_metric_group_and_length(tmp_path):
    own = {"dataset": "mine", "metric": "count", "group": "Mine", "max_new_tokens": 7, "prompt": "{context}?"}
    line = {k: v for k, v in longbench_line(1, answers=["3"], **own).items() if k not in ("length", "_id")}
    (item,), _ = read_items([write_rows(tmp_path / "own.jsonl", [line])])
    assert (item.metric, item.group, item.new_tokens, item.template) == ("count", "Mine", 7, "{context}?")
    assert item.length == len(line["context"].split())


def test_an_leval_line_is_a_question_for_each_instruction(tmp_path):
    path = tmp_path / "leval_tpo.jsonl.gz"
    path.write_bytes(
        gzip.compress(("\ufeff" + json.dumps(leval_line(0)) + "\n\n" + json.dumps(leval_line(1))).encode())
    )
    items, _ = read_items([path])
    assert [item.dataset for item in items] == ["tpo"] * 4
    assert [item.where for item in items] == [f"{path}:{n}, question {q}" for n in (1, 3) for q in (1, 2)]
    assert items[0].document == items[1].document != items[2].document
    assert (items[1].question, items[1].answers, items[1].metric) == ("True or False?", ("True [fact: False]",), "exam")
    assert items[0].length == 2 + 5 * 30


def test_questions_on_one_text_are_of_one_document(tmp_path):
    lines = [longbench_line(0), longbench_line(0, input="And the lock?"), longbench_line(1)]
    items, _ = read_items([write_rows(tmp_path / "x.jsonl", lines)])
    assert items[0].document == items[1].document != items[2].document


@needs_longbench
def test_a_limit_takes_questions_of_as_many_texts_as_possible(tmp_path):
    lines = [leval_line(i) for i in range(3)]
    asked = [
        [item.question for item in chosen_items([write_rows(tmp_path / "leval_quiz.jsonl", lines)], limit=n)[0]]
        for n in (None, 2, 4)
    ]
    every = [line["instructions"] for line in lines]
    assert asked[0] == [question for questions in every for question in questions]
    assert asked[1] == [every[0][0], every[1][0]]
    assert asked[2] == [*every[0][:2], every[1][0], every[2][0]]


def test_questions_for_judges_are_left_out_and_counted(tmp_path):
    path = write_rows(
        tmp_path / "x.jsonl", [leval_line(0), leval_line(1, evaluation="LLM"), leval_line(2, evaluation="human")]
    )
    items, notes = read_items([path])
    assert len(items) == 2 and notes == [f"2 documents of {path} are for judges, without a metric; they were left out"]
    with pytest.raises(DataError, match="no question can be scored: 1 documents of"):
        read_items([write_rows(tmp_path / "y.jsonl", [leval_line(evaluation="LLM")])])


WRONG = [
    ({"text": "a", "label": 0}, r"x.jsonl:2: 'context' is missing, 'input' is missing, 'answers' is missing, "
     r"'dataset' is missing \(fields: 'text', 'label'\); "
     r"a line of LongBench has 'context', 'input', 'answers' and 'dataset'; one of L-Eval"),
    (longbench_line(answers="number 100", length="long"),
     r"'answers' is wrong \(.*valid list\), 'length' is wrong \(.*valid integer\)"),
    (longbench_line(answers=[]), "'answers' is wrong"),
    (longbench_line(answers=[3]), r"'answers\.0' is wrong \(.*valid string\)"),
    (longbench_line(context=""), "'context' is wrong"),
    (longbench_line(dataset="mine"),
     "'dataset' is 'mine', which is none of LongBench's; add the field 'metric', one of qa_f1, rouge"),
    (longbench_line(metric="bleu"), "'metric' is wrong"),
    (longbench_line(dataset="trec"), "'answers' must be among 'all_classes'"),
    (longbench_line(dataset="passage_retrieval_en"), "'answers' must be of the form 'Paragraph 12'"),
    (longbench_line(max_new_tokens=0), "'max_new_tokens' is wrong"),
    (leval_line(outputs=["B"]), "'instructions' has 2 entries, but 'outputs' 1; each question needs one answer"),
    (leval_line(evaluation="bleu"), "'evaluation' is 'bleu'; it must be one of exam, f1, rouge, LLM, human"),
    ({"input": "x", "instructions": ["a"]}, "'outputs' is missing, 'evaluation' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_wrong_fields_are_all_named_with_their_line(tmp_path, line, message):
    with pytest.raises(DataError, match=message) as error:
        read_items([write_rows(tmp_path / "x.jsonl", [longbench_line(), line])])
    assert "x.jsonl:2" in str(error.value) and "\n" not in str(error.value)


def test_wrong_files(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*none\.jsonl"):
        read_items([tmp_path / "none.jsonl"])
    with pytest.raises(DataError, match=r"empty\.jsonl is empty; give JSON Lines"):
        read_items([write_rows(tmp_path / "empty.jsonl", [])])


@pytest.mark.parametrize(
    ("name", "metric", "new_tokens"),
    [("tpo", "exam", 16), ("gsm100", "exam", 512), ("coursera", "options", 512), ("codeU", "code_output", 512)],
)
def test_exams_of_long_answers_have_room_and_a_metric_of_their_own(tmp_path, name, metric, new_tokens):
    items, _ = read_items([write_rows(tmp_path / f"leval_{name}.jsonl", [leval_line()])])
    assert {(item.metric, item.new_tokens, item.group) for item in items} == {(metric, new_tokens, "Exams")}
