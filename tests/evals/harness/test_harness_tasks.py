"""Tasks by name: the harness's own, those of a folder of YAML files, and what is said where something is wrong."""

import json

import pytest

pytest.importorskip("lm_eval", reason="needs contextwise[eval]")

from harness_sets import arc_lines, define, few_tasks, write_lines

from contextwise.base.errors import ConfigError, DataError
from contextwise_evals.harness.tasks import load_tasks, plan_tasks
from long_questions import define_long, long_line, needs_longbench

OLMO = {
    "task": "mine",
    "output_type": "multiple_choice",
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "query",
    "doc_to_choice": "choices",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch):
    monkeypatch.setattr("contextwise_evals.harness.tasks.harness_tasks", few_tasks)


def olmo(folder, rows):
    files = {"test": str(write_lines(folder / "mine.jsonl.gz", rows))}
    (folder / "mine.yaml").write_text(json.dumps(OLMO | {"dataset_kwargs": {"data_files": files}}))


def prompts(task):
    task.build_all_requests()
    return [request.args for request in task.instances], [task.doc_to_target(doc) for doc in task.eval_docs]


def test_a_definition_of_yours_gives_the_prompts_of_the_harness_s(tmp_path):
    rows = arc_lines(6)
    define(tmp_path, "arc_easy", test=rows)
    gold = [row["choices"]["label"].index(row["answerKey"]) for row in rows]
    queries = [f"Question: {row['question']}\nAnswer:" for row in rows]
    texts = [row["choices"]["text"] for row in rows]
    olmo(tmp_path, [{"query": q, "choices": c, "gold": g} for q, c, g in zip(queries, texts, gold, strict=True)])
    tasks = load_tasks(["arc_easy", "mine"], tmp_path)
    assert prompts(tasks["arc_easy"]) == prompts(tasks["mine"])
    assert prompts(tasks["mine"])[1] == gold


def test_content_is_that_of_definition_documents_and_examples(tmp_path):
    def content(shots):
        return plan_tasks(["arc_easy"], [shots], tmp_path)[0].content

    define(tmp_path, "arc_easy", test=arc_lines(6), train=arc_lines(9, seed=1))
    alone, with_examples = content(0), content(2)
    assert content(0) == alone != with_examples
    define(tmp_path, "arc_easy", test=arc_lines(6), train=arc_lines(9, seed=2))
    assert content(2) != with_examples
    define(tmp_path, "arc_easy", test=arc_lines(6, seed=3), train=arc_lines(9, seed=2))
    assert content(0) != alone


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("hellaswig", ConfigError, "did you mean 'hellaswag'"),
        ("beam", ConfigError, "did you mean 'beams'"),
        ("sampled", ConfigError, r"'sampled' draws its answers at random \(do_sample\), which is not supported"),
        ("beams", ConfigError, "'beams' sets num_beams for generation, which is not supported"),
        ("zzzzzzzzzz", ConfigError, "has no task"),
        ("mine", DataError, r"mine: .*nowhere.jsonl"),
        ("empty", DataError, "empty: lm-evaluation-harness cannot load the task"),
    ],
)
def test_unknown_tasks_and_damaged_files_are_told(tmp_path, name, error, message):
    for task, options in (("sampled", {"do_sample": True, "temperature": 0.7}), ("beams", {"num_beams": 2})):
        define_long(tmp_path, task, [long_line()], generation_kwargs=options)
    (tmp_path / "empty.jsonl").write_text("")
    for task, file in (("mine", "nowhere.jsonl"), ("empty", "empty.jsonl")):
        files = {"test": str(tmp_path / file)}
        (tmp_path / f"{task}.yaml").write_text(
            json.dumps(OLMO | {"task": task, "dataset_kwargs": {"data_files": files}})
        )
    with pytest.raises(error, match=message):
        load_tasks([name], tmp_path)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="there is no such folder"):
        load_tasks(["arc_easy"], tmp_path / "nowhere")


def test_a_tag_stands_for_its_tasks(monkeypatch):
    import datasets

    rows = datasets.DatasetDict(
        dict.fromkeys(("train", "validation", "test"), datasets.Dataset.from_list(arc_lines(2)))
    )
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: rows)
    assert set(load_tasks(["ai2_arc"], None)) == {"arc_challenge", "arc_easy"}


def test_too_few_examples_are_told(tmp_path):
    define(tmp_path, "arc_easy", test=arc_lines(6), train=arc_lines(3))
    with pytest.raises(DataError, match="has 3 documents for examples, which are too few to take 5"):
        plan_tasks(["arc_easy"], [5], tmp_path)
    (plan,) = plan_tasks(["arc_easy"], [3], tmp_path)  # all of them: the questions are others
    document = plan.task.task_docs[0]
    assert plan.task.fewshot_context(document, 3).count("Question:") == 4


@needs_longbench
def test_documents_of_a_range_of_lengths_are_kept(tmp_path):
    define_long(tmp_path, "keys", [long_line(i) for i in range(6)])
    every, some = (plan_tasks(["keys"], [0], tmp_path, lengths)[0] for lengths in (None, (2000, 4000)))
    assert [document["length"] for document in some.task.eval_docs] == [2000, 3000]
    assert len(every.task.eval_docs) == 6 and every.content != some.content
    with pytest.raises(DataError, match="from 6,000 to below any words: the shortest has 0, the longest 5,000"):
        load_tasks(["keys"], tmp_path, (6000, None))
    define(tmp_path, "arc_easy", test=arc_lines(2))
    with pytest.raises(ConfigError, match="'arc_easy' have no field 'length'"):
        load_tasks(["arc_easy"], tmp_path, (0, 4000))
