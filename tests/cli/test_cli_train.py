"""``contextwise train``, as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from contextwise.base.runs import RunFolder
from contextwise.cli import main
from contextwise.data import prepare_corpus

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus and a recipe for a run of a second."""
    folder = tmp_path_factory.mktemp("work")
    lines = [json.dumps({"text": f"document {i} of a corpus of small texts"}) + "\n" for i in range(40)]
    (folder / "texts.jsonl").write_text("".join(lines))
    prepare_corpus(folder / "texts.jsonl", "bytes", folder / "corpus", validation=0.2)
    recipe = {
        "name": "small",
        "data": {"corpus": "corpus", "context": 16},
        "model": {"layers": 1, "width": 16, "heads": 2},
        "training": {"steps": 2, "tokens_per_step": 32, "learning_rate": 1e-3},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.fixture
def typed(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Type ``contextwise train …`` in the workplace; gives (exit status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(workplace)
        monkeypatch.setattr("sys.argv", ["contextwise", "train", *arguments])
        with pytest.raises(SystemExit) as exit_status:
            main()
        return int(exit_status.value.code or 0), *capsys.readouterr()

    return run


def test_the_run_is_named_on_standard_output(workplace: Path, typed: Typed) -> None:
    settings = ["--set", "training.steps=3", "--set", "seed=5", "--out", "my run"]
    status, output, errors = typed("recipe.yaml", *settings)
    assert (status, output) == (0, "my run\n") and "small" in errors
    run = RunFolder.open(workplace / "my run")
    assert run.summary()["steps"] == 3 and run.summary()["seed"] == 5
    before = run.summary_file.stat().st_mtime_ns
    assert typed("recipe.yaml", *settings)[:2] == (0, "my run\n")  # finished: nothing is done again
    assert run.summary_file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.yaml"], "there is no recipe at no.yaml"),
        (
            ["recipe.yaml", "--set", "training.stps=3"],
            "training.stps is an unknown key; did you mean 'steps'?",
        ),
        (["recipe.yaml", "--set", "training.steps"], "the setting 'training.steps' is not of the form"),
        (["recipe.yaml", "--set", "data.context=15"], "not a multiple of data.context (15)"),
    ],
)
def test_a_wrong_recipe_is_refused(workplace: Path, typed: Typed, arguments: list[str], message: str) -> None:
    status, output, errors = typed(*arguments)
    assert status == 2 and output == ""
    assert errors.startswith("error: ") and message in errors and "Traceback" not in errors
    assert not (workplace / "runs").exists()
