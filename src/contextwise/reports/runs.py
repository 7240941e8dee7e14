"""The page of runs: everything about some runs in one HTML file, which needs no network and opens from disk."""

import shlex
from pathlib import Path
from typing import Any

import yaml

from contextwise.base.files import read_json
from contextwise.base.runs import RunFolder
from contextwise.base.tables import mark
from contextwise.comparison.compared_runs import COMPARABLE
from contextwise.comparison.comparison import Comparison
from contextwise.comparison.tables import budget_tables, difference_table, model_table, verdict
from contextwise.evaluation.kernel import results_of
from contextwise.evaluation.measures.loss import evaluation_table
from contextwise.reports import page
from contextwise.reports.figures import Curve, difference_figure, training_figure
from contextwise.reports.page import Markup, Page, Part, Plot, Section


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
        comparison: of the runs, and of other models if there are any.
        title: the headline; by default the models' names.
        command: the one command that made all this, if there is one.
        notes: sentences for the reader, besides the comparison's own.

    Raises:
        DataError: the file cannot be written, or a file of a run is damaged.
        ConfigError: ``path`` is a folder, or a recipe is damaged.
    """
    page.check_file(path)
    curves, series = _curves(runs, comparison)
    names, subtitle = list(series), ""
    sections = [Section("Training", _training(curves))]
    if comparison is None:
        sections.insert(0, Section("Held-out losses", _evaluation_tables(runs)))
    else:
        corpus = comparison.corpus
        differences: list[Part] = []
        subtitle = (
            f"{comparison.documents:,} held-out documents, {comparison.tokens:,} tokens "
            f"({Path(corpus['path']).name}, split {corpus['split']})"
        )
        if comparison.differences:
            label = "Differences of held-out loss with 95% intervals"
            fallback = "This figure needs JavaScript. The table below holds its numbers."
            plot = Plot("differences", difference_figure(comparison, series), label, fallback=fallback)
            differences = [plot, difference_table(comparison)]
        sections = [
            Section("The models", [model_table(comparison, series)]),
            *sections,
            Section("Differences, document by document", differences),
            Section("At equal budgets", budget_tables(comparison, series)),
        ]
    remarks = [*(comparison.notes if comparison else []), *(notes or [])]
    lines = [command] if command is not None else _commands(runs, comparison)
    sections += [
        Section("Notes", [page.bullets(remarks)] if remarks else []),
        Section("What the models write", _samples(curves)),
        Section("How it was made", ["To make it again:", page.commands(lines), *map(_run, curves)]),
    ]
    title = title or (", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others")
    Page(title, sections, subtitle, verdict(comparison) if comparison else [], "runs").write(path)


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison: its tables, and the curves of those of its models that are runs."""
    runs = [_run_of(source) for group in comparison.groups for source in group.sources]
    write_report([run for run in runs if run is not None], path, comparison)


def _run_of(source: str) -> RunFolder | None:
    """The run that a comparison's source is, or whose evaluation it is."""
    folders = Path(source), Path(source).resolve().parent.parent
    return next((RunFolder(folder) for folder in folders if (folder / "recipe.yaml").is_file()), None)


def _curves(runs: list[RunFolder], comparison: Comparison | None) -> tuple[list[Curve], dict[str, int]]:
    """The runs with their labels, and the colour number of each model: a group of the comparison, else a recipe's name."""
    groups = comparison.groups if comparison else []
    names = {run.path.resolve(): str(run.recipe().get("name") or run.path.resolve().name) for run in runs}
    for group in groups:
        for run in filter(None, map(_run_of, group.sources)):
            names[run.path.resolve()] = group.name
    every = dict.fromkeys([*(group.name for group in groups), *names.values()])
    series = {name: number for number, name in enumerate(every)}
    models = [names[run.path.resolve()] for run in runs]
    curves = []
    for run, model in zip(runs, models, strict=True):
        label = f"{model} ({run.path.name})" if models.count(model) > 1 else model
        curves.append(Curve(run, label, series[model]))
    return curves, series


def _sampling(settings: dict[str, Any]) -> str:
    """``temperature 0.8, seed 0``: the settings that count."""
    if settings.get("greedy"):
        settings = {"max_new_tokens": settings.get("max_new_tokens"), "always the likeliest token": ""}
    counting = {name: value for name, value in settings.items() if value is not None and value is not False}
    return ", ".join(f"{name.replace('_', ' ')} {value}".strip() for name, value in counting.items())


def _commands(runs: list[RunFolder], comparison: Comparison | None) -> list[str]:
    """Commands that make the runs and the figures again."""
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
    return [Plot("training", figure, label, caption, controls=page.choices("Horizontal axis"))]


def _evaluation_tables(runs: list[RunFolder]) -> list[Part]:
    """The evaluations of each run, for a page without a comparison."""
    tables: list[Part] = []
    for run in runs:
        for summary in (r.summary for r in results_of(run.evaluation) if r.measure in COMPARABLE):
            settings, condition = summary["settings"], summary.get("condition")
            scored = "each sentence on its own" + (f", with {condition}" if condition else "")
            if not summary.get("by_sentence"):
                scored = f"windows of {settings['context']:,}, stride {settings['stride']:,}"
            title = (
                f"{run.path.name} on {summary['label']}: {summary['documents']:,} documents, "
                f"{summary['tokens']:,} tokens, {scored}."
            )
            tables.append(evaluation_table(summary, title=title, known_only=True))
    return tables


def _samples(curves: list[Curve]) -> list[Part]:
    """Generated texts side by side, by prompt and settings."""
    by_prompt: dict[tuple[str, str], list[Markup]] = {}
    for curve in curves:
        file = curve.run.evaluation / "samples.json"
        for sample in read_json(file, "the generated texts") if file.is_file() else []:
            text = page.markup(
                '<article>{head}<pre><span class="given">{prompt}</span>{text}</pre></article>',
                head=page.subhead(curve.label, curve.series),
                prompt=sample["prompt"],
                text=sample["text"],
            )
            by_prompt.setdefault((sample["prompt"], _sampling(sample["sampling"])), []).append(text)
    parts: list[Part] = []
    for (prompt, how), texts in by_prompt.items():
        start = page.markup("<code>{prompt}</code>", prompt=prompt) if prompt else "the start of a document"
        line = '<p class="prompt">Continuing {start} ({how}; not selected)</p>'
        parts.append(page.markup(line, start=start, how=how))
        parts.append(Markup(f'<div class="samples">\n{page.joined(texts)}\n</div>'))
    return parts


def _run(curve: Curve) -> Markup:
    """A run's recipe and environment, folded away."""
    run = curve.run
    file = run.environment_file
    environment = read_json(file, "the environment of the run") if file.exists() else {}
    about: dict[str, Any] = {"run": run.path}
    if run.finished:
        corpus = run.summary()["corpus"]
        about |= {"corpus": corpus["path"], "content hash": corpus["fingerprint"]}
    recipe = yaml.safe_dump(run.recipe(), sort_keys=False, allow_unicode=True)
    summary = page.markup(
        "{mark}{label}: recipe and environment{state}",
        mark=Markup(mark(curve.series)),
        label=curve.label,
        state="" if run.finished else " (not finished)",
    )
    columns = page.markup(
        '<div class="facts">\n<div><h3>recipe</h3>{recipe}</div>\n<div><h3>environment</h3>{facts}</div>\n</div>',
        recipe=page.code(recipe),
        facts=page.facts({**about, **page.environment_facts(environment)}),
    )
    return page.details(summary, columns)
