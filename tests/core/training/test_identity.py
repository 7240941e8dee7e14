"""A run depends on the content of all that it starts from: after a change of it, it is another run, or refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ContextwiseError, DataError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise.training import train
from contextwise.training.identity import input_hashes
from contextwise.training.recipe import Recipe
from small import save_model, small_gpt2, write_rows

TEXTS = ["one apple", "two pears", "six plums", "ten dates"] * 2
OTHERS = ["one lemon", "two limes", "six figs ", "ten grape"] * 2


def prepared(folder: Path, train: list[str] = TEXTS, held_out: list[str] = OTHERS, **columns: Any) -> Path:
    """A corpus of these texts; ``columns``: name -> value of the training documents, and of the held-out ones."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    sources = []
    for place, (split, texts) in enumerate((("train", train), ("validation", held_out))):
        own = {name: values[place] for name, values in columns.items()}
        rows = [{"text": f"{split} {number} {text}", **own} for number, text in enumerate(texts)]
        sources.append(f"{split}={write_rows(folder.with_name(f'{split}.jsonl'), rows)}")
    prepare_corpus(sources, "bytes", folder)
    return folder


def written(folder: Path, content: str = "a") -> Path:
    """What has the files of a model, for a hash."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text('{"model_type": "gpt2"}' if name == "config.json" else content)
    return folder


def data_of(folder: Path, **own: Any) -> dict[str, Any]:
    return {"data": {"corpus": str(folder / "corpus"), "context": 8} | own}


def with_cue(folder: Path, stage: str, **own: Any) -> dict[str, Any]:
    prepared(folder / "corpus", title=("a", "b"))
    data = data_of(folder, contexts=None if stage == "proxy" else {"columns": ["title"]})
    cue = {"stage": stage, "sentence_encoder": str(written(folder / "sentence")), **own}
    return data | {"objective": "sentence", "model": {"cue": cue}}


def of_arrays(folder: Path, kind: str, changed: bool) -> None:
    """A .bin file of 2 MB, or a Zarr array, in which one token may be another; the times and the sizes stay."""
    tokens = np.arange(2**20, dtype=np.uint16)
    tokens[700_001] += changed
    if kind == "bin":
        file = folder / "corpus"
        file.mkdir(exist_ok=True)
        tokens.tofile(file / "train.bin")
        os.utime(file / "train.bin", ns=(10**18, 10**18))
        return
    zarr = pytest.importorskip("zarr", reason="needs zarr")
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    group = zarr.open_group(str(folder / "corpus"), mode="w")
    group.create_array("train", shape=(64, 2**14), chunks=(1, 2**14), dtype="u2")[:] = tokens.reshape(64, -1)


def replayed(share: float = 0.5, **changes: Any) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    """A recipe with a second corpus, and how that one changes."""

    def build(folder: Path) -> dict[str, Any]:
        prepared(folder / "corpus")
        old = str(prepared(folder / "old", OTHERS, TEXTS))
        return data_of(folder, replay={"corpus": old, "share": share})

    return build, lambda folder: prepared(folder / "old", **{"train": OTHERS, "held_out": TEXTS} | changes)


def columns(name: str, **changes: Any) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    def build(folder: Path) -> dict[str, Any]:
        prepared(folder / "corpus", title=("old", "held"), n=("1", "2"))
        return data_of(folder, metadata={"columns": [name]}, context=16)

    return build, lambda folder: prepared(folder / "corpus", **{"title": ("old", "held"), "n": ("1", "2")} | changes)


def in_place(build: Callable[[Path], Any], *path: str, content: str = "b") -> tuple[Callable[[Path], Any], Any]:
    """A recipe, and a file of one of its models that gets another content of the same length."""
    return build, lambda folder: folder.joinpath(*path).write_text(content)


def plain(folder: Path) -> dict[str, Any]:
    prepared(folder / "corpus")
    return data_of(folder)


def pretrained(folder: Path) -> dict[str, Any]:
    return plain(folder) | {"model": {"pretrained": str(written(folder / "base"))}}


def joint(folder: Path, prefix: str = "") -> dict[str, Any]:
    return with_cue(folder, "joint", text_encoder=f"{prefix}{written(folder / 'text')}")


def array(kind: str) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    def build(folder: Path) -> dict[str, Any]:
        of_arrays(folder, kind, False)
        return data_of(folder) | {"model": {"vocab_size": 65_536}}

    return build, lambda folder: of_arrays(folder, kind, True)


def shifted(folder: Path) -> None:
    """The same tokens one after the other, in other documents: a word goes from the end of one to the beginning of the next."""
    first, second, *rest = TEXTS
    prepared(folder / "corpus", [first[:-6], f"{first[-6:]}{second}", *rest])


def instructions(folder: Path, longer: bool = False) -> dict[str, Any]:
    """Instructions with the same texts, whose answers begin at another place."""
    asked, answer = ("a\n\n### Response:b", "c") if longer else ("a", "b\n\n### Response:c")
    rows = [{"instruction": f"{number} {asked}", "output": answer} for number in range(4)]
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    prepare_corpus(f"alpaca:{write_rows(folder / 'a.jsonl', rows)}", "bytes", folder / "corpus", validation=0)
    return data_of(folder, context=256) | {"objective": "instruction"}


KINDS = {
    "training documents": (plain, lambda folder: prepared(folder / "corpus", OTHERS, OTHERS)),
    "held-out documents": (plain, lambda folder: prepared(folder / "corpus", TEXTS, TEXTS)),
    "borders of documents": (plain, shifted),
    "metadata": columns("title", title=("new", "held")),
    "metadata of held-out documents": columns("title", title=("old", "other")),
    "where answers begin": (instructions, lambda folder: instructions(folder, longer=True)),
    "replayed corpus": replayed(train=OTHERS[::-1]),
    "held-out documents of a replayed corpus": replayed(held_out=OTHERS),
    "corpus that is validated on only": replayed(share=0, held_out=OTHERS),
    ".bin file": array("bin"),
    "Zarr array": array("zarr"),
    "weights": in_place(pretrained, "base", "model.safetensors"),
    "configuration": in_place(pretrained, "base", "config.json", content='{"model_type": "gptx"}'),
    "tokenizer of a model": in_place(pretrained, "base", "tokenizer.json"),
    "sentence encoder": in_place(joint, "sentence", "model.safetensors"),
    "text encoder": in_place(joint, "text", "model.safetensors"),
    "tokenizer of a text encoder": in_place(joint, "text", "tokenizer.json"),
    "tokenizer of a text encoder that is trained": in_place(
        lambda folder: joint(folder, "trained:"), "text", "tokenizer.json"
    ),
    "contexts": (joint, lambda folder: prepared(folder / "corpus", title=("c", "b"))),
    "contexts of held-out documents": (joint, lambda folder: prepared(folder / "corpus", title=("a", "c"))),
    "autoencoder": in_place(
        lambda folder: with_cue(folder, "proxy", autoencoder=str(written(folder / "auto"))), "auto", "model.safetensors"
    ),
}
UNCHANGED = {
    "metadata that is not read": columns("title", n=("3", "4")),
    "the same texts prepared again": (plain, lambda folder: prepared(folder / "corpus")),
}


def recipe_of(values: dict[str, Any]) -> Recipe:
    training = {"steps": 1, "tokens_per_step": 256, "learning_rate": 1e-3}
    return validate(Recipe, {"name": "r", "training": training, **values}, "the recipe")


def run_id(values: dict[str, Any], folder: Path) -> str:
    (run,) = RunSet.of(RunSetSettings(recipe=recipe_of(values).resolved(), arms={"a": []}), folder / "set").runs
    return run.id


@pytest.mark.parametrize("kind", KINDS)
def test_each_input_is_part_of_a_run(kind, tmp_path):
    build, change = KINDS[kind]
    values = build(tmp_path)
    hashes, name = input_hashes(recipe_of(values)), run_id(values, tmp_path)
    assert hashes == input_hashes(recipe_of(values)) and name == run_id(values, tmp_path)
    change(tmp_path)
    now = input_hashes(recipe_of(values))
    assert now.keys() == hashes.keys() and now != hashes
    assert run_id(values, tmp_path) != name


@pytest.mark.parametrize("kind", UNCHANGED)
def test_what_is_not_read_is_no_part_of_a_run(kind, tmp_path):
    build, change = UNCHANGED[kind]
    values = build(tmp_path)
    hashes, name = input_hashes(recipe_of(values)), run_id(values, tmp_path)
    change(tmp_path)
    assert (input_hashes(recipe_of(values)), run_id(values, tmp_path)) == (hashes, name)


TRAINED = {
    kind: KINDS[kind]
    for kind in ("held-out documents", "borders of documents", "metadata", "replayed corpus", ".bin file")
}


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_a_run_is_not_continued_on_another_input(kind, state, tmp_path):
    build, change = TRAINED[kind]
    values = build(tmp_path)
    model = {"layers": 1, "width": 8, "heads": 1} | values.get("model", {})
    training = {"steps": 2, "tokens_per_step": 16, "learning_rate": 1e-3, "save_every": 1}
    recipe = recipe_of({**values, "model": model, "training": training, "output": str(tmp_path / "run")})
    run = train(recipe)
    if state == "stopped":
        for file in (run.summary_file, run.model / "config.json"):
            file.unlink()
        shutil.rmtree(run.checkpoints / "step-2")
    change(tmp_path)
    first = "is finished, but .* is not what it" if state == "finished" else "is not what .*run"
    with pytest.raises(ContextwiseError, match=f"{first} was trained on"):
        train(recipe)


def arms_from(base: Path, corpus: Path) -> RunSetSettings:
    shape = {"model": {"layers": 1, "width": 16, "heads": 2}}
    training = {"steps": 1, "tokens_per_step": 16, "learning_rate": 1e-3, "warmup_steps": 0}
    recipe = {"data": {"corpus": str(corpus), "context": 8}, "training": training}
    arms = {"before": {"recipe": recipe | shape}, "after": ["model.pretrained=@before"]}
    return RunSetSettings.model_validate({"recipe": recipe, "arms": arms | {"given": [f"model.pretrained={base}"]}})


def test_runs_from_another_model_at_the_same_place(tmp_path):
    corpus, base = prepared(tmp_path / "corpus"), tmp_path / "base"
    save_model(base, small_gpt2(seed=1))
    settings = arms_from(base, corpus)
    first = RunSet.of(settings, tmp_path / "set")
    first.train_missing()
    shutil.rmtree(base)
    save_model(base, small_gpt2(seed=2))
    again = RunSet.of(settings, tmp_path / "set")
    same, other = ([run.arm for run in again.runs if (run in first.runs) is known] for known in (True, False))
    assert (same, other) == (["before", "after"], ["given"])
    # A parent's model that was replaced by hand: its id says nothing of it.
    (parent,) = again.of_arm("before")
    shutil.rmtree(parent.folder / "model")
    shutil.copytree(base, parent.folder / "model")
    with pytest.raises(
        DataError, match=r"after-s0-\w+ is finished, but model\.pretrained is not what it was trained on"
    ):
        again.train_missing()


def test_a_model_that_an_arm_names_is_part_of_the_runs_from_it(tmp_path):
    corpus, base = prepared(tmp_path / "corpus"), save_model(tmp_path / "base", small_gpt2(seed=1))
    arms = {"before": {"model": str(base)}, "after": ["model.pretrained=@before"]}
    recipe = arms_from(base, corpus).recipe
    settings = RunSetSettings.model_validate({"recipe": recipe, "arms": arms})
    before = [run.id for run in RunSet.of(settings, tmp_path / "set").runs]
    save_model(base, small_gpt2(seed=2))
    after = [run.id for run in RunSet.of(settings, tmp_path / "set").runs]
    assert before[0] == after[0] and before[1] != after[1]


def test_how_a_run_executes_is_no_part_of_it(tmp_path, capsys):
    prepared(tmp_path / "corpus")
    values = data_of(tmp_path) | {"model": {"layers": 1, "width": 8, "heads": 1}, "output": str(tmp_path / "run")}
    training = {"steps": 4, "tokens_per_step": 64, "learning_rate": 1e-3, "save_every": 2, "precision": "fp32"}
    run = train(recipe_of({**values, "training": training}))
    rows = [row["loss"] for row in run.metrics("validation")]
    smaller = {**training, "micro_batch_tokens": 16, "gradient_checkpointing": True}
    for changed, tolerance in (({**training, "workers": 1}, 0), (smaller, 1e-5)):
        for file in (run.summary_file, run.model / "config.json"):
            file.unlink()
        shutil.rmtree(run.checkpoints / "step-4")
        capsys.readouterr()
        again = train(recipe_of({**values, "training": changed}))
        assert [row["loss"] for row in again.metrics("validation")] == pytest.approx(rows, abs=tolerance)
        assert "resuming from step 2" in capsys.readouterr().err
    ids = {run_id({**values, "training": each}, tmp_path) for each in (training, smaller)}
    assert len(ids) == 1


def lossy(folder: Path) -> Path:
    """A tokenizer of three words; all others are one token."""
    words = {"</s>": 0, "<unk>": 1, "apple": 2, "<end>": 3}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    return folder


def test_a_corpus_is_of_its_texts_and_the_token_between_them(tmp_path):
    tokenizer, file = lossy(tmp_path / "tokenizer"), tmp_path / "a.jsonl"
    prints = {}
    for name, text, end in (("first", "an apple", None), ("longer", "the apple", None), ("end", "an apple", "<end>")):
        write_rows(file, [{"text": f"{text} {number}"} for number in range(4)])
        corpus = prepare_corpus(file, tokenizer, tmp_path / name, validation=0, end_of_text=end)
        prints[name] = corpus.fingerprint, corpus.document(0).tolist()
    assert len({tuple(ids) for _, ids in prints.values()}) == 1
    assert len({fingerprint for fingerprint, _ in prints.values()}) == 3


def test_a_trunk_of_other_documents_is_refused(tmp_path):
    prepared(tmp_path / "corpus")
    values = data_of(tmp_path) | {"model": {"layers": 1, "width": 8, "heads": 1}}
    training = {"tokens_per_step": 16, "learning_rate": 1e-3, "schedule": "wsd", "decay_steps": 1}
    trunk = recipe_of(
        {**values, "training": {**training, "steps": 4, "branches": [3]}, "output": str(tmp_path / "trunk")}
    )
    train(trunk)
    prepared(tmp_path / "corpus", OTHERS, OTHERS)
    own = {**training, "steps": 3, "trunk": str(tmp_path / "trunk")}
    with pytest.raises(CheckpointError, match="is not what .*trunk was trained on"):
        train(recipe_of({**values, "training": own, "output": str(tmp_path / "branch")}))


def test_a_run_states_what_it_was_made_from(tmp_path):
    prepared(tmp_path / "corpus")
    values = data_of(tmp_path) | {"model": {"layers": 1, "width": 8, "heads": 1}, "output": str(tmp_path / "run")}
    run = train(recipe_of(values))
    fingerprints = {name: Corpus.open(tmp_path / "corpus", name).fingerprint for name in ("train", "validation")}
    assert run.summary()["fingerprints"] == {"train": fingerprints["train"], "loss": fingerprints["validation"]}
    assert json.loads((RunFolder(run.path).checkpoints / "step-1" / "state.json").read_text())["fingerprints"]


def test_a_part_that_is_still_to_be_trained_counts_by_its_id(tmp_path):
    values = joint(tmp_path)
    values["model"]["cue"] |= {"text_encoder": "@encoder", "sentence_encoder": "@sentence"}
    parts = {"data": values["data"] | {"contexts": None}, "training": {"steps": 1, "learning_rate": 1e-3}}

    def ids(**shape: Any) -> list[str]:
        shape = {"layers": 1, "width": 8, "heads": 1} | shape
        bert = parts | {"objective": "masked", "model": {"family": "bert", **shape}}
        arms = {"encoder": {"recipe": bert}, "sentence": {"recipe": parts | {"model": {"family": "lstm", "width": 8}}}}
        arms["cue"] = {"recipe": values | {"training": parts["training"]}}
        return [run.id for run in RunSet.of(RunSetSettings.model_validate({"arms": arms}), tmp_path / "set").runs]

    first, other = ids(), ids(heads=2)
    assert [a == b for a, b in zip(first, other, strict=True)] == [False, True, False]
