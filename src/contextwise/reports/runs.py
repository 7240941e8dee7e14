"""The page of runs: everything about some runs in one HTML file, which needs no network and opens from disk."""

import shlex
from pathlib import Path
from typing import Any

import yaml

from contextwise.base.files import read_json
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table, mark
from contextwise.comparison.compared_runs import COMPARABLE
from contextwise.comparison.comparison import Comparison
from contextwise.comparison.tables import budget_tables, difference_table, model_table
from contextwise.comparison.verdict import verdict
from contextwise.evaluation.kernel import results_of
from contextwise.evaluation.measures.loss import evaluation_table
from contextwise.reports.figures import Curve, difference_figure, training_figure
from contextwise.reports.page import (
    Markup,
    Page,
    Part,
    Plot,
    Section,
    bullets,
    check_file,
    choices,
    code,
    commands,
    details,
    environment_facts,
    facts,
    joined,
    markup,
    subhead,
)


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
        comparison: of the runs (:func:`contextwise.comparison.compare`); its models may be others besides.
        title: the headline; the models' names if not given.
        command: the one command that made all this, if there is one.
        notes: sentences for the reader, besides the comparison's own.

    Raises:
        DataError: the file cannot be written, or a file of a run is damaged.
        ConfigError: ``path`` is a folder, or a recipe is damaged.
    """
    check_file(path)
    series = _series(runs, comparison)
    curves = _curves(runs, series, comparison)
    sections = [Section("Training", _training(curves))]
    if comparison is not None:
        differences: list[Part] = []
        if comparison.differences:
            label = "Differences of held-out loss with 95% intervals"
            fallback = "This figure needs JavaScript. The table below holds its numbers."
            figure = difference_figure(comparison, series)
            differences = [
                Plot("differences", figure, label, fallback=fallback),
                difference_table(comparison),
            ]
        sections = [
            Section("The models", [model_table(comparison, series)]),
            *sections,
            Section("Differences, document by document", differences),
            Section("At equal budgets", budget_tables(comparison, series)),
        ]
    else:
        sections = [Section("Held-out losses", _evaluation_tables(runs)), *sections]
    remarks = [*(comparison.notes if comparison else []), *(notes or [])]
    sections += [
        Section("Notes", [bullets(remarks)] if remarks else []),
        Section("What the models write", _samples(curves)),
        Section("How it was made", _making(curves, _commands(runs, comparison, command))),
    ]
    result = verdict(comparison) if comparison else []
    Page(title or _title(series), sections, _subtitle(comparison), result, "runs").write(path)


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison: its tables, and the curves of those of its models that are runs."""
    write_report(runs_of(comparison), path, comparison)


def runs_of(comparison: Comparison) -> list[RunFolder]:
    """The runs among the models of a comparison, in its order."""
    runs = [_run_of(source) for group in comparison.groups for source in group.sources]
    return [run for run in runs if run is not None]


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


def _sampling(settings: dict[str, Any]) -> str:
    """``temperature 0.8, seed 0``: the settings that count."""
    if settings.get("greedy"):
        settings = {"max_new_tokens": settings.get("max_new_tokens"), "always the likeliest token": ""}
    counting = {name: value for name, value in settings.items() if value is not None and value is not False}
    return ", ".join(f"{name.replace('_', ' ')} {value}".strip() for name, value in counting.items())


def _commands(runs: list[RunFolder], comparison: Comparison | None, command: str | None) -> list[str]:
    """Commands that make the runs and the figures again."""
    if command is not None:
        return [command]
    lines = [["train", str(run.recipe_file), "--out", f"{run.path}-again"] for run in runs]
    if comparison is not None:
        sources = [source for group in comparison.groups for source in group.sources]
        corpus = comparison.corpus
        lines.append(["compare", *sources, "--corpus", corpus["path"], "--split", corpus["split"]])
    return [shlex.join(["contextwise", *words]) for words in lines]


def _training(curves: list[Curve]) -> list[Part]:
    figure = training_figure(curves)
    if figure is None:
        return []
    caption = (
        "Lines: training loss, smoothed, over the raw values. Points: validation loss; open ones: that on an old corpus which "
        "is replayed or watched. A double click shows all, the steep start included."
    )
    label = "Training and validation loss of each run"
    return [Plot("training", figure, label, caption, controls=choices("Horizontal axis"))]


def _evaluation_tables(runs: list[RunFolder]) -> list[Table]:
    """The evaluations of each run, for a page without a comparison."""
    tables = []
    for run in runs:
        for summary in (r.summary for r in results_of(run.evaluation) if r.measure in COMPARABLE):
            title = (
                f"{run.path.name} on {summary['label']}: {summary['documents']:,} documents, "
                f"{summary['tokens']:,} tokens, {_scored(summary)}."
            )
            tables.append(evaluation_table(summary, title=title, known_only=True))
    return tables


def _scored(summary: dict[str, Any]) -> str:
    """How an evaluation was made, in words."""
    if not summary.get("by_sentence"):
        settings = summary["settings"]
        return f"windows of {settings['context']:,}, stride {settings['stride']:,}"
    condition = summary.get("condition")
    return "each sentence on its own" + (f", with {condition}" if condition else "")


def _samples(curves: list[Curve]) -> list[Part]:
    """Generated texts side by side, by prompt and settings."""
    by_prompt: dict[tuple[str, str], list[Markup]] = {}
    for curve in curves:
        file = curve.run.evaluation / "samples.json"
        for sample in read_json(file, "the generated texts") if file.is_file() else []:
            text = markup(
                '<article>{head}<pre><span class="given">{prompt}</span>{text}</pre></article>',
                head=subhead(curve.label, curve.series),
                prompt=sample["prompt"],
                text=sample["text"],
            )
            by_prompt.setdefault((sample["prompt"], _sampling(sample["sampling"])), []).append(text)
    parts: list[Part] = []
    for (prompt, how), texts in by_prompt.items():
        start = markup("<code>{prompt}</code>", prompt=prompt) if prompt else "the start of a document"
        line = '<p class="prompt">Continuing {start} ({how}; not selected)</p>'
        parts.append(markup(line, start=start, how=how))
        parts.append(Markup(f'<div class="samples">\n{joined(texts)}\n</div>'))
    return parts


def _making(curves: list[Curve], lines: list[str]) -> list[Part]:
    """Commands, and each run's recipe and environment, folded away."""
    return ["To make it again:", commands(lines), *map(_run, curves)]


def _run(curve: Curve) -> Markup:
    run = curve.run
    file = run.environment_file
    environment = read_json(file, "the environment of the run") if file.exists() else {}
    about: dict[str, Any] = {"run": run.path}
    if run.finished:
        corpus = run.summary()["corpus"]
        about |= {"corpus": corpus["path"], "content hash": corpus["fingerprint"]}
    recipe = yaml.safe_dump(run.recipe(), sort_keys=False, allow_unicode=True)
    summary = markup(
        "{mark}{label}: recipe and environment{state}",
        mark=Markup(mark(curve.series)),
        label=curve.label,
        state="" if run.finished else " (not finished)",
    )
    columns = markup(
        '<div class="facts">\n<div><h3>recipe</h3>{recipe}</div>\n<div><h3>environment</h3>{facts}</div>\n</div>',
        recipe=code(recipe),
        facts=facts({**about, **environment_facts(environment)}),
    )
    return details(summary, columns)
