"""Context values as English text, and the settings that name contexts."""

from datetime import date, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError
from contextwise_papers.cue.english import as_english
from contextwise_papers.cue.settings import ContextSettings


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(1985, 5, 29), "Wednesday 29 May 1985"),  # the paper's own example (Section 3.1)
        ("1985-05-29", "Wednesday 29 May 1985"),
        (datetime(1985, 5, 29), "Wednesday 29 May 1985"),
        (datetime(1985, 5, 29, 9, 5, 30), "Wednesday 29 May 1985 09:05"),
        ("1985-05-29T14:05:00Z", "Wednesday 29 May 1985 14:05"),
        ("2024-02-29 00:00:00+01:00", "Thursday 29 February 2024"),
        ("1985-02-31", "1985-02-31"),  # no such day: text like any other
        ("call 1985-05-29", "call 1985-05-29"),
        (time(7, 30), "07:30"),
        (["cocoa", None, "", "sugar"], "cocoa, sugar"),
        ([["a", "b"], ["c"]], "a, b, c"),
        (3.0, "3"),
        (-0.25, "-0.25"),
        (0.1 * 3, "0.3"),  # 0.30000000000000004
        (1234567.5, "1234568"),
        (2.5e-7, "2.5e-07"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (10**400, str(10**400)),
        (float("inf"), "inf"),
        ("  two\n   lines\u2028and\ttabs ", "two lines and tabs"),
    ],
)
def test_values_in_english(value, text):
    assert as_english(value) == text


@pytest.mark.parametrize("value", [None, "", " \n", [], [None, ""], float("nan")])
def test_empty_values_are_none(value):
    assert as_english(value) is None


@pytest.mark.parametrize("value", [{"a": 1}, [{"a": 1}]])
def test_objects_have_no_text(value):
    with pytest.raises(DataError, match="is an object, which has no text of its own; name one of its fields"):
        as_english(value)


def test_values_of_other_types_are_refused():
    with pytest.raises(DataError, match="of type bytes, which has no text"):
        as_english(b"x")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_text_is_one_stripped_line_or_none(value):
    text = as_english(value)
    assert text is None or (text and text == " ".join(text.split()))


@given(st.dates())
def test_dates_alone_and_as_iso_strings_agree(day):
    text = as_english(day)
    assert text == as_english(day.isoformat())
    assert text.split()[1] == str(day.day) and int(text.split()[3]) == day.year


def test_types_are_columns_then_the_previous_sentence():
    settings = ContextSettings(columns=["title", "date"], previous_sentence=True)
    assert settings.types == ["title", "date", "previous_sentence"]
    assert ContextSettings(previous_sentence=True).types == ["previous_sentence"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "there is no context; name columns, or set previous_sentence: true"),
        ({"columns": ["a", "b", "a"]}, "the column 'a' is named twice"),
        ({"columns": ["previous_sentence"]}, "is not a column but the sentence before"),
        (
            {"columns": ["a", "document_hash"]},
            "'document_hash' is computed from the document's own text, .*; take it out",
        ),
        ({"column": ["a"]}, "column is an unknown key; did you mean 'columns'"),
        ({"columns": "title"}, "must be a list"),
    ],
)
def test_invalid_settings_are_reported_in_one_sentence(values, problem):
    with pytest.raises(ConfigError, match=problem):
        validate(ContextSettings, values, "the recipe")
