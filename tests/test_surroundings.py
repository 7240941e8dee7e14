"""Results do not depend on what surrounds a command or a call: the caller's settings of torch, variables, streams."""

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load_file

import contextwise
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import relative_to_here
from contextwise.base.undisturbed import random_state
from contextwise.cli import main
from contextwise.experiments.trial.settings import TrialSettings
from contextwise.models import load_tokenizer
from contextwise.training import Recipe, train
from small import EXACT, recipe_values, save_model, small_gpt2, write_documents, write_rows


def weights(corpus: Path, folder: Path) -> bytes:
    """The weights of a run of two steps, and the losses of its validation."""
    run = contextwise.train(recipe_values(corpus, folder, steps=2, save_every=2, evaluate_every=2, **EXACT))
    evaluation = contextwise.evaluate(run, corpus, limit=3)
    return (run.model / "model.safetensors").read_bytes() + json.dumps(evaluation.summary["loss"]).encode()


@pytest.fixture(scope="module")
def plain(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights in a process without settings of its own."""
    return weights(corpus_folder, tmp_path_factory.mktemp("plain") / "run")


@contextlib.contextmanager
def set_to(get: Callable[[], Any], put: Callable[[Any], None], value: Any) -> Iterator[None]:
    """A setting of the caller, which a call leaves as it is."""
    before = get()
    put(value)
    try:
        yield
        assert get() == value
    finally:
        put(before)


@pytest.mark.parametrize("around", [contextlib.nullcontext, partial(torch.autocast, "cpu", dtype=torch.bfloat16)])
def test_a_call_trains_in_bf16_as_the_command_does(corpus_folder: Path, tmp_path: Path, around: Callable) -> None:
    """Each step multiplies by its own weights: under a block of autocast, torch would keep the cast ones of the first step."""
    settings = EXACT | {"precision": "bf16", "steps": 4, "save_every": 4}
    values = [recipe_values(corpus_folder, tmp_path / name, **settings) for name in ("command", "call")]
    train(Recipe.model_validate(values[0]))  # as the command calls it
    with around():
        called = contextwise.train(values[1])
    as_command = load_file(tmp_path / "command" / "model" / "model.safetensors")
    assert all(
        torch.equal(weight, as_command[name]) for name, weight in load_file(called.model / "model.safetensors").items()
    )


NEW_PRECISION = torch.backends.mkldnn.matmul
SURROUNDINGS = [
    "autocast",
    "inference",
    "gradients",
    "number format",
    "launcher",
    "deepspeed",
    "products",
    "products, new",
]


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_the_callers_settings_change_no_result(
    plain: bytes, corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surroundings: str
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", {"launcher": "bf16"}.get(surroundings, "no"))
    if surroundings == "deepspeed":
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    contexts = {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "inference": torch.inference_mode,
        "gradients": torch.no_grad,
        "number format": lambda: set_to(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        "products": lambda: set_to(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
        "products, new": lambda: set_to(
            lambda: NEW_PRECISION.fp32_precision, partial(setattr, NEW_PRECISION, "fp32_precision"), "bf16"
        ),
    }
    before = dict(os.environ), random_state()
    with contexts.get(surroundings, torch.enable_grad)():
        assert weights(corpus_folder, tmp_path / "run") == plain
    assert (dict(os.environ), random_state()) == before


def test_calls_in_threads_have_the_results_of_calls_one_after_another(
    plain: bytes, corpus_folder: Path, tmp_path: Path
) -> None:
    """Random numbers and settings of torch are those of the process: two runs at once drew each other's."""
    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(weights, corpus_folder, tmp_path / name) for name in ("a", "b", "c")]
    assert [run.result() for run in runs] == [plain] * 3


def test_a_model_with_a_hook_of_the_caller_is_measured_anew(corpus_folder: Path, tmp_path: Path) -> None:
    """Its result was that of the model without the hook."""
    model = small_gpt2()
    first, again = (contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / "plain") for _ in range(2))
    assert first.path == again.path
    kept, model.transformer.h[0].attn.scaling = model.transformer.h[0].attn.scaling, 0.0
    with pytest.raises(ConfigError, match="holds another result"):
        contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / "plain")
    model.transformer.h[0].attn.scaling = kept
    assert contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / "plain").path == first.path
    model.transformer.h[0].register_forward_hook(lambda module, inputs, output: output * 0)
    with pytest.raises(ConfigError, match="holds another result"):
        contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / "plain")
    hooked = contextwise.evaluate(model, corpus_folder, limit=2, out=tmp_path / "hooked")
    assert hooked.summary["loss"]["value"] != first.summary["loss"]["value"]


@pytest.mark.parametrize("rank", ["2", "two"])
def test_numbers_of_another_launch_are_refused(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, rank)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    try:
        with pytest.raises(ConfigError, match="with torchrun, or unset WORLD_SIZE"):
            contextwise.train(recipe_values(corpus_folder, tmp_path / "run"))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_arguments_of_other_types_are_refused(corpus_folder: Path, tmp_path: Path) -> None:
    text, out, model = tmp_path / "a.txt", tmp_path / "out", small_gpt2()
    text.write_text("some words")
    calls = {
        "sources is None": lambda: contextwise.prepare(None, "bytes", out),  # type: ignore[arg-type]
        "limit is '5'": lambda: contextwise.prepare(text, "bytes", out, limit="5"),
        "validation is True": lambda: contextwise.prepare(text, "bytes", out, validation=True),
        "recipe is 5": lambda: contextwise.train(5),  # type: ignore[arg-type]
        "5 is an unknown key": lambda: contextwise.train(recipe_values(corpus_folder, out), {5: 6}),  # type: ignore[dict-item]
        "model is None": lambda: contextwise.evaluate(None, corpus_folder),  # type: ignore[arg-type]
        "model is Linear": lambda: contextwise.evaluate(torch.nn.Linear(1, 1), corpus_folder),  # type: ignore[arg-type]
        "on the device meta": lambda: contextwise.evaluate(model.to("meta"), corpus_folder),
        "corpus is .'a text'": lambda: contextwise.evaluate(small_gpt2(), ["a text"]),  # type: ignore[arg-type]
        "batch_tokens is 'x'": lambda: contextwise.evaluate(small_gpt2(), corpus_folder, batch_tokens="x"),
        "models is '5'": lambda: contextwise.compare(5),  # type: ignore[arg-type]
        "device is 'tpu'": lambda: contextwise.load(save_model(tmp_path / "model", small_gpt2()), device="tpu"),
        "margin is 'x'": lambda: contextwise.decide(
            {"arm": ["a", "b"], "seed": [0, 0], "document": [0, 0], "tokens": [1, 1], "nats": [1.0, 1.0]}, margin="x"
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ConfigError, match=message):
            call()
    assert not out.exists()


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    options: dict[str, Any] = {"limit": np.int64(5), "validation": np.float32(0.2), "deduplicate": np.float64(0.8)}
    assert contextwise.prepare(tmp_path / "a.txt", "bytes", tmp_path / "out", **options).tokens == 10


def test_a_tokenizer_with_settings_of_another_type_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    save_model(tmp_path, small_gpt2())
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": "long"}')
    with pytest.raises(CheckpointError, match="no tokenizer could be loaded from"):
        load_tokenizer(tmp_path)


def ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["contextwise", *words])
    with pytest.raises(SystemExit) as raised:
        main()
    return int(raised.value.code or 0)


def test_a_terminal_without_a_width_and_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert ended(monkeypatch, "recipes", "--help") == 0
    assert "--schema" in capsys.readouterr().out
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ended(monkeypatch, "report", "/") == 2
    assert "the current folder was removed" in capsys.readouterr().err


AT_HOME: dict[str, Callable[[Path], Any]] = {
    "prepare": lambda home: contextwise.prepare(["~/a.jsonl"], "bytes", "~/corpus", validation=0.5).path,
    "Corpus": lambda home: contextwise.Corpus.open("~/corpus").path,
    "load": lambda home: Path(contextwise.load("~/model").name_or_path),
    "evaluate": lambda home: contextwise.evaluate("~/model", "~/corpus", limit=1, context=8, out=Path("~/loss")).path,
    "page": lambda home: contextwise.evaluate("~/model", "~/corpus", limit=1, context=8, out="~/loss").page("~/a.html"),
    "decide": lambda home: contextwise.decide("~/losses.jsonl", out="~/decided").path,
    "decisions": lambda home: contextwise.decide(["~/losses.jsonl"], out=Path("~/decided")).path,
    "recipe": lambda home: Recipe.model_validate(recipe_values(home / "corpus", Path("~/run"))).folder,
    "trial": lambda home: TrialSettings(name="a", corpus="c", arms=["gpt2", "pm"], output="~/trial").folder,
}
"""Calls with paths in the home folder, in an order in which each finds its files -> what they read or write there."""


def test_a_path_may_begin_at_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell replaces ``~`` in Python, in a file, or in ``--out=~/run``: a folder called ``~`` was made."""
    (home := tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(home))
    write_documents(home / "a.jsonl", 6)
    save_model(home / "model", small_gpt2())
    write_losses(home / "losses.jsonl")
    for name, call in AT_HOME.items():
        assert home in call(home).parents, name
    losses = str(home / "losses.jsonl")
    commands = [["corpus", "~/corpus"], ["decide", losses, "--out", "~/other"], ["decide", losses, "--out=~/again"]]
    for words in commands:
        assert ended(monkeypatch, *words) == 0, words
    assert {"again", "other"} <= {each.name for each in home.iterdir()}
    assert not list((tmp_path / "here").iterdir())


def test_a_user_without_a_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a number that a container runs as; pages with commands were an error that nothing explained."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 54321)
    monkeypatch.chdir(tmp_path)
    assert relative_to_here(f"{tmp_path}/a and ~/b") == "a and ~/b"
    write_losses(tmp_path / "losses.jsonl")
    assert ended(monkeypatch, "decide", "losses.jsonl", "--out=~/again") == 2
    assert "~/again begins with ~, but there is no such home folder" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["losses.jsonl"]


def write_losses(path: Path) -> None:
    fields = ("arm", "seed", "document", "tokens", "nats")
    rows = [(arm, seed, number, 9, 9.0) for arm in "ab" for seed in range(2) for number in range(3)]
    write_rows(path, [dict(zip(fields, row, strict=True)) for row in rows])


def test_an_output_may_be_a_link_to_a_folder_that_will_be_made(tmp_path: Path) -> None:
    write_losses(tmp_path / "losses.jsonl")
    (tmp_path / "link").symlink_to("disk/decision")
    contextwise.decide(tmp_path / "losses.jsonl", out=tmp_path / "link")
    assert (tmp_path / "disk" / "decision" / "result.json").exists()
    (tmp_path / "run").symlink_to("disk/run")
    with contextwise.RunFolder(tmp_path / "run").locked():
        assert (tmp_path / "disk" / "run").is_dir()


@pytest.mark.parametrize("what", ["corpus", "model"])
def test_no_file_is_blamed_for_a_limit_of_the_machine(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """It was said to be damaged, with the advice to prepare it again."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    place = {
        "corpus": "contextwise.data.corpus.stores.read_stream",
        "model": "contextwise.models.loading.from_pretrained",
    }
    monkeypatch.setattr(place[what], fail)
    model, out = save_model(tmp_path / "model", small_gpt2()), tmp_path / "out"
    assert ended(monkeypatch, "evaluate", str(model), "--corpus", str(corpus_folder), "--out", str(out)) == 2
    assert "error: the memory of this machine is not enough (" in capsys.readouterr().err
    assert not out.exists()
