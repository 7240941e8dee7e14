"""Token vectors in place of tokens: the same logits, losses and texts, and one sentence where the input is neither or both."""

import inspect

import pytest
import torch
from torch.nn.functional import pad

from contextlm_models import contextlm, draw
from contextwise.base.errors import ConfigError
from contextwise.models.families import CACHE
from contextwise_papers.objectives import MultiTokenForCausalLM
from multitoken_models import VOCABULARY, multitoken

MODELS = {
    "context": lambda family: contextlm(family, chunk_size=3),
    "context everywhere": lambda family: contextlm(family, chunk_size=4, inject_every_layer=True),
    "context behind a layer": lambda family: contextlm(family, chunk_size=4, injection_layer=1),
    "layer heads": lambda family: multitoken(family, "layer"),
    "linear heads": lambda family: multitoken(family, "linear"),
    "heads over context": lambda family: MultiTokenForCausalLM.from_backbone(contextlm(family), 3, "linear"),
}
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama"])  # learned positions, and rotary ones
KINDS = pytest.mark.parametrize("kind", MODELS)


def inputs(rows=2, length=10):
    """Left-padded tokens that every model here knows, none of them 0, and their mask."""
    tokens = draw(rows, length).remainder(VOCABULARY).clamp(min=1)
    mask = pad(torch.ones(rows, length - 3, dtype=torch.long), (3, 0))
    mask[0] = 1
    return tokens * mask, mask


@FAMILIES
@KINDS
def test_inputs_embeds_equal_input_ids(family, kind):
    model = MODELS[kind](family)
    tokens, mask = inputs()
    vectors = model.get_input_embeddings()(tokens)
    with torch.no_grad():
        for more in ({}, {"attention_mask": mask}, {"attention_mask": mask, "use_cache": False}):
            expected = model(tokens, **more).logits
            assert torch.equal(model(inputs_embeds=vectors, **more).logits, expected)
            assert torch.equal(model(None, inputs_embeds=vectors, **more).logits, expected)


@FAMILIES
@KINDS
def test_gradients_reach_inputs_embeds(family, kind):
    """What prompt tuning trains is a vector that no token has."""
    model = MODELS[kind](family).train()
    tokens, mask = inputs()
    labels = tokens.masked_fill(mask == 0, -100)
    vectors = model.get_input_embeddings()(tokens).detach().requires_grad_()
    loss = model(inputs_embeds=vectors, attention_mask=mask, labels=labels).loss
    assert torch.equal(loss, model(tokens, attention_mask=mask, labels=labels).loss)
    loss.backward()
    reached = vectors.grad.ne(0).any(dim=2)
    assert reached[:, :-1][mask[:, :-1] == 1].all()


@FAMILIES
@KINDS
@pytest.mark.parametrize(
    "way",
    [{}, pytest.param({"num_beams": 3}, marks=pytest.mark.slow), {"cache_implementation": "static"}],
    ids=["greedy", "beams", "static"],
)
def test_generation_continues_from_vectors(family, kind, way):
    model = MODELS[kind](family)
    tokens, mask = inputs()
    vectors = model.get_input_embeddings()(tokens)
    options = {"attention_mask": mask, "max_new_tokens": 11, "do_sample": False, "pad_token_id": 0, **way}
    expected = model.generate(tokens, **options)
    assert torch.equal(model.generate(inputs_embeds=vectors, **options), expected[:, tokens.shape[1] :])


@KINDS
def test_neither_tokens_nor_vectors_and_both_get_a_clear_error(kind):
    model = MODELS[kind]("gpt2")
    tokens, mask = inputs()
    with pytest.raises(ConfigError, match="neither of input_ids and inputs_embeds"):
        model(attention_mask=mask)
    with pytest.raises(ConfigError, match="both of input_ids and inputs_embeds"):
        model(tokens, inputs_embeds=model.get_input_embeddings()(tokens))


@pytest.mark.parametrize("kind", ["context", "context everywhere", "layer heads"])
def test_prompt_tuning_of_peft_trains_and_generates(kind):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    if CACHE != "past_key_values" and "past_key_values" in inspect.getsource(peft.peft_model):
        pytest.skip("this peft looks for past_key_values, as transformers called its cache before 5.24")
    model = MODELS[kind]("llama")
    options = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, token_dim=16, num_attention_heads=2)
    tuned = peft.get_peft_model(model, options)
    tokens, mask = inputs()
    trained = [p for p in tuned.parameters() if p.requires_grad]
    assert [tuple(p.shape) for p in trained] == [(3, 16)]
    optimizer = torch.optim.AdamW(trained, lr=0.3)
    losses = []
    for _ in range(5):
        loss = tuned.train()(input_ids=tokens, attention_mask=mask, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    tuned.eval()
    more = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    result = tuned.generate(input_ids=tokens, **more)
    assert torch.equal(result, tuned.generate(input_ids=tokens, use_cache=False, **more))
    vectors = torch.cat([trained[0][None].expand(2, -1, -1), model.get_input_embeddings()(tokens)], 1)
    more["attention_mask"] = pad(mask, (3, 0), value=1)
    assert torch.equal(result[:, tokens.shape[1] :], model.generate(inputs_embeds=vectors, **more))


def test_prefix_tuning_of_peft_is_refused_with_a_sentence():
    """Its trained keys and values have no chunk vectors, which the predictor needs."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = contextlm("llama")
    shape = {"token_dim": 16, "num_layers": model.config.num_hidden_layers, "num_attention_heads": 2}
    options = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, **shape)
    tokens, mask = inputs()
    with pytest.raises(ConfigError, match="filled by a model without a context predictor"):
        peft.get_peft_model(model, options)(input_ids=tokens, attention_mask=mask)
