"""The worked example of docs/extend.md."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from contextwise.objectives import Cut, Objective, Vocabulary, build_objective
from small import Memory

GUIDE = Path(__file__).parents[3] / "docs" / "extend.md"


@pytest.fixture
def reversed_objective(tmp_path, monkeypatch):
    file = tmp_path / "reversed_objective.py"
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "class Reversed(" in block)
    file.write_text(example)
    spec = importlib.util.spec_from_file_location("reversed_objective", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reversed_objective", module)
    monkeypatch.setattr(Objective, "registered", dict(Objective.registered))
    spec.loader.exec_module(module)


def test_the_objective_of_the_guide_is_known_by_its_name(reversed_objective):
    objective = build_objective("reversed")
    examples = objective.examples(Memory([[1, 2, 3, 4]]), Cut(5), 0, Vocabulary(None, 99))
    example = examples.example(0, 0)
    assert example["input_ids"].tolist() == [99, 4, 3, 2, 1]
    assert example["labels"].tolist() == [4, 3, 2, 1, 99]


def test_the_objective_of_the_guide_is_part_of_a_mixture(reversed_objective):
    parts = [{"weight": 0.5, "objective": "reversed"}, {"weight": 0.5, "objective": "causal"}]
    mixture = build_objective("mixture", parts=parts)
    assert [single.name for single in mixture.singles] == ["reversed", "causal"]
    assert mixture.model_dump()["parts"][0]["objective"] == {"name": "reversed"}
