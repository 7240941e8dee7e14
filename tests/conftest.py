"""Small real corpora and recipes that many tests share."""

import gc
import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from command_line import Contextwise
from contextwise.base.progress import Interruption

# One thread: the models of the tests are tiny, and waiting threads cost more than they give on a shared machine. Torch reads it
# when it is imported, which is not here: the process that hands out the files to the workers needs no torch.
os.environ["OMP_NUM_THREADS"] = "1"


def _unsynced(descriptor: int) -> None:
    """In place of ``os.fsync`` in the process of the tests: no test survives a power failure. Those of runs do sync."""
    os.fstat(descriptor)


os.fsync = _unsynced

# Property tests: the same examples on every run (`make test`, plain pytest), or new ones (`make test-all`). A busy machine is
# no failure, and a test that shares a fixture's folder among its examples means to.
_SHARED = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("ci", derandomize=True, max_examples=30, **_SHARED)
settings.register_profile("explore", derandomize=False, max_examples=200, print_blob=True, **_SHARED)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Know the marks of transformers' own tests (tests/core/models/test_transformers_mixins.py)."""
    for name in (
        "accelerate_tests",
        "flash_attn_test",
        "flash_attn_3_test",
        "flash_attn_4_test",
        "generate",
        "torch_compile_test",
    ):
        config.addinivalue_line("markers", name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests, but no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        _freeze()
        gc.enable()


MANY_CASES = 3
"""Of a test with so many cases or more, `make test` runs the first and a quarter of the others, drawn by their names."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the other cases as long."""
    for _, group in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        for case in cases[1:] if len(cases) >= MANY_CASES else []:
            if zlib.crc32(case.nodeid.encode()) % 4:
                case.add_marker("long")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Freeze what a test imported."""
    if len(sys.modules) > _frozen_modules + 20:
        _freeze()


_frozen_modules = 0


def _freeze() -> None:
    """What is imported is no garbage: unfrozen, it makes the collection after each training as expensive as the training."""
    global _frozen_modules
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need a GPU where there is none."""
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch finds no GPU on this machine")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device on which a test runs: models and tensors are moved there by the test."""
    return request.param


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of bytes, about 50,000 tokens."""
    from contextwise.data import prepare_corpus
    from small import write_documents

    folder = tmp_path_factory.mktemp("shared")
    prepare_corpus(write_documents(folder / "text.jsonl"), "bytes", folder / "corpus", validation=0.1)
    return folder / "corpus"


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Call with n: the process counts as asked to stop from the nth time on that anybody looks; 0 lifts it again."""

    def arm(looks: int) -> None:
        count = itertools.count(1)
        monkeypatch.setattr(Interruption, "requested", property(lambda self: 0 < looks <= next(count)))

    return arm


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """The folder in which the test types its commands; a module with files of its own defines another."""
    return tmp_path


@pytest.fixture
def contextwise(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Contextwise]:
    """Types commands in the folder ``workplace``."""
    from transformers.utils import logging

    # The command line turns these off before transformers is imported, which tests have done long ago.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield Contextwise(workplace, monkeypatch, capsys)
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()
