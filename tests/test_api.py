"""The functions of the package: they take names, paths, dictionaries and objects, and give results that a notebook shows."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

import contextwise
from contextwise.base.estimates import Estimate
from contextwise.base.tables import Column, Table
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Subject
from small import recipe_values, small_gpt2

RESULTS = ["run", "evaluation", "curve", "comparison"]


@pytest.fixture(scope="module")
def results(corpus_folder, tmp_path_factory):
    """Two runs by a recipe as a dictionary, measured and compared."""
    folder, corpus = tmp_path_factory.mktemp("api"), Corpus.open(corpus_folder)
    recipe = recipe_values(corpus_folder, folder / "unused")
    runs = [
        contextwise.train(recipe, {"data.corpus": corpus, "seed": seed, "name": f"s{seed}"}, folder / f"s{seed}")
        for seed in (0, 1)
    ]
    return {
        "run": runs[0],
        "evaluation": contextwise.evaluate(runs[0], corpus, limit=8),
        "curve": contextwise.curve(str(runs[0].path), corpus_folder, limit=8),
        "comparison": contextwise.compare(runs, corpus),
    }


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_result(results, name, tmp_path):
    result = results[name]
    assert "<table" in result._repr_html_() and isinstance(result.plot(), go.Figure)
    assert len(result.plot().data) > 0
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame) and len(frame) > 0
    assert "</html>" in result.page(tmp_path / "page.html").read_text()


def test_frames_hold_the_numbers_of_the_results(results):
    documents = results["evaluation"].to_pandas()
    loss = documents["nats"].sum() / documents["tokens"].sum()
    assert loss == pytest.approx(results["evaluation"].summary["loss"]["value"])
    assert list(results["curve"].to_pandas()["loss"]) == [each["loss"] for each in results["curve"].bins]
    validation = results["run"].to_pandas().query("kind == 'validation'")["loss"]
    assert validation.iloc[-1] == results["run"].summary()["validation_loss"]
    assert "validation loss" in repr(results["run"]) and "not finished" not in repr(results["run"])


def test_a_table_has_the_limits_of_its_estimates():
    table = Table("", ["name", Column("loss", "estimate")], [["a", Estimate(2.0, 1.0, 3.0)], ["b", None]])
    frame = table.to_pandas()
    assert list(frame.columns) == ["name", "loss", "loss low", "loss high"]
    assert frame.iloc[0].tolist() == ["a", 2.0, 1.0, 3.0] and frame.iloc[1].isna().tolist() == [False, True, True, True]
    assert "<table>" in table._repr_html_()


def test_held_out_documents_are_measured_whatever_split_the_corpus_is_opened_with(results):
    assert results["evaluation"].summary["corpus"]["split"] == "validation"


def test_loaded_models_and_names_are_taken(results, corpus_folder, tmp_path):
    model = contextwise.load(results["run"])
    assert model.config.model_type == "contextlm" and not model.training
    small = contextwise.evaluate(small_gpt2(), corpus_folder, limit=2, out=tmp_path / "result")
    assert small.summary["documents"] == 2
    with pytest.raises(ValueError, match="there is no measure 'evaluat'"):
        contextwise.measure("evaluat", model, corpus_folder)
    with pytest.raises(ValueError, match=r"models is '.*'; give a list"):
        contextwise.compare(results["run"], corpus_folder)
    with pytest.raises(ValueError, match="a Subject has its own dtype"):
        contextwise.evaluate(Subject(model), corpus_folder, dtype="bfloat16")
    with pytest.raises(ValueError, match="'limt' is an unknown key|limt is an unknown key"):
        contextwise.evaluate(model, corpus_folder, limt=3)


def test_nothing_is_printed_unless_asked(corpus_folder, tmp_path, capfd):
    recipe = recipe_values(Path("elsewhere"), tmp_path / "run", steps=2)
    recipe["data"]["corpus"] = ""
    changes = {"data.corpus": Path(corpus_folder)}
    contextwise.train(recipe, changes)
    contextwise.prepare(corpus_folder.parent / "text.jsonl", "bytes", tmp_path / "corpus", limit=20)
    assert capfd.readouterr() == ("", "")
    contextwise.train(recipe, changes, verbose=True)
    assert "finished already" in capfd.readouterr().err


def test_the_package_lists_its_functions_and_no_internals():
    assert {"train", "evaluate", "curve", "compare", "trial", "prepare", "load"} <= set(dir(contextwise))
    assert not {"base", "cli", "metadata", "TYPE_CHECKING"} & set(dir(contextwise))
    for name in dir(contextwise):
        assert getattr(contextwise, name) is not None


LOAD = "from transformers import AutoModelForCausalLM as Auto"


@pytest.mark.parametrize(
    "imports", [f"import contextwise; {LOAD}", pytest.param(f"{LOAD}; import contextwise", marks=pytest.mark.slow)]
)
def test_models_load_by_the_auto_classes_in_any_order_of_imports(results, imports):
    folder = results["run"].path / "model"
    code = f"{imports}; print(type(Auto.from_pretrained({str(folder)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ContextLMForCausalLM\n", done.stderr


def test_importing_imports_nothing_heavy():
    code = "import contextwise, sys; print([name for name in ('torch', 'transformers', 'pydantic') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    assert Path(contextwise.__file__).is_file()
