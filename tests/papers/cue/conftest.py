"""All stages of a CUE model's life, trained once, in a few steps each."""

import pytest

from contextwise.data import prepare_corpus
from contextwise.training import train
from cue_runs import STAGES, Runs, recipe, save_text_encoder, write_articles
from objective_corpora import bpe, corpus, known, letters, modules  # noqa: F401


@pytest.fixture(scope="session")
def news(tmp_path_factory):
    """A corpus of articles with metadata, in named splits."""
    folder = tmp_path_factory.mktemp("news")
    sources = [f"train={write_articles(folder / 'train.jsonl', 60, 0)}"]
    sources.append(f"validation={write_articles(folder / 'validation.jsonl', 15, 1)}")
    prepare_corpus(sources, "train:300", folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="session")
def text_encoder(tmp_path_factory):
    return save_text_encoder(tmp_path_factory.mktemp("text-encoder") / "bert")


@pytest.fixture(scope="session")
def life(tmp_path_factory, news, text_encoder):
    """The finished runs of all stages."""
    runs = Runs(tmp_path_factory.mktemp("life"), news, text_encoder)
    for values in runs.sentence_models():
        train(recipe(values))
    for stage in STAGES:
        train(recipe(runs.stage(stage)))
    return runs
