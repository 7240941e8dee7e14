"""Results made with models or data that have been mended since: which files, and why.

``python -m benchmarks.superseded`` prints the list of docs/results/superseded.md and marks the files: the field
``superseded`` of each holds the reason. A file is found by the settings in it, or by those of its item's recipe, and by its
date: one that is made again has no mark.
"""

import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import yaml

RESULTS = Path(__file__).parent / "results"
SOURCE = Path(__file__).parents[1] / "src"
MENDED = date(2026, 11, 27)

COMPOSED = "ContextLM's predictor and multi-token heads of GPT-2 began with residual projections √(2L) times too large"
NEOX = "`gpt_neox` began with 0.02 everywhere, not as Pythia, or `gpt2_rotary` without GPT-2's scale of residual projections"
T5 = "on CPUs with bf16 T5 was trained without the relative positions of its decoder"

SPEED = ("context_predictor", "coordinates", "generation", "memory", "multitoken-cost", "training_step")
"""Benchmarks of time, memory and of a few steps' sizes, which initial values do not decide."""


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary inside a value of JSON."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else []:
        yield from mappings(each)


def reasons(settings: Any, paired: bool) -> set[str]:
    """Why models trained with settings like these are not what they are called; ``paired``: with paired initial values."""
    found = set()
    text = json.dumps(settings)
    changes = re.findall(r"(context_predictor|multi_token)\.", text)
    families = set(re.findall(r'family"?[=:]\s*"?(\w+)', text))
    for each in mappings(settings):
        heads = each.get("multi_token")
        layers = isinstance(heads, dict) and heads.get("head", "layer") == "layer"
        if isinstance(each.get("context_predictor"), dict) or layers or each.get("name") == "multi-token":
            changes.append("model")
    if changes and not paired and (not families or "gpt2" in families):
        found.add(COMPOSED)
    if families & {"gpt_neox", "gpt2_rotary"}:
        found.add(NEOX)
    if "t5" in families:
        found.add(T5)
    return found


def item_settings(file: Path) -> Any:
    """The settings of the recipe of which a reproduction's result is the outcome; None for another result."""
    for recipe in SOURCE.glob("*/recipes/*/*.yaml"):
        match = re.fullmatch(rf"{re.escape(f'{recipe.parent.name}-{recipe.stem}')}-(tiny|gpu|paper)-\w+", file.stem)
        if match and "reproduce" in file.parts:
            item = yaml.safe_load(recipe.read_text())
            return None if item["measure"] == "hyperparameters" else item["scales"][match[1]]["settings"]
    return None


def why(file: Path) -> list[str]:
    """Why a result is superseded; empty if it is not."""
    result = json.loads(file.read_text())
    dates = [each["date"] for each in mappings(result) if isinstance(each.get("date"), str)]
    name = str(result.get("benchmark", ""))
    if (dates and date.fromisoformat(max(dates)) >= MENDED) or name.startswith(SPEED):
        return []
    paired = "trials" in result or "trial" in result
    return sorted(reasons([result, item_settings(file)], paired))


def superseded() -> dict[Path, list[str]]:
    """The reasons of each superseded result, by its file."""
    found = {file: why(file) for file in sorted(RESULTS.rglob("*.json"))}
    return {file: reasons for file, reasons in found.items() if reasons}


def listed(found: dict[Path, list[str]]) -> str:
    """The list in Markdown, by reason."""
    lines = []
    for reason in (COMPOSED, NEOX, T5):
        files = [str(file.relative_to(RESULTS)) for file, reasons in found.items() if reason in reasons]
        if files:
            lines += [
                f"**{reason[0].upper()}{reason[1:]}** ({len(files)}):",
                "",
                *(f"- `{file}`" for file in files),
                "",
            ]
    return "\n".join(lines)


def mark(file: Path, why_superseded: list[str]) -> None:
    """Write the reasons into the file, as its first field; the rest of it stays as it is."""
    text = re.sub(r'"superseded": \[[^\]]*\],\s*', "", file.read_text(), count=1)
    field = f'"superseded": {json.dumps(why_superseded, ensure_ascii=False)},'
    file.write_text(re.sub(r"\{(\s*)", lambda brace: f"{brace[0]}{field}{brace[1] or ' '}", text, count=1))


def main() -> None:
    found = superseded()
    for file, why_superseded in found.items():
        mark(file, why_superseded)
    print(listed(found))


if __name__ == "__main__":
    main()
