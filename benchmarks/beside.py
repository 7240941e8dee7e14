"""A training step on a quiet machine and beside one other process, by how torch's threads wait for each other.

``python -m benchmarks.beside`` times steps in bf16 with threads that spin while they wait (libgomp's default), that sleep
(``OMP_WAIT_POLICY=passive``, which the command line sets on a machine with other work), and with one thread. The other process
is a loop of Python. Nothing else may run.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import publish
from benchmarks.training_step import SHAPES, contender

WAYS = {"threads spin": {}, "threads sleep": {"OMP_WAIT_POLICY": "passive"}, "one thread": {"OMP_NUM_THREADS": "1"}}
STEPS = 8


def seconds_per_step(shape: str, environment: dict[str, str]) -> float:
    """The median of ``STEPS`` steps in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.beside", "--child", shape]
    return float(subprocess.run(command, env=os.environ | environment, capture_output=True, check=True).stdout)


def time_steps(shape: str) -> float:
    step = contender("contextwise: bf16", SHAPES[shape], Path(), "cpu")
    for _ in range(3):
        step()
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES)[:2], metavar="SHAPE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(time_steps(options.child))
        return
    result = {}
    for shape in options.shapes:
        seconds: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for others in (0, 1):
                loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
                try:
                    for way, environment in WAYS.items():
                        name = f"{way}, {others} other processes"
                        seconds.setdefault(name, []).append(seconds_per_step(shape, environment))
                finally:
                    for loop in loops:
                        loop.kill()
                        loop.wait()
        result[shape] = {"seconds": seconds}
        for name, values in seconds.items():
            print(
                f"{shape}: {name}: {1e3 * statistics.median(values):.0f} ms ({', '.join(f'{1e3 * v:.0f}' for v in values)})"
            )
    publish("beside", {"shapes": result}, records="shapes")


if __name__ == "__main__":
    main()
