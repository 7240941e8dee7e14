"""Items on tasks, long tasks, instructions and attention: their runs are shared, planned without data; bad settings."""

import math
from pathlib import Path

import pytest
import yaml

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.models.sizes import SIZES, named_size
from contextwise_papers.contextlm.tables_7_8_settings import TRAINING
from contextwise_papers.item import RECIPES, measure_at
from shipped import ALL_ITEMS

SHARED = {"table3": "table2", "table5": "table2", "figure3": "table2", "table4": "table2"}
SHARED |= {"table12": "table1", "figure5": "table1"}
ITEMS = {name: item for name, item in ALL_ITEMS.items() if name.startswith("contextlm/")}


def scales():
    return [(name, scale) for name in SHARED for scale in ITEMS[f"contextlm/{name}"].scales]


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if "times as many tokens" in str(item.scales)])
def test_how_many_more_tokens_the_paper_s_models_read(name):
    item = ITEMS[name]
    ours, theirs = (item.scales[scale].settings["recipe"]["training"]["tokens"] for scale in ("gpu", "paper"))
    assert f"read {theirs / ours:,.0f} times as many tokens" in item.scales["gpu"].supports


@pytest.mark.parametrize(("name", "scale"), scales())
def test_every_item_is_planned_without_any_data(name, scale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measure = measure_at(ITEMS[f"contextlm/{name}"], scale)
    recipes = measure.recipes(tmp_path / "out")
    assert len(recipes) == len(measure.models) * len(measure.seeds) * (1 + hasattr(measure, "tuning"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "scale"), scales())
def test_runs_are_those_of_the_tables_of_perplexity(name, scale, tmp_path):
    measure = measure_at(ITEMS[f"contextlm/{name}"], scale)
    table = measure_at(ITEMS[f"contextlm/{SHARED[name]}"], scale)
    theirs = {recipe.folder: recipe.resolved() for recipe in table.recipes(tmp_path)}
    ours = [run.recipe() for run in measure.run_set(tmp_path).runs if run.arm in measure.models]
    assert ours and all(theirs[recipe.folder] == recipe.resolved() for recipe in ours)


def test_the_papers_tuning_is_the_recipe_for_instructions(tmp_path):
    kept = yaml.safe_load((RECIPES / "instruct" / "alpaca.yaml").read_text())
    for name in ("figure3", "table4"):
        tuning = measure_at(ITEMS[f"contextlm/{name}"], "paper").tuning
        training = {key: value for key, value in tuning["training"].items() if key != "micro_batch_tokens"}
        assert training == kept["training"]
        assert tuning["data"]["context"] == kept["data"]["context"]
        measure = measure_at(ITEMS[f"contextlm/{name}"], "tiny")
        tuned = [run.planned_recipe() for run in measure.run_set(tmp_path).runs if run.parents]
        assert len({(recipe.data.corpus, str(recipe.training)) for recipe in tuned}) == 1
        assert sorted(recipe.seed for recipe in tuned) == sorted(measure.seeds * len(measure.models))
        assert {recipe.objective.name for recipe in tuned} == {"instruction"}


@pytest.mark.parametrize("name", ["table3", "table12"])
def test_printed_averages_are_those_of_the_printed_accuracies(name):
    rows = ITEMS[f"contextlm/{name}"].printed["rows"]
    for row in rows.values():
        assert len(row) == 10
        # The document rounds; ContextLM-1.4B with five shots is the furthest off.
        assert row[-1] == pytest.approx(sum(row[:-1]) / 9, abs=0.16)


TEXTS = """
{task: mine, dataset_path: json, output_type: loglikelihood_rolling, test_split: train, doc_to_text: "",
 doc_to_target: "{{text}}", metric_list: [{metric: word_perplexity}], dataset_kwargs: {data_files: {train: mine.jsonl}}}
"""


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("table3", ["include_path=nowhere"], "include_path is nowhere"),
        ("table3", ["tasks=[]"], "tasks"),
        ("table3", ["limit=0"], "limit"),
        ("table3", ["claims=[{text: x, better: ContextLM, than: Pythai}]"], "claims names 'Pythai'"),
        ("table5", ["include_path=nowhere"], "include_path is nowhere"),
        ("table5", ["groups={}"], "--set 'groups={NAME: [TASK,TASK]}'"),
        ("table5", ["context=[]"], "--set context=[512,1024]"),
        ("table5", ["lengths=many"], "such as 0-4000"),
        ("table5", ["rope=ntk"], "rope"),
        ("figure3", [], "--set instructions=FILE"),
        ("figure3", ["instructions=nowhere.json"], "there is no file nowhere.json"),
        ("figure3", ["instructions=other.json"], "other.json entry 1"),
        ("table5", ["include_path=.", "groups={a: [mine]}"], "no generated answers with 'score', but word_perplexity"),
        ("figure3", ["instructions=here.json"], "--set questions=FILE"),
        ("figure3", ["instructions=here.json", "questions=no.json"], "there is no file no.json"),
        (
            "figure3",
            ["instructions=here.json", "questions=here.json"],
            "holds questions of alpaca-eval, not of mt-bench",
        ),
        ("table4", ["instructions=here.json", "questions=here.json", "temperature=-1"], "temperature"),
        (
            "table4",
            ["instructions=here.json", "questions=here.json", "judgments=nowhere"],
            "there is no folder nowhere",
        ),
        ("table4", ["tunning.training.steps=3"], "did you mean 'tuning'"),
        ("figure4d", ["seeds=[0,0,0]"], "seeds: 0 is given twice; give it once"),
        ("figure4d", ["seeds=[-1]"], "seeds.0 is -1, but must be at least 0"),
        ("figure4d", ["growing=[{text: a}]"], "growing.0.pairs is missing"),
        ("table1", ["claims=[abc]"], "claims.0 is 'abc', but must be a mapping of keys to values"),
        ("table1", ["claims=[{text: x, better: [ContextLM], than: GPT-2}]"], "claims.0.better is ['ContextLM']"),
        ("table1", ["claims=abc"], "claims is 'abc', but must be a list"),
        ("figure1", ["recipe.training=null"], "need training.schedule: wsd"),
        ("figure5", ["phrases=[nothing]"], "the phrase 'nothing' is 0 times"),
        ("figure5", ["phrases=[battery]"], "the phrase 'battery' is 2 times"),
    ],
)
def test_bad_settings_get_one_sentence_before_any_training(name, settings, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text('[{"goal": "a"}]')
    Path("here.json").write_text('[{"instruction": "a", "output": "b"}]')
    Path("mine.yaml").write_text(TEXTS)
    Path("mine.jsonl").write_text('{"text": "a b", "length": 2}')
    if name in ("table3", "table5") and "include_path" in settings[0]:
        pytest.importorskip("lm_eval", reason="the eval extra is not installed")
    item = ITEMS[f"contextlm/{name}"]
    with pytest.raises(ContextwiseError) as caught:
        measure_at(item, "tiny", settings).measure(item, tmp_path / "out")
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_no_definitions_and_no_hub_says_how_to_give_it(tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="the eval extra is not installed")
    monkeypatch.setattr("contextwise_evals.harness.tasks.hub_problem", lambda: "there is no hub")
    item = ITEMS["contextlm/table3"]
    with pytest.raises(ContextwiseError, match="as include_path"):
        measure_at(item, "tiny").measure(item, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_harness_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    item = ITEMS["contextlm/table3"]
    with pytest.raises(ConfigError, match=r"pip install 'lm_eval\[longbench\]'"):
        measure_at(item, "tiny").measure(item, tmp_path / "out")


# As printed: learning rate, tokens a step and training tokens in ContextLM's Tables 7 and 8, windows in its Section 3.1.
PRINTED = {
    ("gpt2", "base"): (12, 768, "1.0e-3", "0.5M", "9B", 1024),
    ("gpt2", "medium"): (16, 1024, "8.0e-4", "0.5M", "9B", 1024),
    ("gpt2", "large"): (20, 1280, "6.0e-4", "0.5M", "9B", 1024),
    ("gpt2", "xl"): (25, 1600, "4.0e-4", "0.5M", "9B", 1024),
    ("gpt_neox", "pythia-70m"): (8, 512, "1.0e-3", "2M", "300B", 2048),
    ("gpt_neox", "pythia-160m"): (12, 768, "6.0e-4", "2M", "300B", 2048),
    ("gpt_neox", "pythia-410m"): (16, 1024, "3.0e-4", "2M", "300B", 2048),
    ("gpt_neox", "pythia-1b"): (8, 2048, "2.5e-4", "2M", "300B", 2048),
    ("gpt_neox", "pythia-1.4b"): (16, 2048, "2.0e-4", "2M", "300B", 2048),
}


@pytest.mark.parametrize(("name", "printed"), PRINTED.items(), ids=lambda value: str(value))
def test_the_papers_sizes_are_trained_as_its_tables_print(name, printed):
    heads, width, rate, step, tokens, context = printed
    size = named_size(*name)
    assert (size.heads, size.width, size.learning_rate) == (heads, width, float(rate))
    tokens_per_step, trained = TRAINING[name[0]]
    million, billion = float(step.removesuffix("M")) * 1e6, float(tokens.removesuffix("B")) * 1e9
    # The tables round; a step is a power of two of whole windows.
    assert tokens_per_step == 2 ** round(math.log2(million))
    assert tokens_per_step % context == 0
    assert trained == billion


def test_the_paper_lists_all_published_sizes():
    published = {(family, size) for family in SIZES for size in SIZES[family] if SIZES[family][size].published}
    assert published == PRINTED.keys()
