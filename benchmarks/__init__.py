"""Speed and memory against named peers. ``python -m benchmarks --help``; results are kept in ``benchmarks/results``."""
