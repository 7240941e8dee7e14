"""Objects that were opened by a relative path are used after the current folder has changed."""

from pathlib import Path

import pytest

import contextwise
from small import recipe_values


def test_what_was_opened_by_a_relative_path_is_used_from_another_folder(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").symlink_to(corpus_folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    corpus = contextwise.Corpus.open("corpus", split="validation")
    run = contextwise.train(recipe_values(Path("corpus"), Path("run"), steps=2, save_every=2, evaluate_every=2))
    evaluation = contextwise.evaluate("run", "corpus", limit=3)
    assert str(corpus.path) == "corpus" and str(run.model) == "run/model"
    monkeypatch.chdir("elsewhere")
    assert corpus.path == tmp_path / "corpus" and run.model == tmp_path / "run" / "model"
    assert corpus.tokenizer() is not None
    assert evaluation.page(tmp_path / "page.html") and run.summary()["steps"] == 2
    again = contextwise.evaluate(run, corpus, limit=3)
    assert again.path == evaluation.path and again.summary == evaluation.summary
    contextwise.load(run)
    trained = contextwise.train(run.recipe() | {"output": "second"}, {"data.corpus": corpus.path, "training.steps": 3})
    assert trained.path.resolve() == tmp_path / "elsewhere" / "second"
