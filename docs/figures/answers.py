"""Draw answers.svg: each arm minus GPT-2 on each corpus, with the intervals of the trials that benchmarks/results keeps.

python docs/figures/answers.py
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "benchmarks" / "results" / "answers-flops-131k-cpu.json"
CORPORA = {"code": "code", "web": "web pages", "books": "books", "news": "news", "wikitext": "Wikipedia"}
ARMS = {
    "contextlm-every": ("ContextLM,", "a gate in every layer"),
    "contextlm": ("ContextLM,", "one gate"),
    "token-order": ("token-order", "prediction"),
    "pm": ("PM: GPT-2 with", "as many parameters"),
    "next-latent": ("next-latent", "prediction"),
}
NOT_SHOWN = {"contextlm-add": "ContextLM with the paper's addition", "multitoken": "multi-token prediction"}
WIDTH, LEFT, RIGHT, TOP = 720, 180, 664, 78
LOW, HIGH, TICKS = -0.1, 0.4, (-0.1, 0, 0.1, 0.2, 0.3, 0.4)
LEGEND = (0, 78, 194, 284, 368)
LINE, GAP = 12, 14
LIGHT = ("#4c78a8", "#c86a00", "#2f8f63", "#9a57c9", "#c2405a")
DARK = ("#7aa6d8", "#f2a541", "#5cc79a", "#c08ae8", "#f0788f")


def figure(trials: dict[str, Any]) -> str:
    """The figure as SVG, for light and dark pages; what lies beyond the scale has an arrow, or its value below."""
    row = len(CORPORA) * LINE + GAP
    bottom = TOP + len(ARMS) * row
    parts = []
    for tick in TICKS:
        x, kind = _x(tick), "zero" if tick == 0 else "grid"
        label = "GPT-2" if tick == 0 else f"{tick:+.1f}".replace("-", "−")
        parts.append(f'<path class="{kind}" d="M{x} {TOP - 8}V{bottom}"/>')
        parts.append(f'<text class="small" x="{x}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    for number, (arm, label) in enumerate(ARMS.items()):
        y = TOP + number * row
        for line, words in enumerate(label):
            name = "" if line == 0 else ' class="small"'
            parts.append(f'<text{name} x="{LEFT - 14}" y="{y + 24 + 18 * line}" text-anchor="end">{words}</text>')
        for place, corpus in enumerate(CORPORA):
            parts.append(_interval(_answer(trials[corpus], arm), f"c{place}", y + 6 + place * LINE))
    for place, name in enumerate(CORPORA.values()):
        x = LEFT + LEGEND[place]
        parts.append(f'<circle class="c{place}" cx="{x + 6}" cy="44" r="4.5"/><text x="{x + 16}" y="49">{name}</text>')
    parts.append('<text class="head" x="14" y="22">Loss at equal FLOPs, minus GPT-2’s</text>')
    parts.append(f'<text class="small" x="{RIGHT}" y="22" text-anchor="end">hollow: undecided</text>')
    about = "nats per token · right: worse than GPT-2 · 95% intervals over seeds"
    parts.append(f'<text class="small" x="{(LEFT + RIGHT) / 2}" y="{bottom + 42}" text-anchor="middle">{about}</text>')
    ranges = []
    for arm, name in NOT_SHOWN.items():
        values = [_answer(trials[corpus], arm)[0] for corpus in CORPORA]
        ranges.append(f"{name}, {min(values):+.2f} to {max(values):+.2f}")
    beyond = f"Further right: {'; '.join(ranges)}"
    parts.append(f'<text class="small" x="{WIDTH / 2}" y="{bottom + 64}" text-anchor="middle">{beyond}</text>')
    height, body = bottom + 78, "\n  ".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title"
     font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="15">
  <title id="title">Loss of five ways to train, minus GPT-2's, on five corpora, with intervals</title>
  <style>
    .paper {{ fill: #ffffff }} text {{ fill: #1f2328 }} .small {{ fill: #59636e; font-size: 13px }}
    .head {{ font-weight: 600 }} .grid {{ stroke: #d1d9e0 }} .zero {{ stroke: #59636e; stroke-width: 1.5 }}
    .line {{ stroke-width: 2; fill: none }} .hollow {{ fill: #ffffff; stroke-width: 2 }}
    {_colours(LIGHT)}
    @media (prefers-color-scheme: dark) {{
      .paper {{ fill: #0d1117 }} text {{ fill: #e6edf3 }} .small {{ fill: #9198a1 }}
      .grid {{ stroke: #30363d }} .zero {{ stroke: #9198a1 }} .hollow {{ fill: #0d1117 }}
      {_colours(DARK)}
    }}
  </style>
  <rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>
  {body}
</svg>
"""


def _answer(trial: dict[str, Any], arm: str) -> tuple[float, float, float, bool]:
    """The difference of an arm from the reference after the last seed, its interval, and whether it is decided."""
    comparison = next(each for each in trial["comparisons"] if each["arm"] == arm)
    difference = comparison["looks"][-1][comparison["documents"]]
    return difference["value"], difference["low"], difference["high"], comparison["decision"] in ("better", "worse")


def _interval(answer: tuple[float, float, float, bool], colour: str, y: float) -> str:
    value, low, high, decided = answer
    line = f"M{_x(low)} {y}H{_x(min(high, HIGH))}{_arrow(y) if high > HIGH else ''}"
    if value > HIGH:
        point = f'<text class="small" x="{_x(HIGH) + 4}" y="{y + 4}">{value:+.2f}</text>'
    else:
        point = f'<circle class="{colour if decided else f"{colour} hollow"}" cx="{_x(value)}" cy="{y}" r="3.8"/>'
    return f'<path class="line {colour}" d="{line}"/>{point}'


def _arrow(y: float) -> str:
    x = _x(HIGH)
    return f"M{x - 6} {y - 4}L{x} {y}L{x - 6} {y + 4}"


def _x(value: float) -> float:
    return round(LEFT + (value - LOW) / (HIGH - LOW) * (RIGHT - LEFT), 1)


def _colours(colours: tuple[str, ...]) -> str:
    return " ".join(
        f"circle.c{n}:not(.hollow) {{ fill: {colour} }} .c{n} {{ stroke: {colour} }}"
        for n, colour in enumerate(colours)
    )


def main() -> None:
    trials = json.loads(RESULTS.read_text(encoding="utf-8"))["trials"]
    (FOLDER / "answers.svg").write_text(figure(trials), encoding="utf-8")


if __name__ == "__main__":
    main()
