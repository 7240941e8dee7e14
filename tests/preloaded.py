"""Modules that the processes of the tests share: imported once, and no garbage, which no process then looks through."""

import gc
import os
from importlib import import_module

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported; no process of the tests needs the Hub
gc.disable()
for name in ("training.trainer", "training.run", "cli.common", "models.export", "evaluation.measures.loss"):
    import_module(f"contextwise.{name}")
import_module("safetensors.torch")
gc.freeze()
gc.enable()
