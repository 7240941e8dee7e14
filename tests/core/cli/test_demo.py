"""The demo from end to end, at a size that takes seconds."""

import contextlib
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from command_line import printed_validator
from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.cli import start
from contextwise.cli.start import run_demo
from contextwise.data import Corpus
from contextwise.data.sources import stdlib
from contextwise.experiments.demo import FULL, QUICK
from contextwise.experiments.trial import trial as trial_module
from contextwise.experiments.trial.arms import Arms

TINY = dataclasses.replace(
    QUICK,
    trial=(
        "tokens=1024",
        "seeds=2",
        "recipe.data.context=32",
        "recipe.model.size=pico",
        "recipe.training.tokens_per_step=128",
    ),
    documents=40,
    held_out=0.5,
    vocabulary=300,
    timed_tokens=8,
)
ARMS = ("gpt2", "pm", "contextlm")
COMMAND = "contextwise demo --seed 3"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished demo."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    small = [(name, path) for name, path in stdlib.stdlib_files() if path.stat().st_size < 2000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib, "stdlib_files", lambda: small)
        patch.setattr(trial_module, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
        patch.setattr(Arms, "check_causality", lambda self: None)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_demo(TINY, folder, 3, COMMAND)
    (folder.parent / "output.txt").write_text(printed.getvalue())
    return folder


@pytest.fixture(scope="module")
def output(finished: Path) -> str:
    """What the demo printed."""
    return (finished.parent / "output.txt").read_text()


def summaries(folder: Path, seed: int) -> list[dict[str, Any]]:
    runs = folder / "trial/runs"
    return [RunFolder.open(next(runs.glob(f"{arm}-s{seed}-*"))).summary() for arm in ARMS]


def test_three_models_on_the_same_data_at_equal_flops(finished: Path) -> None:
    for seed in (3, 4):
        each = summaries(finished, seed)
        assert len({summary["corpus"]["fingerprint"] for summary in each}) == 1
        plain, matched, context = each
        assert plain["tokens"] > context["tokens"] == 1024 > matched["tokens"]
        # Runs are whole steps: an eighth of ContextLM's.
        assert all(abs(summary["flops"] / context["flops"] - 1) < 1 / 8 for summary in each)
        assert plain["parameters"] < matched["parameters"]
        assert context["parameters"] == pytest.approx(matched["parameters"], rel=0.001)  # but for the gate


def test_the_answer_is_the_trials_and_the_table_is_of_the_first_seed(finished: Path, output: str) -> None:
    result = json.loads((finished / "trial/result.json").read_text())
    words = " ".join(output.split())
    assert [each["reference"] for each in result["comparisons"]] == ["contextlm", "contextlm"]
    assert [each["arm"] for each in result["comparisons"]] == ["gpt2", "pm"]
    assert all(sentence in words for sentence in result["sentences"])
    documents = len(Corpus.open(finished / "corpus", split="validation"))
    assert f"The runs of seed 3: {documents} documents, {result['held_out']['tokens']:,} tokens" in words
    page = (finished / "trial/report.html").read_text()
    assert COMMAND in page and "Trial demo" in page
    for arm in ARMS:
        assert f"{result['losses'][arm]['1024'][0]:.4f}" in output
        (run,) = (finished / "trial/runs").glob(f"{arm}-s3-*")
        assert json.loads((run / "evaluation/generation.json").read_text())["ms_per_token"] > 0


def test_it_says_what_one_seed_says_and_cannot_show(finished: Path, output: str) -> None:
    result = json.loads((finished / "trial/result.json").read_text())
    words = " ".join(output.split())
    base = result["losses"]["contextlm"]["1024"]
    for arm in ("gpt2", "pm"):
        first, second = (a - b for a, b in zip(result["losses"][arm]["1024"], base, strict=True))
        assert f"{arm} − contextlm = {first:+.4f} [" in words
        assert f"{arm} {min(first, second):+.4f} to {max(first, second):+.4f}" in words
    assert "Seed 3 alone" in words and "over documents only. One seed cannot show" in words


def test_a_finished_demo_trains_nothing_again(finished: Path, output: str) -> None:
    files = [file for part in ("corpus", "trial/runs") for file in (finished / part).rglob("*")]
    before = {file: file.stat().st_mtime_ns for file in files if file.is_file() and file.name != ".lock"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_demo(TINY, finished, 3, COMMAND, as_json=True)
    printed_validator("demo --json").validate(json.loads(printed.getvalue()))
    assert (
        json.loads(printed.getvalue())["sentences"]
        == json.loads((finished / "trial/result.json").read_text())["sentences"]
    )
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert max(len(line) for line in output.splitlines() if str(finished) not in line) <= 80


def test_the_commands_that_it_names_work(finished: Path, output: str, contextwise: Any) -> None:
    more, text = re.findall(r"^(?:more seeds|a text): contextwise (.*)$", output, re.MULTILINE)
    assert more.endswith("--seeds 4") and "contextlm-s3-" in text
    assert "At most 4 seeds" in contextwise.words(f"{more} --dry-run")
    assert contextwise.words(f"{text} --max-new-tokens 4 --temperature 0.1")


def test_another_demo_in_the_same_folder_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"corpus holds another corpus .* choose another folder with --out"):
        run_demo(dataclasses.replace(TINY, documents=41), finished, 3, "contextwise demo")
    with pytest.raises(ConfigError, match=r"other settings \(first_seed\); choose another folder with --out"):
        run_demo(TINY, finished, 4, "contextwise demo")
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")  # whose library has other texts
    with pytest.raises(ConfigError, match=r"corpus holds another corpus .* choose another folder with --out"):
        run_demo(TINY, finished, 3, "contextwise demo")


@pytest.mark.parametrize(
    ("options", "folder", "command"),
    [
        ({}, "runs/demo", "contextwise demo"),
        ({"quick": True}, "runs/demo-quick", "contextwise demo --quick"),
        ({"seed": 2}, "runs/demo-seed2", "contextwise demo --seed 2"),
        ({"out": Path("my runs")}, "my runs", "contextwise demo --out 'my runs'"),
    ],
)
def test_scales_and_seeds_have_folders_of_their_own(
    options: dict, folder: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(start, "run_demo", lambda *arguments: called.append(arguments))
    start.demo(**{"quick": False, "out": None, "seed": 0, **options}, as_json=True)
    scale = QUICK if options.get("quick") else FULL
    assert called == [(scale, Path(folder), options.get("seed", 0), command, True)]
