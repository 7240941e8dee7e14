"""The parts of a CUE model: what is trained and what is frozen, files of the whole and of each part, sizes."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

import contextwise_papers.cue
from contextwise.base.errors import CheckpointError
from contextwise.models import build_model, load_model
from contextwise.models.building import parameter_count
from contextwise.models.loading import kind_of
from contextwise.models.spec import pretraining_losses
from contextwise_papers.cue import CueConfig, CueForCausalLM, LSTMConfig
from contextwise_papers.cue.config import CueContextConfig, CueDecoderConfig
from contextwise_papers.cue.parts import CueContextEncoder, CueDecoder
from contextwise_papers.cue.settings import TRAINED
from contextwise_papers.cue.stages import freeze
from cue_models import (
    CUE,
    ENCODERS,
    FORMS,
    LONGEST,
    TEXT,
    VOCABULARY,
    WIDTH,
    batch_of,
    context_encoder,
    cue_model,
    decoder,
    draw,
    proxy_model,
    sentence_encoder,
)

# What is trained


@pytest.mark.parametrize("stage", ["joint", "adapt", "swap"])
@FORMS
def test_each_stage_trains_its_parts_and_leaves_the_others_bit_for_bit(stage, options):
    model, trained = cue_model(**options), set(TRAINED[stage]) - {"text_encoder"}
    freeze(model, stage)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert {name.split(".")[0] for name in parameters} == trained
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.01)
    pretraining_losses(model, batch_of(*draw())).minimised().backward()
    # DDP waits for the gradient of every trained parameter.
    assert [name for name, value in parameters.items() if value.grad is None] == []
    optimizer.step()
    changed = {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == trained
    assert [name for name, value in model.named_parameters() if name not in parameters and value.grad is not None] == []


def test_a_frozen_sentence_encoder_has_no_dropout_and_keeps_no_graph():
    model, (tokens, contexts) = cue_model(dropout=0.5), draw()
    model.train()
    assert not model.sentence_encoder.training
    assert model.decoder.training
    kept = []
    model.sentence_encoder.base_model.register_forward_hook(lambda *call: kept.append(call[2].last_hidden_state))
    first, second = model.hidden_states(tokens, **contexts), model.hidden_states(tokens, **contexts)
    assert torch.equal(first, second)
    assert first.requires_grad
    assert not kept[0].requires_grad
    model.sentence_encoder.requires_grad_(True)
    model.train()
    assert not torch.equal(model.hidden_states(tokens, **contexts), model.hidden_states(tokens, **contexts))
    assert kept[-1].requires_grad


# Files


@ENCODERS
@pytest.mark.parametrize("options", [{}, {"form": "concatenate", "sentence_inputs": False}], ids=["full", "ablated"])
def test_a_saved_model_is_loaded_unchanged(kind, options, tmp_path):
    described = {"name": "some-encoder", "digest": "abc", "pooling": "cls", "max_tokens": 128}
    columns = {"columns": ["title", "date"], "previous_sentence": True}
    encoder = context_encoder(text_encoder=described, contexts=columns, context_dropout=0.25)
    model, (tokens, contexts) = cue_model(kind, encoder=encoder, **options), draw()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    opened = load_model(tmp_path, device="cpu")
    assert type(opened) is CueForCausalLM
    assert opened.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], value), name
    assert torch.equal(opened(tokens, **contexts).logits, model(tokens, **contexts).logits)
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert [name for name, value in opened.named_parameters() if value.requires_grad] == trained
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is CueConfig
    assert config.context_encoder.text_encoder == described
    assert config.context_encoder.contexts == columns
    assert config.context_encoder.context_dropout == 0.25
    assert type(config.sentence_encoder) is {"gpt2": GPT2Config, "lstm": LSTMConfig}[kind]
    assert config.decoder.to_dict() == model.config.decoder.to_dict()
    assert config.eos_token_id == 0
    assert kind_of(config) == "decoder"


def test_a_model_with_proxies_survives_saving(tmp_path):
    model, (tokens, _) = proxy_model(1.5), draw()
    model.save_pretrained(tmp_path)
    opened = load_model(tmp_path, device="cpu")
    given = {"proxy_targets": tokens, "proxy_noise": torch.ones(3, 4)}
    assert torch.equal(opened(tokens, **given).logits, model(tokens, **given).logits)
    assert opened.config.proxy.noise == 1.5
    trained = [name for name, value in opened.named_parameters() if value.requires_grad]
    assert trained == [name for name, value in model.named_parameters() if value.requires_grad]
    assert not any(name.startswith("proxy.autoencoder") for name in trained)


def test_precision_and_attention_reach_all_parts(tmp_path):
    model, (tokens, contexts) = cue_model(), draw()
    model.save_pretrained(tmp_path)
    coarse = load_model(tmp_path, dtype=torch.bfloat16, device="cpu")
    assert {parameter.dtype for parameter in coarse.parameters()} == {torch.bfloat16}
    expected = model(tokens, **contexts).logits
    torch.testing.assert_close(coarse(tokens, **contexts).logits.float(), expected, atol=0.01, rtol=0.05)
    eager = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    configs = (eager.sentence_encoder.config, eager.decoder.transformer.config)
    assert [config._attn_implementation for config in configs] == ["eager", "eager"]
    torch.testing.assert_close(eager(tokens, **contexts).logits, expected, atol=1e-6, rtol=1e-5)


def test_a_configuration_builds_a_fresh_model():
    torch.manual_seed(0)
    config = CueConfig(
        sentence_encoder().config.to_dict(), CueContextConfig(TEXT, CUE, heads=2).to_dict(), decoder().config.to_dict()
    )
    model = build_model(config)
    assert model.get_output_embeddings().weight.shape == (VOCABULARY, WIDTH)
    assert model.get_input_embeddings() is model.sentence_encoder.get_input_embeddings()
    assert not model.context_encoder.empty.any()
    assert model.sentence_encoder.lm_head.weight is model.sentence_encoder.transformer.wte.weight
    assert config.max_position_embeddings == LONGEST
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCABULARY, WIDTH, 2)
    assert config.get_text_config() is config
    assert contextwise_papers.cue.CueConfig is CueConfig
    assert parameter_count(config) == sum(parameter.numel() for parameter in model.parameters())


def test_a_damaged_checkpoint_is_a_clear_error(tmp_path):
    model = cue_model()
    model.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace(f'"text_width": {TEXT}', '"text_width": 11'))
    with pytest.raises(CheckpointError, match=r"no causal language model could be loaded from"):
        load_model(tmp_path, device="cpu")


# The paper's size


def test_parameters_of_the_papers_size():
    sentences = {"vocab_size": 28_996, "n_positions": 512, "n_embd": 512, "n_layer": 6, "n_head": 4}
    # Table 1's 24.5M are inferred to be tied embeddings, 512 positions and a feed-forward width of 512: with the usual
    # four times the width there would be 34.0M.
    counts = {
        "sentence": parameter_count(GPT2Config(n_inner=512, bos_token_id=0, eos_token_id=0, **sentences)),
        "decoder": sum(part.numel() for part in CueDecoder(CueDecoderConfig()).parameters()),
    }
    assert counts["sentence"] == pytest.approx(24.5e6, rel=0.01)
    assert counts["decoder"] == pytest.approx(40e6, rel=0.01)
    own, cross = 4 * 512 * 512 + 4 * 512, 4 * 512 * 512 + 4 * 512
    block = own + cross + 2 * 512 * 2048 + 2048 + 512 + 3 * 2 * 512
    assert counts["decoder"] == 6 * block + 2 * 512 + 512 * 512 + 28_996 * 512
    whole = CueConfig(GPT2Config(n_inner=512, bos_token_id=0, eos_token_id=0, **sentences), CueContextConfig())
    encoder = sum(part.numel() for part in CueContextEncoder(CueContextConfig()).parameters())
    assert parameter_count(whole) == counts["sentence"] + counts["decoder"] + encoder
    # Adaptation trains the context encoder, "roughly 5%" of all with DistilBERT's 65M (Table 1).
    assert encoder / (parameter_count(whole) + 65_190_912) == pytest.approx(0.05, abs=0.003)
