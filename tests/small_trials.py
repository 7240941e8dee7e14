"""Trials of tiny arms that tests make."""

from pathlib import Path
from typing import Any

from contextwise.experiments.trial import TrialSettings, load_trial

RECIPE: dict[str, Any] = {
    "data": {"context": 16},
    "model": {"layers": 1, "width": 16, "heads": 2},
    "training": {"tokens_per_step": 64, "learning_rate": 3e-3, "evaluation_tokens": 16, "log_every": 1},
}
SLOWER = ["training.learning_rate=1e-6"]


def small_trial(corpus: Path, folder: Path, **changes: Any) -> TrialSettings:
    """A GPT-2 and one that hardly learns."""
    values = {"arms": {"gpt2": None, "slower": SLOWER}, "corpus": str(corpus), "recipe": RECIPE, "tokens": 256}
    return load_trial(None, values | {"rates": "fixed", "seeds": 5} | changes, output=folder)
