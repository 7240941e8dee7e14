"""Two or more things measured in alternation in one run, because machines are shared and drift.

Each round measures every contender once, in turn; what is quoted is the median over rounds of the ratio within a round.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.machine import describe_environment

RESULTS = Path(__file__).parent / "results"
DONE = "done "
"""How the line begins with which a worker answers; others are output of the libraries that it uses."""


@dataclass
class Outcome:
    """Seconds of each contender in each round, and the ratios to the first one named."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def speed(self, name: str, against: str) -> float:
        """How many times as fast ``name`` is as ``against``: median over rounds of seconds(against) / seconds(name)."""
        pairs = zip(self.seconds[against], self.seconds[name], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def ratio(self, name: str, against: str) -> dict[str, Any]:
        """Both of these, as they are published."""
        return {"median": self.speed(name, against), "quartiles": self.spread(name, against)}

    def spread(self, name: str, against: str) -> tuple[float, float]:
        """Lower and upper quartile of that ratio over the rounds."""
        ratios = [a / b for a, b in zip(self.seconds[against], self.seconds[name], strict=True)]
        low, high = np.percentile(ratios, [25, 75])
        return float(low), float(high)


def alternate(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    warmup: int = 2,
    after_round: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Time each contender once a round, after ``warmup`` rounds that do not count; the order turns with the round.

    A contender that returns a number has timed itself: these are its seconds.

    Args:
        after_round: is given the outcome so far after each round that counts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for round_ in range(warmup + rounds):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            own = contenders[name]()
            if round_ >= warmup:
                seconds[name].append(own if isinstance(own, float) else time.perf_counter() - start)
        if round_ >= warmup:
            after_round(Outcome(seconds))
    return Outcome(seconds)


class Worker:
    """A contender in a process of its own, with its own memory allocator: calling it runs one step there.

    Raises:
        RuntimeError: the process has ended; the end of its errors.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until the process is closed
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def tell(self, what: str) -> None:
        """Write a line to the process, without waiting for an answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(what, file=self.process.stdin, flush=True)

    def __call__(self, what: str = "step") -> Any:
        self.tell(what)
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith(DONE):
            if not line:
                status = self.process.wait()
                self.errors.seek(0)
                raise RuntimeError(
                    f"{' '.join(self.process.args)} ended with status {status}:\n{self.errors.read()[-2000:]}"  # type: ignore[arg-type]
                )
        return json.loads(line.removeprefix(DONE))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


def answer(result: Any) -> None:
    """The worker's side: pass a result, as JSON, to the caller that waits for it."""
    print(DONE + json.dumps(result), flush=True)


def serve(step: Callable[[], Any]) -> None:
    """The worker's side: one ``step`` for each line of standard input."""
    for _ in sys.stdin:
        step()
        answer(None)


def peak_memory(module: str, *arguments: str) -> dict[str, Any]:
    """Run ``python -m module arguments`` in a process of its own; it prints one JSON line with what it measured."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def publish(
    name: str,
    result: dict[str, Any],
    records: str | None = None,
    environment: dict[str, Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """Keep a result as JSON, with its date and the hardware and versions that it came from.

    Args:
        records: a key of ``result`` whose entries are measured apart from each other, as shapes are: each then has a date and
            an environment of its own, and those of an earlier run that this one did not measure are kept.
        environment: the machine that the figures are of; this one if not given. A record may name its own.
        folder: where the file is written; ``benchmarks/results`` if not given.
    """
    folder = folder or RESULTS
    folder.mkdir(exist_ok=True, parents=True)
    environment = environment or {**describe_environment()}
    kind = "gpu" if environment["gpus"] else "cpu"
    path = folder / f"{name}-{kind}.json"
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    date, where = {"date": when}, {"environment": environment}
    if records is not None:
        kept = json.loads(path.read_text())[records] if path.exists() else {}
        measured = {key: {**date, **where, **record} for key, record in result[records].items()}
        result, date, where = {**result, records: kept | measured}, {}, {}
    path.write_text(json.dumps({"benchmark": name, **date, **result, **where}, indent=2) + "\n")
    return path
