"""Settings from YAML: what nests, overflows or is no text is refused in one line."""

import pytest
from pydantic import Field

from contextwise.base.config import Name, Settings, parse_yaml, validate, with_overrides
from contextwise.base.errors import ConfigError


@pytest.mark.parametrize("text", ["a: !!bool maybe", 'a: !!int ""', "a: !!timestamp x", "a: !!float ''"])
def test_tags_that_do_not_fit_their_value_are_refused(text):
    with pytest.raises(ValueError):
        parse_yaml(text)


def test_merged_keys_are_not_given_twice():
    text = "a: &a {x: 1}\nbase: {inner: &b {<<: *a, x: 2}}\nc: {<<: *b, y: 3}"
    assert parse_yaml(text) == {"a": {"x": 1}, "base": {"inner": {"x": 2}}, "c": {"x": 2, "y": 3}}
    with pytest.raises(ValueError, match="the key 'y' is given twice, first in line 3"):
        parse_yaml(f"{text[:-1]}, y: 4}}")


@pytest.mark.parametrize("value", ["010", "-012", "00", "0_1", "1:30", "1:30.5"])
def test_numbers_that_yaml_reads_in_another_base_are_refused(value):
    with pytest.raises(ValueError, match=f"{value} in line 2 is octal or of base 60 in YAML; write"):
        parse_yaml(f"b: 1\na: {value}")
    with pytest.raises(ConfigError, match=f"'a={value}' is not valid YAML .{value} in line 1 is octal or of base 60"):
        with_overrides({}, [f"a={value}"])
    assert parse_yaml(f"a: '{value}'") == {"a": value}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("2026-01-01", r"is datetime.date\(2026, 1, 1\), but .* text; quote it"),
        ("no", "is False, but .* text; quote it"),
        ("''", "is '', but must be a name: not empty, and without /"),
        ("a/b", "is 'a/b', but must be a name"),
        ("[a]", r"is \['a'\], but must be a text$"),
    ],
)
def test_a_name_that_is_refused(value, why):
    with pytest.raises(ConfigError, match=f"name {why}"):
        validate(Named, parse_yaml(f"name: {value}"), "the recipe")


def test_aliases_are_followed():
    assert parse_yaml("a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}") == {
        "a": {"x": [1, 2]},
        "b": {"x": [1, 2]},
        "c": {"x": [1, 2], "y": 3},
    }
    assert parse_yaml("") is None


class Named(Settings):
    name: Name = "x"


class Numbers(Settings):
    count: int = 1
    rate: float = Field(1.0, gt=0)
    counts: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "values", [{"count": 2**63}, {"count": 1e30}, {"rate": 1e308}, {"counts": [1, 10**30]}, {"count": -(2**60)}]
)
def test_numbers_beyond_all_machines_are_refused(values):
    (name,) = values
    with pytest.raises(ConfigError, match=rf"{name} is .*, but (must be at most|unable to parse)"):
        validate(Numbers, values, "the recipe")


class Lengths(Settings):
    count: int | None = 1
    rate: float = Field(1.0, gt=0)
    counts: list[int] = Field([])
    two: list[int] = Field([1, 2], min_length=2)
    name: str = ""
    flag: bool = False


def test_numbers_are_written_as_people_write_them():
    values = {"count": "1M", "rate": "3e-4", "counts": ["1_000", "2k", "1.5e3", 7], "name": "1M", "flag": True}
    read = validate(Lengths, values, "the recipe")
    assert (read.count, read.rate, read.counts, read.name, read.flag) == (
        1_000_000,
        3e-4,
        [1000, 2000, 1500, 7],
        "1M",
        True,
    )
    assert validate(Lengths, {"count": "1.5B"}, "the recipe").count == 1_500_000_000


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"count": True}, "count is True, but must be a number"),
        ({"counts": [1, False]}, "counts is False, but must be a number"),
        ({"count": "1.0001k"}, "count is 1000.1, but must be a whole number"),
        ({"count": "1X"}, "count is '1X', but"),
        ({"rate": "1e400"}, "rate is inf, but"),
        ({"two": [1]}, "two is \\[1\\], but must have at least 2 values"),
    ],
)
def test_other_values_are_refused_in_our_words(values, words):
    with pytest.raises(ConfigError, match=words):
        validate(Lengths, values, "the recipe")
