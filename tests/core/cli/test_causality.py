"""``contextwise measure causality MODEL``, as it is typed."""

import json
from pathlib import Path

import pytest
import torch

from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.data import Corpus
from contextwise.evaluation.measures.causality import CausalityResult
from contextwise.models.contextlm.pathway import ContextPathway
from small import save_model, small_gpt2


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, corpus_folder):
    """A stock model and a ContextLM, both of the shared corpus's vocabulary, in bfloat16."""
    folder = tmp_path_factory.mktemp("causality")
    corpus = Corpus.open(corpus_folder)
    stock = small_gpt2(corpus.vocab_size)
    context = ContextLMForCausalLM(ContextLMConfig(stock.config, chunk_size=4))
    for name, model in {"stock": stock, "context": context}.items():
        save_model(folder / name, model.to(torch.bfloat16), corpus.tokenizer())
    return folder


@pytest.fixture
def early_contexts(monkeypatch):
    """Contexts arrive one position early: the fault of an index that is off by one."""
    original = ContextPathway.contexts

    def early(pathway, *arguments, **named):
        context = pathway.added(original(pathway, *arguments, **named), lambda c: c)
        return torch.cat([context[:, 1:], context[:, -1:]], 1)

    monkeypatch.setattr(ContextPathway, "contexts", early)


def test_a_causal_model_gets_a_table_and_status_0(contextwise):
    status, output, _ = contextwise("measure causality stock")
    lines = output.splitlines()
    assert status == 0 and max(map(len, lines)) <= 80
    # Saved in bfloat16, measured in float32: there a leak cannot pass for rounding.
    assert lines[0] == "GPT2LMHeadModel, float32: no leak found"
    (future,) = (line for line in lines if "future tokens" in line)
    assert future.split()[2] == "0" and future.split()[-1] == "none"
    for name in ("gradients", "left padding", "tokens under the mask", "packed neighbours", "cached steps"):
        assert name in output


def test_the_type_is_chosen_with_dtype(contextwise):
    status, output, _ = contextwise("measure causality stock --dtype bfloat16 --no-packed")
    assert status == 0 and output.startswith("GPT2LMHeadModel, bfloat16: no leak found")


def test_json_alone_on_standard_output(contextwise, early_contexts):
    status, output, _ = contextwise("measure causality stock --json")
    assert status == 0 and json.loads(output)["causal"] is True
    status, output, _ = contextwise("measure causality context --json")
    content = json.loads(output)
    assert status == 1 and content["causal"] is False and content["gates_opened"] is True
    assert "causality of context: leaks (future tokens" in repr(CausalityResult(Path(), content))
    leak = content["effects"][0]
    assert (leak["name"], leak["outcome"]) == ("future tokens", "leak")
    assert leak["changed"] == leak["affected"] + 1 and leak["changed"] % 4 == 3


def test_bad_input_is_refused(contextwise):
    contextwise.refused("measure causality nowhere/at/all", "there is no run and no model at nowhere/at/all")
    contextwise.refused("measure causality stock --dtype int8", "dtype is 'int8'")
