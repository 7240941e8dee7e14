"""Scores of a model on tasks, against the harness's own class and against computations that share no code with either."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs contextwise[eval]")

from harness_sets import BYTES, POSITIONS, arc_lines, define, few_tasks, hellaswag_lines, lambada_lines, model_of_bytes
from lm_eval import evaluator
from transformers import LlamaConfig, LlamaForCausalLM

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from contextwise.cli.measures import verb
from contextwise.evaluation.kernel import measure
from contextwise.models.rope import extend_positions, forget_lengths, frequencies_for
from contextwise_evals.harness import HarnessTasks
from contextwise_evals.harness.tasks import quiet, summary_of, task_row
from long_questions import define_long, long_line, needs_longbench
from measured import stopped_and_resumed
from small import save_model


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr("contextwise_evals.harness.tasks.harness_tasks", few_tasks)
    # Asks pip and git for seconds
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny", model_of_bytes())


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    define(folder, "arc_easy", test=arc_lines(20), train=arc_lines(9, seed=1))
    define(folder, "hellaswag", validation=hellaswag_lines(16), train=hellaswag_lines(8, seed=1))
    define(folder, "lambada_openai", test=lambada_lines(15))
    define(folder, "wikitext", test=[{"page": page} for page in PAGES])
    return folder


PAGES = (" = A = \n \n red blue , green . ", " = B = \n \n gold " + "teal " * 60)
TASKS = ("arc_easy", "hellaswag", "lambada_openai", "wikitext")


def evaluate(model, sets, out, tasks=TASKS, **settings):
    return measure(str(model), HarnessTasks(tasks=list(tasks), include_path=sets, **settings), out=out)


def measures(result):
    return {
        (row["task"], row["shots"], name): measure["value"]
        for row in result.summary["rows"]
        for name, measure in row["measures"].items()
    }


@pytest.mark.long
def test_scores_are_those_of_the_harness_s_own_path(model, sets, tmp_path):
    result = measures(evaluate(model, sets, tmp_path / "out", num_fewshot=[0, 2]))
    settings = HarnessTasks(tasks=list(TASKS), num_fewshot=[0, 2], include_path=sets)
    with quiet():
        for shots in (0, 2):
            tasks = [plan.task for plan in settings.plan() if plan.shots == shots]
            theirs = evaluator.simple_evaluate(
                "hf",
                model_args={"pretrained": str(model), "device": "cpu", "dtype": "float32"},
                tasks=tasks,
                num_fewshot=shots,
                bootstrap_iters=0,
                task_manager=few_tasks(),
            )
            for task, figures in theirs["results"].items():
                for key, value in figures.items():
                    name = key.removesuffix(",none")
                    if "," in key and "stderr" not in name:
                        assert result.pop((task, shots, name)) == pytest.approx(value, rel=1e-4), (task, name)
    assert not result


def test_what_is_written(model, sets, tmp_path):
    out = tmp_path / "out"
    result = evaluate(model, sets, out, num_fewshot=[0, 2], limit=5)
    assert sorted(path.name for path in out.iterdir()) == [
        "harness-0-shot.json",
        "harness-2-shot.json",
        "manifest.json",
        "summary.json",
    ]
    assert json.loads((out / "summary.json").read_text()) == result.summary
    theirs = json.loads((out / "harness-2-shot.json").read_text())
    assert set(theirs["results"]) == {"arc_easy", "hellaswag", "lambada_openai"}
    assert theirs["configs"]["arc_easy"]["dataset_kwargs"]["data_files"]["train"].endswith("arc_easy_train.jsonl")
    assert theirs["n-samples"]["arc_easy"]["effective"] == 5


def test_results_are_found_again_for_the_same_lines_only(model, sets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy"
    define(copy, "lambada_openai", test=lambada_lines(15))
    first = evaluate(model, sets, None, ("lambada_openai",))
    assert first.path.parent == Path.cwd() / "evaluation" / "tiny" and first.path.name.startswith(
        "tasks-lambada_openai-"
    )
    assert evaluate(model, copy, None, ("lambada_openai",)).path == first.path
    define(copy, "arc_easy", test=arc_lines(3))  # of another task
    assert evaluate(model, copy, None, ("lambada_openai",)).path == first.path
    define(copy, "lambada_openai", test=lambada_lines(14))
    other = evaluate(model, copy, None, ("lambada_openai",))
    assert other.path != first.path and other.summary["rows"][0]["documents"] == 14


def test_the_average_is_the_plain_mean():
    values = dict(zip("abcdefghi", (0.36, 0.43, 0.28, 0.2, 0.51, 0.62, 0.29, 0.71, 0.27), strict=True))
    results = {
        "results": {name: {"acc,none": value, "acc_stderr,none": 0.01} for name, value in values.items()},
        "n-shot": dict.fromkeys(values, 5),
        "n-samples": {name: {"effective": 9} for name in values},
    }
    about = {"shots": 5, "context": 128, "cut": 0}
    result = summary_of([about | {"task": name} | task_row(name, 5, results) for name in values])
    assert result["averages"][0]["acc"] == pytest.approx(3.67 / 9)


def test_texts_longer_than_the_model_are_said(model, sets, tmp_path):
    result = evaluate(model, sets, tmp_path / "out", ("arc_easy",), num_fewshot=[5])
    (row,) = result.summary["rows"]
    assert row["cut"] == 20
    assert result.summary["notes"] == [
        "with 5 shots, some documents were longer than the model's positions, and their beginning was left out: "
        "arc_easy 20 of 20"
    ]


def test_a_shorter_context_is_what_the_harness_calls_max_length(model, sets, tmp_path):
    result = evaluate(model, sets, tmp_path / "out", ("wikitext",), context=[32])
    settings = HarnessTasks(tasks=["wikitext"], include_path=sets)
    with quiet():
        arguments = {"pretrained": str(model), "device": "cpu", "dtype": "float32", "max_length": 32}
        tasks = [plan.task for plan in settings.plan()]
        theirs = evaluator.simple_evaluate("hf", model_args=arguments, tasks=tasks, task_manager=few_tasks())[
            "results"
        ]["wikitext"]
    assert measures(result)["wikitext", 0, "byte_perplexity"] == pytest.approx(theirs["byte_perplexity,none"], rel=1e-5)
    with pytest.raises(ConfigError, match=f"has only {POSITIONS} positions"):
        evaluate(model, sets, tmp_path / "other", ("wikitext",), context=[32, POSITIONS + 1])


def test_an_encoder_decoder_is_refused(sets, tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=257, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    folder = save_model(tmp_path / "t5", T5ForConditionalGeneration(config))
    with pytest.raises(CheckpointError, match="is an encoder-decoder"):
        evaluate(folder, sets, tmp_path / "out", ("lambada_openai",))


@pytest.mark.long
def test_a_stopped_evaluation_resumes(model, sets, tmp_path, stop_at):
    def asked(out: Path):
        settings = HarnessTasks(tasks=list(TASKS), include_path=sets, num_fewshot=[0, 2])
        return measure(str(model), settings, out=out, batch_tokens=2000)

    stopped_and_resumed(asked, tmp_path, stop_at, 5)


def test_a_stopped_evaluation_writes_nothing(model, sets, tmp_path, stop_at):
    stop_at(1)
    with pytest.raises(Interrupted):
        evaluate(model, sets, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_hub_is_not_asked_where_files_serve(model, sets, tmp_path, monkeypatch):
    import socket

    def refuse(*arguments, **options):
        raise AssertionError(f"a connection was tried: {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    evaluate(model, sets, tmp_path / "out", ("arc_easy", "wikitext"))


def test_the_hub_out_of_reach_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setattr("contextwise_evals.harness.tasks.hub_problem", lambda: "the Hub cannot be reached")
    with pytest.raises(DataError, match=r"and the Hub cannot be reached; give a folder of definitions"):
        evaluate(model, None, tmp_path / "out", ("arc_easy",))


def test_data_that_the_hub_does_not_have_are_named(model, tmp_path, monkeypatch):
    def absent(*arguments, **options):
        raise FileNotFoundError("no such dataset")

    monkeypatch.setattr("contextwise_evals.harness.tasks.hub_problem", lambda: None)
    monkeypatch.setattr("datasets.load_dataset", absent)
    with pytest.raises(DataError, match=r"arc_easy: .*no such dataset; local files need a definition"):
        evaluate(model, None, tmp_path / "out", ("arc_easy",))


@pytest.mark.long
def test_the_hub_s_copy_gives_the_scores_of_the_same_lines(model, sets, tmp_path, monkeypatch):
    """With the Hub's folder taken by a dataset of the same lines."""
    import datasets

    local = measures(evaluate(model, sets, tmp_path / "local", ("arc_easy",), num_fewshot=[0, 2]))
    splits = {"test": arc_lines(20), "train": arc_lines(9, seed=1)}
    hub = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
    monkeypatch.setattr("contextwise_evals.harness.tasks.hub_problem", lambda: None)
    monkeypatch.setattr("datasets.load_dataset", lambda path, name, **_: {"ARC-Easy": hub}[name])
    assert measures(evaluate(model, None, tmp_path / "hub", ("arc_easy",), num_fewshot=[0, 2])) == local


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": []}, "tasks is"),
        ({"tasks": ["arc_easy", ""]}, "a comma too many"),
        ({"tasks": ["arc_easy"], "num_fewshot": [-1]}, "num_fewshot.0 is -1"),
        ({"tasks": ["arc_easy"], "limit": 0}, "limit is 0"),
        ({"tasks": ["arc_easy"], "context": []}, "context is"),
        ({"tasks": ["arc_easy"], "context": [0]}, "context.0 is 0"),
        ({"tasks": ["arc_easy"], "rope": "dynamic"}, "give `context` too"),
        ({"tasks": ["arc_easy"], "rope_factor": 2}, "rope_factor is given without `rope`"),
        ({"tasks": ["arc_easy"], "lengths": "many"}, "such as 0-4000"),
        ({"tasks": ["arc_easy"], "lengths": "9-9"}, "such as 0-4000"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        validate(HarnessTasks, settings, "the settings")


def command(model, sets, out, tasks="lambada_openai", num_fewshot="0"):
    verb(HarnessTasks)(
        model=str(model), tasks=tasks, num_fewshot=num_fewshot, include_path=str(sets),
        limit=None, lengths=None, context=None, rope=None, rope_factor=None,
        batch_tokens=16384, dtype="auto", device="auto", out=out, overwrite=False, as_json=False,
    )  # fmt: skip


@pytest.mark.long
def test_the_command_prints_a_table_that_fits_80_columns(model, sets, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command(model, sets, tmp_path / "out", "arc_easy, lambada_openai,wikitext", "0,5")
    printed, _ = capsys.readouterr()
    rows = {tuple(line.split()[:5]): line.split()[5:] for line in printed.splitlines() if line}
    assert ("wikitext", "0", "160", "2", "word_perplexity") in rows
    assert {("arc_easy", shots, "160", "20", name) for shots in "05" for name in ("acc", "acc_norm")} <= set(rows)
    value, error = map(float, rows["lambada_openai", "0", "160", "15", "perplexity"])
    assert value > 0 < error and printed.count("Avg of 2") == 2
    assert all(len(line.rstrip()) <= 80 for line in printed.splitlines() if not line.startswith("written to"))


def test_the_command_names_wrong_shots_and_the_extra_that_is_not_installed(model, sets, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="num_fewshot.0 is '0;5'"):
        command(model, sets, tmp_path / "out", num_fewshot="0;5")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lm_eval\[longbench\]'"):
        command(model, sets, tmp_path / "out")


LONG = [long_line(i, length=100 * i) for i in range(6)]


@needs_longbench
def test_generated_answers_are_scored_by_visible_context(tmp_path):
    """Beyond the model's positions; what it sees is what the harness's own class shows it."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**shape, vocab_size=257, max_position_embeddings=64, eos_token_id=256, initializer_range=0.5)
    llama = save_model(tmp_path / "llama", LlamaForCausalLM(config))
    sets = define_long(tmp_path / "sets", "keys", LONG)
    result = evaluate(llama, sets, tmp_path / "out", ("keys",), context=[200, 64], rope="dynamic", lengths="100-500")
    summary = result.summary
    assert [(row["context"], row["documents"], row["cut"]) for row in summary["rows"]] == [(64, 4, 4), (200, 4, 4)]
    assert summary["rope_factor"] == 200 / 64 and summary["trained_context"] == 64 and summary["positions"] == 200
    assert "longer than a context of 64" in summary["notes"][0]
    answers = result.rows_of("answers")
    assert [(row["context"], row["document"]) for row in answers] == [(c, i) for c in (64, 200) for i in range(4)]
    assert answers[0]["wanted"] == "['number 101']" and set(answers[0]["scores"]) == {"score", "qa_f1_score"}
    for row in summary["rows"]:
        scores = [answer["scores"]["score"] for answer in answers if answer["context"] == row["context"]]
        assert row["measures"]["score"]["value"] == pytest.approx(sum(scores) / 4)
    assert sorted(path.name for path in result.path.glob("harness-*")) == [
        "harness-0-shot-200.json",
        "harness-0-shot-64.json",
    ]
    model = LlamaForCausalLM.from_pretrained(llama).eval()
    extend_positions(model, 200, "dynamic")
    forget_lengths(model)
    for row in answers:
        line = LONG[row["document"] + 1]
        ids = BYTES.encode(f"{line['context']}\n\n{line['question']}")[8 - row["context"] :]
        with frequencies_for(model, len(ids) + 8):
            out = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0)
        assert BYTES.decode(out[0, len(ids) :], skip_special_tokens=True) == row["answer"]


@needs_longbench
@pytest.mark.long
def test_stopped_answers_resume(model, tmp_path, stop_at):
    sets = define_long(tmp_path / "sets", "keys", LONG)

    def asked(out: Path):
        settings = HarnessTasks(tasks=["keys"], include_path=sets, context=[60, 120])
        return measure(str(model), settings, out=out, batch_tokens=240)

    stopped_and_resumed(asked, tmp_path, stop_at, 4)


@needs_longbench
def test_an_answer_that_leaves_no_room_is_refused(model, tmp_path):
    sets = define_long(tmp_path / "sets", "keys", LONG, new_tokens=64)
    with pytest.raises(ConfigError, match="an answer has up to 64 tokens, which leaves no room"):
        evaluate(model, sets, tmp_path / "out", ("keys",), context=[64])
