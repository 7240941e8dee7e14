"""A trial does not show the numbers of a model, corpus or metadata that were replaced."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from contextwise.base.errors import ConfigError
from contextwise.data import prepare_corpus
from contextwise.experiments.trial import Trial, TrialSettings, load_trial
from small import save_model, small_gpt2, write_rows

RECIPE = {
    "data": {"context": 64},
    "model": {"layers": 1, "width": 16, "heads": 2},
    "training": {"tokens_per_step": 128, "learning_rate": 3e-3, "evaluation_tokens": 16},
}


pytestmark = pytest.mark.usefixtures("untimed")


def corpus_of(folder: Path, title: str, held_out: str = "a") -> None:
    """A corpus of the same texts with a title of its own in each split."""
    sources = []
    for split, given in (("train", title), ("validation", held_out)):
        rows = [{"text": f"{split} {number} of a text", "title": f"{given}{number}"} for number in range(40)]
        sources.append(f"{split}={write_rows(folder.with_name(f'{split}.jsonl'), rows)}")
    prepare_corpus(sources, "bytes", folder, overwrite=True)


def model_in(folder: Path, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    save_model(folder, small_gpt2(seed=seed, positions=64))


CHANGES = {
    "model.pretrained": lambda folder: model_in(folder / "base", 2),
    "data.metadata": lambda folder: corpus_of(folder / "corpus", "b"),
    "scored.metadata": lambda folder: corpus_of(folder / "corpus", "a", "b"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", CHANGES)
def test_other_inputs_at_the_same_place(what, tmp_path):
    corpus_of(tmp_path / "corpus", "a")
    model_in(tmp_path / "base", 1)
    own = ["data.metadata={columns: [title]}"] if what == "data.metadata" else [f"model.pretrained={tmp_path / 'base'}"]
    scored = {"measure": "evaluate-metadata", "metadata": ["title"]} if what == "scored.metadata" else {}

    def asked() -> TrialSettings:
        arms: dict[str, Any] = {"gpt2": None, "changed": [*own, "training.learning_rate=3e-3"]}
        values = {"arms": arms, "corpus": str(tmp_path / "corpus"), "recipe": RECIPE, "tokens": 256, "rates": "fixed"}
        return load_trial(None, values | {"seeds": 2, "score": scored}, output=tmp_path / "t")

    first = Trial(asked()).run()
    assert Trial(asked()).run().losses == first.losses
    CHANGES[what](tmp_path)
    named = what if what == "scored.metadata" else f"the content of changed.{what}"
    with pytest.raises(
        ConfigError, match=rf"looked at with other settings \({named}[,) ].*choose another folder with --out"
    ):
        Trial(asked()).run()
    (tmp_path / "t" / "result.json").unlink()  # as if it was stopped before its first look
    second = Trial(asked()).run()
    assert second.losses["changed"] != first.losses["changed"]
    assert (second.losses["gpt2"] == first.losses["gpt2"]) == (what != "scored.metadata")
