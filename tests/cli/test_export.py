"""``contextwise export``: a folder to share, with a card."""

import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from contextwise.base.errors import ConfigError
from contextwise.cli import app
from contextwise.models import load_model, load_tokenizer
from contextwise.training import Recipe, train
from small import recipe_values


@pytest.fixture(scope="module")
def run(corpus_folder, tmp_path_factory):
    values = recipe_values(corpus_folder, tmp_path_factory.mktemp("export") / "run", steps=4)
    return train(Recipe.model_validate(values))


@pytest.mark.parametrize("standalone", [False, True])
def test_a_run_is_exported_with_a_card_that_the_hub_can_read(run, standalone, tmp_path):
    out = tmp_path / "shared"
    done = CliRunner().invoke(
        app, ["export", str(run.path), "--out", str(out), *(["--standalone"] if standalone else [])]
    )
    assert done.exit_code == 0, done.output
    card = ModelCard.load(out / "README.md")
    assert card.data.tags == ["contextwise", "contextlm"]
    assert ("trust_remote_code=True" in card.text) == standalone
    assert ("import contextwise" in card.text) != standalone
    assert f"{run.summary()['validation_loss']:.4f} nats per token" in card.text
    assert load_model(out, device="cpu").config.model_type == "contextlm"
    assert load_tokenizer(out).decode(load_tokenizer(out)("the model").input_ids) == "the model"


def test_a_folder_that_is_there_is_left_alone(run, tmp_path):
    (tmp_path / "mine").write_text("x")
    done = CliRunner().invoke(app, ["export", str(run.path), "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
