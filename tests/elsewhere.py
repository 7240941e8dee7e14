"""A model that was exported with its code, opened where Contextwise cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from contextwise.models.export import export_model_folder

ELSEWHERE = """
import sys
sys.modules |= dict.fromkeys(["contextwise", "contextwise_papers"])  # any import of them fails
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokens = torch.load(sys.argv[2])
with torch.no_grad():
    torch.save((model(tokens, use_cache=False).logits, model.generate(tokens, max_new_tokens=9, do_sample=False)), sys.argv[3])
"""


def exported_says_the_same(model: Any, tokens: torch.Tensor, folder: Path) -> Path:
    """Export a model with its code, and check its logits and text there; the exported folder."""
    model.save_pretrained(folder / "model")
    out = export_model_folder(folder / "model", folder / "out", standalone=True)
    torch.save(tokens, folder / "tokens.pt")
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(out), str(folder / "tokens.pt"), str(folder / "found.pt")],
        env=os.environ | {"HF_MODULES_CACHE": str(folder / "modules"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    logits, text = torch.load(folder / "found.pt")
    with torch.no_grad():
        assert torch.equal(logits, model(tokens, use_cache=False).logits)
    assert torch.equal(text, model.generate(tokens, max_new_tokens=9, do_sample=False))
    # Its code is that of the model: nothing of runs, corpora and files.
    assert not [file.name for file in out.glob("contextwise_*.py") if "_data_" in file.name or "_runs" in file.name]
    return out
