"""A training run in a process of its own, for the tests that kill it: ``training_process.py RECIPE [DELAY]``.

With DELAY every training step takes so many seconds longer: room for signals to land in the middle of a run.
"""

import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)

from contextwise.base.errors import ContextwiseError  # noqa: E402
from contextwise.training import load_recipe, train  # noqa: E402
from contextwise.training.trainer import PretrainingTrainer  # noqa: E402

if len(sys.argv) > 2:
    quick = PretrainingTrainer.training_step

    def slow(self, *arguments, **options):
        time.sleep(float(sys.argv[2]))
        return quick(self, *arguments, **options)

    PretrainingTrainer.training_step = slow  # type: ignore[method-assign]

try:
    train(load_recipe(Path(sys.argv[1])))
except ContextwiseError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_status)
