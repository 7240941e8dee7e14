"""Targets and costs of the objectives: counts worked by hand and on a small corpus; going on with a new corpus in miniature."""

import json

import numpy as np
import pytest
import torch

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data import prepare_corpus
from contextwise.objectives import Vocabulary
from contextwise_papers.objectives.exercise_4_continual import ContinualPretraining, stdlib_part, without_docstrings
from contextwise_papers.objectives.exercises_1_to_3 import FimFormats, ObjectiveCounts, SpanBudget, count_example
from shipped import an_item
from small import write_documents


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objectives")
    return prepare_corpus(write_documents(folder / "text.jsonl", 80), "bytes", folder / "corpus", validation=0.2).path


def test_an_example_is_counted():
    vocabulary = Vocabulary(None, end_of_text=9)

    def count(inputs, labels, kind, heads=1):
        example = {"input_ids": torch.tensor(inputs), "labels": torch.tensor(labels)}
        return tuple(count_example(example, vocabulary, kind, heads).values())

    # positions, text, targets, targets that are text
    assert count([1, 2, 9, 3], [2, 9, 3, 4], "decoder") == (4, 3, 4, 3)
    # Of an encoder's input 9 is what hides a token, once; the other 9 is none.
    assert count([9, 9, 3, 4], [-100, 7, -100, -100], "encoder") == (4, 3, 1, 1)
    assert count([1, 9, 4, 9], [9, 2, 3, 9], "encoder-decoder") == (8, 4, 4, 2)
    # The second head is asked for one token less.
    assert count([1, 2, 3, 4], [2, 3, 4, 5], "decoder", heads=2) == (4, 4, 7, 7)


def test_targets_for_each_token_of_text(corpus, tmp_path):
    values = {
        "corpus": str(corpus),
        "context": 128,
        "examples": 40,
        "tolerance": 0.1,
        "objectives": {
            "causal": {"objective": "causal", "share": 1},
            "masked": {"objective": "masked", "share": 0.15},
            "half of it": {"objective": "causal", "share": 0.5},
            "four": {"objective": "causal", "heads": 4, "share": 4},
            "spans": {"objective": "spans", "context": 126, "share": 0.15},
        },
        "ratio": ["causal", "masked"],
    }
    outcome = validate(ObjectiveCounts, values, "the settings").measure(an_item(ratio=6.7), tmp_path)
    assert [claim.holds for claim in outcome.claims] == [True, True, False, True, True, True]
    assert outcome.figures["causal"]["targets"] == 128
    assert outcome.figures["four"]["targets"] == 4 * 128 - 6


def test_the_token_budget_of_t5(corpus, tmp_path):
    values = {"corpus": str(corpus), "examples": 10}
    printed = {"noise": 76.8, "spans": 26, "encoder": 461, "decoder": 104}
    outcome = validate(SpanBudget, values, "the settings").measure(an_item(counts=printed), tmp_path)
    assert outcome.figures == {"window": 512, "noise": 77, "spans": 26, "encoder": 461, "decoder": 104}
    assert all(claim.holds for claim in outcome.claims)
    other = validate(SpanBudget, values | {"objective": {"mean_span": 6}}, "the settings")
    outcome = other.measure(an_item(counts=printed), tmp_path)
    assert [claim.holds for claim in outcome.claims] == [True, False, False, False, True, True]


@pytest.mark.parametrize("changes", [{}, {"split": "token"}, {"spm": "marked"}, {"end_token": None}])
def test_every_document_is_checked(corpus, tmp_path, changes):
    values = {"corpus": str(corpus), "objective": {"name": "infilling", "rate": 0.9, **changes}, "prefix_len": 30}
    outcome = validate(FimFormats, values, "the settings").measure(an_item(), tmp_path)
    assert outcome.claims[0].holds and outcome.claims[3].holds
    forms = outcome.figures["forms"]
    assert forms["PSM"] > 5 and forms["SPM"] > 5 and sum(forms.values()) > 50
    own_function = outcome.tables[0].rows[-1]
    assert own_function[1] == own_function[2] and int(own_function[1]) > 0


def test_docstrings_are_taken_apart():
    source = (
        '"""What it is."""\n\nX = "no docstring"\n\ndef f():\n    """Does it.\n\n    Well.\n    """\n    return 1\n'
    )
    docstrings, code = without_docstrings(source)
    assert docstrings == "What it is.\n\nDoes it.\n\nWell."
    assert code == '\n\nX = "no docstring"\n\ndef f():\n    return 1'.replace("\n\nX", "\nX")
    assert without_docstrings("def broken(") == ("", "def broken(")
    beside = 'def f(): "é"; return 1\n\x0c\nclass A:\r\n    "B."  # why\n    x = "kept"'
    docstrings, code = without_docstrings(beside)  # a form feed ends no line
    assert docstrings == "é\n\nB." and code == 'def f(): return 1\n\x0c\nclass A:\n    # why\n    x = "kept"'
    module, text = next(stdlib_part("docstrings"))
    assert module and '"""' not in text


def write(path, words, count=60):
    draw = np.random.default_rng(0)
    lines = [json.dumps({"text": f"{i} " + " ".join(draw.choice(words, 40))}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def continual(tmp_path, **changes):
    model = {"family": "gpt2", "layers": 1, "width": 32, "heads": 2}
    training = {"steps": 60, "tokens_per_step": 256, "learning_rate": 1e-2, "evaluation_tokens": 512}
    values = {
        "corpus": str(write(tmp_path / "old.jsonl", ["abc", "cab", "bca"])),
        "new": str(write(tmp_path / "new.jsonl", ["123", "321", "213"])),
        "tokenizer": "bytes",
        "validation": 0.3,
        "base": {"data": {"context": 32}, "model": model, "training": training},
        "recipe": {"training": training | {"steps": 30}},
        "ways": {"plain": [], "half": ["data.replay.share=0.5"], "slowly": ["training.learning_rate=1.0e-5"]},
        "seeds": [0],
    }
    return validate(ContinualPretraining, values | changes, "the settings")


@pytest.mark.slow
def test_what_is_forgotten_and_what_holds_it(tmp_path):
    measure = continual(tmp_path)
    outcome = measure.measure(an_item(), tmp_path / "out")
    assert [claim.holds for claim in outcome.claims] == [None] * 3
    assert all("one seed decides nothing" in claim.evidence for claim in outcome.claims)
    assert set(outcome.figures) == {"plain", "half", "slowly"}
    assert len(outcome.runs) == 4 and [plot.x for plot in outcome.plots] == ["tokens of continued training"] * 2
    given = continual(tmp_path, model=str(outcome.runs[0]))
    assert [recipe.name for recipe in given.recipes(tmp_path / "out")] == ["plain", "half", "slowly"]


def test_the_first_way_is_without_a_remedy(tmp_path):
    with pytest.raises(ConfigError, match="the first of ways, 'half', has settings"):
        continual(tmp_path, ways={"half": ["data.replay.share=0.5"]})
