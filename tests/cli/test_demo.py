"""The demo from end to end, at a size that takes seconds."""

import dataclasses
import json
from pathlib import Path

import pytest

from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.cli import start
from contextwise.cli.start import run_demo
from contextwise.data import Corpus
from contextwise.data.sources import stdlib
from contextwise.experiments.demo import ARMS, FULL, PROMPT, QUICK

TINY = dataclasses.replace(
    QUICK,
    documents=24,
    held_out=0.3,
    vocabulary=300,
    context=32,
    tokens=1024,
    tokens_per_step=256,
    evaluate_every=2,
    evaluation_tokens=256,
    timed_tokens=8,
    sample_tokens=8,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished demo."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    small = [(name, path) for name, path in stdlib.stdlib_files() if path.stat().st_size < 2000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib, "stdlib_files", lambda: small)
        run_demo(TINY, folder, 3, "contextwise demo --seed 3")
    return folder


def test_three_models_on_the_same_data(finished: Path) -> None:
    runs = [RunFolder.open(finished / name) for name in ARMS]
    summaries = [run.summary() for run in runs]
    assert len({summary["corpus"]["fingerprint"] for summary in summaries}) == 1
    assert {summary["tokens"] for summary in summaries} == {1024}
    assert {summary["seed"] for summary in summaries} == {3}
    plain, matched, context = (summary["parameters"] for summary in summaries)
    assert plain < matched
    assert abs(context / matched - 1) < 0.001  # PM has the parameters of ContextLM, but for the gate


def test_every_part_is_written(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    for folder, (name, *_) in ARMS.items():
        run = finished / folder / "evaluation"
        (result,) = run.glob("evaluate-corpus-validation-*/summary.json")
        summary = json.loads(result.read_text())
        assert summary["documents"] == len(Corpus.open(finished / "corpus", split="validation"))
        assert f"{summary['loss']['value']:.4f}" in page
        assert json.loads((run / "generation.json").read_text())["ms_per_token"] > 0
        assert json.loads((run / "samples.json").read_text())[0]["prompt"] == PROMPT
        assert name.removeprefix("name=") in page
    assert "contextwise demo --seed 3" in page
    assert "ContextLM − GPT-2 +2 layers (PM)" in page


def test_a_finished_demo_trains_nothing_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        file for file in finished.rglob("*") if file.is_file() and file.name not in ("report.html", ".lock")
    ]
    before = {file: file.stat().st_mtime_ns for file in files}
    page = (finished / "report.html").read_text()
    run_demo(TINY, finished, 3, "contextwise demo --seed 3")
    assert {file: file.stat().st_mtime_ns for file in files} == before
    assert (finished / "report.html").read_text() == page
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    for expected in ("GPT-2", "ContextLM", "nats", "bits/", "has the lowest held-out loss", "One seed of"):
        assert expected in output


def test_another_demo_in_the_same_folder_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"corpus holds another corpus .* choose another folder with --out"):
        run_demo(dataclasses.replace(TINY, documents=25), finished, 3, "contextwise demo")
    with pytest.raises(ConfigError, match=r"gpt2 contains another run \(its recipe differs in seed\)"):
        run_demo(TINY, finished, 4, "contextwise demo")


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
    called = []

    def run(*arguments: object) -> Path:
        called.append(arguments)
        return Path("page")

    monkeypatch.setattr(start, "run_demo", run)
    start.demo(**{"quick": False, "out": None, "seed": 0, **options})
    scale = QUICK if options.get("quick") else FULL
    assert called == [(scale, Path(folder), options.get("seed", 0), command)]
