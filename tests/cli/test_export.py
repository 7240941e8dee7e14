"""``contextwise export``: a folder to share, with a card."""

import pytest
from huggingface_hub import ModelCard

from contextwise.models import load_model, load_tokenizer
from contextwise.training import Recipe, train
from small import recipe_values


@pytest.fixture(scope="module")
def run(corpus_folder, tmp_path_factory):
    values = recipe_values(corpus_folder, tmp_path_factory.mktemp("export") / "run", steps=4)
    return train(Recipe.model_validate(values))


@pytest.mark.parametrize("standalone", ["", "--standalone"])
def test_a_run_is_exported_with_a_card_that_the_hub_can_read(contextwise, run, workplace, standalone):
    contextwise.words(f"export {run.path} --out shared {standalone}")
    card = ModelCard.load(workplace / "shared" / "README.md")
    assert card.data.tags == ["contextwise", "contextlm"]
    assert ("trust_remote_code=True" in card.text) == bool(standalone)
    assert ("import contextwise" in card.text) != bool(standalone)
    assert f"{run.summary()['validation_loss']:.4f} nats per token" in card.text
    assert load_model(workplace / "shared", device="cpu").config.model_type == "contextlm"
    tokenizer = load_tokenizer(workplace / "shared")
    assert tokenizer.decode(tokenizer("the model").input_ids) == "the model"


def test_a_folder_that_exists_is_refused(contextwise, run, workplace):
    (workplace / "mine").write_text("x")
    contextwise.refused(f"export {run.path} --out .", "already exists")
