"""``contextwise parameters``: Table 1 of CUE for any configuration, and the parts of other models."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from contextwise.base.errors import ContextwiseError
from contextwise.cli import app
from contextwise.models import backbone_config, build_model, named_size, parameter_count

RECIPES = Path(__file__).parents[2] / "recipes"


def printed(*arguments):
    result = CliRunner().invoke(app, ["parameters", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_the_paper_s_table_is_printed_without_a_network_and_without_the_runs():
    shown = printed(RECIPES / "cue" / "joint-paper.yaml")
    rows = [line.split() for line in shown.splitlines()]
    assert ["sentence", "encoder", "24,380,416", "17.9%", "frozen", "none"] in rows
    assert ["text", "encoder", "65,190,912", "47.8%", "frozen", "none"] in rows
    assert ["context", "encoder", "6,699,008", "4.9%", "6,699,008", "joint,", "adapt"] in rows
    assert ["decoder", "40,136,704", "29.4%", "40,136,704", "joint,", "proxy,", "swap"] in rows
    assert ["total", "136,407,040", "100.0%", "46,835,712"] in rows
    assert max(len(line) for line in shown.splitlines()[1:]) <= 80


def test_of_a_proxy_only_the_projection_is_trained():
    modules = json.loads(printed(RECIPES / "cue" / "proxy-paper.yaml", "--json"))
    proxy = next(module for module in modules if module["name"] == "proxy")
    assert proxy["trained"] == 16 * 512 + 512
    # V x 128 x 16 x 128 x V, with biases (CUE, Section 4.2.1)
    autoencoder = 28_996 * 128 + 128 + 128 * 16 + 16 + 16 * 128 + 128 + 128 * 28_996 + 28_996
    assert proxy["parameters"] == autoencoder + proxy["trained"]


def test_the_parts_of_any_model_sum_up_to_it(tmp_path):
    config = backbone_config("gpt2", named_size("gpt2", "nano"), 300, 32)
    build_model(config).save_pretrained(tmp_path / "model")
    modules = json.loads(printed(tmp_path / "model", "--json"))
    assert sum(module["parameters"] for module in modules) == parameter_count(config)
    assert all(module["trained"] == module["parameters"] for module in modules)


def test_a_frozen_backbone_is_told_from_what_is_trained(tmp_path):
    config = backbone_config("gpt2", named_size("gpt2", "nano"), 300, 256)
    build_model(config).save_pretrained(tmp_path / "model")
    values = yaml.safe_load((RECIPES / "contextlm" / "retrofit-nano.yaml").read_text())
    values["model"] |= {"pretrained": str(tmp_path / "model"), "freeze_backbone": True}
    (tmp_path / "retrofit.yaml").write_text(yaml.safe_dump(values))
    modules = {m["name"]: m for m in json.loads(printed(tmp_path / "retrofit.yaml", "--json"))}
    assert modules["backbone"]["trained"] == 0
    assert modules["context"]["trained"] == modules["context"]["parameters"] > 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nothing.yaml", "there is no recipe at nothing.yaml"),
        ("./nothing", "there is no run and no model"),
    ],
)
def test_what_is_not_there_is_said(source, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContextwiseError, match=words):
        printed(source if source.endswith("yaml") else tmp_path / "nothing")


def test_a_recipe_on_a_run_that_neither_is_nor_has_a_recipe(tmp_path):
    text = (RECIPES / "cue" / "joint-paper.yaml").read_text()
    (tmp_path / "joint.yaml").write_text(text.replace("runs/sentence-lm-paper-seed0", f"{tmp_path}/other"))
    with pytest.raises(ContextwiseError, match="there is no run and no model at .*other"):
        printed(tmp_path / "joint.yaml")
