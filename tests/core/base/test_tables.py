"""Estimates and tables: one verdict, one way to write a number, three formats."""

import io
import json
import math

import pytest
from rich.console import Console

from command_line import in_terminal
from contextwise.base.estimates import Estimate, as_json, count, duration, number, written
from contextwise.base.tables import Column, Row, Table

BETTER, TIE = Estimate(-0.5, -0.75, -0.25), Estimate(-0.5, -1.0, 0.0)
TABLE = Table(
    "Losses",
    [
        Column("model"),
        Column("loss", "estimate", interval="own"),
        Column("to the\nfirst", "difference", interval="below"),
        Column("tokens", "count"),
    ],
    [
        Row([("first [x]", "3 seeds"), Estimate(2.5, 2.25, 2.75), None, 8_190_000], series=7),
        Row(["<b>second", Estimate(2.0), BETTER, 940], bold=True),
        ["third", None, TIE, None],
    ],
    notes=["Lower is better."],
)


def lines(table, width=80):
    return [line.rstrip() for line in in_terminal(table, width).splitlines()]


@pytest.mark.parametrize(
    ("estimate", "above", "decided"),
    [
        (Estimate(1.0, 0.1, 2.0), True, True),
        (BETTER, False, True),
        (TIE, None, False),
        (Estimate(1.0), None, False),
        (Estimate(math.nan, math.nan, math.nan), None, False),
    ],
)
def test_a_difference_is_decided_where_its_interval_excludes_zero(estimate, above, decided):
    assert estimate.above(0.0) is above
    assert estimate.decided is decided


def test_an_estimate_is_written_with_its_interval():
    assert f"{BETTER:+.2f}" == "−0.50 [−0.75, −0.25]"
    assert f"{-BETTER:percent}" == "50.0% [25.0%, 75.0%]"
    # Perplexities of one table: the same form from hundreds to millions.
    assert [number(value) for value in (123.456, 9999.96, 89_380.7, 357_812.4)] == [
        "123.5",
        "10,000",
        "89,381",
        "357,812",
    ]
    assert f"{Estimate(12_345_678.0)}" == "1.235e+07"
    assert f"{BETTER.scaled(100):.0f}" == "−50 [−75, −25]"
    assert [written(None), count(8_190_000), duration(150), number(12.3456)] == ["–", "8.19M", "2.5 min", "12.346"]
    assert [*map(duration, (0, 0.004, 0.31, 9.94, 9.96, 119))] == [
        "0 s",
        "< 0.01 s",
        "0.31 s",
        "9.9 s",
        "10 s",
        "119 s",
    ]
    counts = {950: "950", 1234: "1.23k", 999_499: "999k", 999_500: "1M", 124_439_808: "124M", 3e11: "300B"}
    assert [count(number) for number in counts] == list(counts.values())


def test_a_missing_value_is_named_once():
    column = Column("slope", "difference", interval="own", missing="no line")
    assert column.lines(None) == ["no line"] and column.limits(None) == "–"
    assert Column("change", "difference", interval="own", missing="").limits(None) == ""


def test_json_has_no_infinity():
    assert as_json({"a": [Estimate(math.inf, 1.0, math.nan)], "b": math.nan}) == {
        "a": [{"value": None, "low": 1.0, "high": None}],
        "b": None,
    }


def test_the_terminal_shows_texts_as_they_are_and_fits_80_columns():
    shown = lines(TABLE)
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    for part in ("first [x]", "3 seeds", "2.5000", "[2.2500, 2.7500]", "−0.5000", "[−0.7500, −0.2500]", "8.19M", "–"):
        assert part in text
    assert "95% interval" in text and shown[-1].strip() == "Lower is better."


def test_a_tie_is_never_bold_on_the_terminal_or_on_a_page():
    page = TABLE.__html__()
    assert '<td class="decided">−0.5000 <br><small>[−0.7500, −0.2500]</small></td>' in page
    assert "<td>−0.5000 <br><small>[−1.0000, +0.0000]</small></td>" in page
    console = Console(width=80, force_terminal=True, record=True, file=io.StringIO())
    console.print(TABLE)
    styled = console.export_text(styles=True)
    assert "\x1b[1m[−0.7500, −0.2500]" in styled
    assert "\x1b[1m[−1.0000, +0.0000]" not in styled


def test_a_page_escapes_texts_and_marks_series():
    page = TABLE.__html__()
    assert "&lt;b&gt;second" in page and "<b>second" not in page
    assert 'class="mark series-1"' in page and page.count('<tr class="best">') == 1


def test_long_names_above_numbers_are_broken_and_no_number_is():
    names = ["plain-s0-02efe734", "context-s0-6c10782c"]
    own = [Column(name, "estimate", "+.4f", interval="own") for name in names]
    table = Table(
        "", [Column("visible tokens", align="right"), *own], [["993–1,024", *[Estimate(-1.66, -1.7, -1.61)] * 2]]
    )
    shown = lines(table)
    assert max(map(len, shown)) <= 80 and "…" not in "".join(shown)
    words = " ".join(shown).split()
    assert "".join(words).count("[−1.7000,−1.6100]") == 2
    assert {"visible", "tokens", "plain-s0-", "02efe734", "context-s0-", "6c10782c", "993–1,024"} <= set(words)


def test_titles_are_whole_in_one_line():
    table = Table(
        "",
        ["model", Column("perplex-\nity"), Column("nats/\ntarget"), Column("gain in\nlog-likelihood")],
        [["a", "1", "2", "3"]],
    )
    titles = ["model", "perplexity", "nats/target", "gain in log-likelihood"]
    assert list(table.to_pandas()) == titles and all(f">{title}<" in table.__html__() for title in titles)


def test_a_table_in_json():
    assert len(json.loads(json.dumps(TABLE.to_dict()))["rows"]) == len(TABLE.rows)
    assert Table("", ["a", "b"], [["c", "1"]]).to_dict() == {"title": "", "columns": ["a", "b"], "rows": [["c", "1"]]}


def test_lines_of_a_cell_are_apart_and_long_texts_may_wrap():
    columns = [Column("model"), Column("loss"), Column("what it is", align="left")]
    table = Table("", columns, [[("gpt2-nano", "1.35M"), "4.2", "words " * 10]])
    page = table.__html__()
    assert "gpt2-nano <br><small>1.35M</small>" in page  # apart without a style sheet, and where tags are removed
    assert page.count('class="words"') == 1


@pytest.mark.parametrize(
    ("estimate", "form", "text"),
    [
        (Estimate(-0.02, -0.04, -0.00004), "+.4f", "[−0.0400, −0.00004]"),
        (Estimate(0.02, 0.0000032, 0.04), "change", "[+0.0003%, +4.0%]"),
        (Estimate(0.02, 3e-5, 0.04), "number", "[0.00003, 0.0400]"),
        (Estimate(-0.02, -0.04, 0.00004), "+.4f", "[−0.0400, +0.0000]"),  # zero lies inside
        (Estimate(-0.02, -0.04, 0.0), "+.4f", "[−0.0400, +0.0000]"),
    ],
)
def test_a_limit_that_excludes_zero_does_not_read_as_zero(estimate, form, text):
    assert estimate.interval(form) == text


def test_a_value_of_a_decided_difference_does_not_read_as_zero():
    tiny, column = Estimate(4e-5, 2e-5, 6e-5), Column("a", "difference", interval="below")
    assert f"{tiny:+.4f}" == "+0.00004 [+0.00002, +0.0001]"
    assert column.lines(tiny) == ["+0.00004", "[+0.00002, +0.0001]"]
    assert f"{Estimate(4e-5, -2e-5, 6e-5):+.4f}" == "+0.0000 [−0.0000, +0.0001]"
