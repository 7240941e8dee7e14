"""A model exported with its code opens, and says the same, where Contextwise cannot be imported."""

import pytest
from transformers import AutoModelForCausalLM

from contextlm_models import contextlm, draw, normed, stock_model
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.models.export import export_model_folder
from elsewhere import exported_says_the_same


@pytest.mark.long
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: contextlm("gpt2", chunk_size=3, injection="paper"), marks=pytest.mark.slow),
        lambda: contextlm("qwen3", chunk_size=3, pooling="attention", injection="normed_gate"),
        lambda: normed("gpt2"),
    ],
    ids=["gpt2", "qwen3", "embedding norm"],
)
def test_an_exported_model_needs_no_contextwise(build, tmp_path):
    model = build()
    out = exported_says_the_same(model, draw(2, 11).clamp(min=1), tmp_path)
    # and where Contextwise is installed it is opened by Contextwise's own class, without any trust
    assert type(AutoModelForCausalLM.from_pretrained(out)) is type(model)


def test_a_plain_copy_holds_the_same_files(tmp_path):
    contextlm("gpt2").save_pretrained(tmp_path / "model")
    out = export_model_folder(tmp_path / "model", tmp_path / "out", card="words")
    for file in (tmp_path / "model").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert (out / "README.md").read_text() == "words"


def test_what_cannot_be_exported_is_reported(tmp_path):
    stock_model("gpt2").save_pretrained(tmp_path / "stock")
    with pytest.raises(ConfigError, match="stock gpt2, which loads everywhere"):
        export_model_folder(tmp_path / "stock", tmp_path / "out", standalone=True)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        export_model_folder(tmp_path / "stock", tmp_path / "out")
    with pytest.raises(CheckpointError, match="there is no run and no model"):
        export_model_folder(tmp_path / "none" / "at" / "all", tmp_path / "new")
