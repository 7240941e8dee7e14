"""Recipes of the package: their names, the verb that lists and copies them, and the wheel that holds them."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError
from contextwise.base.recipes import recipe_folders, recipe_path, shipped_recipe, shipped_recipes
from contextwise.experiments.trial.settings import load_trial
from contextwise.training import load_recipe

ROOT = Path(__file__).parents[1]


def test_every_recipe_has_a_verb_and_a_description():
    recipes = shipped_recipes()
    files = [file for folder in recipe_folders() for file in folder.rglob("*.yaml")]
    assert len(recipes) == len(files) > 90
    assert {each.verb for each in recipes} == {"train", "plan sweep", "trial", "reproduce"}
    assert all(len(each.about) > 15 and "#" not in each.about for each in recipes)


def test_the_code_that_a_recipe_names_exists():
    places = [*recipe_folders(), ROOT / "src"]
    named = {path for each in shipped_recipes() for path in re.findall(r"\w+(?:/\w+)+\.py", each.path.read_text())}
    assert len(named) > 2
    assert [path for path in named if not any((place / path).is_file() for place in places)] == []


@pytest.mark.parametrize(
    ("name", "verb", "file"),
    [
        ("contextlm-nano", "train", "contextlm/contextlm-nano.yaml"),
        ("contextlm/contextlm-nano", "train", "contextlm/contextlm-nano.yaml"),
        ("stdlib-quick", "plan sweep", "context_scaling/stdlib-quick.yaml"),
        ("stdlib-quick", "trial", "trials/stdlib-quick.yaml"),
        ("cue/table1", "reproduce", "cue/table1.yaml"),
    ],
)
def test_a_name_is_found_for_its_verb_and_from_any_folder(name, verb, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_path(name, verb) in [folder / file for folder in recipe_folders()]


def test_a_path_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("contextlm-nano").mkdir()  # a folder, of runs for example, is no recipe
    assert recipe_path("contextlm-nano").parent in [folder / "contextlm" for folder in recipe_folders()]
    Path("contextlm-nano").rmdir()
    Path("contextlm-nano").write_text("name: mine\n")
    assert recipe_path("contextlm-nano") == Path("contextlm-nano")
    assert recipe_path(tmp_path / "none.yaml") == tmp_path / "none.yaml"  # reading it says that it is missing


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("table1", "the recipe table1 is not for train; run: contextwise reproduce"),
        ("contextlm-nanno", "did you mean 'contextlm-nano'?"),
        ("zzz", "contextwise recipes lists"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(name, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(name)


@pytest.mark.parametrize(
    ("key", "command"), [("training", "train"), ("grid", "plan sweep"), ("arms", "trial"), ("scales", "reproduce")]
)
@pytest.mark.parametrize("verb", ["train", "plan sweep", "trial"])
def test_a_file_for_another_verb_is_answered_with_that_verb(verb, key, command, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\n{key}: {{}}\n")
    if command == verb:
        assert recipe_path(file, verb) == file
        return
    message = f"mine.yaml is not for {verb}, because it has the key '{key}'; run: contextwise {command} {file}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe_path(file, verb)


def test_several_recipes_of_one_name_are_listed():
    with pytest.raises(ConfigError, match="contextlm/table1 or cue/table1"):
        shipped_recipe("table1", "reproduce")


def test_a_shipped_recipe_is_an_arm(corpus_folder, capsys):
    values = {"arms": ["gpt2", "contextlm/pm-nano"], "corpus": str(corpus_folder)}
    assert load_trial(None, values, ["recipe.model.size=pico"]).recipe["model"]["size"] == "pico"
    note = "note: pm-nano has a recipe of its own, which recipe.model.size does not change"
    assert note in " ".join(capsys.readouterr().err.split())
    arms = load_trial(None, values).arms
    assert list(arms) == ["gpt2", "pm-nano"]
    assert arms["pm-nano"].recipe["model"] == read_yaml(recipe_path("pm-nano"))["model"]


def test_the_verb_lists_and_prints(contextwise):
    words = contextwise.words("recipes contextlm")
    trained, reproduced = words.split("contextwise reproduce NAME")
    assert (
        "contextwise train NAME" in trained
        and "contextlm/contextlm-nano" in trained
        and "contextlm/table1" in reproduced
    )
    names = [each.name for each in shipped_recipes()]
    assert not [each.name for each in shipped_recipes() if each.about.endswith((" al", "(Eq", "."))]  # whole sentences
    every = contextwise("recipes")[1]
    assert len(every.splitlines()) < 50  # one screen
    assert {name.split("/")[1] for name in names} <= set(every.replace(",", " ").split())  # none is cut in two
    described = contextwise.words(f"recipes {max(names, key=len).split('/')[0]}").split()
    assert max(names, key=len) in described and max(map(len, names)) > 40
    shipped = recipe_path("contextlm-nano").read_text()
    assert "-paper have their source's size" in contextwise.words("recipes")
    assert contextwise("recipes contextlm-nano") == (0, shipped, "")
    contextwise.refused("recipes nothing", "there is no recipe nothing")
    contextwise.refused("recipes contextlm-nanno", "there is no recipe contextlm-nanno; did you mean 'contextlm-nano'?")


@pytest.mark.slow
def test_the_wheel_alone_does_the_main_job_from_an_empty_folder(tmp_path):
    """A fresh environment that has the dependencies and the wheel, but not this checkout."""
    source, empty = tmp_path / "source", tmp_path / "empty"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source)
    (wheel,) = tmp_path.glob("contextwise-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    # The dependencies of this environment, without its editable install, which a .pth file there would bring along.
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    package = run(python, "-c", "import contextwise; print(contextwise.__file__)").strip()
    assert Path(package).is_relative_to(packages)

    command = tmp_path / "venv" / "bin" / "contextwise"
    assert "contextlm/contextlm-nano" in run(command, "recipes")
    assert "contextlm/table1" in run(command, "reproduce", "--list")
    run(command, "reproduce", "intrinsic_entropy/table1", "--dry-run")
    run(
        command,
        "prepare",
        "stdlib",
        "--tokenizer",
        "bytes",
        "--limit",
        40,
        "--validation",
        0.4,
        "--out",
        "corpora/stdlib",
    )
    small = [f"--set=training.{key}" for key in ("tokens=2048", "tokens_per_step=1024", "evaluation_tokens=512")]
    for name in ("pm-nano", "contextlm-nano"):
        run(command, "train", name, *small, "--set=model.size=pico", "--out", f"runs/{name}")
    run(command, "compare", "runs/pm-nano", "runs/contextlm-nano", "--corpus", "corpora/stdlib", "--html", "c.html")
    assert "</html>" in (empty / "c.html").read_text()
    run(command, "plan", "sweep", "stdlib-quick", "--dry-run")
    run(command, "trial", "stdlib-quick", "--set=limit=8", "--dry-run")
    run(command, "trial", "successors-quick", "--set=limit=8", "--dry-run")
    run(command, "demo", "--help")
    run(command, "curve", "runs/contextlm-nano", "--corpus", "corpora/stdlib", "--limit", 2)
