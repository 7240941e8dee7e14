"""``contextwise export``: a folder to share, with a card."""

import ast
import json

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
    status, output, _ = contextwise(f"export {run.path} --out shared {standalone} --json")
    files = sorted(file.name for file in (workplace / "shared").iterdir())
    assert status == 0
    assert json.loads(output) == {"path": "shared", "standalone": bool(standalone), "files": files}
    card = ModelCard.load(workplace / "shared" / "README.md")
    assert card.data.tags == ["contextwise", "contextlm"]
    assert ("trust_remote_code=True" in card.text) == bool(standalone)
    assert ("import contextwise" in card.text) != bool(standalone)
    assert f"{run.summary()['validation_loss']:.4f} nats per token" in card.text
    assert load_model(workplace / "shared", device="cpu").config.model_type == "contextlm"
    tokenizer = load_tokenizer(workplace / "shared")
    assert tokenizer.decode(tokenizer("the model").input_ids) == "the model"


def test_no_name_of_a_run_leaves_its_string_in_the_card(contextwise, corpus_folder, workplace):
    name = 'a"); print("`|` x'
    values = recipe_values(corpus_folder, workplace / "run", steps=2, warmup_steps=0) | {"name": name}
    train(Recipe.model_validate(values))
    contextwise.words("export run --out shared")
    card = (workplace / "shared" / "README.md").read_text()
    code = card.split("```python\n")[1].split("\n```")[0]
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert [ast.unparse(call.func).split(".")[-1] for call in calls] == ["from_pretrained"] * 2
    assert {call.args[0].value for call in calls} == {name}
    assert str(workplace) not in card


def test_a_folder_that_exists_is_refused(contextwise, run, workplace):
    (workplace / "mine").write_text("x")
    contextwise.refused(f"export {run.path} --out . --json", "already exists")
