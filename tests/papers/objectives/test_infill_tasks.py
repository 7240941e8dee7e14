"""Lines cut out of documents, and files of tasks."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import prepare_corpus
from contextwise_papers.objectives.infill.tasks import cut_line, open_tasks, tasks_label
from small import write_rows

CODE = "import os\n\n\ndef f(x):\n    y = x + 1\n    \n    return y\n"
SETS = Path(__file__).parents[4] / "shared" / "data" / "eval"


@settings(max_examples=200)
@given(text=st.text(st.sampled_from("ab \n\r\té\u2028"), max_size=30), seed=st.integers(0, 2**31))
def test_a_cut_line_goes_back_where_it_was(text: str, seed: int) -> None:
    cut = cut_line(text, seed)
    lines = text.split("\n")
    if cut is None:
        assert all(not line.strip() for line in lines[1:])
        return
    place, prefix, line, suffix = cut
    assert prefix + line + suffix == text
    assert place > 0 and line == lines[place] and line.strip()
    assert prefix.endswith("\n") and (suffix == "" or suffix.startswith("\n"))
    assert cut_line(text, seed) == cut


def test_every_line_that_may_be_cut_is() -> None:
    counts = Counter(cut_line(CODE, seed)[0] for seed in range(300))  # type: ignore[index]
    assert counts.keys() == {3, 4, 6}
    assert min(counts.values()) > 60


def test_a_line_depends_on_its_document_and_the_seed_alone(tmp_path: Path) -> None:
    texts = [f"{CODE}# {i}\n" + "".join(f"line {j}\n" for j in range(i)) for i in range(12)]
    forward = open_tasks(write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts]))
    backward = open_tasks(write_rows(tmp_path / "b.jsonl", [{"text": text} for text in reversed(texts)]))
    assert [t.expected for t in forward.tasks] == [t.expected for t in reversed(backward.tasks)]
    other = open_tasks(tmp_path / "a.jsonl", seed=1)
    assert [t.expected for t in forward.tasks] != [t.expected for t in other.tasks]


def test_a_corpus_and_its_source_give_the_same_holes(tmp_path: Path) -> None:
    texts = [CODE, "one line only", "two\nlines é\n"]
    source = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    prepare_corpus(source, "train:300", tmp_path / "corpus", validation=0.0)
    of_file = open_tasks(source)
    with pytest.raises(ConfigError, match="split is 'train', but .* is a file, which has no splits; leave it out"):
        open_tasks(source, "train")
    of_corpus = open_tasks(tmp_path / "corpus", "train")
    assert [t.prefix + t.expected + t.suffix for t in of_corpus.tasks] == [CODE, "two\nlines é\n"]
    parts = [[(t.prefix, t.expected, t.suffix) for t in result.tasks] for result in (of_file, of_corpus)]
    assert parts[0] == parts[1]
    assert (tasks_label(source, ""), tasks_label(tmp_path / "corpus", "train")) == ("texts", "corpus-train")
    assert of_file.notes == of_corpus.notes == ["1 document without a line to cut was passed over"]
    assert [t.document for t in of_corpus.tasks] == ["0", "2"]
    assert [t.document for t in of_file.tasks] == ["1", "3"]  # lines of the file
    assert len(open_tasks(tmp_path / "corpus", "train", limit=1).tasks) == 1


def test_tasks_of_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = [
        {"task_id": f"SingleLineInfilling/HumanEval/{problem}/L{line}", "entry_point": "f", "test": "assert True",
         "prompt": f"def f{problem}():\n", "suffix": "\n    return x\n", "canonical_solution": f"    x = {line}"}
        for problem in range(3) for line in range(2)
    ]  # fmt: skip
    result = open_tasks(write_rows(tmp_path / "HumanEval-SingleLineInfilling.jsonl", rows))
    assert [(t.prefix, t.expected, t.suffix) for t in result.tasks] == [
        (row["prompt"], row["canonical_solution"], row["suffix"]) for row in rows
    ]
    assert [t.document for t in result.tasks] == [f"HumanEval/{i}" for i in (0, 0, 1, 1, 2, 2)]
    assert result.notes == []
    label = tasks_label(tmp_path / "HumanEval-SingleLineInfilling.jsonl", "")
    assert label == "HumanEval-SingleLineInfilling"
    assert len(open_tasks(tmp_path / "HumanEval-SingleLineInfilling.jsonl", limit=2).tasks) == 4


def test_a_task_without_a_suffix_has_its_hole_at_the_end(tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"}
    with gzip.open(tmp_path / "tasks.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n\n" + json.dumps({**row, "task_id": "x", "suffix": "\n"}) + "\n")
    result = open_tasks(tmp_path / "tasks.jsonl.gz")
    assert [t.suffix for t in result.tasks] == ["", "\n"]
    assert tasks_label(tmp_path / "tasks.jsonl.gz", "") == "tasks"
    assert result.notes == ["1 of 2 tasks have no suffix: their hole is the end of the text"]


@pytest.mark.skipif(not SETS.is_dir(), reason="the HumanEval-infilling sets are not here")
@pytest.mark.parametrize("share", ["0.25", "0.5", "0.75"])
def test_the_sets_of_human_eval_are_read(share: str) -> None:
    result = open_tasks(SETS / f"human_eval_infill_{share}.jsonl.gz")
    assert len(result.tasks) == len({t.document for t in result.tasks}) == 98
    assert all(t.document == t.name and t.prefix and t.expected.strip() for t in result.tasks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; give a corpus"),
        ("not json\n", "holes.jsonl:1 is not JSON"),
        ("[1]\n", "holes.jsonl entry 1 is not a JSON object"),
        ('{"body": "x"}\n', "holes.jsonl:1 has no text in the field 'text'; a document has 'text', a task 'task_id'"),
        (
            '{"task_id": "a", "prompt": "p", "suffix": "s", "canonical_solution": "c"}\n\n{"task_id": "b"}\n',
            "holes.jsonl:3 has no text in the field 'prompt'",
        ),
        (
            '{"task_id": "a", "prompt": "p", "suffix": null, "canonical_solution": "c"}\n',
            "no text in the field 'suffix'",
        ),
        ('{"text": "one line"}\n', "gives no line to fill"),
    ],
)
def test_files_of_other_things_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "holes.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        open_tasks(path)


def test_a_place_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no corpus at"):
        open_tasks(tmp_path / "nowhere")
    (tmp_path / "train.bin").write_bytes(bytes(40))
    with pytest.raises(DataError, match="comes without a tokenizer, so its lines are not known"):
        open_tasks(tmp_path / "train.bin")
