"""Clauses that messages of errors share."""

from pathlib import Path

from contextwise.base.errors import not_installed

SOURCE = Path(__file__).parents[3] / "src"


def test_a_missing_package_is_named_as_pip_takes_it():
    assert not_installed("ray") == "which is not installed; install it with: pip install ray"
    assert not_installed("lm_eval[longbench]").endswith("pip install 'lm_eval[longbench]'")
    assert not_installed("fastapi uvicorn").endswith("pip install fastapi uvicorn")


def test_no_message_installs_an_extra_which_pip_finds_in_the_clone_alone():
    files = [file for file in SOURCE.rglob("*.py") if "contextwise[" in file.read_text()]
    assert not files, "name the library: not_installed(…)"
