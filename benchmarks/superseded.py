"""Mark the committed results whose models started or were trained wrongly, to be made again.

``python -m benchmarks.superseded`` reads the settings behind each file of ``benchmarks/results``: those in it, and those of the
recipes, reproduction items, sweeps and commands that it names. A file with models that one of :data:`FAULTS` concerns gets the
field ``superseded``, with the reasons and what they concern; one without loses it. Results from :data:`MENDED` on are of mended
code. Trials start all runs with paired initialization, which was right.
"""

import functools
import itertools
import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS
from contextwise.base.recipes import RECIPES
from contextwise.reproductions.item import list_items, measure_at
from contextwise.training.recipe import load_recipe

MENDED = "2026-11-27"
"""Date of the first results that are made by mended code."""
FAULTS = {
    "residuals": "The residual projections of the context predictor, or of the heads' blocks, began with a standard deviation "
    "of 0.02 instead of 0.02 / √(2 L), as in all runs without paired initialization.",
    "pythia": "The GPT-NeoX models began with a standard deviation of 0.02 everywhere, and not as Pythia.",
    "t5": "T5 was trained in bf16 on CPUs, and its decoder without relative positions.",
}
FAMILIES_WITH_SCALED_RESIDUALS = ("gpt2", "gpt2_rotary")
Named = dict[str, list[str]]
"""Fault -> what it concerns."""


def faults(recipe: dict[str, Any]) -> set[str]:
    """The faults of a model that was trained with these settings."""
    model, training = recipe.get("model") or {}, recipe.get("training") or {}
    family, heads = model.get("family", "gpt2"), model.get("multi_token")
    composed = model.get("context_predictor") is not None or (
        heads is not None and heads.get("head", "layer") == "layer"
    )
    found = set()
    if composed and family in FAMILIES_WITH_SCALED_RESIDUALS and not training.get("paired_initialization"):
        found.add("residuals")
    if family == "gpt_neox" and not model.get("pretrained"):
        found.add("pythia")
    if family == "t5" and training.get("precision", "auto") in ("auto", "bf16"):
        found.add("t5")
    return found


_items = functools.cache(lambda: list_items(RECIPES))


def recipes_of(path: Path, result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a result names that was trained, and the settings of its training."""
    if path.parent.name == "reproduce" and result.get("runs"):
        document, _, rest = path.stem.partition("-")
        item, scale, _ = rest.rsplit("-", 2)
        measure = measure_at(_items()[f"{document}/{item}"], scale)
        with tempfile.TemporaryDirectory() as folder:
            for run in measure.run_set(Path(folder)).trained:
                yield run.arm, run.planned_recipe().model_dump()
    if path.parent.name == "sweeps":
        for size, model in result["models"].items():
            yield size, {"model": model, "training": result["recipe"]["training"]}
    for name, cell in result.get("cells", {}).items() if isinstance(result.get("cells"), dict) else ():
        yield name, cell["settings"]
    for row in result.get("rows", []):
        if "objective" in row:
            yield row["name"], load_recipe(f"objectives/{row['name']}").model_dump()
    for name in result.get("speculation", {}):
        known = [file for file in sorted((RECIPES / "multitoken").glob("*.yaml")) if name.startswith(file.stem)]
        for file in known:
            yield name, load_recipe(file).model_dump()
    for command in result.get("commands", []):
        words = shlex.split(command)
        if words[:2] == ["contextwise", "train"]:
            settings = [word for before, word in itertools.pairwise(words) if before == "--set" and "=" in word]
            kept = [setting for setting in settings if setting.startswith(("model.", "training."))]
            yield command, load_recipe(words[2], kept).model_dump()


def tables_of(result: dict[str, Any]) -> list[str]:
    """Names of the tables of sweeps that a result was computed from."""
    tables = list(result.get("powers", [])) if isinstance(result.get("powers"), dict) else []
    return tables + [
        f"{result[side]}-{row['text']}" for side in ("first", "second") if side in result for row in result["rows"]
    ]


def concerned(path: Path, result: dict[str, Any]) -> Named:
    """The faults of the models behind a result."""
    found = Named()
    if result.get("date", "") < MENDED:
        for name, recipe in recipes_of(path, result):
            for fault in faults(recipe):
                found.setdefault(fault, []).append(name)
    for table in dict.fromkeys(tables_of(result)):
        other = RESULTS / "sweeps" / f"{table}.json"
        for fault in concerned(other, json.loads(other.read_text())):
            found.setdefault(fault, []).append(table)
    return {fault: list(dict.fromkeys(names)) for fault, names in sorted(found.items())}


def all_results() -> Iterator[Path]:
    """The files of all results but the definitions of tasks."""
    return (path for path in sorted(RESULTS.rglob("*.json")) if path.parent.name != "definitions")


def marked(text: str, found: Named) -> str:
    """The text of a result with its mark, or without one; the rest keeps its layout."""
    result = json.loads(text)
    before = result.pop("superseded", None)
    mark = [{"reason": FAULTS[fault], "concerns": names} for fault, names in found.items()]
    if before == (mark or None):
        return text
    lines = [line for line in text.split("\n") if not line.lstrip().startswith('"superseded"')]
    if mark:
        first = lines[0].removeprefix("{")
        field = f'"superseded": {json.dumps(mark, ensure_ascii=False)},'
        lines[:1] = [f"{{{field}", first] if first else ["{", f"  {field}"]
    return "\n".join(lines)


def main() -> None:
    for path in all_results():
        text = path.read_text()
        found = concerned(path, json.loads(text))
        path.write_text(marked(text, found))
        for fault, names in found.items():
            print(f"{path.relative_to(RESULTS)}: {fault} ({', '.join(names)})")


if __name__ == "__main__":
    main()
