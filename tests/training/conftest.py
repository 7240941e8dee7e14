"""All stages of a CUE model's life, trained once, in a few steps each."""

import json

import pytest

from contextwise.data import prepare_corpus
from contextwise.training import train
from cue_runs import STAGES, Runs, recipe, save_text_encoder, write_articles
from small import WORDS


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


@pytest.fixture(scope="session")
def sentences_folder(tmp_path_factory):
    """Documents of several sentences, with a small learned vocabulary."""
    folder = tmp_path_factory.mktemp("sentences")
    with (folder / "text.jsonl").open("w") as file:
        for i in range(120):
            words = [WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(20 + i)]
            text = " ".join(" ".join(words[k : k + 6]).capitalize() + f" in {i + k}." for k in range(0, len(words), 6))
            file.write(json.dumps({"text": text}) + "\n")
    prepare_corpus(folder / "text.jsonl", "train:400", folder / "corpus", validation=0.15)
    return folder / "corpus"
