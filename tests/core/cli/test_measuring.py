"""A measure becomes a verb: arguments, options, help and errors come from the fields of its settings."""

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from contextwise.cli.measures import read_value
from contextwise.evaluation.kernel import InputFile, Measure, Outcome


class Example(Measure):
    """Fields of all kinds."""

    name = "example"

    files: list[InputFile] = Field(description="Files.")
    contexts: list[int] | None = Field(None, description="Lengths; default: all.")
    names: list[str] = Field(["a", "b"], description="Names.")
    visible: list[int | Literal["all"]] | None = None
    length: int = Field(4096, ge=16, description="Tokens.")
    text: str | None = None

    def run(self, subject: Any, corpus: Any, work: Any) -> Outcome:
        raise AssertionError("only the settings are read here")

    @classmethod
    def table(cls, summary: dict[str, Any]) -> str:
        raise AssertionError("only the settings are read here")


FIELDS = Example.model_json_schema()["properties"]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("contexts", "16", [16]),
        ("contexts", "16, 32", [16, 32]),
        ("contexts", "16,32,…,256", [16, 32, 64, 128, 256]),
        ("contexts", "16,64,...,1000", [16, 64, 256, 1000]),
        ("visible", "16,all", [16, "all"]),
        ("names", "none", []),
        ("names", "title,date", ["title", "date"]),
        ("text", "a,b", "a,b"),
        ("length", "512", 512),
    ],
)
def test_values_are_read(field: str, text: str, value: Any) -> None:
    settings = Example(files=[Path("a")], **{field: read_value(FIELDS[field], text)})
    assert getattr(settings, field) == value


@pytest.mark.parametrize("text", ["", "16,,32", "…", "16,…,64", "16,32,…", "16,24,…,64", "32,16,…,64", "1,2,…,4,…,8"])
def test_text_that_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="contexts"):
        Example(files=[], contexts=read_value(FIELDS["contexts"], text))
