"""Run all benchmarks, one behind the other: ``python -m benchmarks [NAME ...]``."""

import importlib
import sys

NAMES = [
    "training_step",
    "context_predictor",
    "generation",
    "train_overhead",
    "linear_cross_entropy",
    "memory",
    "multitoken",
    "prepare",
]

if __name__ == "__main__":
    wanted = sys.argv[1:] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in wanted:
        importlib.import_module(f"benchmarks.{name}").main([])
