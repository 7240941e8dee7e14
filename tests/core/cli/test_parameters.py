"""``contextwise model parameters``: Table 1 of CUE for any configuration, and the parts of other models."""

import json

import pytest
import yaml

from contextwise.base.recipes import recipe_path
from contextwise.models import backbone_config, build_model
from contextwise.models.building import parameter_count
from contextwise.models.sizes import named_size


@pytest.fixture
def workplace(tmp_path):
    """A folder with a model."""
    config = backbone_config("gpt2", named_size("gpt2", "nano"), 300, 256)
    build_model(config).save_pretrained(tmp_path / "model")
    return tmp_path


def test_the_table_of_the_paper_is_printed_without_a_network_and_without_the_runs(contextwise):
    _, shown, _ = contextwise("model parameters cue/joint-paper")
    rows = [line.split() for line in shown.splitlines()]
    assert ["sentence", "encoder", "24,380,416", "17.9%", "frozen", "none"] in rows
    assert ["text", "encoder", "65,190,912", "47.8%", "frozen", "none"] in rows
    assert ["context", "encoder", "6,699,008", "4.9%", "6,699,008", "joint,", "adapt"] in rows
    assert ["decoder", "40,136,704", "29.4%", "40,136,704", "joint,", "proxy,", "swap"] in rows
    assert ["total", "136,407,040", "100.0%", "46,835,712"] in rows
    assert max(len(line) for line in shown.splitlines()[1:]) <= 80


def modules_of(contextwise, source):
    return {module["name"]: module for module in json.loads(contextwise(f"model parameters {source} --json")[1])}


def test_of_a_proxy_only_the_projection_is_trained(contextwise):
    proxy = modules_of(contextwise, "proxy-paper")["proxy"]
    assert proxy["trained"] == 16 * 512 + 512
    # V x 128 x 16 x 128 x V, with biases (CUE, Section 4.2.1)
    autoencoder = 28_996 * 128 + 128 + 128 * 16 + 16 + 16 * 128 + 128 + 128 * 28_996 + 28_996
    assert proxy["parameters"] == autoencoder + proxy["trained"]


def test_the_parts_of_any_model_sum_up_to_it(contextwise):
    modules = modules_of(contextwise, "model").values()
    config = backbone_config("gpt2", named_size("gpt2", "nano"), 300, 256)
    assert sum(module["parameters"] for module in modules) == parameter_count(config)
    assert all(module["trained"] == module["parameters"] for module in modules)


def test_a_frozen_backbone_is_not_trained(contextwise, workplace):
    values = yaml.safe_load(recipe_path("retrofit-nano").read_text())
    values["model"] |= {"pretrained": str(workplace / "model"), "freeze_backbone": True}
    (workplace / "retrofit.yaml").write_text(yaml.safe_dump(values))
    modules = modules_of(contextwise, "retrofit.yaml")
    assert modules["backbone"]["trained"] == 0
    assert modules["context"]["trained"] == modules["context"]["parameters"] > 0


def test_a_missing_source_is_refused(contextwise, workplace):
    contextwise.refused("model parameters nothing.yaml", "there is no file nothing.yaml")
    contextwise.refused("model parameters ./nothing", "there is no run and no model")
    text = recipe_path("joint-paper").read_text()
    (workplace / "joint.yaml").write_text(text.replace("runs/sentence-lm-paper-seed0", f"{workplace}/other"))
    contextwise.refused("model parameters joint.yaml", "there is no run and no model at")
