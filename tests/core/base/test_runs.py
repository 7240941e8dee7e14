"""Run folders: metrics that survive a kill, one owner at a time, no run overwrites another."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.runs import RunFolder, differing_keys
from small import run_summary


def row(kind: str, step: int, **values: object) -> dict:
    return {"kind": kind, "step": step, "tokens": 64 * step, "seconds": 0.5 * step, "loss": 1.5} | values


def test_an_incomplete_last_line_is_skipped_and_removed(tmp_path):
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        run.append_metrics(row("train" if step != 2 else "validation", step))
    with run.metrics_file.open("a") as file:
        file.write('{"kind": "train", "st')
    assert [each["step"] for each in run.metrics()] == [1, 2, 3]
    assert [each["step"] for each in run.metrics("validation")] == [2]
    run.rewind_metrics(2)
    assert [each["step"] for each in run.metrics()] == [1, 2]
    run.append_metrics(row("other", 3))
    assert len(run.metrics()) == 3


def test_only_the_same_recipe_may_resume(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.write_recipe({"a": 1, "training": {"steps": 5, "save_every": 1}})
    run.write_recipe({"a": 1, "training": {"steps": 5, "save_every": 2}})
    with pytest.raises(ConfigError, match="differs in a, training.steps"):
        run.write_recipe({"a": 2, "training": {"steps": 6, "save_every": 1}})
    assert run.recipe()["a"] == 1


def test_a_folder_without_a_run_is_not_opened(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run"):
        RunFolder.open(tmp_path)
    run = RunFolder(tmp_path)
    run.write_recipe({})
    with pytest.raises(CheckpointError, match="is not finished"):
        RunFolder.open(tmp_path).summary()


def test_paths_where_no_run_can_be(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="file is a file"):
        RunFolder(tmp_path / "file").write_recipe({})
    for path in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(ConfigError, match="cannot be created"), RunFolder(path).locked():
            pass
    assert (tmp_path / "file").read_text() == "precious"


NESTED = st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)


@given(a=st.dictionaries(st.sampled_from("abc"), NESTED), b=st.dictionaries(st.sampled_from("abc"), NESTED))
def test_differing_keys_is_empty_for_equals_alone(a, b):
    assert (not differing_keys(a, b)) == (a == b)
    assert differing_keys(a, b) == differing_keys(b, a)


def test_metrics_that_cannot_be_read_and_those_of_no_run(tmp_path):
    run = RunFolder(tmp_path)
    assert run.metrics() == []
    unreadable = r"the metrics .*metrics.jsonl cannot be read: .*; restore the file, or remove it"
    run.append_metrics(row("train", 1))
    with run.metrics_file.open("ab") as file:
        file.write(b"\0\xff\xfe")  # which a power cut left in place of the last line
    assert [each["step"] for each in run.metrics()] == [1]
    run.metrics_file.unlink()
    run.metrics_file.mkdir()
    with pytest.raises(CheckpointError, match=unreadable):
        run.metrics()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"step":', "it is not JSON"),
        ("\0\0\xff\xfe", "it is not JSON"),
        ("3", "it is 3, but must be a mapping"),
        ("[" * 10_000, "it is nested too deeply"),
        ('{"step": "1"}', "it has no kind"),
        (json.dumps(row("train", 2, tokens="a")), 'tokens is "a", but must be a whole number'),
        (json.dumps(row("train", 2, loss=None)), "loss is null, but must be a number"),
        (json.dumps(row("train", 2, loss=True)), "loss is true, but must be a number"),
        (json.dumps(row("train", 2, seconds=float("nan"))), "seconds is null, but must be a number"),
        (json.dumps(row(["train"], 2)), r'kind is \["train"\], but must be a text'),
    ],
)
def test_a_damaged_line_is_an_error_unless_its_steps_are_repeated(tmp_path, line, why):
    run = RunFolder(tmp_path)
    rows = [json.dumps(row("train", step)) for step in (1, 3)]
    run.metrics_file.write_bytes("\n".join([rows[0], line, rows[1]]).encode("latin-1"))
    for read in (run.metrics, lambda: run.rewind_metrics(3)):
        with pytest.raises(
            CheckpointError, match=f"line 2 of .*metrics.jsonl is damaged: {why}.*; restore the file, or remove"
        ):
            read()
    run.rewind_metrics(2)
    assert [each["step"] for each in run.metrics()] == [1]


def run_of(tmp_path, tokens=64, context=16, examples=None, **recipe):
    """A run that was validated on so many examples; None: it did not count them."""
    run = RunFolder(tmp_path / f"run-{tokens}-{examples}")
    run.path.mkdir()
    run.write_recipe({"name": "r", "data": {"context": context}, "training": {"evaluation_tokens": tokens}, **recipe})
    run.append_metrics(row("validation", 2, **({} if examples is None else {"examples": examples})))
    summary = {"name": "r", "seed": 0, "tokens": 128, "steps": 2, "parameters": 9, "seconds": 1.0}
    summary |= {"validation_loss": 1.5, "validation_examples": examples}
    run.write_summary(run_summary(**summary))
    return run


@pytest.mark.parametrize(
    ("examples", "shown"), [(None, ""), (1, " on 1 window of 16 tokens"), (6, " on 6 windows of 16 tokens")]
)
def test_a_validation_loss_says_what_it_was_measured_on(tmp_path, examples, shown):
    run = run_of(tmp_path, examples=examples)
    assert repr(run).endswith(f"validation loss 1.5000{shown}") and f"1.5000{shown}" in run._repr_html_()


def test_a_folder_without_a_run_is_said_to_have_none(tmp_path):
    run = RunFolder(tmp_path / "none")
    assert "no run at" in run._repr_html_()
    for ask in (run.recipe, run.summary, run.plot, lambda: run.page(tmp_path / "page.html")):
        with pytest.raises(CheckpointError, match=f"there is no run at {tmp_path}/none"):
            ask()


def test_a_run_that_stopped_early_shows_the_loss_of_its_weights(tmp_path):
    run = run_of(tmp_path, 512, examples=32)
    run.append_metrics(row("validation", 4, loss=2.5, examples=32))
    assert "validation loss 1.5000" in repr(run)
    assert "1.5000 on 32 windows" in run._repr_html_() and "2.5000" not in run._repr_html_()


def test_examples_that_are_no_windows_are_called_examples(tmp_path):
    run = run_of(tmp_path, examples=40, objective={"name": "sentence"})
    assert repr(run).endswith("validation loss 1.5000 on 40 examples")
