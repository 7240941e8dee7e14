"""transformers' own tests of models, run on the models of this package.

They come with the source of transformers, not with its wheel: a checkout of the repository, named by ``TRANSFORMERS_SOURCE``
or installed as editable. An unpacked source distribution (``pip download --no-binary :all: --no-deps transformers==VERSION``)
has the tests of models, but not those of generation, which are then skipped.
"""

import importlib
import os
import sys
import types
import unittest
from pathlib import Path

import pytest
import torch
import transformers

from contextlm_models import VOCABULARY, backbone
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise_papers.cue import CueConfig, CueForCausalLM
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM

SOURCE = Path(os.environ.get("TRANSFORMERS_SOURCE") or Path(transformers.__file__).parents[2])
COMMON = "test_modeling_common"
if not (SOURCE / "tests" / f"{COMMON}.py").is_file():
    pytest.skip("the source of transformers is not here (TRANSFORMERS_SOURCE)", allow_module_level=True)
pytest.importorskip("parameterized", reason="parameterized is not installed")
pytestmark = pytest.mark.slow


class Lacking:
    """Stands for the tests of generation, which are in a checkout of transformers and not in its source distribution."""

    def test_generation(self):
        self.skipTest(f"{SOURCE} has no tests/generation; TRANSFORMERS_SOURCE must name a checkout of the repository")


def mixin(module: str, name: str) -> type:
    """A class of transformers' tests; where the source distribution lacks the module, one that says so."""
    package = types.ModuleType("transformers_tests")
    package.__path__ = [str(SOURCE / "tests")]
    sys.modules.setdefault("transformers_tests", package)
    for part, names in {
        "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
        "generation.test_utils": {"GenerationTesterMixin": Lacking},
    }.items():
        if not (SOURCE / "tests" / f"{part.replace('.', '/')}.py").is_file():
            lacking = types.ModuleType(f"transformers_tests.{part}")
            vars(lacking).update(names)
            sys.modules.setdefault(f"transformers_tests.{part.partition('.')[0]}", types.ModuleType("folder"))
            sys.modules.setdefault(lacking.__name__, lacking)
    return getattr(importlib.import_module(f"transformers_tests.{module}"), name)


ModelTesterMixin = mixin(COMMON, "ModelTesterMixin")
GenerationTesterMixin = mixin("generation.test_utils", "GenerationTesterMixin")


class Small:
    """Makes the small configurations and inputs that transformers' tests ask for."""

    batch_size, seq_length, vocab_size = 3, 7, VOCABULARY
    hidden_size, num_attention_heads, num_hidden_layers = 16, 2, 2
    is_training = True

    def __init__(self, config) -> None:
        self.config = config

    def get_config(self):
        return self.config()

    def prepare_config_and_inputs_for_common(self):
        shape = (self.batch_size, self.seq_length)
        ids = torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


STATES = "a CUE model returns no hidden states and attentions: its two parts have different widths"
REASONS = {
    "test_correct_missing_keys": "the base model is the model without its head, and is not saved by itself",
    "TestContextLMOfQwen3.test_tied_head_has_a_tp_plan_entry": "tensor parallelism: the context pathway has no plan",
    "TestCue.test_attention_outputs": STATES,
    "TestCue.test_can_capture": STATES,
    "TestCue.test_capture_outputs": STATES,
    "TestCue.test_eager_matches_sdpa": STATES,
    "TestCue.test_hidden_states": STATES,
    "TestCue.test_model_outputs_equivalence": STATES,
    "TestCue.test_retain_grad": STATES,
    "TestCue.test_training_gradient_checkpointing": "the sentence encoder is frozen, and in evaluation mode",
}
"""Tests that are left out (how their names begin), and why."""


def case(name: str, kind: type, config) -> type:
    """A test case of one model class."""

    class Case(GenerationTesterMixin, ModelTesterMixin, unittest.TestCase):
        all_model_classes = all_generative_model_classes = (kind,)
        pipeline_model_mapping = {}  # noqa: RUF012 - the form that transformers reads

        def _prepare_for_class(self, inputs, model_class, return_labels=False):
            prepared = super()._prepare_for_class(inputs, model_class, return_labels)
            return prepared | ({"labels": prepared["input_ids"].clone()} if return_labels else {})

        def setUp(self) -> None:
            self.model_tester = Small(config)
            for own, reason in REASONS.items():
                if f"{name}.{self._testMethodName}".startswith((own, f"{name}.{own}")):
                    self.skipTest(reason)

    Case.__name__ = Case.__qualname__ = name
    return Case


def small(family: str):
    return backbone(family, **({"n_layer": 2} if family == "gpt2" else {"num_hidden_layers": 2}))


TestContextLMOfGPT2 = case("TestContextLMOfGPT2", ContextLMForCausalLM, lambda: ContextLMConfig(small("gpt2"), 3))
TestContextLMOfGPTNeoX = case(
    "TestContextLMOfGPTNeoX", ContextLMForCausalLM, lambda: ContextLMConfig(small("gpt_neox"), 3)
)
TestContextLMOfLlama = case("TestContextLMOfLlama", ContextLMForCausalLM, lambda: ContextLMConfig(small("llama"), 3))
TestContextLMOfQwen3 = case("TestContextLMOfQwen3", ContextLMForCausalLM, lambda: ContextLMConfig(small("qwen3"), 3))
TestMultiToken = case("TestMultiToken", MultiTokenForCausalLM, lambda: MultiTokenConfig(small("llama"), 2, "linear"))
TestCue = case("TestCue", CueForCausalLM, lambda: CueConfig(small("gpt2")))
