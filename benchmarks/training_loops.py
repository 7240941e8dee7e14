"""Training loops as their users run them, each in a process of its own that stands still between two turns.

Three loops: ``contextwise train``, transformers' ``Trainer``, and nanoGPT's ``train.py``, which is not part of this repository
(``--nanogpt FOLDER``). All read the same random tokens and take steps of the same size: what a loop does with data, losses and
logs is part of its time. A turn begins and ends behind the optimizer; between turns a process gives its free GPU memory back.
"""

import contextlib
import json
import math
import os
import pickle
import runpy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.harness import Worker, answer
from benchmarks.training_step import config_of, training_flops
from benchmarks.waits import counted_waits, kernel_profile
from contextwise.base import machine

MODULE = "benchmarks.training_loops"
ENDLESS = 10_000_000
"""Optimizer steps of a loop: its process is ended before."""
BETWEEN = 1
"""Steps at the start of a turn that do not count: they take back the memory that was freed."""


@dataclass(frozen=True)
class Loop:
    """A training loop, the model that it trains, and its steps."""

    who: str  # contextwise, Trainer or nanoGPT
    model: str  # plain, or as in `benchmarks.training_step`
    shape: tuple[Any, ...]  # as there: family, layers, width, heads, vocabulary, context, rows
    micro_batches: int  # of so many rows, in an optimizer step
    compile: bool
    device: str
    optimizer: str = "adamw"
    checkpointing: bool = False
    turn: int = 3  # optimizer steps
    first: int = field(default=2, kw_only=True)  # steps before the first turn

    @property
    def tokens(self) -> int:
        """Tokens of an optimizer step."""
        return self.micro_batches * self.shape[6] * self.shape[5]

    @property
    def flops(self) -> float:
        """Operations of an optimizer step, by this project's count."""
        return self.micro_batches * training_flops(self.model, self.shape)

    @property
    def gigabytes(self) -> float:
        """Roughly the memory of a step at 124M parameters: how many loops can take their first steps at the same time."""
        per_token = {"contextwise": 0.45, "Trainer": 1.1, "nanoGPT": 1.05}[self.who]  # MB
        return self.shape[6] * self.shape[5] * per_token / 1000 * (1.7 if self.model.startswith("multi") else 1.0)

    def start(self, data: Path, nanogpt: Path | None = None) -> Worker:
        """Start the loop on the tokens in the folder ``data``."""
        return Worker(MODULE, json.dumps(asdict(self)), str(data), str(nanogpt or ""))


def write_tokens(folder: Path, vocabulary: int, count: int) -> Path:
    """Write random tokens as nanoGPT's ``.bin`` files, which all three loops read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.random.default_rng(0).integers(0, vocabulary, count, dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        tokens.tofile(folder / name)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary}))
    return folder


class Turns:
    """The turns of a loop that belongs to somebody else; :meth:`step_end` is called behind each optimizer step.

    A line of standard input begins a turn: ``step`` is answered by its seconds, ``waits`` and ``profile`` as in
    :mod:`benchmarks.waits`, and ``peak`` by the most memory of the process so far, bytes, without a turn.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.left, self.asked, self.start = loop, loop.first, "", 0.0
        self.watch = contextlib.ExitStack()
        self.seen: Any = None

    def step_end(self) -> None:
        self.left -= 1
        if self.asked and self.left == self.loop.turn:
            self._begin()
        elif self.left == 0:
            if self.asked:
                self._end()
            self._wait()

    def _begin(self) -> None:
        self._synchronise()
        if self.asked == "waits":
            self.seen = self.watch.enter_context(counted_waits())
        elif self.asked == "profile":
            self.seen = self.watch.enter_context(kernel_profile())
        self.start = time.perf_counter()

    def _end(self) -> None:
        self._synchronise()
        seconds = time.perf_counter() - self.start
        self.watch.close()
        answer(seconds if self.asked == "step" else self.seen)

    def _synchronise(self) -> None:
        if self.loop.device == "cuda":
            torch.cuda.synchronize()

    def _wait(self) -> None:
        if self.loop.device == "cuda":
            torch.cuda.empty_cache()
        while (line := sys.stdin.readline().strip()) == "peak":
            answer(machine.peak_memory())
        if not line:
            os._exit(0)  # the benchmark has ended
        self.asked, self.left = line, BETWEEN + self.loop.turn


def contextwise(loop: Loop, data: Path) -> None:
    """``contextwise train``."""
    from contextwise.training import Recipe, train

    family, layers, width, heads, vocabulary, context, rows = loop.shape
    model: dict[str, Any] = {
        "family": family,
        "layers": layers,
        "width": width,
        "heads": heads,
        "vocab_size": vocabulary,
    }
    parts: dict[str, dict[str, Any]] = {
        "plain": {},
        "PM": {"extra_layers": 2},
        "ContextLM": {"context_predictor": {"chunk_size": 4, "predictor_layers": 2}},
        "multi-token, 4 heads": {"multi_token": {"future_tokens": 4, "head": "layer"}},
    }
    model |= parts[loop.model]
    training = {
        "steps": ENDLESS,
        "tokens_per_step": loop.tokens,
        "micro_batch_tokens": rows * context,
        "optimizer": loop.optimizer,
        "learning_rate": 6e-4,
        "precision": "bf16",
        "compile": loop.compile,
        "gradient_checkpointing": loop.checkpointing,
        "device": loop.device,
        "evaluation_tokens": 0,
        "save_every": ENDLESS,
    }
    values = {"name": "loop", "data": {"corpus": str(data), "context": context}, "model": model, "training": training}
    train(Recipe.model_validate(values | {"output": "run"}))


def transformers_trainer(loop: Loop, data: Path) -> None:
    """transformers' ``Trainer`` on a stock model."""
    from torch.utils.data import Dataset
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    _, _, _, _, _, context, rows = loop.shape
    tokens = np.memmap(data / "train.bin", dtype=np.uint16, mode="r")

    class Windows(Dataset):
        def __len__(self) -> int:
            return len(tokens) // context

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.from_numpy(tokens[index * context : (index + 1) * context].astype(np.int64))
            return {"input_ids": ids, "labels": ids}

    on_gpu = loop.device == "cuda"
    arguments = TrainingArguments(
        output_dir="trainer",
        max_steps=ENDLESS,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=loop.micro_batches,
        bf16=True,
        tf32=True if on_gpu else None,
        use_cpu=not on_gpu,
        torch_compile=loop.compile,
        gradient_checkpointing=loop.checkpointing,
        optim="adamw_torch_fused",
        learning_rate=6e-4,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_config(config_of(loop.model, loop.shape), attn_implementation="sdpa")
    Trainer(model, arguments, train_dataset=Windows()).train()


def nanogpt_script(loop: Loop, data: Path, source: Path) -> None:
    """nanoGPT's ``train.py``, unchanged, in a folder of its own."""
    _, layers, width, heads, _, context, rows = loop.shape
    for name in ("train.py", "model.py", "configurator.py"):
        Path(name).symlink_to(source.resolve() / name)
    Path("data").mkdir()
    Path("data/tokens").symlink_to(data, target_is_directory=True)
    settings = {
        "dataset": "tokens",
        "device": loop.device,
        "dtype": "bfloat16",
        "compile": loop.compile,
        "batch_size": rows,
        "gradient_accumulation_steps": loop.micro_batches,
        "block_size": context,
        "n_layer": layers,
        "n_head": heads,
        "n_embd": width,
        "bias": True,
        "max_iters": ENDLESS,
        "lr_decay_iters": ENDLESS,
        "eval_interval": ENDLESS,
        "eval_iters": 1,
        "log_interval": 10,
    }
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in settings.items())]
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path("train.py", run_name="__main__")


def main(arguments: list[str]) -> None:
    """The process of a loop: its settings as JSON, the folder of the tokens, and that of nanoGPT."""
    values, data, source = json.loads(arguments[0]), Path(arguments[1]).resolve(), Path(arguments[2])
    loop = Loop(**values | {"shape": tuple(values["shape"])})
    turns = Turns(loop)
    whole: type = torch.optim.Optimizer
    if loop.optimizer == "muon":
        from contextwise.training.optimizer import JoinedOptimizer

        whole = JoinedOptimizer  # whose parts are optimizers too
    register_optimizer_step_post_hook(lambda optimizer, *_: turns.step_end() if isinstance(optimizer, whole) else None)
    source = source.resolve()
    sys.stdin.readline()  # imports are done; the GPU's memory may not be enough for the first steps of all loops
    with working_folder():
        if loop.who == "contextwise":
            contextwise(loop, data)
        elif loop.who == "Trainer":
            transformers_trainer(loop, data)
        else:
            nanogpt_script(loop, data, source)


@contextlib.contextmanager
def working_folder() -> Iterator[None]:
    """A temporary folder, in which the block runs; the loops write their runs into it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def started(workers: dict[str, Worker], loops: dict[str, Loop]) -> dict[str, str]:
    """Wait until the loops stand in front of their first turn; those that ended before are removed, with their errors.

    As many as fit in the GPU's memory compile and take their first steps at the same time.
    """
    failed: dict[str, str] = {}
    limit = 0.9 * torch.cuda.mem_get_info()[1] / 1e9 if torch.cuda.is_available() else math.inf
    waiting = sorted(workers, key=lambda name: -loops[name].gigabytes)
    while waiting:
        wave, size = list[str](), 0.0
        for name in list(waiting):
            if not wave or size + loops[name].gigabytes <= limit:
                wave.append(name)
                waiting.remove(name)
                size += loops[name].gigabytes
                workers[name].tell("go")
        for name in wave:
            try:
                workers[name]("peak")
            except RuntimeError as error:
                failed[name] = str(error)
                workers.pop(name).close()
    return failed


def waits_per_step(places: dict[str, int], steps: int) -> dict[str, float]:
    """How often the host waits for the GPU in an optimizer step, by place."""
    return {place: count / steps for place, count in Counter(places).most_common()}


if __name__ == "__main__":
    main(sys.argv[1:])
