"""JSON Schemas of types: what as_json makes of a value is valid, other values are not."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NotRequired, TypedDict

import jsonschema
import numpy as np
import pytest

from contextwise.base.estimates import Estimate, as_json
from contextwise.base.schemas import json_schema


class About(TypedDict):
    source: Path
    seed: NotRequired[int]


@dataclass
class Row:
    name: str
    kind: Literal["new", "old"]
    loss: Estimate
    about: About
    by_context: dict[int, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = None

    IN_JSON: ClassVar = ("length",)

    @property
    def length(self) -> int:
        return len(self.name)


ROW = Row(
    "a", "new", Estimate(math.nan, 1.0, 2.0, documents=7), {"source": Path("x")}, {16: np.float64(2.5)}, (1, math.inf)
)


def test_what_is_written_is_valid():
    written = as_json([ROW])
    assert written[0] == {
        "name": "a",
        "kind": "new",
        "loss": {"value": None, "low": 1.0, "high": 2.0, "documents": 7},
        "about": {"source": "x"},
        "by_context": {16: 2.5},
        "limits": [1, None],
        "length": 1,
    }
    jsonschema.validate(written, json_schema(list[Row]))


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"kind": "middle"},
        {"loss": 2.5},
        {"loss": {"value": 2.5}},
        {"about": {}},
        {"by_context": {"16": "2.5"}},
        {"limits": "1 to 2"},
        {"length": 1.5},
    ],
    ids=str,
)
def test_other_values_are_not(change):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(as_json(ROW) | change, json_schema(Row))
    without = {name: value for name, value in as_json(ROW).items() if name not in change}
    with pytest.raises(jsonschema.ValidationError, match="required"):
        jsonschema.validate(without, json_schema(Row))
