"""Decisions from files of losses: by hand, by simulation, and what is refused."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import contextwise
from contextwise import decisions
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import is_held
from contextwise.comparison.sequential import looks
from contextwise.decisions import decide
from contextwise.decisions.rows import read_losses
from contextwise.stats import LossWriter

TOKENS = np.array([100, 250, 30, 400, 77, 120, 90, 310])


def simulated(effects, seeds, *, level=0.01, noise=0.02, random=0, tokens=TOKENS):
    """Rows of runs whose loss is a document's, plus the arm's effect, plus what a run's level and each document add."""
    draw = np.random.default_rng(random)
    base = draw.normal(3.5, 0.6, len(tokens))
    rows = []
    for seed in range(seeds):
        for arm, effect in effects.items():
            losses = base + effect + draw.normal(0, level) + draw.normal(0, noise, len(tokens))
            rows += [
                {"arm": arm, "seed": seed, "document": f"d{n}", "tokens": int(size), "nats": float(loss * size)}
                for n, (loss, size) in enumerate(zip(losses, tokens, strict=True))
            ]
    return pd.DataFrame(rows)


def test_two_arms_with_equal_sums_are_not_the_same_runs():
    """Each answers the questions that the other does not: as many errors, on no question the same."""
    rows = [
        {"arm": arm, "seed": seed, "document": str(i), "correct": (i + seed + (arm == "b")) % 2}
        for arm in "ab"
        for seed in range(4)
        for i in range(8)
    ]
    assert not any("same runs" in note for note in decide(rows).notes)
    copy = [row | {"arm": "c"} for row in rows if row["arm"] == "a"]
    assert any("c has the losses of a" in note for note in decide([*rows, *copy]).notes)


def test_differences_that_no_seed_changes_decide_nothing():
    """Losses with two decimals, of which idea's are 0.01 lower with every seed, and those of a copy of the same runs."""
    base = [3.51, 3.52, 3.50, 3.53]
    losses = {"base": base, "idea": [3.50, 3.51, 3.49, 3.52], "copy": base}
    result = decide(
        {
            "arm": [arm for arm in losses for _ in base],
            "seed": [0, 1, 2, 3] * 3,
            "loss": [loss for each in losses.values() for loss in each],
        },
        margin=0.001,
    )
    idea, copy = result.comparisons
    assert (idea.decision, idea.further_seeds, copy.decision) == ("undecided", None, "equivalent")
    assert "It is the same with every seed, as where losses are rounded" in idea.sentence
    assert result.notes == ["copy has the losses of base with every seed, as if they were the same runs."]
    assert result.sentences[0].endswith("how much it varies is unknown.")
    assert copy.sentence.endswith("No seed differs at all: does the arm change anything?")


def test_the_differences_are_those_of_sums_paired_by_seed_and_document():
    """Worked by hand: the second arm's documents come in another order, and in parts."""
    rows = {
        "arm": ["a", "a", "a", "a", "b", "b", "b", "b", "b", "b"],
        "seed": [0, 0, 1, 1, 1, 1, 0, 0, 0, 1],
        "document": ["x", "y", "x", "y", "y", "x", "y", "x", "z", "z"],
        "tokens": [10, 30, 10, 30, 30, 10, 30, 10, 5, 5],
        "nats": [20.0, 60.0, 24.0, 66.0, 60.0, 20.0, 54.0, 18.0, 9.0, 8.0],
    }
    result = decide(rows)
    (comparison,) = result.comparisons
    # a: 80/40 and 90/40; b: 72/40 and 80/40. z is in b alone.
    assert [look.fixed.value for look in comparison.looks] == pytest.approx([-0.2, -0.225])
    assert result.losses == {"a": {0: 2.0, 1: 2.25}, "b": {0: 1.8, 1: 2.0}}
    assert (result.held_out, result.unit) == ({"documents": 2, "tokens": 40}, "nats per token")
    assert result.notes == [
        "1 of 3 documents are left out, which some runs lack: z, for one; seed 0 of a has the fewest, 2.",
        "2 documents cannot show how far documents differ; 6 or more give an interval for any such documents.",
    ]
    assert result.sentences[0].startswith("Undecided after 2 seeds on these held-out documents: b − a = −0.2250")
    assert all(f"Note: {note[:30]}" in str(result) for note in result.notes)


def test_means_that_are_given_as_sums_are_noted():
    frame = simulated({"base": 0.0, "new": -0.05}, 4)
    notes = decide(frame.assign(nats=frame.nats / frame.tokens)).notes
    assert any("if the column nats has means, give the sum over the tokens of each document" in note for note in notes)
    assert not any("has means" in note for note in decide(frame).notes)


def test_the_answer_is_that_of_the_trial_s_statistics():
    frame = simulated({"base": 0.0, "better": -0.05, "same": 0.0}, 8)
    result = contextwise.decide(frame, "base", margin=0.02, confidence=0.9)
    assert len(repr(result)) <= 160 and " − base = " in repr(result)
    assert result.sentences[0].split()[0] in str(result)
    assert list(result.to_pandas()["difference"]) == [each.difference.value for each in result.comparisons]
    wide = frame.pivot_table(index=["arm", "seed"], columns="document", values="nats")
    sizes = frame[(frame.arm == "base") & (frame.seed == 0)].set_index("document")["tokens"][wide.columns]
    for comparison in result.comparisons:
        expected = looks((wide.loc[comparison.arm] - wide.loc["base"]).to_numpy(), sizes.to_numpy(), 0.95)
        for ours, theirs in zip(comparison.looks[3:], expected[3:], strict=True):
            assert ours.fixed.limits == pytest.approx(theirs.fixed.limits)
            assert ours.random.limits == pytest.approx(theirs.random.limits)
        assert [look.evidence for look in comparison.looks] == pytest.approx([look.evidence for look in expected])
    assert result.comparisons[0].last.fixed.value == pytest.approx(-0.05, abs=0.03)


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet", "jsonl.gz", "table", "mapping"])
def test_every_form_of_rows_gives_the_same_answer(tmp_path, form):
    frame = simulated({"a": 0.0, "b": -0.05}, 5)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    file = tmp_path / f"losses.{form}"
    if form in ("jsonl", "jsonl.gz"):
        frame.to_json(file, orient="records", lines=True)
    elif form in ("csv", "tsv"):
        frame.to_csv(file, index=False, sep="," if form == "csv" else "\t")
    elif form == "parquet":
        pyarrow.parquet.write_table(table, file)
    given = {"table": table, "mapping": frame.to_dict("list")}.get(form, file)
    expected = decide(frame).comparisons[0].looks
    pattern = str(tmp_path / "losses.*")
    for source in [given, tmp_path, pattern] if given is file else [given]:  # a folder of such files, too
        values = [look.fixed.value for look in decide(source).comparisons[0].looks]
        assert values == pytest.approx([look.fixed.value for look in expected], abs=1e-9)


def test_a_table_of_another_locale_is_told_what_to_write(tmp_path):
    (tmp_path / "runs.csv").write_text("arm;seed;loss\na;0;1,25\n")
    with pytest.raises(DataError, match="has semicolons between its columns; write commas, and points in its numbers"):
        decide(tmp_path / "runs.csv")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_the_names_of_files_give_arm_and_seed_in_every_form(tmp_path, form):
    frame = simulated({"a": 0.0, "b": -0.05}, 3)
    for (arm, seed), rows in frame.groupby(["arm", "seed"]):
        file, rows = tmp_path / f"{arm}-s{seed}.{form}", rows.drop(columns=["arm", "seed"])
        if form == "jsonl":
            rows.to_json(file, orient="records", lines=True)
        else:
            rows.to_csv(file, index=False) if form == "csv" else rows.to_parquet(file, index=False)
    if form == "jsonl":
        with pytest.raises(DataError, match="has no column arm; it has document, nats and tokens; or label the file"):
            read_losses(shutil.copy(tmp_path / "a-s0.jsonl", tmp_path / "losses-of-a.txt.jsonl"))
        (tmp_path / "losses-of-a.txt.jsonl").unlink()
    found, expected = (decide(losses, "a").comparisons[0].difference.value for losses in (tmp_path, frame))
    assert found == pytest.approx(expected)


@pytest.mark.long
@given(seed=st.integers(0, 2**32), seeds=st.integers(1, 6), documents=st.integers(1, 8))
def test_order_files_and_parts_do_not_matter(seed, seeds, documents):
    frame = simulated({"a": 0.0, "b": -0.05, "c": 0.1}, seeds, random=seed, tokens=TOKENS[:documents])
    result = decide(frame, "a")
    mixed = frame.sample(frac=1, random_state=seed % 2**31)
    third = mixed.assign(nats=mixed.nats * 0.3, tokens=mixed.tokens * 0.3 + 1)
    rest = mixed.assign(nats=mixed.nats * 0.7, tokens=mixed.tokens * 0.7)
    parts = pd.concat([third.assign(part="first"), rest.assign(part="second")])
    parts["tokens"] = np.where(parts.part == "first", parts.tokens - 1, parts.tokens).clip(1)
    again = decide(mixed, "a")
    by_arm = {each.arm: each for each in again.comparisons}
    for comparison in result.comparisons:
        values = [look.fixed.value for look in comparison.looks]
        assert [look.fixed.value for look in by_arm[comparison.arm].looks] == pytest.approx(values, abs=1e-12)
    whole, split = read_losses(mixed), read_losses(parts)
    for run, nats in whole.values.items():
        names = [split.documents.index(name) for name in whole.documents]
        assert split.values[run][names] == pytest.approx(nats)


@pytest.mark.long
def test_a_null_difference_is_seldom_decided():
    """300 decisions between arms that train alike, with a look after every seed; 5% may be better or worse."""
    wrong = 0
    for number in range(300):
        result = decide(simulated({"a": 0.0, "b": 0.0}, 8, random=number), margin=1e-6)
        wrong += result.comparisons[0].decision in ("better", "worse")
    # A binomial of 5% is above 27 of 300 in 1 of 500 cases; the rule is conservative.
    assert wrong <= 27


def test_steps_questions_bytes_and_whole_runs():
    frame = simulated({"a": 0.0, "b": -0.05}, 4)
    steps = pd.concat([frame.assign(step=100), frame.assign(step=200, nats=frame.nats / 2)])
    assert decide(steps).comparisons[0].last.fixed.value == pytest.approx(
        decide(frame).comparisons[0].last.fixed.value / 2
    )
    other = frame.assign(bytes=4.0 * frame.tokens, tokens=np.where(frame.arm == "b", 2, 1) * frame.tokens)
    per_byte = decide(other)
    assert per_byte.unit == "nats per byte" and "tokens differ" in per_byte.notes[0]
    assert per_byte.comparisons[0].last.fixed.value == pytest.approx(decide(frame).comparisons[0].last.fixed.value / 4)
    questions = pd.DataFrame(
        {"arm": arm, "seed": seed, "document": number, "correct": int(number % 10 < right)}
        for arm, right in {"a": 5, "b": 8}.items()
        for seed in range(4)
        for number in range(40)
    )
    answered = decide(questions)
    assert answered.unit == "errors per question" and answered.losses["b"][0] == pytest.approx(0.2)
    assert answered.comparisons[0].last.fixed.value == pytest.approx(-0.3)
    whole = pd.DataFrame({"arm": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "loss": [3.0, 3.1, 2.9, 3.05]})
    alone = decide(whole)
    assert alone.sentences[0].startswith("Undecided after 2 seeds by the means of the runs: b − a = −0.0750 loss")
    with pytest.raises(ConfigError, match="documents is random, but these losses are means of whole runs"):
        decide(whole, documents="random")


def test_several_arms_share_the_error_and_unpaired_seeds_are_said():
    frame = simulated({"a": 0.0, "b": -0.05, "c": 0.05}, 6)
    both, alone = decide(frame), decide(frame[frame.arm != "c"])
    assert both.comparisons[0].last.fixed.low < alone.comparisons[0].last.fixed.low
    fewer = decide(frame[~((frame.arm == "b") & (frame.seed.isin([1, 4])))])
    assert fewer.comparisons[0].last.seeds == 4 and fewer.comparisons[1].last.seeds == 6
    assert fewer.notes == ["Seeds 1 and 4 of a count in no pair: b lacks them."]


def test_a_folder_keeps_what_was_looked_at(tmp_path):
    frame, out = simulated({"a": 0.0, "b": -0.05}, 6), tmp_path / "d"
    first = decide(frame[frame.seed < 4], out=out)
    assert {file.name for file in out.iterdir()} >= {"looked.json", "result.json"}
    assert json.loads((out / "result.json").read_text())["sentences"] == first.sentences
    decide(frame, out=out)
    with pytest.raises(ConfigError, match="seed 4 of a is missing, but it was there when .* was looked at"):
        decide(frame[frame.seed < 4], out=out)
    with pytest.raises(ConfigError, match="seed 0 of a has other losses than when"):
        decide(frame.assign(nats=frame.nats * 1.1), out=out)
    with pytest.raises(ConfigError, match="looked at with other settings .margin."):
        decide(frame, out=out, margin=0.5)
    more = simulated({"a": 0.0, "b": -0.05, "c": 0.0}, 6, random=1)
    with pytest.raises(ConfigError, match="looked at with other settings .comparisons."):
        decide(pd.concat([frame, more[more.arm == "c"]]), out=out)
    (out / "looked.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        decide(frame, out=out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(ConfigError, match="is not empty and holds no decision"):
        decide(frame, out=tmp_path / "full")


ROW = {"arm": "a", "seed": 0, "document": "x", "tokens": 10, "nats": 30.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the table has no rows"),
        ([ROW], "a is the only arm"),
        (
            [ROW, ROW | {"arm": "b", "seed": 1}],
            "a has the seeds 0.*none is in both|b has the seeds 1, a 0: none is in both",
        ),
        ([ROW, ROW | {"arm": "b", "document": "y"}], "no document is in all runs"),
        (
            [
                *(ROW | {"arm": arm, "document": name} for arm in "ab" for name in "xy"),
                ROW | {"arm": "a.", "document": "z"},
            ],
            r"no document is in all runs \(seed 0 of a\. has 1 of 3\)",
        ),
        ([ROW, ROW | {"arm": "b", "tokens": 10.5}], "document x has 10 tokens in seed 0 of a, 10.5 in seed 0 of b"),
        ([ROW, ROW, ROW | {"arm": "b"}], "document x of seed 0 of a occurs twice, in the table; remove the copy"),
        ([ROW, ROW | {"nats": 31.0}, ROW | {"arm": "b"}], "document x of seed 0 of a occurs twice"),
        ([{"arm": "a", "seed": 0, "loss": 3.0}, {"arm": "a", "seed": 0, "loss": 4.0}], "seed 0 of a occurs twice"),
        ([ROW | {"arm": " "}], "arm is ' ' in row 1, but must be a name"),
        ([ROW | {"nats": 1e300}], "nats is 1e.300 in row 1, but must be at most 1e.100"),
        ([ROW | {"nats": float("nan")}], "nats is nan in row 1, but must be a finite number"),
        ([ROW, ROW | {"nats": None}], "nats is missing in row 2, but must be given"),
        ([ROW, ROW | {"nats": -1.0}], "nats is -1.0 in row 2, but must be 0 or more"),
        ([ROW | {"tokens": -3}], "tokens is -3 in row 1, but must be 1 or more"),
        ([ROW | {"seed": "first"}], "seed is 'first' in row 1, but must be a whole number"),
        ([ROW, ROW | {"arm": "b", "tokens": 11}], "document x has 10 tokens in seed 0 of a, 11 in seed 0 of b: nats"),
        ([{"arm": "a", "seed": 0, "tokens": 10, "nats": 3.0}], "has no column document, by which runs are paired"),
        ([{"arm": "a", "seed": 0, "document": "x", "nat": 3.0}], "no column nats, loss or .*did you mean 'nat'"),
        ([ROW | {"correct": 1}], "has correct and nats|has nats and correct"),
        (
            [{"arm": "a", "seed": 0, "document": "x", "correct": 1.5}],
            "correct is 1.5 in row 1, but must be from 0 to 1",
        ),
    ],
)
def test_what_is_refused(rows, message):
    table = pa.Table.from_pylist(rows) if rows else pa.table({name: [] for name in ROW})
    with pytest.raises((ConfigError, DataError), match=message):
        decide(table)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nan", "nats is nan in row 2 below the header, but must be a finite number"),
        ("NA", "nats is 'NA' in row 2 below the header, but must be a number"),
        ("", "nats is missing in row 2 below the header, but must be given"),
    ],
)
def test_a_bad_value_of_a_csv_file_is_shown_as_it_is_there(value, message, tmp_path):
    file = tmp_path / "losses.csv"
    file.write_text(f"arm,seed,document,tokens,nats\na,0,x,10,30\na,0,y,10,{value}\n")
    with pytest.raises(DataError, match=message):
        read_losses(file)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_rows_with_long_texts_are_read_and_a_bad_one_is_named(tmp_path, kind):
    """Arrow reads a megabyte at a time by default: no row may be longer, and an error counts rows from the last block."""
    rows = [ROW | {"arm": arm, "document": name, "text": "x" * 2_000_000} for arm in "ab" for name in "xyz"]
    file = tmp_path / f"losses.{kind}"
    table = pd.DataFrame(rows)
    write = {"jsonl": partial(table.to_json, orient="records", lines=True), "csv": partial(table.to_csv, index=False)}[
        kind
    ]
    write(file)
    assert read_losses(file).documents == ["x", "y", "z"]
    table["nats"] = [*table["nats"][:5], "many"]
    write(file)
    with pytest.raises(DataError, match="in row 6"):
        read_losses(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "baes"}, "the reference is 'baes', but the arms are base and b; did you mean 'base'"),
        ({"margin": 0.0}, "margin is 0.0, but must be above 0"),
        ({"margin": float("nan")}, "margin is nan, but must be above 0 and at most 1000"),
        ({"margin": 1e308}, "at most 1000"),
        ({"confidence": 1.0}, "confidence is 1.0, but must be from 0.5 to 0.9999"),
        ({"documents": "all"}, "documents is 'all', but must be fixed or random"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        decide(simulated({"base": 0.0, "b": 0.0}, 2), **options)


def test_files_that_hold_no_losses_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("nothing.csv", "there is no file"),
        ("nothing.txt", "is no file of losses"),
        ("empty", "is no file of losses; give .jsonl, .csv, .tsv or .parquet, or a folder of them"),
    ):
        with pytest.raises(DataError, match=message):
            read_losses(tmp_path / name)


def test_seeds_with_the_same_losses_are_said():
    frame = simulated({"a": 0.0, "b": 0.1}, 4)
    frame.loc[frame.arm == "a", "nats"] = frame.loc[frame.arm == "a", "document"].map(
        {f"d{n}": n + 1.0 for n in range(8)}
    )
    assert "All 4 seeds of a have the same losses, as if they were one run." in decide(frame).notes


def test_neither_the_order_of_files_nor_that_of_rows_changes_a_decision(tmp_path):
    """With steps, and with parts in two files: the arms keep their order, and a kept decision knows its losses again."""
    frame = simulated({"z": 0.0, "y": 0.1, "x": 0.2}, 4).assign(step=5)
    for _ in range(5):
        assert read_losses(frame).arms == ["z", "y", "x"]
    halves = [frame.assign(part=n, nats=frame.nats * share, step=5) for n, share in enumerate((0.3, 0.7))]
    out = tmp_path / "d"
    decide(pd.concat(halves), out=out)
    again = decide(pd.concat(halves[::-1]), "z", out=out)
    assert again.sentences == decide(pd.concat(halves), "z").sentences


def test_seeds_of_one_call_decide_together_and_a_decision_that_was_seen_stands(tmp_path):
    """Of ten seeds the first four alone would decide; nobody has looked at them alone."""
    differences = [-0.05, -0.051, -0.049, -0.0502, 0.06, 0.03, 0.05, 0.02, 0.04, 0.05]
    runs = [("a", seed, 3.0) for seed in range(10)] + [("b", seed, 3 + d) for seed, d in enumerate(differences)]
    frame = pd.DataFrame(runs, columns=["arm", "seed", "loss"])
    together = decide(frame)
    assert together.comparisons[0].decision == "undecided" and "after 10 seeds" in together.sentences[0]
    assert together.comparisons[0].difference.value == pytest.approx(np.mean(differences))
    first, second = decide(frame[frame.seed < 4], out=tmp_path / "d"), decide(frame, out=tmp_path / "d")
    assert first.comparisons[0].decision == second.comparisons[0].decision == "better"
    assert second.comparisons[0].decided_after == 4 and list(second.comparisons[0].looked) == [4, 10]
    assert (
        "after 4 of 10 seeds, and stands. With all of them, which by themselves decide nothing: +0.0"
        in second.notes[-1]
    )


def test_no_other_process_looks_between_reading_the_looks_and_keeping_this_one(tmp_path, monkeypatch):
    frame, out, held = simulated({"a": 0.0, "b": -0.05}, 5), tmp_path / "d", []
    looked = decisions._looked
    monkeypatch.setattr(decisions, "_looked", lambda folder: held.append(is_held(folder)) or looked(folder))
    first = decide(frame[frame.seed < 4], out=out)
    assert held == [True] and decisions.is_newest(first) and not is_held(out)
    second = decide(frame, out=out)
    assert decisions.is_newest(second) and not decisions.is_newest(first)  # whose page would be an older one


def test_a_later_seed_of_a_smaller_number_comes_behind_the_looks_before(tmp_path):
    frame, out = simulated({"a": 0.0, "b": -0.05}, 7), tmp_path / "d"
    frame.loc[(frame.seed == 0) & (frame.arm == "b"), "nats"] *= 1.5
    first = decide(frame[frame.seed >= 2], out=out)
    second = decide(frame, out=out)
    assert second.comparisons[0].looks[:5] == first.comparisons[0].looks
    assert second.comparisons[0].last.fixed.value > first.comparisons[0].last.fixed.value
    after = second.comparisons[0].decided_after
    assert (
        after < 7 and f"The decision on b was made after {after} of 7 seeds, and stands. With all" in second.notes[-1]
    )
    assert f"{second.comparisons[0].last.fixed:+.4f}" in second.notes[-1]
    row = second.to_pandas().iloc[0]
    decided = second.comparisons[0].looks[after - 1]
    assert (row["seeds"], row["deviation"], row["difference"]) == (after, decided.deviation, decided.fixed.value)
    assert repr(second).endswith(f"better after {after} seeds")
    assert list(json.loads((out / "looked.json").read_text())["runs"]["a"]) == ["2", "3", "4", "5", "6", "0", "1"]


def test_a_seed_that_found_its_partner_later_keeps_its_place_among_the_looks(tmp_path):
    """The arm had seed 7 before the reference did: seed 3 and it are paired at the second look, in that order for good."""
    frame, out = simulated({"a": 0.0, "b": -0.05}, 8), tmp_path / "d"
    both = frame[frame.seed.isin([0, 1, 2, 3, 7])]
    decide(both[(both.seed < 3) | ((both.seed == 7) & (both.arm == "b"))], out=out)
    second, third = decide(both, out=out), decide(both, out=out)
    assert second.comparisons == third.comparisons and second.sentences == third.sentences
    assert list(json.loads((out / "looked.json").read_text())["runs"]["b"]) == ["0", "1", "2", "3", "7"]


def test_steps_labels_and_parts_are_matched(tmp_path):
    frame = simulated({"a": 0.0, "b": 0.1}, 2)
    ends = pd.concat([frame[frame.arm == "a"].assign(step=100), frame[frame.arm == "b"].assign(step=200)])
    assert decide(ends).notes == ["The runs end at different steps: 100 and 200 (seed 0 of a at 100)."]
    mixed = [write(tmp_path, frame, "a", 0), write(tmp_path, ends, "b", 0)]
    with pytest.raises(DataError, match="some rows have a step, others none"):
        read_losses(mixed)
    labelled = decide([f"new:5={write(tmp_path, frame, 'a', 0)}", f"old:5={write(tmp_path, frame, 'b', 1)}"], "old")
    assert set(labelled.losses) == {"new", "old"} and set(labelled.losses["new"]) == {5}
    parts = pd.concat(
        [frame.assign(part=1), frame[frame.arm == "a"].assign(part=2), frame[frame.arm == "b"].assign(part=3)]
    )
    matched = decide(parts)
    whole = decide(frame)
    left = f"{2 * whole.held_out['documents']} of {3 * whole.held_out['documents']} parts of documents are left out"
    assert matched.losses == whole.losses and matched.notes[0].startswith(left)


def write(folder, frame, arm, seed):
    """The rows of a run as a CSV file."""
    file = folder / f"run-{arm}-{seed}.csv"
    frame[(frame.arm == arm) & (frame.seed == seed)].to_csv(file, index=False)
    return file


def test_names_are_text(tmp_path):
    """Numbers, dates and words for nothing are names like others, in each file alike."""
    rows = [("1e-3", "007", 3.0), ("1e-3", "12345678901234567890", 4.0), ("1e-3", "12345678901234567891", 5.0)]
    rows += [("NA", name, nats + 0.1) for _, name, nats in rows]
    text = "arm,seed,document,tokens,nats\n" + "".join(f"{a},0,{d},10,{n}\n" for a, d, n in rows)
    (tmp_path / "t.csv").write_text(text)
    losses = read_losses(tmp_path / "t.csv")
    assert losses.arms == ["1e-3", "NA"] and losses.documents == ["007", "12345678901234567890", "12345678901234567891"]
    lines = [{"arm": "a", "seed": 0, "document": "2024-01-01", "tokens": 1, "nats": 1.0}]
    (tmp_path / "t.jsonl").write_text(json.dumps(lines[0]) + "\n")
    assert read_losses(tmp_path / "t.jsonl").documents == ["2024-01-01"]
    (tmp_path / "dup.csv").write_text("arm,seed,document,tokens,nats,nats\na,0,x,1,1,1\n")
    with pytest.raises(DataError, match="has the column nats twice"):
        read_losses(tmp_path / "dup.csv")


def test_the_writer_writes_whole_files_or_none(tmp_path):
    file = tmp_path / "new" / "a-s3.jsonl"
    with LossWriter(file, "a", 3, step=7) as losses:
        losses.add("a long text\n" * 20, tokens=4, nats=np.float32(8.5), bytes=np.int64(20))
        losses.add(1, 2, 3.0)
        losses.add("a long text\n" * 20, tokens=4, nats=8.0, bytes=20)
        assert not file.exists()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[1] == {"arm": "a", "seed": 3, "step": 7, "document": "1", "tokens": 2.0, "nats": 3.0}
    assert rows[2].pop("part") == "2" and rows[2] == {**rows[0], "nats": 8.0}  # an equal text
    assert rows[0]["nats"] == 8.5 and rows[0]["bytes"] == 20 and len(rows[0]["document"]) == 16
    with pytest.raises(RuntimeError), LossWriter(tmp_path / "b.jsonl", "b", 0) as losses:
        losses.add(0, 1, 1.0)
        raise RuntimeError
    wrong = "nats of document 0 is .*, but must be a finite number, 0 or more"
    for value in (float("nan"), -1.0):
        with pytest.raises(DataError, match=wrong), LossWriter(tmp_path / "b.jsonl", "b", 0) as losses:
            losses.add(0, 1, value)
    with pytest.raises(DataError, match="is not open"):
        losses.add(0, 1, 1.0)
    with (
        pytest.raises(DataError, match="document 0 was added already"),
        LossWriter(tmp_path / "b.jsonl", "b", 0) as losses,
    ):
        losses.add(0, 1, 1.0)
        losses.add(0, 1, 1.0)
    with pytest.raises(DataError, match="a row has no arm"), LossWriter(tmp_path / "b.jsonl", "b", 0) as losses:
        losses.add(0, 1, 1.0, arm="c")
    for arguments, message in (
        (("/dev/full", "a", 0), "is no file that could be replaced"),
        (("a.jsonl", " ", 0), "arm is empty"),
        (("a.csv", "a", 0), "a.csv does not end with .jsonl or .ndjson"),
    ):
        with pytest.raises(DataError, match=message):
            LossWriter(*arguments)
    for seed in (1.7, "1", None):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            LossWriter("a.jsonl", "a", seed)
    with pytest.raises(DataError, match="no document was added"), LossWriter(tmp_path / "b.jsonl", "b", 0):
        pass
    assert not (tmp_path / "b.jsonl").exists() and [*tmp_path.iterdir()] == [tmp_path / "new"]


@pytest.mark.parametrize("table", [{"a": [1.0]}, pd.DataFrame({"a": [1.0]})])
def test_a_table_without_any_known_column_is_refused_by_its_columns(table):
    with pytest.raises(DataError, match="none of the columns arm, .*; it has a$"):
        decide(table, "a")


def test_the_command(contextwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = simulated({"base": 0.0, "new": -0.05}, 5, level=0.001, noise=0.001)
    for (arm, seed), rows in frame.groupby(["arm", "seed"]):
        rows.to_csv(f"{arm}-{seed}.csv", index=False)
    files = " ".join(f"{arm}-{seed}.csv" for arm in ("base", "new") for seed in range(5))
    words = contextwise.words(f"decide {files}")
    assert "new is better than base: −0.0" in words and "page: decisions/vs-base/report.html" in words
    page = Path("decisions/vs-base/report.html").read_text()
    assert "these held-out any text like std. dev." in words and "any text like these documents" in page
    assert "new is better than base" in page
    assert "the dashed lines are the margin" in page and page.count('"dash":"dash"') == 2 and "stroke-dasharray" in page
    status, output, _ = contextwise(f"decide {files} --json")
    assert status == 0 and json.loads(output)["comparisons"][0]["decision"] == "better"
    contextwise.refused("decide", "there are no losses")
    contextwise.refused(f"decide {files} --documents some", "--documents is 'some', but must be fixed or random")
    assert max(len(line) for line in contextwise(f"decide {files}")[1].splitlines()) <= 80


@pytest.mark.long
def test_nothing_of_it_needs_torch():
    code = (
        "import sys, contextwise\n"
        "from contextwise.stats import LossWriter\n"
        "from contextwise.cli import decisions\n"
        "columns = {'arm': list('aabb'), 'seed': [0, 1, 0, 1], 'document': list('xxxx'), 'tokens': [9] * 4}\n"
        "contextwise.decide(columns | {'nats': [3.0, 4.0, 2.0, 5.0]})\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_axes_have_room_for_arms_with_long_names():
    """A figure is 440 pixels high; the caption names the arms."""
    arms = {name: f"{name} with a name of forty or more letters" for name in ("baseline", "idea")}
    rows = [
        {"run": f"{name}{seed}", "arm": arms[name], "seed": seed, "loss": 3.0 + 0.1 * (name == "idea") + 0.01 * seed}
        for name in arms
        for seed in range(3)
    ]
    title = contextwise.decide(pd.DataFrame(rows), arms["baseline"]).plot().layout.yaxis.title.text
    assert title.startswith("difference, ") and len(title) < 40


def test_one_document_is_said_to_be_too_few_for_any_like_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"arm": arm, "seed": seed, "document": "0", "tokens": 10, "nats": 20 + add + 0.1 * seed * (1 + add)}
        for arm, add in (("a", 0.0), ("b", 1.0))
        for seed in range(5)
    ]
    (comparison,) = contextwise.decide(pd.DataFrame(rows), "a", documents="random").comparisons
    assert comparison.sentence.endswith(
        "Fewer than 6 documents do not show how far documents differ: hold out more of them."
    )
