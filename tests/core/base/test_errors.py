"""Clauses that messages of errors share."""

from pathlib import Path

import pytest

from contextwise.base.errors import misspelt, not_installed

SOURCE = Path(__file__).parents[3] / "src"


def test_a_missing_package_is_named_as_pip_takes_it():
    assert not_installed("ray") == "which is not installed; install it with: pip install ray"
    assert not_installed("lm_eval[longbench]").endswith("pip install 'lm_eval[longbench]'")
    assert not_installed("fastapi uvicorn").endswith("pip install fastapi uvicorn")


def test_no_message_installs_an_extra_which_pip_finds_in_the_clone_alone():
    files = [file for file in SOURCE.rglob("*.py") if "contextwise[" in file.read_text()]
    assert not files, "name the library: not_installed(…)"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("note.jsonl", "; did you mean notes.jsonl?"),
        ("corpora/min", "; did you mean corpora/mine?"),
        ("corpor/mine", "; did you mean corpora/mine?"),
        ("corpor/other", ""),
        ("smolm2", "; did you mean smollm2?"),
        ("unlike", ""),
        ("absent.jsonl", ""),  # alike by its ending alone
        ("n" * 5000, ""),
        ("a\0b", ""),
    ],
)
def test_a_path_that_does_not_exist_is_answered_with_a_similar_one(path, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpora/mine").mkdir(parents=True)
    Path("notes.jsonl").touch()
    assert misspelt(path, ["smollm2"]) == hint


def test_the_guide_installs_what_the_message_names():
    guide = (SOURCE.parent / "docs" / "measure.md").read_text()
    assert guide.count("(`pip install 'lm_eval[longbench]'`)") == 1 and "[eval]" not in guide
