"""``contextwise recipes --schema``: shipped files and short forms are valid, what the program refuses for its form is not."""

import json

import jsonschema
import pytest

from contextwise.base.config import read_yaml
from contextwise.base.recipes import shipped_recipes
from contextwise.cli import start
from contextwise.cli.start import schema_of

KINDS = {"train": "recipe", "plan sweep": "sweep", "trial": "trial"}


@pytest.fixture(scope="module")
def validators() -> dict[str, jsonschema.Draft202012Validator]:
    """Kind of file -> validator."""
    schemas = {kind: schema_of(kind) for kind in KINDS.values()}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return {kind: jsonschema.Draft202012Validator(schema) for kind, schema in schemas.items()}


def test_shipped_files_are_valid(validators):
    checked = 0
    for recipe in shipped_recipes():
        if recipe.verb in KINDS:
            errors = list(validators[KINDS[recipe.verb]].iter_errors(read_yaml(recipe.path)))
            assert not errors, (recipe.name, errors[0].message)
            checked += 1
    assert checked > 40


RECIPE = {"data": {"corpus": "c"}, "training": {"tokens": 1000}}
TRIAL = {"corpus": "c", "arms": ["gpt2", "contextlm"]}


@pytest.mark.parametrize(
    ("values", "change", "valid"),
    [
        (RECIPE, {}, True),
        (RECIPE, {"objective": "masked"}, True),
        (RECIPE, {"objective": {"name": "spans"}}, True),
        (RECIPE, {"objective": "guess"}, False),
        (RECIPE, {"objective": {"name": "masked", "guess": 1}}, False),
        (RECIPE, {"model": {"variant": "idea.py:Idea,width=3"}}, True),
        (RECIPE, {"model": {"pretrained": "gpt2", "context_predictor": {"chunk_size": 8}}}, True),
        (RECIPE, {"model": {"size": "nano", "pretrained": "gpt2"}}, False),
        (RECIPE, {"model": {"layer": 2}}, False),
        (RECIPE, {"training": {"tokens": 0}}, False),
        (RECIPE, {"training": {"tokens": "many"}}, False),
        (RECIPE, {"data": {"context": 256}}, False),
        (TRIAL, {"arms": ["gpt2", "idea.py:Idea"]}, True),
        (TRIAL, {"arms": {"gpt2": None, "pm": ["model.extra_layers=2"], "a": {"recipe": {}}, "b": "pm"}}, True),
        (TRIAL, {"arms": {"gpt2": {"setting": []}}}, False),
        (TRIAL, {"tokens": [1000, 2000], "rates": "fixed"}, True),
        (TRIAL, {"rates": {"factors": [0.5, 1]}}, True),
        (TRIAL, {"rates": "none"}, False),
        (TRIAL, {"equal": "luck"}, False),
    ],
    ids=str,
)
def test_short_forms_are_valid_and_what_the_program_refuses_is_not(validators, values, change, valid):
    assert validators["trial" if values is TRIAL else "recipe"].is_valid(values | change) is valid


def test_a_kind_of_file_without_required_settings_has_a_schema(monkeypatch):
    """As one of another package may be."""
    monkeypatch.setitem(start.FILES, "lone", "contextwise.base.config:Settings")
    assert schema_of("lone")["required"] == []


def test_the_verb_prints_it(contextwise):
    assert json.loads(contextwise("recipes --schema recipe")[1]) == schema_of("recipe")
    contextwise.refused("recipes contextlm-nano --schema trial", "--schema prints a schema alone; leave the recipe")
    contextwise.refused("recipes --schema recipes", "which has none; did you mean 'recipe'?")
    contextwise.refused("recipes --schema zzz", "it may be recipe, sweep or trial")


def test_errors_are_json_too(contextwise):
    status, output, errors = contextwise("train contextlm-nano --dry-run --json --set model.size=nanoo --set seed=-1")
    error = json.loads(output)["error"]
    assert status == error["exit_status"] == 2
    assert {problem["field"] for problem in error["problems"]} == {"model.size", "seed"}
    assert "has 2 problems" in error["message"] and "has 2 problems" in errors
