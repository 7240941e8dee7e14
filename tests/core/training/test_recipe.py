"""Recipes: what is accepted, and that everything wrong is said in one message."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.config import read_yaml
from contextwise.base.errors import ConfigError
from contextwise.training import Recipe, load_recipe
from contextwise.training.recipe import few_steps
from small import recipe_values


def test_resolved_recipe_reads_back_the_same(tmp_path):
    recipe = Recipe.model_validate(recipe_values(tmp_path / "corpus", tmp_path / "run"))
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe.resolved()))
    assert load_recipe(file).resolved() == recipe.resolved()


def test_recipes_can_be_sent_to_other_processes(tmp_path):
    values = recipe_values(tmp_path / "corpus", tmp_path / "run")
    recipe = Recipe.model_validate(values | {"model": {"family": "gpt2", "size": "nano", "context_predictor": {}}})
    sent = pickle.loads(pickle.dumps(recipe))
    assert sent == recipe and sent.resolved() == recipe.resolved()
    assert sent.model_fields_set == recipe.model_fields_set


def write(tmp_path, change):
    values = recipe_values(tmp_path / "corpus", tmp_path / "run")
    change(values)
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


WSD = {"schedule": "wsd"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["training"].update(learning_rat=1), "did you mean 'learning_rate'"),
        (lambda r: r.update(trainnig={}), "did you mean 'training'"),
        (lambda r: r["model"]["context_predictor"].update(chunk=4), "did you mean 'chunk_size'"),
        (lambda r: r["model"].update(heads=5), "a width of 32 is not divisible by 5 heads"),
        (lambda r: r["model"].update(max_context=16), "only 16 positions"),
        (lambda r: r["model"]["context_predictor"].update(chunk_size=64), "chunk_size is 64, more than data.context"),
        (lambda r: r["model"]["context_predictor"].update(injection_layer=2), "injection_layer is 2.*from 0 to 1"),
        (lambda r: r["model"].update(size="huge"), "model.size is 'huge', but the sizes of gpt2 are pico"),
        (lambda r: r["model"].update(family="bart"), "model.family is 'bart'"),
        (lambda r: r["training"].update(tokens_per_step=100), "not a multiple of data.context .32.; 96 is"),
        (lambda r: r["training"].update(tokens=1000), "exactly one of steps, tokens and epochs"),
        (
            lambda r: r["training"].update(warmup_steps=13),
            "is 13, but the run has only 12 steps; give a share of the run",
        ),
        (lambda r: r["training"].update(WSD, warmup_steps=0.6, decay_steps=0.6), "more than the 12 steps of the run"),
        (
            lambda r: r["training"].update(WSD, steps=1, warmup_steps=0),
            r"is 0\.2, but the run has too few steps \(1\) for any before the decay",
        ),
        (
            lambda r: r["training"].update(initial_learning_rate=0.1),
            "initial_learning_rate is 0.1, but the schedule is cosine; set schedule: one_cycle",
        ),
        (lambda r: r["training"].update(patience=1, evaluation_tokens=0), "patience is 1, but there is no validation"),
        (
            lambda r: r["training"].update(examples_per_step=4),
            "examples_per_step is given together with tokens_per_step",
        ),
        (lambda r: r["training"].update(learning_rate=float("nan")), "learning_rate is nan"),
        (lambda r: r["training"].update(learning_rate=-1), "learning_rate is -1"),
        (lambda r: r["training"].update(trackers=["mlflow"]), "trackers"),
        (lambda r: r.update(context=64), "context is an unknown key; did you mean 'data.context'"),
        (lambda r: r["training"].update(context=64), "training.context is an unknown key; did you mean 'data.context'"),
        (lambda r: r.update(lr=64), "lr is an unknown key; did you mean 'training.learning_rate'"),
        (
            lambda r: r["training"].update(learning_rate="high"),
            "training.learning_rate is 'high', but must be a number",
        ),
        (lambda r: r["data"].pop("corpus"), r"data.corpus is missing; set it .folder of a prepared corpus"),
        (lambda r: r.update(training=[1, 2]), "training is"),
        (lambda r: r.update(name="a/b"), "name is 'a/b'"),
        (
            lambda r: r.update(data={"synthetic": {}}, training={"steps": 12, "examples_per_step": 4}),
            "data.synthetic needs one of its own models, not model.family gpt2; set model.family to parity",
        ),
    ],
)
def test_wrong_values_get_one_sentence(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(write(tmp_path, change))
    assert "the recipe" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_problems_come_in_one_message(tmp_path):
    def change(recipe):
        recipe["training"]["clipp"] = 1
        recipe["data"]["context"] = 0
        recipe["seed"] = "one"

    with pytest.raises(ConfigError, match="3 problems") as caught:
        load_recipe(write(tmp_path, change))
    assert str(caught.value).count("\n  - ") == 3


def test_all_problems_are_named_before_torch_is_imported(tmp_path):
    """Field problems of several sections, a check of several fields beside an unknown key, and none of them needs torch."""

    def change(recipe):
        recipe["training"] |= {"token": 5, "patience": 2, "evaluate_every": 0}
        recipe["model"]["size"] = "nanoo"

    check = (
        "import sys; from pathlib import Path\n"
        "from contextwise.base.errors import ConfigError\n"
        "from contextwise.training import load_recipe\n"
        "try: load_recipe(Path(sys.argv[1]))\n"
        "except ConfigError as error: print(error)\n"
        "print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", check, str(write(tmp_path, change))], capture_output=True, text=True
    ).stdout
    assert "has 3 problems" in output
    for words in ("training.token is an unknown key", "patience is 2", "model.size is 'nanoo'", "set()"):
        assert words in output


def test_keys_that_yaml_reads_as_other_values_are_named(tmp_path):
    def change(recipe):
        recipe[None] = 1
        recipe["training"] |= {3: 4, True: 1}

    with pytest.raises(ConfigError) as caught:
        load_recipe(write(tmp_path, change))
    told = [(problem.field, problem.why) for problem in caught.value.problems]
    assert ("the recipe", "has a key that is no text: None") in told
    assert {("training", f"has a key that is no text: {key}") for key in (3, True)} <= set(told)


def test_a_problem_is_data(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(tmp_path, lambda recipe: recipe["training"].update(tokens_per_step=100)))
    [problem] = caught.value.problems
    assert (problem.field, problem.value) == ("training.tokens_per_step", 100)


def test_overrides_go_before_the_file(tmp_path):
    file = write(tmp_path, lambda recipe: None)
    recipe = load_recipe(file, ["training.steps=500", "model.context_predictor=null", "seed=7"], tmp_path / "other")
    assert (recipe.training.steps, recipe.model.context_predictor, recipe.seed) == (500, None, 7)
    assert recipe.folder == tmp_path / "other"
    for wrong, words in [
        ("training.steps", "not of the form"),
        ("name.x=1", r"is below 'name', which is a single value; .* at once: --set 'name=\{…\}'"),
        ("training.steps.a.b=null", r"is below 'steps', .* single value; .* --set 'training\.steps=\{…\}'"),
        ("a=[", "not valid YAML"),
    ]:
        with pytest.raises(ConfigError, match=words):
            load_recipe(file, [wrong])


def test_files_that_are_no_recipes(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        load_recipe(tmp_path / "nothing.yaml")
    for content, words in [
        ("a: [", "not valid YAML"),
        ("- 1", "must be a mapping"),
        ("\0", "recipe"),
        ("# a\n", "is empty"),
    ]:
        file = tmp_path / "bad.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match=words):
            load_recipe(file)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_recipe(tmp_path / "binary.yaml")


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)


@pytest.mark.long
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_recipes_never_end_in_a_traceback(data, tmp_path_factory):
    """Whatever stands in a recipe, it is either valid or refused with a ConfigError."""
    values = recipe_values(Path("corpus"), Path("run"))
    for _ in range(data.draw(st.integers(1, 3))):
        section = values
        while True:
            key = data.draw(st.sampled_from(sorted(section)))
            if isinstance(section[key], dict) and data.draw(st.booleans()):
                section = section[key]
                if section:
                    continue
            break
        section[key if section else "key"] = data.draw(SCALARS)
    file = tmp_path_factory.mktemp("mutated") / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    try:
        recipe = load_recipe(file)
    except ConfigError as error:
        assert str(error)
    else:
        assert recipe.total_steps >= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\nname: x\nseed: 2\n", "the key 'seed' is given twice, first in line 1"),
        ("training:\n  steps: 3\n  'steps': 4\n", "the key 'steps' is given twice, first in line 2"),
        ("a: [{b: 1, b: 1}]", "the key 'b' is given twice, first in line 1"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path, text, words):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_recipe(tmp_path / "recipe.yaml")


def test_a_key_beside_a_merged_mapping_replaces_its_value(tmp_path):
    (tmp_path / "x.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: *a, y: 4}\n")
    assert read_yaml(tmp_path / "x.yaml") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 4}}


def test_runs_of_fewer_than_a_hundred_steps_are_named():
    assert few_steps([100, 4000]) == ""
    warning = few_steps([99, 100, 1, 1])
    assert warning.startswith("Fewer than 100 optimizer steps in some runs, down to 1.")
    assert "fewer tokens_per_step" in warning
