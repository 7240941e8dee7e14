"""The papers' models, exported with their code, open where Contextwise cannot be imported."""

import pytest

from cue_models import cue_model, sentence_encoder
from elsewhere import exported_says_the_same
from multitoken_models import draw, multitoken

MODELS = {
    "heads of a matrix": lambda: multitoken("gpt2", "linear"),
    "heads of a block": lambda: multitoken("llama", "layer"),
    "LSTM": lambda: sentence_encoder("lstm"),
    "CUE": cue_model,
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_needs_no_contextwise(name, tmp_path):
    out = exported_says_the_same(MODELS[name]().eval(), draw(2, 7), tmp_path)
    files = {file.name for file in out.glob("*.py")}
    assert all(file.startswith("contextwise_") for file in files)
    # The code of the model alone: neither its specification, by which it is trained, nor the objectives and measures.
    assert not [file for file in files if file.endswith("_spec.py") or "_training_" in file or "_evaluation_" in file]
