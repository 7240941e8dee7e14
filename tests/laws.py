"""Sweeps drawn from a known law, as points and as folders."""

import itertools
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from contextwise.base.files import write_sealed_json
from contextwise.base.runs import RunFolder
from contextwise_plan.sweeps.points import SweepPoint
from small import run_summary, write_rows

SIZES = {"pico": 150e3, "nano": 900e3, "micro": 2.9e6}
CONTEXTS = (64, 128, 256, 512, 1024, 2048)


def flops_per_token(parameters: float, context: float) -> float:
    """Weights and attention, about as a model of so many parameters has them."""
    return 6 * parameters + 12 * context * (parameters / 12) ** (2 / 3)


def true_loss(context, parameters, tokens):
    """Eq. 5 of intrinsic entropy with a term for the size, in nats."""
    return 1.5 + 4.0 / context**0.5 + 30.0 / parameters**0.3 + 60.0 * context**0.25 / tokens**0.4


def one_size_loss(context, parameters, tokens):
    """Eq. 5 alone."""
    return 2.0 + 4.0 / context**0.5 + 60.0 * context**0.25 / tokens**0.4


def drawn_points(
    law=true_loss,
    sizes=SIZES,
    contexts=CONTEXTS,
    tokens=20e6,
    count=16,
    run_noise=0.0,
    point_noise=0.0,
    seed=0,
    seeds=1,
) -> list[SweepPoint]:
    """Points of a sweep: ``count`` budgets along each run, with a run's luck and a point's."""
    draw = np.random.default_rng(seed)
    points = []
    for (size, parameters), context, run_seed in itertools.product(sizes.items(), contexts, range(seeds)):
        luck = run_noise * draw.standard_normal()
        for step in np.round(np.geomspace(0.05, 1, count) * 2000):
            spent = tokens * step / 2000
            noise = np.exp(luck + point_noise * draw.standard_normal())
            flops = spent * flops_per_token(parameters, context)
            loss = float(law(context, parameters, spent) * noise)
            run = f"{size}-context{context}-seed{run_seed}"
            about = run, size, int(parameters), context, run_seed
            points.append(SweepPoint(*about, int(step), int(spent), flops, flops / 1e10, loss, standard_error=0.01))
    return points


def write_sweep(
    folder: Path,
    points: list[SweepPoint],
    unfinished: tuple[str, ...] = (),
    warmup: int = 20,
    changes: dict[str, dict] | None = None,
) -> Path:
    """The folder of a sweep whose runs measured these points; ``changes``: of the recipes, by run."""
    plan = []
    for name in sorted({point.run for point in points}):
        own = [point for point in points if point.run == name]
        first, last = own[0], own[-1]
        recipe = {
            "name": name,
            "seed": first.seed,
            "data": {"corpus": "books", "context": first.context},
            "model": {"family": "llama", "size": first.size},
            "training": {"learning_rate": 0.002, "warmup_steps": warmup, "steps": 2000, "tokens_per_step": 4096},
        }
        for section, values in (changes or {}).get(name, {}).items():
            recipe[section] = {**recipe.get(section, {}), **values}
        run = folder / "runs" / name
        run.mkdir(parents=True)
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        spent = {name: getattr(first, name) for name in ("size", "parameters", "context", "seed")}
        spent |= {
            "tokens": last.tokens,
            "steps": last.step,
            "flops": last.flops,
            "learning_rate": 0.002,
            "trunk_tokens": 0,
        }
        plan.append({"id": name, **spent})
        rows = [
            {"kind": "curve", "best_context_loss": point.loss, "visible": [1], **asdict(point), "loss": [point.loss]}
            for point in own
        ]
        write_rows(run / "metrics.jsonl", rows)
        if name not in unfinished:
            RunFolder(run).write_summary(run_summary(corpus={"path": "books", "fingerprint": "0" * 64}))
    write_sealed_json(folder / "plan.json", {"inputs": {"train": "0" * 64}, "runs": plan})
    return folder
