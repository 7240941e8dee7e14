"""The verdict says what the figures carry, and no more."""

import dataclasses
import re
from typing import Any

import pytest

from contextwise.base.estimates import Estimate, as_json
from contextwise.comparison.result import Comparison, Difference, Group
from contextwise.comparison.tables import difference_table, model_table, verdict


def group(name: str, loss: float, **facts: Any) -> Group:
    values: dict[str, Any] = {
        "name": name,
        "sources": [name],
        "seeds": [0, 1, 2],
        "parameters": 1_000_000,
        "loss": Estimate(loss, loss - 0.1, loss + 0.1),
        "losses": [loss],
        "perplexity": Estimate(50.0),
        "bits_per_byte": Estimate(1.9),
        "training_tokens": 1e6,
        "training_seconds": 1000.0,
    }
    return Group(**{**values, **facts})


def difference(a: str, b: str, *ends: float | None) -> Difference:
    return Difference(a, b, "nats per token", Estimate(*ends), True, {}, 0.5)


def comparison(groups: list[Group], differences: list[Difference], unit: str = "nats per token") -> Comparison:
    return Comparison({}, 40, 80_000, unit, groups[0].name, groups, differences, [])


CLEAR = "by 0.1000 nats per token [0.0700, 0.1300] (95% interval)."
TIE = "No significant difference between B and A: the interval contains zero (B − A = −0.0100 ["


@pytest.mark.parametrize(
    ("losses", "ends", "words"),
    [
        ((4.0, 3.9), (-0.1, -0.13, -0.07), f"The loss of B is lower than that of A {CLEAR}"),
        ((3.9, 4.0), (0.1, 0.07, 0.13), f"The loss of B is higher than that of A {CLEAR}"),
        ((4.0, 3.99), (-0.01, -0.03, 0.01), f"{TIE}−0.0300, +0.0100] nats per token; 95% interval)."),
        ((4.0, 3.99), (-0.01, -0.02, 0.0), f"{TIE}−0.0200, +0.0000] nats per token; 95% interval)."),
        ((4.0, 3.99), (-0.01, 0.0, 0.02), f"{TIE}+0.0000, +0.0200] nats per token; 95% interval)."),
        ((4.0, 3.9), (-0.1, None, None), "B − A = −0.1000 nats per token; one document allows no interval."),
    ],
    ids=["a clear difference", "the reference is best", "a tie", "ends at zero", "begins at zero", "one document"],
)
def test_the_verdict_is_one_sentence(losses: Any, ends: Any, words: str) -> None:
    result = comparison([group("A", losses[0]), group("B", losses[1])], [difference("B", "A", *ends)])
    assert verdict(result)[0] == words


def test_a_verdict_sets_the_lowest_against_each_of_the_others() -> None:
    groups = [group("A", 4.0), group("B", 3.95), group("C", 3.94)]
    pairs = [
        difference("B", "A", -0.05, -0.06, -0.04),
        difference("C", "A", -0.06, -0.07, -0.05),
        difference("C", "B", -0.01, -0.02, 0.01),
    ]
    won, tied = verdict(comparison(groups, pairs))
    assert won == "The loss of C is lower than that of A by 0.0600 nats per token [0.0500, 0.0700] (95% interval)."
    assert tied.startswith("No significant difference between C and B")


def single(a: str, b: str, *ends: float, runs: list[str]) -> Difference:
    return dataclasses.replace(difference(a, b, *ends), single_runs=runs)


def test_a_sentence_about_one_run_each_says_so_and_names_no_better_model() -> None:
    groups = [group("A", 4.0, seeds=[0]), group("B", 3.9, seeds=[0])]
    for ends in ((-0.1, -0.13, -0.07), (-0.01, -0.03, 0.01)):
        pair = single("B", "A", *ends, runs=["B", "A"])
        result = comparison(groups, [pair])
        assert "with one run of each" in pair.verdict.lower() and "nothing about other seeds" in pair.verdict
        table = difference_table(result).__html__()
        texts = (pair.verdict, table, str(as_json(result)))
        assert not any(re.search("better|wins|beats", text) for text in texts)
        assert result.best is None and not any(row.bold for row in model_table(result).lines)
        assert [row.cells[0][1] for row in model_table(result).lines] == ["1M, 1 seed"] * 2
        if pair.lower:  # without an interval around zero
            assert "with one run of each" in table


def test_a_single_run_beside_several_seeds_is_named() -> None:
    groups = [group("A", 4.0, seeds=[0]), group("B", 3.9)]
    pair = single("B", "A", -0.1, -0.13, -0.07, runs=["A"])
    result = comparison(groups, [pair])
    assert (
        pair.verdict.startswith("With this one run of A, the loss of B is lower than that of A by 0.1000")
        and result.best is None
    )


def test_models_that_are_no_runs_have_no_seeds_to_speak_of() -> None:
    result = comparison(
        [group("A", 4.0, seeds=[None]), group("B", 3.9, seeds=[None])], [difference("B", "A", -0.1, -0.2, -0.05)]
    )
    assert "run" not in verdict(result)[0] and "seed" not in verdict(result)[0]
    assert [row.cells[0][1] for row in model_table(result).lines] == ["1M", "1M"]


def test_bits_per_byte_decide_where_they_are_the_unit() -> None:
    groups = [group("A", 3.0, bits_per_byte=Estimate(2.0)), group("B", 4.0, bits_per_byte=Estimate(1.5))]
    pair = dataclasses.replace(difference("B", "A", -0.5, -0.6, -0.4), unit="bits per byte")
    (words,) = verdict(comparison(groups, [pair], "bits per byte"))
    assert words.startswith("The loss of B is lower than that of A by 0.5000 bits per byte [0.4000, 0.6000]")


def test_five_documents_allow_no_claim_and_seven_do() -> None:
    words = {}
    for documents in (5, 7):
        pair = difference("B", "A", -0.1, -0.13, -0.07)
        estimate = dataclasses.replace(pair.difference, method="t", documents=documents)
        pair = dataclasses.replace(pair, difference=estimate)
        result = comparison([group("A", 4.0), group("B", 3.9)], [pair])
        words[documents] = [pair.verdict, difference_table(result).__html__(), result.best]
    sentence, table, best = words[5]
    assert "5 documents allow no verdict, which takes 6 or more" in sentence and "lower than" not in sentence
    assert "no verdict: fewer than 6 documents" in table and best is None
    sentence, table, best = words[7]
    assert sentence == (
        "The loss of B is lower than that of A by 0.1000 nats per token [0.0700, 0.1300] (95% interval: t over 7 documents)"
    )
    assert best.name == "B"


def test_only_a_model_that_beats_all_others_is_bold_and_a_tie_never() -> None:
    groups = [group("A", 4.0), group("B", 3.95), group("C", 3.94)]
    first, second = difference("B", "A", -0.05, -0.06, -0.04), difference("C", "A", -0.06, -0.07, -0.05)
    for pair, best in (
        (difference("C", "B", -0.01, -0.02, -0.005), "C"),
        (difference("C", "B", -0.01, -0.02, 0.01), None),
    ):
        result = comparison(groups, [first, second, pair])
        assert (result.best.name if result.best else None) == best
        bold = [row.cells[0][0] for row in model_table(result).lines if row.bold]
        assert bold == ([best] if best else [])
        page = difference_table(result).__html__()
        # The value and its interval are two cells of each decided pair.
        assert page.count('class="decided"') == 2 * (3 if best else 2)
        assert ("no significant difference" in page) is (best is None)
        assert ("No significant difference between C and B" in pair.verdict) is (best is None)
    assert comparison(groups, [first, second]).best is None  # C was not compared to B
