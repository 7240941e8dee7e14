"""Show what ``benchmarks.quality`` kept: validation curves as a figure, held-out losses and differences as a table.

``python -m benchmarks.curves quality-NAME-cpu.json --out docs/figures/NAME.svg --models pm gpt2 contextlm ...`` draws losses
over tokens and differences to one model, and prints the table in Markdown.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks.harness import RESULTS

matplotlib.use("svg")
from matplotlib import pyplot

Curves = dict[str, dict[str, list[tuple[int, float]]]]


def draw(curves: Curves, models: list[str], reference: str, labels: dict[str, str], out: Path) -> None:
    """Left: the mean over seeds. Right: the difference to ``reference``, seed by seed (thin) and its mean."""
    matplotlib.rcParams |= {"svg.hashsalt": "contextwise", "font.size": 9, "svg.fonttype": "none"}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.8), constrained_layout=True)
    baseline = _table(curves[reference])
    for i, model in enumerate(models):
        tokens, losses = _table(curves[model])
        colour = f"C{i % 10}"
        style = "--" if i >= 10 else "-"
        left.plot(tokens / 1e3, losses.mean(0), style, color=colour, label=labels.get(model, model), linewidth=1.4)
        if model != reference and len(tokens) == len(baseline[0]):
            differences = losses - baseline[1]
            right.plot(tokens / 1e3, differences.T, style, color=colour, linewidth=0.4, alpha=0.6)
            right.plot(tokens / 1e3, differences.mean(0), style, color=colour, linewidth=1.4)
    right.axhline(0, color="0.5", linewidth=0.8)
    right.set(ylabel=f"minus {labels.get(reference, reference)}, nats a token", xlabel="training tokens, thousands")
    spread = np.concatenate([(_table(curves[m])[1] - baseline[1])[:, -4:].ravel() for m in models if m != reference])
    right.set_ylim(max(-0.25, spread.min() - 0.03), min(0.3, spread.max() + 0.03))
    left.set(ylabel="held-out loss, nats a token", xlabel="training tokens, thousands")
    left.legend(fontsize=7.5, frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})
    pyplot.close(figure)


def _table(seeds: dict[str, list[tuple[int, float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, (points,), and losses, (seeds, points)."""
    rows = [np.array(seeds[seed]) for seed in sorted(seeds)]
    return rows[0][:, 0], np.stack([row[:, 1] for row in rows])


def table(result: dict[str, Any], models: list[str], labels: dict[str, str]) -> str:
    """Markdown: parameters, tokens, mean held-out loss, and the differences to each reference; bold where zero is outside."""
    comparisons = result["comparisons"]
    groups = {group["name"]: group for group in next(iter(comparisons.values()))["groups"]}
    heads = ["model", "parameters", "tokens", "loss", *(f"minus {labels.get(r, r)}" for r in comparisons)]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|" + "---:|" * len(comparisons)]
    for model in models:
        group = groups[model]
        cells = [
            labels.get(model, model),
            f"{group['parameters'] / 1e6:.2f}M",
            f"{group['training_tokens'] / 1e3:.0f}k",
        ]
        cells += [f"{group['loss']['value']:.3f}"]
        for comparison in comparisons.values():
            differences = [d["difference"] for d in comparison["differences"] if d["group"] == model]
            text = "".join(f"{d['value']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]" for d in differences)
            text = text.replace("-", "−")
            clear = bool(differences) and (differences[0]["low"] > 0 or differences[0]["high"] < 0)
            cells.append(f"**{text}**" if clear else text)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", help="file name under benchmarks/results")
    parser.add_argument("--out", type=Path, help="an SVG file; the table alone, if not given")
    parser.add_argument(
        "--models", nargs="+", help="all, if not given; only those with as many tokens as the reference"
    )
    parser.add_argument("--reference", default="pm")
    parser.add_argument("--labels", nargs="*", default=[], metavar="MODEL=TEXT")
    options = parser.parse_args(arguments)
    result = json.loads((RESULTS / options.result).read_text())
    curves: Curves = result["validation_curves"]
    labels = dict(run.split("=", 1) for run in options.labels)
    models = options.models or list(curves)
    print(table(result, models, labels))
    if options.out is not None:
        draw(curves, models, options.reference, labels, options.out)


if __name__ == "__main__":
    main()
