"""The curves and the paired differences hold the run's own numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.comparison.comparison import compare
from contextwise.reports import page
from contextwise.reports.drawing import drawn
from contextwise.reports.runs import MOST_POINTS, Curve, difference_figure, smoothed, training_figure
from small import write_rows


def test_axes_hold_tokens_time_and_flops_of_every_trace(make_run: Callable[..., Any]) -> None:
    runs = [make_run("A"), make_run("B", speed=1000.0)]
    figure = training_figure([Curve(run, run.path.name, i) for i, run in enumerate(runs)])
    assert figure is not None
    tokens, time, flops = figure["axes"]
    assert len(tokens["x"]) == len(figure["data"]) == 6  # raw, smoothed and validation of each run
    points = runs[1].metrics("validation")
    assert tokens["x"][5] == [row["tokens"] for row in points]
    assert time["x"][5] == pytest.approx([row["seconds"] / 60 for row in points])
    assert time["layout"]["title"]["text"] == "training time, minutes"
    assert flops["x"][5] == [row["flops"] for row in points]
    assert list(figure["data"][5]["y"]) == [row["loss"] for row in points]
    assert [trace["meta"]["series"] for trace in figure["data"]] == [0, 0, 0, 1, 1, 1]


def test_a_drawing_shows_names_as_they_are() -> None:
    """Plotly takes escaped texts, in which a line break is markup."""
    title = {
        "title": page.plain("lr<0.1 & <b>bold<br>"),
        "tickvals": [1, 2],
        "ticktext": ["one<br>line", page.plain("<i>")],
    }
    figure = page.figure([page.scatter([1, 2], [1, 2], 0, "", name="a")], xaxis=title, yaxis=title)
    shown = drawn(figure, "a label")
    assert shown.count(">lr&lt;0.1 &amp; &lt;b&gt;bold&lt;br&gt;</text>") == 2
    assert shown.count(">one; line</text>") == 2 and shown.count(">&lt;i&gt;</text>") == 2


def test_the_loss_on_an_old_corpus_is_drawn_beside_that_on_the_new_one(make_run: Callable[..., Any]) -> None:
    run = make_run("A")
    rows = [row | {"replay_loss": row["loss"] + 1} for row in run.metrics("validation")]
    write_rows(run.metrics_file, [*run.metrics("train"), *rows])
    figure = training_figure([Curve(run, "A", 0)])
    assert figure is not None
    new, old = figure["data"][2:]
    assert list(old["y"]) == [row["replay_loss"] for row in rows] and list(new["y"]) == [row["loss"] for row in rows]
    assert list(old["x"]) == list(new["x"])
    assert old["marker"]["symbol"] == "circle-open" and "replay loss" in old["hovertemplate"]


def test_a_run_without_a_log_has_no_figure(make_run: Callable[..., Any]) -> None:
    run = make_run("A")
    run.metrics_file.unlink()
    assert training_figure([Curve(run, "A", 0)]) is None


def test_long_logs_are_averaged(make_run: Callable[..., Any]) -> None:
    run = make_run("A")
    rows = 12_345
    lines = [
        f'{{"kind": "train", "step": {i}, "tokens": {i}, "flops": {i}, "seconds": {i}, "loss": {i % 7}}}\n'
        for i in range(1, rows + 1)
    ]
    run.metrics_file.write_text("".join(lines))
    figure = training_figure([Curve(run, "A", 0)])
    assert figure is not None
    raw = figure["data"][0]
    assert len(raw["x"]) == len(raw["y"]) == MOST_POINTS
    assert raw["x"][-1] == rows
    assert np.mean(raw["y"]) == pytest.approx(3.0, abs=0.01)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=400))
def test_smoothing_stays_within_the_losses(losses: list[float]) -> None:
    smooth = smoothed(np.array(losses))
    assert len(smooth) == len(losses)
    assert smooth.min() >= min(losses) - 1e-9 and smooth.max() <= max(losses) + 1e-9


def test_smoothing_leaves_a_straight_line_as_it_is() -> None:
    line = np.linspace(8.0, 3.0, 300)
    assert smoothed(line) == pytest.approx(line)  # so a falling loss is not drawn late


def test_the_steep_start_does_not_set_the_vertical_axis(make_run: Callable[..., Any]) -> None:
    figure = training_figure([Curve(make_run("A"), "A", 0)])
    assert figure is not None
    low, high = figure["layout"]["yaxis"]["range"]
    assert high < max(figure["data"][0]["y"])
    assert low < min(figure["data"][0]["y"]) + 0.1


def test_differences_are_drawn_with_their_intervals(make_run: Callable[..., Any]) -> None:
    names = ("A", "BB", "CCC")
    runs = [make_run(name, shift=-0.1 * i) for i, name in enumerate(names)]
    comparison = compare([str(run.path) for run in runs], all_pairs=True)
    figure = difference_figure(comparison, {name: i for i, name in enumerate(names)})
    assert len(figure["data"]) == 3
    for trace, found in zip(figure["data"], comparison.differences, strict=True):
        value = found.difference
        assert trace["x"] == [value.value]
        assert trace["x"][0] + trace["error_x"]["array"][0] == pytest.approx(value.high)
        assert trace["x"][0] - trace["error_x"]["arrayminus"][0] == pytest.approx(value.low)
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < min(found.difference.low for found in comparison.differences) and high > 0


def test_seeds_are_drawn_where_there_are_several(make_run: Callable[..., Any]) -> None:
    runs = [make_run(name, seed=seed, shift=shift) for name, shift in (("A", 0.0), ("BB", -0.1)) for seed in (0, 1)]
    comparison = compare([str(run.path) for run in runs])
    figure = difference_figure(comparison, {"A": 0, "BB": 1})
    assert list(figure["data"][1]["x"]) == list(comparison.differences[0].seed_differences.values())
