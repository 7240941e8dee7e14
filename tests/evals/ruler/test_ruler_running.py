"""A whole measurement: by a reader whose accuracy is known, by small models, interrupted and resumed."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruler_reader import BYTES, WholeParagraphReader, write_squad

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, Interrupted
from contextwise.evaluation.kernel import Result, Subject, Work, measure
from contextwise.evaluation.scoring.windows import batches
from contextwise.models import load_model
from contextwise_evals.answering.prompts import Encoded, Encoder, answer_all
from contextwise_evals.answering.readers import ModelReader
from contextwise_evals.ruler import Ruler
from contextwise_evals.ruler.results import task_results
from measured import make_model, stopped_and_resumed
from small import save_model, small_gpt2

VISIBLE = (100, 300, 500, 700, 900)


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squad(tmp_path_factory.mktemp("squad") / "squad.jsonl")


def asked(squad: Path, **values: Any) -> tuple[list[Any], dict[str, list[Encoded]]]:
    encoder = Encoder(BYTES)
    settings = Ruler(tasks=["qa_1"], length=900, qa=squad, samples=30, **values)
    tasks, _ = settings.make_tasks(encoder)
    return tasks, settings.encode(tasks, encoder)


def answered(
    reader: Any, questions: dict[str, list[Encoded]], work: Path, batch_tokens: int = 3000, **options: Any
) -> Any:
    work_of = Work(work, "key", {})
    return answer_all(reader, questions, {"qa_1": 32}, VISIBLE, work_of, batch_tokens=batch_tokens, **options)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_a_perfect_readers_accuracy_is_the_share_of_paragraphs_in_view(
    tmp_path: Path, squad: Path, gamma: float
) -> None:
    (task,), questions = asked(squad, gamma=gamma)
    answers = answered(WholeParagraphReader(), questions, tmp_path / "out", 5000)
    result, rows = task_results(task, questions["qa_1"], VISIBLE, answers)
    for row in result["accuracies"]:
        # From the texts alone: how many paragraphs begin within the last ``visible`` characters?
        inside = [len(q.question.body) - q.question.needles[0][0] <= row["visible"] for q in questions["qa_1"]]
        assert row["accuracy"]["value"] == row["in_view"] == pytest.approx(np.mean(inside))
    accuracies = [row["accuracy"]["value"] for row in result["accuracies"]]
    assert accuracies == sorted(accuracies) and accuracies[-1] == 1 and 0 < accuracies[1] < 1
    assert result["optimum"] == {"visible": 900, "share": pytest.approx(1, abs=0.05), "accuracy": 1.0}
    for row, question in zip(rows, questions["qa_1"], strict=True):
        (needle,) = row["needles"]
        assert needle == list(question.needles[0]) and needle[1] - needle[0] == 80
        assert [answered["score"] for answered in row["answered"]] == [
            float(needle[1] <= visible) for visible in VISIBLE
        ]


def test_every_visible_context_gets_the_same_questions_once(tmp_path: Path, squad: Path) -> None:
    _, questions = asked(squad)
    for number, mixed_up_to in enumerate((math.inf, 400)):
        reader = WholeParagraphReader()
        answers = answered(reader, questions, tmp_path / str(number), mixed_up_to=mixed_up_to)
        assert set(answers) == {("qa_1", visible, i) for visible in VISIBLE for i in range(30)}
        for lengths in reader.batches:
            assert len(lengths) == 1 or len(lengths) * (max(lengths) + 32) <= 3000
            assert len(set(lengths)) == 1 or max(lengths) + 32 <= mixed_up_to
        assert max(reader.batches[0]) == max(map(max, reader.batches))  # one too large for the memory fails at once
    first = questions["qa_1"][0]
    assert first.prompt(100)[: len(first.head)] == first.prompt(900)[: len(first.head)]
    assert first.prompt(100)[len(first.head) :] == first.prompt(900)[-(100 + len(first.tail)) :]


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "contextlm"])
def test_a_batch_gets_the_answers_that_each_prompt_gets_alone(kind: str) -> None:
    reader = ModelReader(make_model(kind, vocab_size=257, n_positions=64), BYTES)
    draw = np.random.default_rng(3)
    prompts = [draw.integers(32, 120, size).tolist() for size in (3, 17, 30, 8)]
    together = reader.answer(prompts, 20)
    assert together == [reader.answer([prompt], 20)[0] for prompt in prompts]
    assert len(set(together)) > 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with 1,700 positions that reads bytes, with random weights."""
    made = small_gpt2(positions=1700, initializer_range=0.3, eos_token_id=256)
    return save_model(tmp_path_factory.mktemp("model") / "tiny", made)


def measured(model: Path, squad: Path, out: Path, **values: Any) -> Result:
    settings: dict[str, Any] = {"tasks": ["qa_1", "vt"], "length": 600, "qa": squad, "samples": 4}
    settings |= {"visible": [50, 600], "gamma": 1.0, "example": False, **values}
    return measure(model, Ruler(**settings), out=out, batch_tokens=4000)


def test_a_measurement_plans_batches_by_where_the_models_frequencies_follow_the_length(
    tmp_path: Path, model: Path, squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[float] = []

    def noted(lengths: np.ndarray, batch_tokens: int, mixed_up_to: float) -> Any:
        planned.append(mixed_up_to)
        return batches(lengths, batch_tokens, mixed_up_to)

    monkeypatch.setattr("contextwise.evaluation.scoring.windows.batches", noted)
    monkeypatch.setattr(ModelReader, "answer", lambda reader, prompts, new_tokens: [""] * len(prompts))
    monkeypatch.setattr("contextwise.models.rope.same_frequencies_up_to", lambda model: 123)
    measured(model, squad, tmp_path / "out", tasks=["qa_1"])
    assert set(planned) == {123}


@pytest.mark.long
def test_an_interrupted_measurement_ends_like_an_uninterrupted_one(
    tmp_path: Path, model: Path, squad: Path, stop_at: Callable
) -> None:
    stop_at(3)
    with pytest.raises(Interrupted, match="while the questions were made; run the same command again"):
        measured(model, squad, tmp_path / "stopped")
    stop_at(0)
    stopped_and_resumed(lambda out: measured(model, squad, out), tmp_path, stop_at, 9 + 2)
    whole = Result.open(tmp_path / "whole")
    rows = whole.rows_of("answers")
    assert Result.open(tmp_path / "stopped").rows_of("answers") == rows
    assert [(row["task"], row["index"]) for row in rows] == [(t, i) for t in ("qa_1", "vt") for i in range(4)]
    for name, result in whole.summary["results"].items():
        for i, row in enumerate(result["accuracies"]):
            scores = [r["answered"][i]["score"] for r in rows if r["task"] == name]
            assert row["accuracy"]["value"] == pytest.approx(np.mean(scores))
    # A finished measurement is not made again, and one with other settings does not replace it.
    stop_at(1)
    assert measured(model, squad, tmp_path / "whole").summary == whole.summary
    with pytest.raises(ConfigError, match="holds another result of contextwise measure ruler"):
        measured(model, squad, tmp_path / "whole", seed=1)


def test_answers_are_what_the_model_writes_behind_the_prompt(tmp_path: Path, model: Path, squad: Path) -> None:
    import torch

    row = measured(model, squad, tmp_path / "out").rows_of("answers")[1]
    settings = Ruler(tasks=["qa_1"], length=600, qa=squad, samples=2, gamma=1.0)
    encoder = Encoder(BYTES)
    question = settings.encode(settings.make_tasks(encoder)[0], encoder)["qa_1"][1]
    ids, network = question.prompt(50), load_model(str(model))
    written: list[int] = []
    with torch.no_grad():
        while len(written) < 32 and (not written or written[-1] != 256):
            written.append(int(network(torch.tensor([ids + written])).logits[0, -1].argmax()))
    assert row["answered"][0]["answer"] == BYTES.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": ["qa"]}, "tasks.0 is 'qa', but must be one of qa_1, fwe, cwe, vt"),
        ({"tasks": ["qa_1"]}, "'qa_1' needs questions"),
        ({"tasks": ["vt"], "qa": "q"}, "qa is given, but not the task 'qa_1'"),
        ({"length": 10**20}, "length is 100000000000000000000, but must be at most 16777216"),
        ({"gamma": -1.0}, "gamma is -1.0"),
        ({"visible": [0, 5]}, "a visible context is 0"),
        ({"length": 100, "visible": [50, 101]}, "a visible context is 101, but the texts have only 100 tokens"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_before_anything_is_loaded(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Ruler, values, "ruler")


def test_settings_have_useful_defaults(model: Path) -> None:
    def resolved(**values: Any) -> Ruler:
        return Ruler(**values).resolved(Subject(model), None)

    assert resolved().tasks == ["fwe", "cwe", "vt"] and resolved(qa=Path("q")).tasks[0] == "qa_1"
    assert resolved(length=1600).visible == [100, 200, 400, 800, 1200, 1600]
    assert resolved(visible=[9, 3, 9]).visible == [3, 9]


def test_what_does_not_fit_the_model_is_refused(tmp_path: Path, model: Path) -> None:
    long = {"tasks": ["vt"], "length": 3000, "samples": 1}
    with pytest.raises(ConfigError, match=r"has 1,700 positions, .* give `visible` [\d,]+ at most, or leave") as error:
        measure(model, Ruler(**long, visible=[2000]), out=tmp_path / "out")
    room = int(str(error.value).split("give `visible` ")[1].split(" ")[0].replace(",", ""))
    fits = Ruler(**long, visible=[room])  # the texts may be longer than the model's positions
    assert measure(model, fits, out=tmp_path / "out").summary["results"]["vt"]["questions"] == 1
    with pytest.raises(ConfigError, match="chat is given, but .* has no chat template"):
        measure(model, Ruler(**long, chat=True), out=tmp_path / "new")
    few = load_model(str(model))
    few.resize_token_embeddings(100)
    save_model(tmp_path / "few", few)
    with pytest.raises(CheckpointError, match=r"makes the token \d+, but the model knows only 100"):
        measure(tmp_path / "few", fits, out=tmp_path / "new")
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.unfinished").exists()


def test_notes_name_questions_that_were_left_out_or_repeated(tmp_path: Path) -> None:
    path = write_squad(tmp_path / "some.jsonl", items=12)
    long = {"context": "long " * 200, "question": "What?", "answers": {"text": ["long"]}}
    path.write_text(path.read_text() + json.dumps(long) + "\n")
    _, notes = Ruler(tasks=["qa_1"], length=500, qa=path, samples=13).make_tasks(Encoder(BYTES))
    assert notes[0].startswith("1 questions of") and "longer than the text" in notes[0]
    assert notes[1].startswith("the 12 questions of") and "asked more than once" in notes[1]
