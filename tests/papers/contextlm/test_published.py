"""Checkpoints under the published names: a made-up one of each family, renamed by hand, opens as the model it was."""

import json

import pytest
import torch
from safetensors.torch import save_file

from contextlm_models import backbone, draw
from contextwise import ContextLMConfig, ContextLMForCausalLM
from contextwise.base.errors import CheckpointError
from contextwise_papers.contextlm.published import load_published


def published_name(name, family, split):
    """Our name -> the published one, written out a second time."""
    parts = name.split(".")
    if name == "lm_head.weight":
        return name if family == "gpt2" else "embed_out.weight"
    if parts[:2] == ["context", "norm"]:
        return ".".join(["hlm", "layer_norm", *parts[2:]])
    if parts[0] == "context":
        return ".".join(["hlm", "transformer" if family == "gpt2" else "layers", *parts[2:]])
    if parts[1] in ("h", "layers"):
        index = int(parts[2])
        place = ["encoder", str(index)] if index < split else ["decoder", str(index - split)]
        return ".".join(place + parts[3:])
    return ".".join(parts[1:])


def write(folder, family, split, predictor_norm=None, **changes):
    torch.manual_seed(0)
    config = backbone(family, tie_word_embeddings=False)
    options = {"injection": "paper", "injection_layer": split, "predictor_norm": predictor_norm}
    model = ContextLMForCausalLM(ContextLMConfig(config, chunk_size=3, predictor_layers=1, **options)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_f" in name:
            torch.nn.init.normal_(parameter)
    renamed = {published_name(n, family, split): t.clone() for n, t in model.state_dict().items()}
    assert len(renamed) == len(model.state_dict())
    folder.mkdir()
    save_file(renamed | changes, folder / "model.safetensors")
    values = config.to_dict() | {"model_type": "unheard-of", "architectures": ["Theirs"], "chunk": 3}
    (folder / "config.json").write_text(json.dumps(values))
    return model


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
@pytest.mark.parametrize("split", [0, 1, 2])
def test_a_renamed_checkpoint_opens_as_the_model_it_was(family, split, tmp_path):
    inner = "encoder.0." if split else "decoder.0."
    buffer = inner + ("attn.bias" if family == "gpt2" else "attention.rotary_emb.inv_freq")
    model = write(tmp_path / "theirs", family, split, **{buffer: torch.ones(4)})
    again = load_published(tmp_path / "theirs", chunk_size=3)
    assert again.config.injection_layer == split
    tokens = draw(2, 13)
    with torch.no_grad():
        assert torch.equal(again(tokens, use_cache=False).logits, model(tokens, use_cache=False).logits)


def test_the_norm_of_a_predictor_is_known_by_its_weights(tmp_path):
    for norm in (True, False):
        model = write(tmp_path / str(norm), "gpt_neox", 0, predictor_norm=norm)
        again = load_published(tmp_path / str(norm), chunk_size=3)
        with torch.no_grad():
            assert torch.equal(again(draw(2, 13), use_cache=False).logits, model(draw(2, 13), use_cache=False).logits)
        assert again.config.predictor_norm is norm


def test_unknown_names_and_wrong_shapes_are_reported(tmp_path):
    write(tmp_path / "norm", "gpt2", 0, **{"hlm.layer_norm.weight": torch.ones(16)})
    with pytest.raises(CheckpointError, match=r"contains hlm\.layer_norm\.weight, which the gpt2 table"):
        load_published(tmp_path / "norm")
    write(tmp_path / "shape", "gpt2", 0, **{"wpe.weight": torch.ones(3, 16)})
    with pytest.raises(CheckpointError, match=r"does not match its config\.json"):
        load_published(tmp_path / "shape")
    with pytest.raises(CheckpointError, match="contains no"):
        load_published(tmp_path)
