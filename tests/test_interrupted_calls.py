"""Ctrl-C in a notebook: the process is left as it was, and the same call in it gives what an undisturbed one gives."""

import _thread
import contextlib
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import contextwise
from contextwise.base.errors import ContextwiseError, Interrupted
from faults import tree
from golden import weights_hash
from process_state import changed, process_state
from small import EXACT, recipe_values, save_model, small_gpt2, write_documents


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_documents(folder / "text.jsonl", 12)
    contextwise.prepare(folder / "text.jsonl", "bytes", folder / "corpus", validation=0.6)
    save_model(folder / "model", small_gpt2())
    return folder


@pytest.fixture(autouse=True)
def as_in_a_notebook() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in Python."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _prepare(inputs: Path, out: Path) -> Any:
    contextwise.prepare(inputs / "text.jsonl", "train:300", out / "corpus", overwrite=True)
    return tree(out / "corpus")


def _train(inputs: Path, out: Path) -> Any:
    values = recipe_values(inputs / "corpus", out / "run", steps=3, save_every=1, evaluate_every=2, **EXACT)
    return weights_hash(contextwise.train(values).model)


def _evaluate(inputs: Path, out: Path) -> Any:
    result = contextwise.evaluate(inputs / "model", inputs / "corpus", out=out / "loss", limit=2)
    return result.summary["loss"]


def _curve(inputs: Path, out: Path) -> Any:
    result = contextwise.curve(inputs / "model", inputs / "corpus", out=out / "curve", limit=2)
    return result.to_pandas().to_json()


def _trial(inputs: Path, out: Path) -> Any:
    shared = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
    shared["training"] = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16, **EXACT}
    settings: dict[str, Any] = {
        "recipe": shared,
        "tokens": 128,
        "seeds": 2,
        "rates": "fixed",
        "limit": 6,
        "equal": "tokens",
    }
    return contextwise.trial(["gpt2", "pm"], inputs / "corpus", out=out / "trial", **settings).losses


CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "prepare": _prepare,
    "train": _train,
    "evaluate": _evaluate,
    "curve": _curve,
    "trial": _trial,
}


def interrupted(call: Callable[[], Any], *numbers: int) -> int:
    """Call with a SIGINT at these numbers of called Python functions; how many were called."""
    called = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal called
        if event == "call":
            called += 1
            if called in numbers:
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.long
@pytest.mark.parametrize("times", [3, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name if name != "trial" else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
)
def test_an_interrupted_call_leaves_no_trace(inputs: Path, tmp_path: Path, name: str, times: int) -> None:
    torch.set_num_threads(1)
    draw, out = random.Random(times), tmp_path / "out"

    def call() -> Any:
        return CALLS[name](inputs, out)

    expected = call()  # imports change the process
    shutil.rmtree(out)
    total = interrupted(call)
    ends = set()
    for _ in range(times if name != "trial" else times // 6):
        shutil.rmtree(out)
        first, before = draw.randrange(1, total), process_state()
        try:
            interrupted(call, first, first + draw.randrange(1, total))
            ends.add("done")
        except (KeyboardInterrupt, Interrupted) as error:
            ends.add(type(error).__name__)
        assert changed(before) == {}, first
        assert call() == expected, first
        assert changed(before) == {}, first
    assert ends & {"KeyboardInterrupt", "Interrupted"}


def test_a_new_thread_is_a_trace_and_one_of_a_library_is_none() -> None:
    before, end = process_state(), threading.Event()
    _thread.start_new_thread(lambda: (threading.current_thread(), end.wait(10)), ())
    ours = threading.Thread(target=end.wait, args=(10,))
    ours.start()
    assert list(changed(before)) == ["other threads"]
    assert changed(before)["other threads"][1] - changed(before)["other threads"][0] == {ours}
    end.set()
    ours.join()
    assert changed(before) == {}


@pytest.mark.parametrize(
    "disturb", [lambda: torch.set_grad_enabled(False), lambda: torch.set_default_dtype(torch.float64)]
)
def test_settings_of_the_caller_change_no_result_and_stay(inputs: Path, tmp_path: Path, disturb: Callable) -> None:
    expected = _train(inputs, tmp_path / "whole")
    kept = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        disturb()
        before = process_state()
        assert _train(inputs, tmp_path / "other") == expected
        assert changed(before) == {}
    finally:
        torch.set_grad_enabled(kept[0])
        torch.set_default_dtype(kept[1])


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_call_leaves_no_trace(inputs: Path, tmp_path: Path, name: str) -> None:
    with contextlib.suppress(ContextwiseError):
        CALLS[name](tmp_path, tmp_path)  # imports change the process
    before = process_state()
    with pytest.raises(ContextwiseError):
        CALLS[name](tmp_path, tmp_path)
    assert changed(before) == {}
