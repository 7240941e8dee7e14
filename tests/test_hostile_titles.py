"""Names that users give, in every page and in every terminal table: they are text, and nothing else."""

import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import RenderableType

import contextwise
import contextwise_papers
import contextwise_plan
from attention_readings import PIECES, reading
from contextwise import decide
from contextwise.base.progress import STEERING, Terminal, printable
from contextwise.base.tables import Table
from contextwise.comparison.comparison import compare
from contextwise.comparison.tables import comparison_tables
from contextwise.decisions import Decision
from contextwise.evaluation.kernel import Result
from contextwise.evaluation.measures.loss import Loss
from contextwise.experiments.folder import PlannedRun, RunState
from contextwise.experiments.trial.arms import Length
from contextwise.experiments.trial.result import TrialResult
from contextwise.reports.decided import comparison_table, decision_page
from contextwise.reports.runs import report_page
from contextwise.reports.trial import trial_page, trial_tables
from contextwise.reports.views import page_of
from contextwise_papers.claims import Claim
from contextwise_papers.contextlm.attention import received_table, write_attention_page
from contextwise_papers.intrinsic_entropy.analysis import IntrinsicEntropy
from contextwise_papers.intrinsic_entropy.page import write_entropy_page
from contextwise_papers.item import Outcome
from contextwise_papers.page import write_reproduction_page
from contextwise_papers.tables import Plot
from contextwise_plan.sweeps.page import write_sweep_page
from contextwise_plan.sweeps.sweep import plan_table
from entropy_measurements import measurement
from html_pages import Page
from small import loss_rows
from synthetic_sweep import write_sweep
from written_runs import write_run

TAME = "tame"
TITLES = {
    "script": "<script>alert(1)</script>",
    "end of script": "</script><script>alert(1)</script>",
    "end of title": "</title></style></textarea><svg onload=alert(1)>",
    "attribute": "\" onload=alert(1) x=\"' onload='alert(1)",
    "entity": "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &#60;b&#62;",
    "comment": "<!-- --><![CDATA[ <b> ]]> -->",
    "lines": "a\nb\r\nc\td\u2028e",
    "controls": "a\x1b[31mred\x1b]0;title\x07\x08\x7f\x9b31m",
    "right to left": "a\u202ecba\u2066\u200fd\u061c",
    "long": "word " * 2000,
    "one long word": "x" * 10_000,
    "rich markup": "[bold]loud[/bold] [/] [link=https://example.com]x[/link] :smile:",
    "Jinja": "{{ 7 * 7 }} {% include '/etc/passwd' %} {0} {x!r} %s %(x)s",
    "Markdown": "# title\n[x](javascript:alert(1)) **b** `c` ![i](https://example.com/i.png)",
    "plotly": "<b>b</b><a href='javascript:alert(1)'>x</a> <extra></extra>",
}
"""Kind of a hostile title -> the title."""
TITLES["all"] = " ".join(title for title in TITLES.values() if len(title) < 200)
EACH = [title if title == "all" else pytest.param(title, marks=pytest.mark.slow) for title in TITLES]


def decided(title: str, folder: Path) -> Decision:
    """A decision between arms of this name, with documents of this name."""
    rows = loss_rows(("b", title), 4, [f"{title}{number}" for number in range(8)])
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    decision = decide(columns, out=folder / "decision")
    return dataclasses.replace(decision, decision=title, reference=title, notes=[title])


def tried(title: str, folder: Path) -> TrialResult:
    """A trial with arms of this name."""
    decision = decided(title, folder)
    lengths = [Length(arm, 0, 640, 10, 64, 0.1, 0.2, 1e9, 2.0, 1.0) for arm in ("b", title)]
    counts = {"documents": 8, "tokens": 80, "near_copies": {}}
    losses = {arm: {0: [1.0, 2.0, 3.0, 4.0]} for arm in ("b", title)}
    return TrialResult(
        trial=title,
        stopped="seeds",
        reference="b",
        equal="flops",
        margin=0.01,
        confidence=0.95,
        documents="fixed",
        held_out=counts,  # type: ignore[arg-type]
        comparisons=decision.comparisons,
        along_budgets=[],
        lengths=lengths,
        parameters={"b": 9, title: 9},
        losses=losses,
        training_seconds=losses,
        rates=[],
        chosen_rates=[],
        unchanged={title: title},
        notes=[title],
    )


def written_trial(title: str, folder: Path) -> None:
    arm = {"settings": [title], "recipe": None, "model": None}
    recipe = yaml.safe_dump({"arms": {"b": arm, title: arm}})
    trial_page(tried(title, folder), recipe, title).write(folder / "page.html")


def runs_page(title: str, folder: Path) -> None:
    runs = [write_run(folder, title), write_run(folder, f"y{title}", seed=1, shift=-0.1)]
    report_page(runs, compare([str(run.path) for run in runs]), notes=[title]).write(folder / "page.html")


def measure_page(title: str, folder: Path) -> None:
    run = write_run(folder, title)
    result = Result.open(run.evaluation / "corpus-validation")
    named = result.summary | {"model": title, "label": title, "first_token_scored": True}
    page_of(Result(result.path, named)).write(folder / "page.html")


def sweep_page(title: str, folder: Path) -> None:
    sweep = write_sweep(folder / "sweep", sizes=("pico",), contexts=(64, 128), measurements=3)
    settings = (folder / "sweep" / "sweep.yaml").read_text()
    (folder / "sweep" / "sweep.yaml").write_text(settings.replace("made up", json.dumps(title)))
    for run in sweep.plan[:1]:
        sweep.run_folder(run.id).summary_file.unlink()
        sweep.note_failure(run.id, title)
    write_sweep_page(sweep.path, folder / "page.html")


def item_page(title: str, folder: Path) -> None:
    run = {"name": title, "seed": 0, "parameters": 9, "tokens": 9, "seconds": 1.0}
    point = {"x": title, "y": 1.0, "text": title}
    plot = Plot(title, title, title, {title: [point]}, "points", {title: 1.0})
    outcome = Outcome([Table(title, [title], [[title]], [title])], [Claim(title, True, title)], plots=[plot])
    about = {
        "title": title,
        "source": title,
        "scale": title,
        "printed": {title: title},
        "supports": title,
        "inferred": [title],
        "date": title,
        "environment": {"processor": title, "versions": {title: title}},
        "runs": [run | {"corpus": {"path": title, "fingerprint": title}}],
    }
    write_reproduction_page(outcome, about, folder / "page.html", title)


def attention_page(title: str, folder: Path) -> None:
    write_attention_page(attention_of(title), folder / "page.html", ["contextwise", title])


def attention_of(title: str) -> Any:
    found = reading(title, f"x{title}")
    return dataclasses.replace(found, pieces=[title, *PIECES[1:]])


def entropy_page(title: str, folder: Path) -> None:
    result = measurement(folder, [4, 16, 64, 256], name=title.replace("/", "|"), notes=[title])
    write_entropy_page(IntrinsicEntropy(result), folder / "page.html", ["contextwise", title])


PAGES: dict[str, tuple[str, Callable[[str, Path], None]]] = {
    "runs": ("contextwise/reports/runs.py", runs_page),
    "measure": ("contextwise/reports/views.py", measure_page),
    "decision": (
        "contextwise/reports/decided.py",
        lambda title, folder: decision_page(decided(title, folder), title).write(folder / "page.html"),
    ),
    "trial": ("contextwise/reports/trial.py", written_trial),
    "sweep": ("contextwise_plan/sweeps/page.py", sweep_page),
    "item": ("contextwise_papers/page.py", item_page),
    "attention": ("contextwise_papers/contextlm/attention.py", attention_page),
    "entropy": ("contextwise_papers/intrinsic_entropy/page.py", entropy_page),
}
"""Name of a page -> the module that writes it, and how it is written with a title."""


def test_every_page_is_here() -> None:
    packages = [Path(package.__path__[0]) for package in (contextwise, contextwise_plan, contextwise_papers)]
    files = [file for package in packages for file in package.rglob("*.py") if re.search(r"\bPage\(", file.read_text())]
    writers = {
        file.relative_to(file.parents[len(file.parts) - 2 - file.parts.index("src")]).as_posix() for file in files
    }
    assert writers - {"contextwise/reports/page.py"} == {module for module, _ in PAGES.values()}


@pytest.fixture(scope="module")
def tame(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Page]:
    """Each page with an ordinary title."""
    known: dict[str, Page] = {}

    def written(name: str) -> Page:
        if name not in known:
            folder = tmp_path_factory.mktemp("tame")
            PAGES[name][1](TAME, folder)
            known[name] = Page(folder / "page.html")
        return known[name]

    return written


@pytest.mark.parametrize("title", EACH)
@pytest.mark.parametrize("name", PAGES)
def test_titles_in_pages_are_text(name: str, title: str, tame: Callable[[str], Page], tmp_path: Path) -> None:
    PAGES[name][1](TITLES[title], tmp_path)
    page, ordinary = Page(tmp_path / "page.html"), tame(name)
    # Elements and their attributes do not depend on the title; nor does what a browser would run.
    assert [(tag, [*attributes]) for tag, attributes in page.elements] == [
        (tag, [*attributes]) for tag, attributes in ordinary.elements
    ]
    assert code(page) == code(ordinary)
    assert squeezed(TITLES[title]) in squeezed(page.text)
    drawn = list(shown_in_figures(page))
    assert "<" not in TITLES[title] or not any(TITLES[title] in text for text in drawn)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_nothing(name: str, tame: Callable[[str], Page]) -> None:
    page = tame(name)
    assert not [
        (tag, attributes)
        for tag, attributes in page.elements
        if attributes.keys() & {"src", "href", "action"} or tag in ("link", "iframe", "object", "base")
    ]
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy
    assert "http" not in policy and "connect-src" not in policy
    assert page.styles and not any("url(" in style or "@import" in style for style in page.styles)


def code(page: Page) -> list[str]:
    return [script for script in page.scripts if not script.lstrip().startswith(("{", "["))]


def shown_in_figures(page: Page) -> Iterable[str]:
    """The texts that Plotly shows, in which it reads some elements of HTML."""
    figures = [json.loads(script) for script in page.scripts if script.lstrip().startswith(("{", "["))]
    return (text for figure in figures for text in texts(figure if "data" in str(figure)[:2000] else None))


def texts(value: Any, key: str = "") -> Iterable[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from texts(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part, key)
    elif isinstance(value, str) and key in ("name", "text", "hovertemplate", "title"):
        yield value


def squeezed(text: str) -> str:
    return "".join(text.split())


TABLES: dict[str, Callable[[str, Path], RenderableType]] = {
    "decision": lambda title, folder: comparison_table(decided(title, folder)),
    "trial": lambda title, folder: trial_tables(tried(title, folder)),
    "sweep": lambda title, folder: plan_table([state(title)]),
    "attention": lambda title, folder: received_table(attention_of(title)),
    "comparison": lambda title, folder: compared(title, folder),
    "evaluation": lambda title, folder: evaluated(title, folder),
}


def state(title: str) -> RunState:
    return RunState(PlannedRun(title, title, 9, 8, 640, 10, 0, 1e-3, 1e9), "unfinished")


def compared(title: str, folder: Path) -> RenderableType:
    runs = [write_run(folder, title), write_run(folder, f"y{title}", seed=1, shift=-0.1)]
    return comparison_tables(compare([str(run.path) for run in runs]))


def evaluated(title: str, folder: Path) -> RenderableType:
    summary = Result.open(write_run(folder, title).evaluation / "corpus-validation").summary
    return Loss.table(summary | {"label": title, "model": title, "first_token_scored": True})


@pytest.mark.parametrize("title", EACH)
@pytest.mark.parametrize("name", TABLES)
def test_titles_on_the_terminal_steer_nothing_and_are_no_markup(name: str, title: str, tmp_path: Path) -> None:
    output = io.StringIO()
    terminal = Terminal(file=output, width=80, force_terminal=True, highlight=False, color_system="standard")
    terminal.print(TABLES[name](TITLES[title], tmp_path), markup=False)
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())  # bold and colours of our own
    assert STEERING.search(text) is None and "\x1b]" not in output.getvalue()
    if len(TITLES[title]) < 30:
        dropped = dict.fromkeys((7, 8, 11, 12, 13))  # by rich
        lines = printable(TITLES[title].translate(dropped)).split("\n")  # each in a line of its cell
        assert all(squeezed(line) in squeezed(text) for line in lines)
    if title in ("rich markup", "all") and name != "attention":  # which crops names
        assert "[bold]loud[/bold][/]" in squeezed(text)
