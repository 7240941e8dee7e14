"""Verbs that answer: ``trial``, ``compare`` and ``report``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from contextwise.base.config import with_options
from contextwise.base.errors import ConfigError, DataError, misspelt
from contextwise.base.estimates import listed
from contextwise.base.files import expanded, relative_to_here
from contextwise.base.lazy import object_named
from contextwise.base.progress import say
from contextwise.base.recipes import recipe_kinds
from contextwise.base.runs import RunFolder
from contextwise.cli.common import AsJson, Label, refuse_absent, set_option, show, show_json, show_line, show_values
from contextwise.experiments.recipe_kinds import check_trial

if TYPE_CHECKING:
    from contextwise.experiments.trial.result import TrialResult

PANEL = "Decide"

ARM = "gpt2, pm, contextlm, contextlm-every, contextlm-behind, contextlm-add, a name of a package, a recipe, or path.py:Name"


def trial(
    arms: Annotated[
        list[str] | None,
        Argument(
            metavar="TRIAL_OR_ARMS",
            help=f"A trial (a YAML file, a name that `recipes` lists, or its folder), or arms, the reference first: {ARM}.",
        ),
    ] = None,
    corpus: Annotated[str | None, Option(metavar="<path>", help="A prepared corpus with held-out documents.")] = None,
    equal: Annotated[
        str | None, Option(help="What runs have in common: flops, time or tokens.", show_default="flops")
    ] = None,
    tokens: Annotated[
        str | None,
        Option(
            metavar="<int>,…",
            help="Training tokens of the reference's runs; several are several budgets.",
            show_default="the recipe's, else 524,288",
        ),
    ] = None,
    margin: Annotated[
        float | None, Option(help="The smallest difference that matters, nats per token.", show_default="0.01")
    ] = None,
    confidence: Annotated[
        float | None, Option(help="Confidence level of all intervals together.", show_default="0.95")
    ] = None,
    documents: Annotated[
        str | None,
        Option(help="Decide about these held-out documents (fixed) or any like them (random).", show_default="fixed"),
    ] = None,
    seeds: Annotated[int | None, Option(help="The most seeds.", show_default="20")] = None,
    rates: Annotated[str | None, Option(help="Learning rates: search or fixed.", show_default="search")] = None,
    jobs: Annotated[int | None, Option(help="Runs at a time.", show_default="1, in this process")] = None,
    settings: Annotated[
        list[str] | None, set_option("A setting before the file's: --set recipe.model.size=pico. Repeatable.")
    ] = None,
    out: Annotated[Path | None, Option(help="The trial's folder.", show_default="trials/NAME")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check the arms, time a few steps, and show what the trial costs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Decide whether one way to train beats another on a text at equal compute.

    All arms are trained with the same seeds, one seed after another, until the
    interval of the mean difference decides: better, worse, or equivalent within
    the margin. It is valid after every seed. Run the same command again to
    resume, or with more seeds to continue; exit status 0 whatever the answer.
    """
    options = dict(locals())
    if not arms:
        raise ConfigError(
            "there is nothing to compare; give two arms, or a trial (a YAML file, its name or its folder)"
        )
    file = arms[0] if len(arms) == 1 else None
    if file is not None:
        check_trial(file)
    elif corpus is None and not any(each.strip().startswith("corpus=") for each in settings or []):
        raise ConfigError("--corpus is missing; give the folder of a prepared corpus (contextwise prepare makes one)")
    from contextwise.data import Corpus
    from contextwise.experiments.trial import load_trial

    names = ("corpus", "equal", "margin", "confidence", "documents", "seeds", "rates")
    values = {name: options[name] for name in names if options[name] is not None}
    values |= {} if tokens is None else {"tokens": tokens.split(",")}
    values |= {"arms": arms} if file is None else {}
    overrides = with_options(settings, {"executor.jobs": jobs})
    loaded = load_trial(file, values, overrides, out)  # before torch is imported
    Corpus.open(loaded.corpus)
    from contextwise.experiments.trial import Trial
    from contextwise.reports.trial import plan_tables, run_with_page

    planned = Trial(loaded)
    if dry_run:
        plan = planned.plan()
        show_values(plan, as_json, plan_tables(plan, loaded.equal))
        return
    result = run_with_page(planned)
    show_trial(result, as_json)


def show_trial(result: "TrialResult", as_json: bool = False, question: str = "") -> None:
    """Print a trial's result, where its page is, and what decides it if its seeds did not."""
    from contextwise.comparison.sequential import FEWEST_SEEDS
    from contextwise.reports.trial import PAGE, trial_command, trial_tables

    if as_json:
        show_json(result)
        return
    show(*filter(None, [question]), trial_tables(result))
    show_line(relative_to_here(f"page: {result.path / PAGE}"))
    trained = max(len(each.looks) for each in result.comparisons)
    twice, most = max(FEWEST_SEEDS, 2 * trained), max(FEWEST_SEEDS, 4 * trained)
    ranges = [each.seeds_to_decide or (twice,) for each in result.comparisons if each.decision == "undecided"]
    if result.stopped == "seeds" and (wanted := [seeds for each in ranges for seeds in each if seeds]):
        show_line(relative_to_here(f"next: {trial_command(result.path)} --seeds {min(most, max(wanted))}"))


def compare(
    runs: Annotated[
        list[str], Argument(help="Runs, models that were evaluated, or folders of results; of curves with --curves.")
    ],
    corpus: Annotated[
        str | None,
        Option(metavar="<path>", help="A corpus, or texts: evaluate on it the runs that lack it, then compare."),
    ] = None,
    split: Annotated[str, Option(help="Which documents of --corpus.")] = "validation",
    limit: Annotated[int | None, Option(min=1, help="Evaluate on the first N documents of --corpus only.")] = None,
    label: Label = None,
    reference: Annotated[
        str | None, Option(help="Name of the model to compare the others to.", show_default="the first")
    ] = None,
    all_pairs: Annotated[bool, Option("--all-pairs", help="Compare every pair of models.")] = False,
    unit: Annotated[Literal["token", "byte"], Option(help="Of differences: token (nats) or byte (bits).")] = "token",
    html: Annotated[Path | None, Option(help="Write a page with the table and the curves of training.")] = None,
    curves: Annotated[
        bool,
        Option(
            "--curves", help="Compare context curves: average, best-context loss, lowest bin. So are folders of curves."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the same documents: their losses, or their context curves.

    Runs of one recipe with different seeds count as one model. Differences are
    paired by document, and by seed where the seeds are the same; their 95%
    intervals say whether a difference is more than chance. Models whose curves
    are compared may have different training contexts.
    """
    if tables := [run for run in runs if run.endswith((".csv", ".tsv", ".jsonl", ".parquet")) and Path(run).is_file()]:
        command = shlex.join(["contextwise", "decide", *tables])
        raise ConfigError(f"{tables[0]} is a table; losses of other training scripts are for another verb: {command}")
    if len(runs) < 2:
        raise ConfigError("a comparison needs two runs or more; name them one after the other")
    from contextwise.reports.page import check_file

    refuse_absent(*runs)
    if html is not None:
        check_file(html)
    from contextwise.comparison.comparison import compare_sources
    from contextwise.comparison.curves import CurveComparison
    from contextwise.reports.views import parts_of

    comparison = compare_sources(
        runs,
        corpus,
        split=None if split == "validation" else split,
        limit=limit,
        label=label,
        reference=reference,
        all_pairs=all_pairs,
        unit=unit,
        curves=curves,
    )
    values = comparison.curves if isinstance(comparison, CurveComparison) else comparison
    show_values(values, as_json, *parts_of(comparison))
    if html is not None:
        comparison.page(html)
        (say if as_json else show_line)(f"page: {html}")


_PAGED = {f"a {name}": kind.resolved for name, kind in recipe_kinds().items() if kind.page}
PAGED = listed([*_PAGED], "or")
"""Results with a page of their own beside runs."""
HAVING = " nor ".join(f"{name} (it has no {file})" for name, file in _PAGED.items())


def report(
    runs: Annotated[
        list[Path],
        Argument(help=f"Run folders, finished or not; or the folder or the table of {PAGED}.", metavar="RUN_OR_FOLDER"),
    ],
    out: Annotated[
        Path | None,
        Option(help="The page; report.html in the folder of one run, or in another folder, else report.html here."),
    ] = None,
    label: Label = None,
    as_json: Annotated[bool, Option("--json", help="Print the path of the page as JSON.")] = False,
) -> None:
    """Write one page about runs: losses, differences, curves, and how they were made.

    It is a single file that opens from disk, without a network. Only files
    are read; nothing is trained or evaluated.
    """
    from contextwise.reports.page import check_file

    first = runs[0]
    name, kind = next(((name, kind) for name, kind in recipe_kinds().items() if kind.made(first)), ("run", None))
    inside = not first.is_file() and (kind is not None or len(runs) == 1)
    page = expanded(out) if out else (first / "report.html" if inside else Path("report.html"))
    check_file(page)
    if kind is not None:
        if label is not None:
            raise ConfigError(f"--label chooses an evaluation of runs, and a {name} has none; leave it out")
        if len(runs) > 1:
            raise ConfigError(
                f"{first} is a {name}, whose page is of it alone; leave {runs[1]} out, or make a page of each"
            )
        object_named(kind.page)(first, page)
        _show_file(page, as_json)
        return
    if len(runs) == 1 and not (first / "recipe.yaml").is_file():
        if (made := first / "report.html").is_file():  # a trial, or another that writes its page itself
            options = {"--out": out, "--label": label}
            if given := [option for option, value in options.items() if value is not None]:
                raise ConfigError(
                    f"{first} is not a run and has its page already, {made}; leave {' and '.join(given)} out"
                )
            _show_file(made, as_json)
            return
        for own, each in recipe_kinds().items():
            if each.resolved and (first / each.resolved).is_file():
                again = f"contextwise {each.verb} {first}"
                raise ConfigError(f"{first} is a {own} without its page, {made.name}; write it again with: {again}")
        hint = "" if first.exists() else misspelt(first)
        raise ConfigError(
            f"{first} is neither a run (it has no recipe.yaml) nor {HAVING}; give the folder of one, or its table{hint}"
        )
    from contextwise.comparison.comparison import compare
    from contextwise.reports.runs import report_page

    folders = [RunFolder.open(run) for run in runs]
    comparison, notes = None, []
    if len(folders) > 1:
        try:
            comparison = compare([str(run.path) for run in folders], label=label, all_pairs=True)
        except DataError as error:
            # Not evaluated yet, or on different documents: the page has the curves all the same.
            notes.append(f"The runs are not compared on held-out documents: {error}.")
            say(f"note: {notes[0]}")
    report_page(folders, comparison, notes=notes).write(page)
    _show_file(page, as_json)


def _show_file(file: Path, as_json: bool) -> None:
    """Print the path of a written file."""
    if as_json:
        show_json({"files": [file]})
    else:
        print(file)
