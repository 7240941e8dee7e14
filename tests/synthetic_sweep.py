"""A sweep's folder written by hand: losses from a law that gives U-shapes over the training context, no trainer."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from contextwise.base.files import write_sealed_json
from contextwise.data.windows import log_bins
from contextwise.experiments.folder import PlannedRun
from contextwise_plan.sweeps.sweep import Sweep
from small import run_summary, write_rows

SIZES = {"pico": 400_000, "nano": 1_600_000, "micro": 6_400_000}
CONTEXTS = (64, 128, 256, 512, 1024)
TOKENS_PER_STEP = 4096


def law(parameters: float, context: float, tokens: float) -> float:
    """Nats per token: more context helps at last, and takes more tokens to learn."""
    return 1.8 + 1.6 / context**0.3 + 20 / parameters**0.25 + 9 * context**0.35 / tokens**0.36


def flops(parameters: float, context: float, tokens: float) -> float:
    return 6 * parameters * tokens * (1 + context / 2000)


def write_sweep(
    folder: Path,
    sizes: Sequence[str] = tuple(SIZES),
    contexts: Sequence[int] = CONTEXTS,
    seeds: Sequence[int] = (0,),
    steps: int = 1600,
    measurements: int = 16,
    noise: float = 0.0,
    corpus: str = "nowhere",
    fingerprint: str = "c0ffee",
) -> Sweep:
    """A finished sweep of every size, context and seed."""
    plan, spent = [], steps * TOKENS_PER_STEP
    for size, context, seed in itertools.product(sizes, contexts, seeds):
        parameters = SIZES.get(size, 1000)
        cost = flops(parameters, context, spent)
        name = f"{size}-c{context}-s{seed}"
        plan.append(PlannedRun(name, size, parameters, context, spent, steps, seed, 1e-3, cost))
    folder.mkdir(parents=True)
    base = {"data": {"corpus": corpus}, "training": {"tokens_per_step": TOKENS_PER_STEP}}
    grid = {"model.size": list(sizes), "data.context": list(contexts), "seed": list(seeds)}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "made up", "base": base, "grid": grid}))
    write_sealed_json(folder / "plan.json", {"inputs": {"train": fingerprint}, "runs": [asdict(run) for run in plan]})
    sweep = Sweep.open(folder)
    for run in plan:
        write_run(sweep, run, measurements, noise)
    return sweep


def write_run(sweep: Sweep, run: PlannedRun, measurements: int, noise: float) -> None:
    """A finished run that measured its curve so many times, evenly spaced."""
    folder = sweep.run_folder(run.id)
    folder.path.mkdir(parents=True)
    recipe = {"name": run.id, "seed": run.seed, "model": {"size": run.size}}
    recipe |= {"data": {"corpus": "nowhere", "context": run.context}, "training": {"tokens_per_step": TOKENS_PER_STEP}}
    folder.recipe_file.write_text(yaml.safe_dump(recipe))
    write_sealed_json(folder.environment_file, {"gpus": []})
    draw = np.random.default_rng([run.seed, run.context, run.parameters])
    steps = [round(run.steps * (i + 1) / measurements) for i in range(measurements)]
    write_rows(folder.metrics_file, [measured(run, step, draw.normal(0, noise)) for step in steps])
    folder.write_summary(run_summary(name=run.id, corpus={"path": "nowhere", "fingerprint": sweep.corpus}))


def measured(run: PlannedRun, step: int, off: float = 0.0) -> dict[str, Any]:
    """A row of metrics of kind ``curve``."""
    tokens = step * TOKENS_PER_STEP
    spent = flops(run.parameters, run.context, tokens)
    visible = log_bins(run.context)[:-1]
    last = law(run.parameters, run.context, tokens) + off
    curve = [last + 2.5 * (float(v) ** -0.6 - float(run.context) ** -0.6) for v in visible]
    return {
        "kind": "curve",
        "step": step,
        "tokens": tokens,
        "flops": spent,
        "seconds": spent / 1e10,
        "parameters": run.parameters,
        "context": run.context,
        "visible": visible.tolist(),
        "loss": curve,
        "best_context_loss": last,
        "standard_error": 0.01,
        "targets": 1000,
        "documents": 20,
    }
