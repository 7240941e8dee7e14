"""Measure one GPU in eight minutes, in three parts that ``benchmarks/gpu.sh`` runs one after the other.

``right``: the tests with the mark ``cuda``. ``fast``: tokens a second and model FLOPs utilization (MFU) of training loops as
their users run them (:mod:`benchmarks.training_loops`), in alternation; how often the host waits for the GPU in a step, and
where the GPU waits for the host. ``room``: peak memory against transformers' Trainer, generation against transformers'
``generate()``, and scoring against lm-evaluation-harness.

Each part writes its JSON file again after each result, so that a part that is stopped keeps what it has. MFU is
the operations by this project's count over the dense bf16 peak of the GPU's datasheet (``PEAK_FLOPS`` in
``contextwise/training/metrics.py``).

Goals: MFU of GPT-2 124M of at least 0.55; at least 1.1 times nanoGPT's tokens a second and 1.5 times the Trainer's; ContextLM
at least 1.10 times as fast as PM; one wait in an optimizer step; ``evaluate`` in a third of the harness's time.
"""

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import RESULTS, Outcome, alternate, publish
from benchmarks.training_loops import Loop, started, waits_per_step, write_tokens
from benchmarks.training_step import NAMES
from contextwise.base.machine import keep_freed_memory
from contextwise.training.metrics import peak_flops

TESTS = Path(__file__).parents[1] / "tests"


@dataclass(frozen=True)
class Scale:
    """What is measured: on a GPU, or at about a hundredth of that to try the script."""

    shapes: dict[str, tuple[Any, ...]]  # of training, as in `benchmarks.training_step`
    memory: dict[str, tuple[Any, ...]]
    micro_batches: int
    rounds: int
    compile: bool
    generation: tuple[str, tuple[int, ...]]  # shape and rows, as in `benchmarks.generation`
    scoring: tuple[str, int, int | None]  # size, context, and the number of documents of the corpus
    tokens: int  # of the training data
    tests: tuple[str, ...]  # files and folders of tests


SCALES = {
    "gpu": Scale(
        shapes={
            "GPT-2 124M": ("gpt2", 12, 768, 12, 50304, 1024, 16),
            "Llama 125M": ("llama", 12, 768, 12, 50304, 1024, 16),
        },
        memory={"124M": ("gpt2", 12, 768, 12, 50304, 1024, 32), "1.3B": ("gpt2", 24, 2048, 16, 50304, 1024, 8)},
        micro_batches=8,
        rounds=4,
        compile=True,
        generation=("124M", (1, 16, 64)),
        scoring=("base", 1024, 400),
        tokens=20_000_000,
        tests=("core/models", "core/training/test_on_devices.py"),
    ),
    "small": Scale(
        shapes={"GPT-2 small": ("gpt2", 2, 32, 2, 512, 64, 2), "Llama small": ("llama", 2, 32, 2, 512, 64, 2)},
        memory={"small": ("gpt2", 2, 32, 2, 512, 64, 2)},
        micro_batches=2,
        rounds=1,
        compile=False,
        generation=("nano", (1, 2)),
        scoring=("pico", 64, 12),
        tokens=100_000,
        tests=("core/models/test_devices.py",),
    ),
}
MODELS = ("plain", "PM", "ContextLM")
"""Our models of each shape."""
GPT2_ALONE = ("multi-token, 4 heads",)
OURS = "contextwise: plain"
WATCHED = (OURS, "contextwise: ContextLM")
"""Loops whose waits and gaps are named."""


@dataclass
class Report:
    """The result of a part; :meth:`save` writes it as it is so far."""

    part: str
    folder: Path
    result: dict[str, Any] = field(default_factory=dict)

    def save(self, finished: bool = False) -> None:
        publish(f"gpu-{self.part}", {"finished": finished, **self.result}, folder=self.folder)

    def add(self, name: str, result: Any) -> None:
        self.result[name] = result
        self.save()


# ---- right ----


class Recorder:
    """A plugin of pytest that keeps the outcome of each test."""

    def __init__(self, report: Report) -> None:
        self.report, self.saved = report, time.monotonic()
        report.result |= {"passed": 0, "skipped": {}, "failed": {}, "seconds": {}}

    def pytest_runtest_logreport(self, report: Any) -> None:
        result, name = self.report.result, report.nodeid
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            result["failed"][name] = (crash.message if crash else report.longreprtext)[-600:]
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            result["skipped"][why] = result["skipped"].get(why, 0) + 1
        elif report.when == "call":
            result["passed"] += 1
        if report.when == "call" and report.duration > 1:
            result["seconds"][name] = round(report.duration, 2)
        if time.monotonic() - self.saved > 3:
            self.report.save()
            self.saved = time.monotonic()


def right(report: Report, scale: Scale, **_: Any) -> None:
    """The tests with the mark ``cuda``."""
    import pytest

    files = [str(TESTS / name) for name in scale.tests]
    parallel = ["--numprocesses=10", "--dist=load"] if torch.cuda.is_available() else []
    options = ["-m", "cuda", "-q", "--no-header", "-p", "no:cacheprovider", *parallel]
    status = pytest.main([*options, *files], plugins=[Recorder(report)])
    seconds = report.result["seconds"]
    report.result["seconds"] = dict(sorted(seconds.items(), key=lambda item: -item[1])[:20])
    report.result["exit_status"] = int(status)
    print(f"right: {report.result['passed']} passed, {len(report.result['failed'])} failed")
    if status:
        report.save(finished=True)
        raise SystemExit(int(status))


# ---- fast ----


def contenders(name: str, shape: tuple[Any, ...], scale: Scale, nanogpt: Path | None) -> dict[str, Loop]:
    """The loops that train models of a shape."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain = Loop("contextwise", "plain", shape, scale.micro_batches, scale.compile, device)
    loops = {OURS: plain, "Trainer: plain": replace(plain, who="Trainer")}
    gpt2 = shape[0] == "gpt2"
    if gpt2 and nanogpt is not None:
        loops["nanoGPT: plain"] = replace(plain, who="nanoGPT")
    models = [*MODELS[1:], *(GPT2_ALONE if gpt2 else ())]
    loops |= {f"contextwise: {model}": replace(plain, model=model) for model in models}
    if gpt2:
        loops["contextwise: plain, Muon"] = replace(plain, optimizer="muon")
    return loops


def training_summary(loops: dict[str, Loop], outcome: Outcome, peak: float | None) -> dict[str, Any]:
    """Rates and ratios of the rounds so far."""
    names = list(outcome.seconds)
    rate = {name: loops[name].turn / outcome.median(name) for name in names}  # optimizer steps a second
    flops = {name: rate[name] * loops[name].flops for name in names}
    pairs = [("contextwise: ContextLM", "contextwise: PM"), *((OURS, name) for name in names if name != OURS)]
    return {
        "rounds": len(outcome.seconds[names[0]]),
        "tokens_per_second": {name: rate[name] * loops[name].tokens for name in names},
        "flops_per_second": flops,
        "mfu": {name: value / peak if peak else None for name, value in flops.items()},
        "speed": {f"{a} / {b}": outcome.ratio(a, b) for a, b in pairs if a in names and b in names},
    }


def train_in_alternation(
    loops: dict[str, Loop], rounds: int, data: Path, nanogpt: Path | None, save: Callable[[dict[str, Any]], None]
) -> None:
    """Measure loops that all wait for their turn; ``save`` is given the result as far as it is known, again and again."""
    peak = peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    first = next(iter(loops.values()))
    result: dict[str, Any] = {
        "shape": dict(zip(NAMES, first.shape, strict=True)),
        "micro_batches": first.micro_batches,
        "tokens_per_step": first.tokens,
        "steps_of_a_turn": first.turn,
        "compiled": first.compile,
        "peak_flops": peak,
    }
    workers = {name: loop.start(data, nanogpt) for name, loop in loops.items()}
    try:
        result["failed"] = started(workers, loops)
        if OURS in result["failed"]:
            raise SystemExit(f"{OURS} failed: {result['failed'][OURS]}")
        result["peak_bytes"] = {name: worker("peak") for name, worker in workers.items()}
        save(result)

        def so_far(outcome: Outcome) -> None:
            result.update(training_summary(loops, outcome, peak))
            save(result)

        alternate(workers, rounds, warmup=0, after_round=so_far)
        for what in ("waits", "profile"):
            for name in (each for each in WATCHED if each in workers):
                seen = workers[name](what)
                seen = waits_per_step(seen, loops[name].turn) if what == "waits" else seen
                result.setdefault(f"{what}_per_step" if what == "waits" else what, {})[name] = seen
                save(result)
    finally:
        save(result)
        for worker in workers.values():
            worker.close()


def matrix_products() -> float | None:
    """FLOP/s of bf16 products of 8,192 × 8,192 matrices of random numbers; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    a, b = torch.randn(2, 8192, 8192, dtype=torch.bfloat16, device="cuda")
    for _ in range(3):
        a @ b
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        a @ b
    end.record()
    torch.cuda.synchronize()
    return 20 * 2 * 8192**3 / (start.elapsed_time(end) / 1000)


def fast(report: Report, scale: Scale, nanogpt: Path | None, folder: Path) -> None:
    """Training loops in alternation, shape by shape."""
    report.add("matrix_products_flops", matrix_products())
    report.add("left_out", {} if nanogpt else {"nanoGPT": "no folder of it was given (--nanogpt)"})
    report.add("shapes", {})
    for name, shape in scale.shapes.items():
        data = write_tokens(folder / f"tokens-{shape[4]}", shape[4], scale.tokens)

        def save(result: dict[str, Any], name: str = name) -> None:
            report.result["shapes"][name] = result
            report.save()

        loops = contenders(name, shape, scale, nanogpt)
        train_in_alternation(loops, scale.rounds, data, nanogpt, save)
        result = report.result["shapes"][name]
        for each, tokens in result.get("tokens_per_second", {}).items():
            mfu = result["mfu"][each]
            print(f"fast, {name}, {each}: {tokens:,.0f} tokens/s" + (f", MFU {mfu:.3f}" if mfu else ""), flush=True)
        for each, error in result["failed"].items():
            print(f"fast, {name}, {each} failed: {error.strip()[-200:]}", flush=True)
    report.add("goals", goals(report.result["shapes"]) if torch.cuda.is_available() else {})


def goals(shapes: dict[str, Any]) -> dict[str, Any]:
    """The goals of this module's docstring for the first shape: what is asked, what was measured, whether it is reached."""
    result: dict[str, Any] = next(iter(shapes.values()), {})
    speed = {name: ratio["median"] for name, ratio in result.get("speed", {}).items()}
    waits = result.get("waits_per_step", {}).get(OURS)
    asked: dict[str, tuple[float, float | None]] = {
        "MFU": (0.55, result.get("mfu", {}).get(OURS)),
        "times nanoGPT": (1.1, speed.get(f"{OURS} / nanoGPT: plain")),
        "times the Trainer": (1.5, speed.get(f"{OURS} / Trainer: plain")),
        "ContextLM, times PM": (1.1, speed.get("contextwise: ContextLM / contextwise: PM")),
    }
    table: dict[str, Any] = {
        name: {"at_least": least, "measured": value, "reached": None if value is None else value >= least}
        for name, (least, value) in asked.items()
    }
    count = None if waits is None else sum(waits.values())
    table["waits in a step"] = {"at_most": 1, "measured": count, "reached": None if count is None else count <= 1}
    return table


# ---- room ----


def memory(shape: tuple[Any, ...], device: str, data: Path) -> dict[str, Any]:
    """Peak memory of optimizer steps with gradient checkpointing, ours and the Trainer's."""
    ours = Loop("contextwise", "plain", shape, 1, False, device, checkpointing=True)
    loops = {name: replace(ours, who=name) for name in ("contextwise", "Trainer")}
    workers = {name: loop.start(data) for name, loop in loops.items()}
    try:
        failed = started(workers, loops)
        peaks = {name: worker("peak") for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    ratio = None if failed else peaks["Trainer"] / peaks["contextwise"]
    return {
        "shape": dict(zip(NAMES, shape, strict=True)),
        "peak_bytes": peaks,
        "trainer_over_ours": ratio,
        "failed": failed,
    }


def room(report: Report, scale: Scale, folder: Path, **_: Any) -> None:
    """Memory, generation and scoring."""
    from benchmarks import harness_loglikelihood

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        keep_freed_memory()  # as the command line does
    report.add("left_out", {})
    report.add("memory", {})
    for name, shape in scale.memory.items():
        data = write_tokens(folder / f"tokens-{shape[4]}", shape[4], scale.tokens)
        report.result["memory"][name] = result = memory(shape, device, data)
        report.save()
        print(f"room, peak memory at {name}: {result['peak_bytes']}", flush=True)
    report.add("generation", {})
    _generation(report, scale, device, compiled=False)
    if importlib.util.find_spec("lm_eval") is None:
        report.result["left_out"]["scoring"] = "lm_eval is not installed"
    else:
        size, context, documents = scale.scoring
        model, corpus = harness_loglikelihood.random_model(folder, size, context, documents)
        ways = ("evaluate", "lm_eval", *(("curve", harness_loglikelihood.SAME) if scale.compile else ()))
        result = harness_loglikelihood.measure_corpus(model, corpus, "validation", scale.rounds, str(folder), ways)
        report.add("scoring", result)
    if scale.compile:  # last, since they take minutes
        _generation(report, scale, device, compiled=True)


def _generation(report: Report, scale: Scale, device: str, compiled: bool) -> None:
    """Times of generated tokens for each number of rows."""
    from benchmarks import generation

    shape_name, all_rows = scale.generation
    for rows in all_rows:
        key = f"{shape_name}, {rows}{', compiled' * compiled}"
        ways = generation.measure_ways(shape_name, rows, min(2, scale.rounds), device, compiled)
        report.result["generation"][key] = ways
        report.save()


PARTS: dict[str, Callable[..., None]] = {"right": right, "fast": fast, "room": room}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="a hundredth of the size, to try the script on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--nanogpt", type=Path, help="folder with a clone of karpathy/nanoGPT; left out if not given")
    parser.add_argument("--shape", help="the only one to be trained")
    options = parser.parse_args(arguments)
    if options.nanogpt is not None and not (options.nanogpt / "train.py").is_file():
        parser.error(f"--nanogpt: there is no train.py in {options.nanogpt}")
    if not options.small and not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine; --small tries the script without one")
    report = Report(options.part, options.out)
    with tempfile.TemporaryDirectory() as folder:
        scale = SCALES["small" if options.small else "gpu"]
        if options.shape is not None:
            if options.shape not in scale.shapes:
                parser.error(f"--shape: {options.shape!r} is none of {', '.join(scale.shapes)}")
            scale = replace(scale, shapes={options.shape: scale.shapes[options.shape]})
        PARTS[options.part](report, scale, nanogpt=options.nanogpt, folder=Path(folder))
    report.save(finished=True)


if __name__ == "__main__":
    main()
