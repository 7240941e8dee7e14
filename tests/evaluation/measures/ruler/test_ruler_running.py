"""A whole measurement: by a reader whose accuracy is known, by small models, interrupted and gone on with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruler_reader import BYTES, WholeParagraphReader, write_squad

from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from contextwise.evaluation.answering.batches import AnswerLog, ModelReader, answer_all, plan_batches
from contextwise.evaluation.answering.prompts import Encoded, Encoder
from contextwise.evaluation.measures.ruler import Settings, evaluate_ruler
from contextwise.evaluation.measures.ruler.results import answer_rows, task_summary
from contextwise.evaluation.measures.ruler.running import encode_questions, make_tasks
from contextwise.evaluation.results import Measured
from contextwise.models import load_model

VISIBLE = (100, 300, 500, 700, 900)


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squad(tmp_path_factory.mktemp("squad") / "squad.jsonl")


def asked(squad: Path, **values: Any) -> tuple[list[Any], dict[str, list[Encoded]]]:
    encoder = Encoder(BYTES)
    settings = Settings(tasks=("qa_1",), length=900, qa=squad, samples=30, **values)
    tasks, _ = make_tasks(settings, encoder)
    return tasks, encode_questions(tasks, settings.samples, encoder)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_a_perfect_readers_accuracy_is_the_share_of_paragraphs_in_view(
    tmp_path: Path, squad: Path, gamma: float
) -> None:
    (task,), questions = asked(squad, gamma=gamma)
    batches = plan_batches(questions, {"qa_1": 32}, VISIBLE, 5000)
    with AnswerLog.of(tmp_path / "out", {}) as log:
        answer_all(WholeParagraphReader(), questions, batches, log)
        result = task_summary(task, questions["qa_1"], VISIBLE, log.answers)
        rows = answer_rows(task, questions["qa_1"], VISIBLE, log.answers)
    for row in result["accuracies"]:
        # From the texts alone: how many paragraphs begin within the last ``visible`` characters?
        inside = [
            len(q.question.body) - q.question.needles[0][0] <= row["visible"] for q in questions["qa_1"]
        ]
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


def test_the_greater_gamma_the_more_is_seen_of_little(squad: Path) -> None:
    seen = {}
    for gamma in (0.0, 4.0):
        _, questions = asked(squad, gamma=gamma)
        seen[gamma] = np.mean([question.in_view(300) for question in questions["qa_1"]])
    assert seen[4.0] > seen[0.0] + 0.2


def test_every_visible_context_gets_the_same_questions_once(squad: Path) -> None:
    _, questions = asked(squad)
    batches = plan_batches(questions, {"qa_1": 32}, VISIBLE, 3000)
    for visible in VISIBLE:
        indices = [i for batch in batches if batch.visible == visible for i in batch.indices]
        assert indices == list(range(30))
    assert [batch.visible for batch in batches] == sorted((b.visible for b in batches), reverse=True)
    for batch in batches:
        longest = max(len(questions["qa_1"][i].prompt(batch.visible)) for i in batch.indices)
        assert len(batch.indices) * (longest + 32) <= 3000
    first = questions["qa_1"][0]
    assert first.prompt(100)[: len(first.head)] == first.prompt(900)[: len(first.head)]
    assert first.prompt(100)[len(first.head) :] == first.prompt(900)[-(100 + len(first.tail)) :]


def test_an_interrupted_log_goes_on_where_it_was(tmp_path: Path, squad: Path) -> None:
    _, questions = asked(squad)
    batches = plan_batches(questions, {"qa_1": 32}, VISIBLE, 3000)
    with AnswerLog.of(tmp_path / "whole", {"a": 1}) as log:
        answer_all(WholeParagraphReader(), questions, batches, log)
        whole = dict(log.answers)
    reader, asks = WholeParagraphReader(), iter(range(99))
    with AnswerLog.of(tmp_path / "cut", {"a": 1}) as log:
        with pytest.raises(
            Interrupted, match=r"stopped after \d+ of 150 answers; run the same command again"
        ):
            answer_all(reader, questions, batches, log, should_stop=lambda: next(asks) == 5)
        assert 0 < len(log.answers) < 150
    file = tmp_path / "cut.unfinished" / "answers.jsonl"
    torn = file.read_bytes()[:-7]  # the last answer was not written to its end
    file.write_bytes(torn)
    with AnswerLog.of(tmp_path / "cut", {"a": 1}) as log:
        before = len(log.answers)
        answer_all(reader, questions, batches, log)
        assert log.answers == whole and before == torn.count(b"\n")
    assert reader.calls < 150 + len(batches[0].indices) + len(batches[5].indices)
    with AnswerLog.of(tmp_path / "cut", {"a": 1}) as log:
        assert log.answers == whole


def test_answers_to_other_questions_or_of_another_process_are_left_alone(tmp_path: Path) -> None:
    with AnswerLog.of(tmp_path / "out", {"seed": 3}) as log:
        assert log.answers == {}  # nothing was answered here: other settings may follow
    with AnswerLog.of(tmp_path / "out", {"seed": 1, "gamma": 0.0}) as log:
        log.add([("vt", 5, 0)], ["half of a pair: \ud800"])
        with (
            pytest.raises(ConfigError, match="another process is writing"),
            AnswerLog.of(tmp_path / "out", {}),
        ):
            pass
    other = AnswerLog.of(tmp_path / "out", {"seed": 2, "gamma": 0.0})
    with pytest.raises(ConfigError, match=r"other questions, or of another model \(seed differ\)"), other:
        pass
    with AnswerLog.of(tmp_path / "out", {"seed": 1, "gamma": 0.0}) as log:
        assert log.answers == {("vt", 5, 0): "half of a pair: \ud800"}
        (log.folder / "answers.jsonl").write_text("[]\n")
    with (
        pytest.raises(DataError, match="is damaged"),
        AnswerLog.of(tmp_path / "out", {"seed": 1, "gamma": 0.0}),
    ):
        pass


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "contextlm"])
def test_a_batch_gets_the_answers_that_each_prompt_gets_alone(model_of: Any, kind: str) -> None:
    reader = ModelReader(model_of(kind, vocab_size=257, n_positions=64), BYTES)
    draw = np.random.default_rng(3)
    prompts = [draw.integers(32, 120, size).tolist() for size in (3, 17, 30, 8)]
    together = reader.answer(prompts, 20)
    assert together == [reader.answer([prompt], 20)[0] for prompt in prompts]
    assert len(set(together)) > 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with 1,700 positions that reads bytes, with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    config = GPT2Config(
        vocab_size=257, n_positions=1700, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3, eos_token_id=256
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    BYTES.save_pretrained(folder)
    return folder


def measured(model: Path, squad: Path, out: Path, **options: Any) -> Measured:
    settings = Settings(
        tasks=("qa_1", "vt"), length=600, qa=squad, samples=4, visible=(50, 600), gamma=1.0, example=False
    )
    return evaluate_ruler(str(model), settings, batch_tokens=4000, out=out, **options)


def test_an_interrupted_measurement_ends_like_an_uninterrupted_one(
    tmp_path: Path, model: Path, squad: Path
) -> None:
    whole = measured(model, squad, tmp_path / "whole")
    asks = iter(range(99))
    with pytest.raises(Interrupted, match="while the questions were made"):
        measured(model, squad, tmp_path / "cut", should_stop=lambda: next(asks) == 2)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    asks = iter(range(99))
    with pytest.raises(Interrupted, match=r"stopped after \d+ of 16 answers"):
        measured(model, squad, tmp_path / "cut", should_stop=lambda: next(asks) == 8 + 2)
    assert not (tmp_path / "cut").exists() and (tmp_path / "cut.unfinished").is_dir()
    cut = measured(model, squad, tmp_path / "cut")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "whole"]
    assert (cut.path / "answers.jsonl").read_bytes() == (whole.path / "answers.jsonl").read_bytes()
    without_time = [{**e.summary, "seconds": 0} for e in (whole, cut)]
    assert without_time[0] == without_time[1]
    rows = [json.loads(line) for line in (whole.path / "answers.jsonl").read_text().splitlines()]
    assert [(row["task"], row["index"]) for row in rows] == [(t, i) for t in ("qa_1", "vt") for i in range(4)]
    for name, result in whole.summary["results"].items():
        for i, row in enumerate(result["accuracies"]):
            scores = [r["answered"][i]["score"] for r in rows if r["task"] == name]
            assert row["accuracy"]["value"] == pytest.approx(np.mean(scores))
    slashed = evaluate_ruler(
        f"{model}/",
        Settings(("qa_1", "vt"), 600, (50, 600), 1.0, 4, example=False, qa=squad),
        batch_tokens=4000,
        out=tmp_path / "cut",
    )
    assert slashed.summary == cut.summary  # a slash at the end makes no other model
    # A finished measurement is not made again, and one with other settings does not replace it.
    assert measured(model, squad, tmp_path / "cut", should_stop=lambda: True).summary == cut.summary
    with pytest.raises(ConfigError, match=r"with other settings \(seed differ\)"):
        evaluate_ruler(
            str(model),
            Settings(("qa_1", "vt"), 600, (50, 600), 1.0, 4, seed=1, example=False, qa=squad),
            batch_tokens=4000,
            out=tmp_path / "cut",
        )


def test_a_model_that_gives_no_numbers_has_no_accuracy_of_zero(
    tmp_path: Path, model: Path, squad: Path
) -> None:
    import torch

    damaged = load_model(str(model))
    with torch.no_grad():
        damaged.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    damaged.save_pretrained(tmp_path / "nan")
    BYTES.save_pretrained(tmp_path / "nan")
    with pytest.raises(CheckpointError, match=r"logits are not numbers \(NaN\), so it has no answers"):
        measured(tmp_path / "nan", squad, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["nan"]


def test_answers_are_what_the_model_writes_behind_the_prompt(
    tmp_path: Path, model: Path, squad: Path
) -> None:
    import torch

    found = measured(model, squad, tmp_path / "out")
    row = json.loads((found.path / "answers.jsonl").read_text().splitlines()[1])
    settings = Settings(tasks=("qa_1",), length=600, qa=squad, samples=2, gamma=1.0)
    encoder = Encoder(BYTES)
    question = encode_questions(make_tasks(settings, encoder)[0], 2, encoder)["qa_1"][1]
    ids, network = question.prompt(50), load_model(str(model))
    written: list[int] = []
    with torch.no_grad():
        while len(written) < 32 and (not written or written[-1] != 256):
            written.append(int(network(torch.tensor([ids + written])).logits[0, -1].argmax()))
    assert row["answered"][0]["answer"] == BYTES.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": ("qa",)}, "there is no task 'qa'; did you mean 'qa_1'"),
        ({"tasks": ("zzz",)}, "there is no task 'zzz'; the tasks are qa_1, fwe, cwe, vt"),
        ({"tasks": ("qa_1",)}, "'qa_1' needs questions"),
        ({"tasks": ("vt",), "qa": Path("q")}, "--qa is given, but not the task 'qa_1'"),
        ({"tasks": ("vt",), "words": Path("w")}, "--words is given, but not the task 'cwe'"),
        ({"length": 0}, "--length is 0"),
        ({"length": 10**20}, "--length is 100000000000000000000, but must be at most 16,777,216"),
        ({"samples": 0}, "--samples is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"gamma": -1.0}, "gamma is -1.0"),
        ({"visible": (0, 5)}, "a visible context is 0"),
        ({"length": 100, "visible": (50, 101)}, "a visible context is 101, but the texts have only 100 tokens"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_before_anything_is_loaded(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**values)


def test_settings_have_useful_defaults() -> None:
    assert Settings().tasks == ("fwe", "cwe", "vt") and Settings(qa=Path("q")).tasks[0] == "qa_1"
    assert Settings(length=1600).visible == (100, 200, 400, 800, 1200, 1600)
    assert Settings(visible=(9, 3, 9)).visible == (3, 9)


def test_what_does_not_fit_the_model_is_refused(tmp_path: Path, model: Path, squad: Path) -> None:
    long = Settings(("vt",), 3000, (2000,), samples=1)
    with pytest.raises(ConfigError, match=r"has 1700 positions, .* at most \d+, or --no-example") as error:
        evaluate_ruler(str(model), long, out=tmp_path / "out")
    room = int(str(error.value).split("at most ")[1].split(",")[0])
    fits = Settings(("vt",), 3000, (room,), samples=1)  # the texts may be longer than the model's positions
    assert evaluate_ruler(str(model), fits, out=tmp_path / "out").summary["results"]["vt"]["questions"] == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds something that is not a RULER measurement"):
        evaluate_ruler(str(model), fits, out=tmp_path / "other")
    with pytest.raises(ConfigError, match="--chat is given, but .* has no chat template"):
        evaluate_ruler(str(model), Settings(("vt",), 3000, chat=True), out=tmp_path / "new")
    few = load_model(str(model))
    few.resize_token_embeddings(100)
    few.save_pretrained(tmp_path / "few")
    BYTES.save_pretrained(tmp_path / "few")
    with pytest.raises(ConfigError, match=r"made the token \d+, but the model has a vocabulary of 100"):
        evaluate_ruler(str(tmp_path / "few"), fits, out=tmp_path / "new")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((model / name).read_bytes())
    with pytest.raises(CheckpointError, match="no tokenizer lies with the model"):
        evaluate_ruler(str(bare), fits, out=tmp_path / "new")
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.unfinished").exists()


def test_notes_say_which_questions_were_left_out_or_asked_again(tmp_path: Path) -> None:
    path = write_squad(tmp_path / "some.jsonl", items=12)
    long = {"context": "long " * 200, "question": "What?", "answers": {"text": ["long"]}}
    path.write_text(path.read_text() + json.dumps(long) + "\n")
    settings = Settings(tasks=("qa_1",), length=500, qa=path, samples=13)
    _, notes = make_tasks(settings, Encoder(BYTES))
    assert notes[0].startswith("1 questions of") and "longer than the text" in notes[0]
    assert notes[1].startswith("the 12 questions of") and "asked more than once" in notes[1]
