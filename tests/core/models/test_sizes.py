"""Named sizes: published parameter counts, and operations counted by hand."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from contextwise.base.errors import ConfigError
from contextwise.models import ContextLMConfig, ModelSize, backbone_config, build_model
from contextwise.models.building import parameter_count
from contextwise.models.contextlm.layers import POOLINGS
from contextwise.models.sizes import named_size
from contextwise.models.spec import pretraining_losses, training_flops_per_example, training_flops_per_target
from contextwise_papers.objectives import MultiTokenConfig
from contextwise_papers.objectives.kinds import EncoderDecoderModel, EncoderModel

# GPT-2: the released checkpoints. Pythia: the table of the Pythia paper (vocabulary padded to 50,304).
DECODERS = ["gpt2", "gpt2_rotary", "gpt_neox", "llama", "qwen3"]
PUBLISHED = {
    ("gpt2", "base"): 124_439_808,
    ("gpt2", "medium"): 354_823_168,
    ("gpt2", "large"): 774_030_080,
    ("gpt2", "xl"): 1_557_611_200,
    ("gpt_neox", "pythia-70m"): 70_426_624,
    ("gpt_neox", "pythia-160m"): 162_322_944,
    ("gpt_neox", "pythia-410m"): 405_334_016,
    ("gpt_neox", "pythia-1b"): 1_011_781_632,
    ("gpt_neox", "pythia-1.4b"): 1_414_647_808,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items(), ids=lambda value: str(value))
def test_published_parameter_counts(name, count):
    family, size = name
    vocabulary, context = (50_257, 1024) if family == "gpt2" else (50_304, 2048)
    assert parameter_count(backbone_config(family, named_size(family, size), vocabulary, context)) == count


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("form", [{}, {"inject_every_layer": True}], ids=["embedding", "every layer"])
def test_contextlm_and_its_matched_baseline_differ_by_the_gate_alone(family, form):
    size = named_size(family, "nano")
    plain = backbone_config(family, size, 4096, 256)
    matched = backbone_config(family, size, 4096, 256, extra_layers=2)
    gate = size.width * (size.layers if form else 1)
    assert parameter_count(ContextLMConfig(plain, predictor_layers=2, **form)) - parameter_count(matched) == gate


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("predictor", [None, 1, 4])
@pytest.mark.parametrize("head", [None, "layer", "linear"])
def test_operations_are_those_that_torch_counts(family, predictor, head):
    """Against torch's own counter, which sees every matrix product; attention is counted over full rows here and there."""
    context = 64
    config = backbone_config(
        family, ModelSize(3, 64, 4, 1e-3) if family == "gpt2" else ModelSize(3, 64, 2, 1e-3), 200, context
    )
    if predictor:
        config = ContextLMConfig(config, chunk_size=predictor, predictor_layers=2)
    heads = {"heads": 3} if head else {}
    if head:
        config = MultiTokenConfig(config, future_tokens=3, head=head)
    model = build_model(config)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        out = model(torch.randint(0, 200, (1, context)), use_cache=False, **heads)
        (out.logits.sum() + (out.future_logits.sum() if head else 0)).backward()
    # The rotary table's outer product is no model operation; it is counted by torch all the same.
    flops = training_flops_per_example(config, context) + context * training_flops_per_target(config)
    assert flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def pathway(context: int, **options):
    """A ContextLM, and its configuration."""
    config = ContextLMConfig(backbone_config("gpt2", ModelSize(3, 64, 4, 1e-3), 200, 64), chunk_size=4, **options)
    model = build_model(config)
    model.set_attn_implementation("eager")
    return model, config, torch.randint(0, 200, (1, context))


@pytest.mark.parametrize("context", [64, 61, 3])
@pytest.mark.parametrize(
    "options",
    [
        *({"pooling": pooling} for pooling in POOLINGS),
        {"injection": "gate", "inject_every_layer": True},
        {"injection": "normed_gate", "injection_layer": 1},
        {"injection": "own_norms", "predictor_norm": True},
        {"injection": "paper"},
    ],
)
def test_operations_of_a_pathway_are_those_that_torch_counts(options, context):
    """Forward alone: with keys that no gradient reaches, latent attention has less than three times as many."""
    model, config, tokens = pathway(context, **options)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, use_cache=False)
    flops = training_flops_per_example(config, context) + context * training_flops_per_target(config)
    assert flops / 3 == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_operations_of_a_frozen_backbone_are_those_that_torch_counts(layer):
    model, config, tokens = pathway(64, injection_layer=layer)
    model.requires_grad_(False)
    model.context.requires_grad_(True)
    with FlopCounterMode(display=False) as counter:
        model(tokens, use_cache=False).logits.sum().backward()
    trained = ("context",)
    flops = training_flops_per_example(config, 64, 0, trained) + 64 * training_flops_per_target(config, trained)
    assert flops == pytest.approx(counter.get_total_flops(), rel=0.02)
    everything = training_flops_per_example(config, 64) + 64 * training_flops_per_target(config)
    assert flops < 0.75 * everything


def test_gpt2_with_rotary_positions_is_gpt2_where_nothing_is_rotated():
    """At position 0 everywhere nothing is; GPT-2 then has no positions either if its embeddings of them are zero."""
    size = ModelSize(2, 32, 4, 1e-3)
    torch.manual_seed(0)
    plain, rotary = (build_model(backbone_config(family, size, 50, 16)).eval() for family in ("gpt2", "gpt2_rotary"))
    for parameter in rotary.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for parameter in plain.parameters():
        parameter.requires_grad_(False)

    def copied(target, source, order=lambda x: x):
        target.weight.copy_(order(source.weight).T)  # GPT-2 stores (inputs, outputs)
        target.bias.copy_(order(source.bias))

    plain.transformer.wpe.weight.zero_()
    plain.transformer.wte.weight.copy_(rotary.gpt_neox.embed_in.weight)
    assert rotary.get_output_embeddings().weight is rotary.gpt_neox.embed_in.weight
    plain.transformer.ln_f.load_state_dict(rotary.gpt_neox.final_layer_norm.state_dict())
    for block, source in zip(plain.transformer.h, rotary.gpt_neox.layers, strict=True):
        block.ln_1.load_state_dict(source.input_layernorm.state_dict())
        block.ln_2.load_state_dict(source.post_attention_layernorm.state_dict())
        # Of GPT-NeoX each head has its queries, keys and values together; GPT-2 has all queries first.
        queries_first = lambda x: x.unflatten(0, (4, 3, 8)).transpose(0, 1).flatten(0, 2)  # noqa: E731
        copied(block.attn.c_attn, source.attention.query_key_value, queries_first)
        copied(block.attn.c_proj, source.attention.dense)
        copied(block.mlp.c_fc, source.mlp.dense_h_to_4h)
        copied(block.mlp.c_proj, source.mlp.dense_4h_to_h)
    tokens, zeros = torch.arange(12).reshape(1, 12), torch.zeros(1, 12, dtype=torch.long)
    with torch.no_grad():
        expected, found = plain(tokens, position_ids=zeros).logits, rotary(tokens, position_ids=zeros).logits
        assert torch.allclose(expected, found, atol=1e-4)
        assert not torch.allclose(found, rotary(tokens).logits, atol=1e-2)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_operations_of_encoders_are_those_that_torch_counts(family):
    """With fewer targets than inputs; the head of an encoder is counted for its targets alone."""
    inputs, outputs = 64, 24
    kind = EncoderModel if family == "bert" else EncoderDecoderModel
    config = kind(family=family, layers=3, width=64, heads=2).stock(200, inputs, end_of_text=0)
    model = build_model(config)
    model.set_attn_implementation("eager")
    batch = {"input_ids": torch.randint(0, 200, (1, inputs)), "labels": torch.randint(0, 200, (1, outputs))}
    if family == "bert":
        batch["labels"] = torch.full((1, inputs), -100)
        batch["labels"][0, 3:27] = 5
    with FlopCounterMode(display=False) as counter:
        pretraining_losses(model, batch).minimised().backward()
    counted = training_flops_per_example(config, inputs, outputs if family == "t5" else 0)
    assert counted + outputs * training_flops_per_target(config) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_impossible_shapes_are_rejected():
    with pytest.raises(ConfigError, match="a width of 128 is not divisible by 5 heads"):
        backbone_config("gpt2", ModelSize(2, 128, 5, 1e-3), 100, 64)
    with pytest.raises(ConfigError, match="must all be at least 1"):
        backbone_config("gpt2", ModelSize(2, 128, 4, 1e-3), 100, 0)
    with pytest.raises(ConfigError, match="multiple of 8"):
        backbone_config("gpt_neox", ModelSize(2, 48, 4, 1e-3), 100, 64)
