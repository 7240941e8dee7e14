"""The page of runs: everything about some runs in one HTML file, which needs no network and opens from disk."""

import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_write, read_json
from contextwise.base.runs import RunFolder
from contextwise.comparison.comparison import Comparison
from contextwise.reports.figures import Curve, difference_figure, training_figure
from contextwise.reports.rendering import render
from contextwise.reports.tables import budget_tables, difference_table, evaluation_tables, model_table
from contextwise.reports.words import verdict


def write_report(
    runs: list[RunFolder],
    path: Path,
    comparison: Comparison | None = None,
    *,
    title: str | None = None,
    command: str | None = None,
    notes: list[str] | None = None,
) -> None:
    """Write the page of some runs.

    Args:
        runs: finished or not; what a run has not made yet is left out. Texts that the runs generated
            (``evaluation/samples.json``) are shown side by side.
        comparison: of the runs (:func:`contextwise.evaluation.compare`); its models may be others besides.
        title: the headline; the models' names if not given.
        command: the one command that made all this, if there is one.
        notes: sentences for the reader, besides the comparison's own.

    Raises:
        DataError: the file cannot be written, or a file of a run is damaged.
        ConfigError: ``path`` is a folder, or a recipe is damaged.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file for the page")
    series = _series(runs, comparison)
    curves = _curves(runs, series, comparison)
    content = {
        "title": title or _title(series),
        "subtitle": _subtitle(comparison),
        "verdict": verdict(comparison) if comparison else [],
        "models": model_table(comparison, series) if comparison else None,
        "differences": difference_table(comparison) if comparison and comparison.differences else None,
        "budgets": budget_tables(comparison, series) if comparison else [],
        "evaluations": [] if comparison else evaluation_tables(runs),
        "notes": [*(comparison.notes if comparison else []), *(notes or [])],
        "samples": _samples(curves),
        "runs": [_run(curve) for curve in curves],
        "commands": _commands(runs, comparison, command),
        "version": metadata.version("contextwise"),
    }
    figures = {"training": training_figure(curves)}
    if comparison and comparison.differences:
        figures["differences"] = difference_figure(comparison, series)
    drawn = {name: figure for name, figure in figures.items() if figure}
    atomic_write(path, render("page", content, drawn), "the report")


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison: its tables, and the curves of those of its models that are runs."""
    write_report(runs_of(comparison), path, comparison)


def runs_of(comparison: Comparison) -> list[RunFolder]:
    """The runs among the models of a comparison, in its order."""
    found = [_run_of(source) for group in comparison.groups for source in group.sources]
    return [run for run in found if run is not None]


def _run_of(source: str) -> RunFolder | None:
    """The run that a comparison's source is, or whose evaluation it is."""
    for folder in (Path(source), Path(source).resolve().parent.parent):
        if (folder / "recipe.yaml").is_file():
            return RunFolder(folder)
    return None


def _name(run: RunFolder) -> str:
    return str(run.recipe().get("name") or run.path.resolve().name)


def _model_names(runs: list[RunFolder], comparison: Comparison | None) -> dict[Path, str]:
    """Run folder -> name of the model it belongs to: the comparison's group, else the recipe's name."""
    names = {run.path.resolve(): _name(run) for run in runs}
    for group in comparison.groups if comparison else []:
        for run in filter(None, map(_run_of, group.sources)):
            names[run.path.resolve()] = group.name
    return names


def _series(runs: list[RunFolder], comparison: Comparison | None) -> dict[str, int]:
    """Name of each model -> number of its colour."""
    names = [group.name for group in comparison.groups] if comparison else []
    names += [name for name in _model_names(runs, comparison).values() if name not in names]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _curves(runs: list[RunFolder], series: dict[str, int], comparison: Comparison | None) -> list[Curve]:
    names = _model_names(runs, comparison)
    models = [names[run.path.resolve()] for run in runs]
    return [
        Curve(run, f"{model} ({run.path.name})" if models.count(model) > 1 else model, series[model])
        for run, model in zip(runs, models, strict=True)
    ]


def _title(series: dict[str, int]) -> str:
    names = list(series)
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"


def _subtitle(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    corpus = comparison.corpus
    return (
        f"{comparison.documents:,} held-out documents, {comparison.tokens:,} tokens "
        f"({Path(corpus['path']).name}, split {corpus['split']})"
    )


def _samples(curves: list[Curve]) -> list[dict[str, Any]]:
    """Generated texts by prompt and settings: ``{"prompt", "how", "texts": [(label, series, text)]}``."""
    by_prompt: dict[tuple[str, str], list[tuple[str, int, str]]] = {}
    for curve in curves:
        file = curve.run.evaluation / "samples.json"
        for sample in read_json(file, "the generated texts") if file.is_file() else []:
            how = _sampling(sample["sampling"])
            by_prompt.setdefault((sample["prompt"], how), []).append(
                (curve.label, curve.series, sample["text"])
            )
    return [{"prompt": prompt, "how": how, "texts": texts} for (prompt, how), texts in by_prompt.items()]


def _sampling(settings: dict[str, Any]) -> str:
    """``temperature 0.8, seed 0``: the settings that count."""
    if settings.get("greedy"):
        settings = {"max_new_tokens": settings.get("max_new_tokens"), "always the likeliest token": ""}
    counting = {name: value for name, value in settings.items() if value is not None and value is not False}
    return ", ".join(f"{name.replace('_', ' ')} {value}".strip() for name, value in counting.items())


def _run(curve: Curve) -> dict[str, Any]:
    """A run's recipe and environment, for the part of the page that is folded away."""
    run = curve.run
    environment = (
        read_json(run.environment_file, "the environment of the run") if run.environment_file.exists() else {}
    )
    facts = {**environment, **environment.get("versions", {})}
    facts.pop("versions", None)
    return {
        "label": curve.label,
        "series": curve.series,
        "path": str(run.path),
        "finished": run.finished,
        "corpus": run.summary()["corpus"] if run.finished else None,
        "recipe": yaml.safe_dump(run.recipe(), sort_keys=False, allow_unicode=True),
        "environment": {name: _fact(value) for name, value in facts.items() if value not in (None, [])},
    }


def _fact(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _commands(runs: list[RunFolder], comparison: Comparison | None, command: str | None) -> list[str]:
    """Commands that make the runs and the figures again."""
    if command is not None:
        return [command]
    commands = [["train", str(run.recipe_file), "--out", f"{run.path}-again"] for run in runs]
    if comparison is not None:
        sources = [source for group in comparison.groups for source in group.sources]
        corpus = comparison.corpus
        commands.append(["compare", *sources, "--corpus", corpus["path"], "--split", corpus["split"]])
    return [shlex.join(["contextwise", *words]) for words in commands]
