"""Revisions of models on the Hub: ``NAME@REVISION`` loads other weights, and makes other results."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import constants

import contextwise as library
from contextwise.base.errors import CheckpointError, DataError
from contextwise.data.tokenizers import load_tokenizer as load_corpus_tokenizer
from contextwise.training import load_recipe
from contextwise.training.identity import input_hashes
from contextwise.training.model import starting_model
from small import recipe_values, save_model, small_gpt2

COMMITS = {"main": "a" * 40, "v1": "b" * 40, "trial/wide": "c" * 40}
NAME = "someone/little"


def snapshot(cache: Path, ref: str, seed: int) -> None:
    """Put a revision of the model into a local cache of the Hub: blobs by content, links to them, and the ref."""
    home = cache / f"models--{NAME.replace('/', '--')}"
    saved, files = cache / "saved", home / "snapshots" / COMMITS[ref]
    save_model(saved, small_gpt2(seed=seed))
    files.mkdir(parents=True)
    (home / "blobs").mkdir(exist_ok=True)
    for file in saved.iterdir():
        blob = home / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        file.replace(blob)
        (files / file.name).symlink_to(Path("../../blobs") / blob.name)
    (home / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (home / "refs" / ref).write_text(COMMITS[ref])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local cache with three revisions of one model, and no network."""
    cache = tmp_path / "hub"
    for seed, ref in enumerate(COMMITS):
        snapshot(cache, ref, seed)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


def summaries(folder: Path) -> dict[str, dict]:
    """The results of a folder by the model that they name."""
    values = [json.loads(file.read_text()) for file in sorted(folder.glob("evaluation/*/*/summary.json"))]
    assert len({each["model"] for each in values}) == len(values)
    return {each["model"]: each for each in values}


def test_a_result_names_its_revision_and_answers_for_it_alone(contextwise, hub: Path) -> None:
    (contextwise.folder / "texts.txt").write_text("A text that is read with the tokenizer of the same revision.\n" * 4)
    for revision in ("", "@v1", "@trial/wide", f"@{COMMITS['v1']}"):
        status, _, errors = contextwise(f"evaluate {NAME}{revision} --corpus texts.txt --context 16 --stride 8")
        assert status == 0, errors
    found = summaries(contextwise.folder)
    at = {name.partition("@")[2] or "main": each for name, each in found.items()}
    assert {ref: each["commit"] for ref, each in at.items()} == COMMITS | {COMMITS["v1"]: COMMITS["v1"]}
    assert len({each["digest"] for each in at.values()}) == 3  # the tag and its commit are one model
    assert (
        at["v1"]["loss"]["value"]
        == at[COMMITS["v1"]]["loss"]["value"]
        != at["main"]["loss"]["value"]
        != at["trial/wide"]["loss"]["value"]
    )
    assert {each["name"] for each in at.values()} >= {"little", "little@v1", "little@trial-wide"}


def test_a_verb_takes_a_model_with_its_revision(contextwise, hub: Path) -> None:
    words = contextwise.words
    texts = {ref: words(f"generate {NAME}@{ref} the --greedy --max-new-tokens 8") for ref in ("main", "v1")}
    assert texts["main"] != texts["v1"] and texts["main"] == words(f"generate {NAME} the --greedy --max-new-tokens 8")
    assert f"{NAME}@v1" in words(f"model parameters {NAME}@v1")
    status, output, errors = contextwise(f"measure attention {NAME}@v1 {NAME} --text 'a text' --json")
    assert status == 0, errors
    assert f"{NAME}@v1" in output
    contextwise.refused(f"generate {NAME}@v2 the", f"no configuration could be loaded from {NAME}@v2")


def parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_python_recipes_and_corpora_take_a_name_with_its_revision(
    hub: Path, tmp_path: Path, corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, other = (parameters(library.load(name)) for name in (NAME, f"{NAME}@v1"))
    assert not torch.equal(main, other)
    values = recipe_values(corpus_folder, tmp_path / "run") | {"model": {"pretrained": f"{NAME}@v1"}}
    values["data"]["context"] = 16
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    recipe = load_recipe(file)
    started = starting_model(recipe, recipe.model.config(recipe, None, None))
    assert torch.equal(parameters(started), other)
    assert load_corpus_tokenizer(f"{NAME}@v1").name == f"{NAME}@v1"
    with pytest.raises(DataError, match="the Hub did not give that tokenizer"):
        load_corpus_tokenizer(f"{NAME}@v2")
    monkeypatch.chdir(tmp_path)
    Path(f"{NAME}@v1").parent.mkdir()
    with pytest.raises(CheckpointError, match="no run and no model"):  # someone/ is a folder here
        library.load(f"{NAME}@v1")


def test_a_run_from_a_model_whose_branch_has_moved_is_another(hub: Path, corpus_folder: Path, tmp_path: Path) -> None:
    def starts(name: str) -> str:
        values = recipe_values(corpus_folder, tmp_path / "run") | {"model": {"pretrained": name}}
        return input_hashes(load_recipe(values))["model.pretrained"]

    before = {name: starts(name) for name in (NAME, f"{NAME}@v1")}
    assert before == {NAME: COMMITS["main"], f"{NAME}@v1": COMMITS["v1"]}
    (hub / f"models--{NAME.replace('/', '--')}" / "refs" / "main").write_text(COMMITS["trial/wide"])
    assert (starts(NAME), starts(f"{NAME}@v1")) == (COMMITS["trial/wide"], COMMITS["v1"])
