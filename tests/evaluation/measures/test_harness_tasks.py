"""Local files of tasks: the same prompts as with the Hub's fields, and what is said where something is wrong."""

import json
import random

import pytest

pytest.importorskip("lm_eval", reason="needs contextwise[eval]")

from harness_sets import arc_in_olmo_form, arc_lines, few_tasks, hellaswag_lines, lambada_lines, sentence, write_lines
from lm_eval.tasks.hellaswag.utils import preprocess

from contextwise.base.errors import ConfigError, DataError
from contextwise.evaluation.measures.lm_eval.files import articles, read_rows, template_fields
from contextwise.evaluation.measures.lm_eval.tasks import LocalData, Missing, find_tasks


def planned(path, name, shots=0):
    return LocalData(path).plan(*find_tasks([name]), shots)


def prompts(path, name, shots=0):
    """Everything that the harness would ask of a model, and the right answers."""
    task = planned(path, name, shots).task
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(1234)
    task.build_all_requests()
    return [request.args for request in task.instances], [task.doc_to_target(doc) for doc in task.eval_docs]


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch):
    monkeypatch.setattr("contextwise.evaluation.measures.lm_eval.tasks.harness_tasks", few_tasks)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "sets"
    path.mkdir()
    return path


def test_olmo_s_arc_gives_the_hub_s_prompts(folder, tmp_path):
    rows, examples = arc_lines(12), arc_lines(9, seed=1)
    write_lines(folder / "arc_easy_test.jsonl", rows)
    write_lines(folder / "arc_easy_train.jsonl", examples)
    other = tmp_path / "olmo"
    other.mkdir()
    write_lines(other / "arc_easy_test.jsonl.gz", arc_in_olmo_form(rows))
    write_lines(other / "arc_easy_train.jsonl.gz", arc_in_olmo_form(examples))
    for shots in (0, 5):
        expected, targets = prompts(folder, "arc_easy", shots)
        assert (expected, targets) == prompts(other, "arc_easy", shots)
    assert targets == [row["choices"]["label"].index(row["answerKey"]) for row in rows]
    assert expected[0][0].count("Question: ") == 6
    assert expected[0][0].endswith(f"Question: {rows[0]['question']}\nAnswer:")
    assert expected[0][1] == f" {rows[0]['choices']['text'][0]}"


def test_prepared_hellaswag_gives_the_hub_s_prompts(folder, tmp_path):
    rows = hellaswag_lines(8)
    write_lines(folder / "hellaswag_validation.jsonl", rows)
    other = tmp_path / "prepared"
    other.mkdir()
    queries = [preprocess(f"{r['activity_label']}: {r['ctx_a']} {r['ctx_b'].capitalize()}") for r in rows]
    lines = [
        {"query": query, "choices": [preprocess(e) for e in row["endings"]], "gold": int(row["label"])}
        for query, row in zip(queries, rows, strict=True)
    ]
    write_lines(other / "hellaswag_val_1k.jsonl", lines)
    expected = prompts(folder, "hellaswag")
    assert expected == prompts(other, "hellaswag")
    assert "[" not in expected[0][0][0]
    assert expected[1] == [int(row["label"]) for row in rows]


def race_lines():
    draw = random.Random(0)
    return [
        {
            "article": f"Article {i // 3}.",
            "question": f"Who {sentence(draw, 2)}?",
            "options": [f"{sentence(draw, 1)} {j}" for j in range(4)],
            "answer": "ABCD"[i % 4],
        }
        for i in range(9)
    ]


def test_race_by_questions_is_gathered_by_articles(folder, tmp_path):
    rows = race_lines()
    write_lines(folder / "race_test.jsonl", rows)
    other = tmp_path / "hub"
    other.mkdir()
    gathered = [
        {
            "article": f"Article {i}.",
            "problems": str([{k: r[k] for k in ("question", "answer", "options")} for r in rows[3 * i : 3 * i + 3]]),
        }
        for i in range(3)
    ]
    write_lines(other / "race_test.jsonl", gathered)
    asked, targets = prompts(folder, "race")
    assert (asked, targets) == prompts(other, "race")
    assert targets == ["ABCD".index(rows[i]["answer"]) for i in (2, 5, 8)]
    assert asked[0][0].startswith("Article: Article 0.\n\nQuestion: ")


def test_race_may_be_asked_of_the_sat_s_lines(folder, tmp_path):
    rows, other = race_lines(), tmp_path / "sat"
    write_lines(folder / "race_test.jsonl", rows)
    other.mkdir()
    lines = []
    for row in rows:
        options = "".join(f"{letter}.) {text}\n" for letter, text in zip("ABCD", row["options"], strict=True))
        query = f"Passage: {row['article']}\nQ: {row['question']}\nChoices:\n{options}Answer:"
        lines.append({"query": query, "choices": list("ABCD"), "gold": "ABCD".index(row["answer"])})
    write_lines(other / "race_test.jsonl", lines)
    assert prompts(other, "race") == prompts(folder, "race")
    write_lines(other / "race_test.jsonl", [lines[0] | {"query": "Passage: none"}])
    with pytest.raises(DataError, match="document 1: 'query' must read 'Passage: '"):
        prompts(other, "race")


def test_wikitext_is_cut_at_its_headings(folder):
    text = " \n = Alpha = \n \n One two . \n \n = = Part = = \n \n Three . \n \n = Beta = \n \n Four . \n "
    (folder / "wikitext_test.txt").write_text(text)
    asked, _ = prompts(folder, "wikitext")
    assert len(asked) == 2
    assert asked[0][0].startswith(" = Alpha =\n") and "== Part ==" in asked[0][0] and "Beta" not in asked[0][0]
    assert "\n".join(articles("= A = \nx\n= B = \ny")) == "= A = \nx\n= B = \ny"


def test_examples_come_from_where_the_harness_takes_them(folder):
    write_lines(folder / "arc_easy_test.jsonl", arc_lines(6))
    write_lines(folder / "arc_easy_validation.jsonl", arc_lines(7, seed=5))
    plan = planned(folder, "arc_easy", 2)
    assert plan.source["examples"] == "validation"
    assert plan.notes == ("arc_easy takes its examples from validation, in the harness from train",)
    write_lines(folder / "arc_easy_train.jsonl", arc_lines(8, seed=6))
    plan = planned(folder, "arc_easy", 2)
    assert (plan.source["examples"], plan.notes) == ("train", ())
    assert [file["documents"] for file in plan.source["files"]] == [6, 8]


def test_the_evaluated_split_gives_examples_only_if_that_is_said(folder):
    write_lines(folder / "hellaswag_validation.jsonl", hellaswag_lines(4))
    assert planned(folder, "hellaswag", 2) == [Missing("hellaswag", 2, "hellaswag_train.jsonl", examples=True)]
    (folder / "tasks.yaml").write_text("tasks: {hellaswag: {examples: validation}}")
    asked, _ = prompts(folder, "hellaswag", 3)
    last = [context.split("\n\n") for context, _ in asked[::4]]
    assert all(len(parts) == 4 and not any(shot.startswith(parts[-1]) for shot in parts[:-1]) for parts in last)
    write_lines(folder / "arc_easy_test.jsonl", arc_lines(4))
    (folder / "tasks.yaml").write_text("tasks: {arc_easy: {examples: test}}")
    asked, _ = prompts(folder, "arc_easy", 3)
    last = [context.split("\n\n") for context, _ in asked[::4]]
    assert all(len(parts) == 4 and not any(shot.startswith(parts[-1]) for shot in parts[:-1]) for parts in last)


def test_a_set_that_is_not_there_is_named(folder):
    write_lines(folder / "arc_easy_train.jsonl", arc_lines(3))
    assert planned(folder, "arc_easy") == [Missing("arc_easy", 0, "arc_easy_test.jsonl", examples=False)]
    write_lines(folder / "arc_easy_dev.jsonl", arc_lines(3))
    plan = planned(folder, "arc_easy")
    assert plan.notes == ("arc_easy is evaluated on validation, in the harness on test",)
    assert plan.source["split"] == "validation"


def test_a_file_without_a_split_is_the_one_that_is_evaluated(folder):
    write_lines(folder / "lambada_openai.jsonl", lambada_lines(3))
    write_lines(folder / "lambada_openai_mt_en.jsonl", [{"other": 1}])  # another task's
    write_lines(folder / "lambada_standard-dev.jsonl", lambada_lines(4))
    assert planned(folder, "lambada_openai").source["files"][0]["documents"] == 3
    assert planned(folder, "lambada_standard").source["split"] == "validation"


def test_a_mapping_file_names_files_and_fields(folder, tmp_path):
    rows = [{"prompt": "boil", "a": "water", "b": "stone", "meta": {"gold": 1}}]
    write_lines(tmp_path / "mine.jsonl", rows)
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(
        "folder: sets\ntasks: {piqa: {splits: {validation: {file: mine.jsonl, "
        "fields: {goal: prompt, sol1: a, sol2: b, label: meta.gold}}}}}"
    )
    asked, targets = prompts(mapping, "piqa")
    assert asked == [("Question: boil\nAnswer:", " water"), ("Question: boil\nAnswer:", " stone")]
    assert targets == [1]


def test_parquet_and_json_lists_are_read(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = lambada_lines(3)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert read_rows(tmp_path / "a.parquet") == read_rows(tmp_path / "a.json") == rows


def test_lines_end_at_line_feeds_alone(tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"text": "one\u2028two"}])
    (tmp_path / "a.jsonl").write_text('{"text": "one\u2028two"}\n', encoding="utf-8")
    assert read_rows(tmp_path / "a.jsonl") == [{"text": "one\u2028two"}]


def test_a_task_that_nobody_described_takes_the_fields_of_its_templates(folder):
    (copa,) = find_tasks(["commonsense_qa"])
    assert {"question", "choices"} <= set(template_fields(copa.config))
    write_lines(folder / "commonsense_qa_validation.jsonl", [{"question": "q"}])
    with pytest.raises(DataError, match=r"has the fields question, but .*choices.* are needed"):
        planned(folder, "commonsense_qa")


WRONG = [
    ("arc_easy_test.jsonl", {"question": "q", "answer": 1}, "has the fields question, answer, but question, choices,"),
    ("arc_easy_test.jsonl", {"query": "q", "choices": ["a"], "gold": 0}, "document 1: 'query' must read 'Question: '"),
    ("hellaswag_val.jsonl", {"query": "q", "choices": ["a", "b"], "gold": 2}, "'gold' is 2, but must be from 0 to 1"),
    ("winogrande_val.jsonl", {"sentence": "s", "option1": "a", "option2": "b", "answer": "1"}, "'sentence' has no '_'"),
    ("lambada_openai.jsonl", {"text": "one"}, "must have several words"),
    ("piqa_val.jsonl", {"goal": "g", "sol1": "a", "sol2": "b", "label": "x"}, "'label' is 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "message"), WRONG)
def test_wrong_fields_are_named(folder, name, row, message):
    write_lines(folder / name, [row])
    (task,) = (t for t in ("arc_easy", "hellaswag", "winogrande", "lambada_openai", "piqa") if name.startswith(t))
    with pytest.raises(DataError) as error:
        planned(folder, task)
    assert message in str(error.value) and name in str(error.value)


def test_a_later_line_without_a_field_is_named(folder):
    write_lines(folder / "lambada_openai.jsonl", [{"text": "one two"}, {"txt": "three four"}])
    with pytest.raises(DataError, match=r"lambada_openai.jsonl, document 2: there is no field text"):
        planned(folder, "lambada_openai")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no documents"),
        ('{"text": "a b"}\n{"text":', ":2 is not JSON"),
        ('["text"]', "entry 1 is not a JSON object; give JSON objects, each with the fields"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_damaged_files_are_named(folder, content, message):
    file = folder / "lambada_openai.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        planned(folder, "lambada_openai")


def test_two_files_for_one_split_are_named(folder):
    for name in ("piqa_val.jsonl", "piqa_valid.jsonl"):
        write_lines(folder / name, [{"goal": "g", "sol1": "a", "sol2": "b", "label": 0}])
    with pytest.raises(DataError, match=r"both piqa_val.jsonl and piqa_valid.jsonl"):
        planned(folder, "piqa")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: {piqu: {}}", "names a task 'piqu'"),
        ("tasks: {piqa: {splits: {test: a.jsonl}}}", "names the split 'test' of piqa, which has train, validation"),
        ("tasks: {piqa: {split: {}}}", "tasks.piqa.split is an unknown key"),
        ("[1", "is not valid YAML"),
        ("folder: nowhere", "names the folder"),
    ],
)
def test_wrong_mappings_are_told(folder, text, message):
    (folder / "tasks.yaml").write_text(text)
    with pytest.raises((ConfigError, DataError), match=message):
        planned(folder, "piqa")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hellaswig", "did you mean 'hellaswag'"),
        ("xcopa", "is a group"),
        ("arc_challenge_chat", "is a generation task"),
        ("zzzzzzzzzz", "has no task"),
    ],
)
def test_unknown_tasks_are_told(name, message):
    with pytest.raises(ConfigError, match=message):
        find_tasks([name])


def test_a_tag_stands_for_its_tasks():
    assert [task.name for task in find_tasks(["ai2_arc"])] == ["arc_challenge", "arc_easy"]


def test_too_few_examples_are_told(folder):
    write_lines(folder / "arc_easy_test.jsonl", arc_lines(6))
    write_lines(folder / "arc_easy_train.jsonl", arc_lines(3))
    with pytest.raises(DataError, match="has 3 documents, which are too few to take 5 examples"):
        planned(folder, "arc_easy", 5)


def test_both_splits_must_be_in_one_state(folder):
    write_lines(folder / "hellaswag_validation.jsonl", hellaswag_lines(4))
    write_lines(folder / "hellaswag_train.jsonl", [{"query": "q", "choices": ["a", "b"], "gold": 0}] * 4)
    with pytest.raises(DataError, match="hold different forms of lines"):
        planned(folder, "hellaswag", 2)
