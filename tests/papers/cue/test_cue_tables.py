"""Runs that are made from each other: their order and folders, shares of a gain, partitions, and a table in miniature."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import joint_freedom
from contextwise.base.intervals import estimate, student_t
from contextwise.data import prepare_corpus
from contextwise_papers.claims import exact
from contextwise_papers.cue import tables_3_to_6_perplexity
from contextwise_papers.cue.tables_3_to_6_perplexity import CuePartitions, CuePerplexity, Scored, kept_gain
from contextwise_papers.item import RECIPES, find_item, measure_at
from cue_runs import save_text_encoder, write_articles
from shipped import an_item

TEMPLATES = {
    "a": {"model": {"size": "pico"}, "training": {"steps": 1}},
    "b": {"training": {"steps": 1, "learning_rate": 0.1}},
}


def staged(**changes):
    values = {"name": "tag", "corpus": "corpus", "templates": TEMPLATES, "reference": "base", "seeds": [3]}
    values |= {"runs": {"base": ["a"]}, "rows": {"base": {"run": "base"}}} | changes
    return validate(CuePerplexity, values, "the settings")


def test_only_the_runs_behind_the_rows_are_made():
    runs = {"b": ["b", "model.pretrained=@base"], "other": ["a"], "base": ["a"]}
    measure = staged(runs=runs, rows={"base": {"run": "b"}})
    before, after = measure.run_set(Path("folder")).runs
    assert (before.arm, after.arm, after.parents) == ("base", "b", (before,))
    recipe = before.recipe()
    assert (recipe.name, recipe.seed, recipe.data.corpus) == ("base", 3, "corpus")
    assert recipe.folder.parent == Path("folder/runs") and recipe.folder.name.startswith("tag-base-s3-")
    assert after.values["model"]["pretrained"] == str(before.folder)


def test_a_template_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="the run 'base' names the template 'z', which is none of a, b"):
        staged(runs={"base": ["z"]})


def scored(*nats, targets=(10.0, 10.0, 20.0)):
    return Scored(np.array([[nats]]), np.array(targets))


def test_how_much_of_a_gain_is_kept():
    def scored(*nats):
        return Scored(np.array([[nats * 2]]), np.array([10.0, 10.0, 20.0] * 2))

    base, best = scored(20.0, 20.0, 40.0), scored(10.0, 10.0, 20.0)  # 2 and 1 nats a target
    assert kept_gain(base, base, best).value == pytest.approx(0)
    assert kept_gain(best, base, best).value == pytest.approx(1)
    part = scored(15.0, 15.0, 30.0)
    kept = kept_gain(part, base, best)
    exact = (np.exp(2) - np.exp(1.5)) / (np.exp(2) - np.exp(1))
    assert kept.value == pytest.approx(exact)
    # All articles are alike, so there is nothing uncertain.
    assert (kept.low, kept.high) == pytest.approx((exact, exact))
    # Two seeds whose mean is the same row.
    base, best = (Scored(np.repeat(row.nats, 2, axis=1), row.targets) for row in (base, best))
    both = kept_gain(Scored(np.concatenate([0.9 * part.nats, 1.1 * part.nats], axis=1), part.targets), base, best)
    shares = [(np.exp(2) - np.exp(loss)) / (np.exp(2) - np.exp(1)) for loss in (1.35, 1.65)]
    assert both.value == pytest.approx(exact)
    assert both.high - both.value == pytest.approx(12.7062 * abs(shares[0] - shares[1]) / 2, rel=1e-4)


def test_a_mean_over_partitions_has_an_interval_over_partitions_seeds_and_articles():
    """By hand: partitions of 1, 2 and 3 nats, seeds 0.1 below and above them, all articles alike."""
    targets = np.full(6, 10.0)
    losses_PS = np.array([[0.9, 1.1], [1.9, 2.1], [2.9, 3.1]])
    nats_PSA = losses_PS[:, :, None] * targets
    mean = Scored(nats_PSA, targets).loss
    seeds, partitions = (0.2**2 / 2 / 2, 1), (1 / 3, 2)  # variances of the means, and their degrees of freedom
    assert mean.value == pytest.approx(2)
    half = student_t(joint_freedom([seeds, partitions])) * np.sqrt(seeds[0] + partitions[0])
    assert (mean.high - 2, 2 - mean.low) == pytest.approx((half, half), rel=1e-4)
    assert (mean.seeds, mean.documents) == (2, 6), "six runs are no six seeds"
    # Articles that differ add their own part; a row that is the same in all partitions has no part of theirs.
    nats_PSA = nats_PSA[[1, 1, 1]] + np.array([-1, 1, -1, 1, -1, 1]) * 10.0
    articles = (1.2 / 6, 5)
    shared = Scored(nats_PSA, targets).loss
    half = student_t(joint_freedom([seeds, articles])) * np.sqrt(seeds[0] + articles[0])
    assert shared.high - shared.value == pytest.approx(half, rel=1e-4)
    assert shared == Scored(nats_PSA[:1], targets).loss == estimate([nats_PSA[0]], targets)


def test_the_mean_share_of_a_gain_has_the_spread_of_the_partitions():
    def scored(*losses):
        return Scored(np.tile(10 * np.array(losses)[:, None, None], 6), np.full(6, 10.0))

    base, best = scored(2.0, 2.0), scored(1.0, 1.0)
    gains = [(np.exp(2) - np.exp(loss)) / (np.exp(2) - np.exp(1)) for loss in (1.2, 1.4)]
    mean = kept_gain(scored(1.2, 1.4), base, best)
    assert mean.value == pytest.approx(np.mean(gains))
    assert mean.high - mean.value == pytest.approx(12.7062 * abs(gains[0] - gains[1]) / 2, rel=1e-4)


def test_relative_perplexity_is_that_of_the_mean_loss():
    low, high = scored(5.0, 15.0, 20.0), scored(10.0, 20.0, 30.0)
    assert low.perplexity.value == pytest.approx(np.exp(1.0))
    assert low.relative(high).value == pytest.approx(np.exp(1.0 - 1.5) - 1)


def test_partitions_are_halves_of_the_types_and_fill_the_runs_that_name_them():
    types = ["title", "date", "tags", "previous_sentence", "author"]
    values = {
        "name": "tag",
        "templates": TEMPLATES,
        "runs": {"base": ["a"], "A": ["a", "x=@base"], "then B": ["a", "start=@A"], "after": ["a", "start=@then B"]},
        "trained_on": {"A": "A", "then B": "B"},
        "rows": {"base": {"run": "base"}, "A on B": {"run": "A"}, "B": {"run": "then B"}},
        "tested_on": {"A on B": "B"},
        "reference": "base",
        "types": types,
        "partitions": 4,
    }
    measure = validate(CuePartitions, values, "the settings")
    assert len({tuple(measure.partition(i)["A"]) for i in range(4)}) > 1
    for number in range(4):
        sets, partition = measure.partition(number), measure.of_partition(number)
        assert sorted(sets["A"] + sets["B"]) == sorted(types) and len(sets["A"]) == 3
        assert partition.runs["base"] == ["a"], "what is trained on no set is shared by all partitions"
        template, base, columns, previous = partition.runs[f"A {number + 1}"]
        assert (template, base) == ("a", "x=@base")
        assert columns.removeprefix("data.contexts.columns=") == json.dumps(
            [name for name in sets["A"] if name != "previous_sentence"]
        )
        assert previous == f"data.contexts.previous_sentence={str('previous_sentence' in sets['A']).lower()}"
        assert partition.runs[f"then B {number + 1}"][1] == f"start=@A {number + 1}"
        assert partition.runs[f"after {number + 1}"] == ["a", f"start=@then B {number + 1}"]
        assert partition.rows["A on B"].contexts == sets["B"]
    with pytest.raises(ConfigError, match="trained_on names 'C', which is none of base, A, then B, after"):
        validate(CuePartitions, values | {"trained_on": {"C": "A"}}, "the settings")


def test_no_partition_is_drawn_twice():
    """A partition that counts twice would pass for two samples and make the interval over partitions too short."""
    values = {
        "name": "tag",
        "templates": TEMPLATES,
        "runs": {"A": ["a"]},
        "trained_on": {"A": "A"},
        "rows": {"A": {"run": "A"}},
        "reference": "A",
        "types": ["title", "date", "tags", "author"],
        "partitions": 6,
    }
    measure = validate(CuePartitions, values, "the settings")
    assert len({tuple(measure.partition(number)["A"]) for number in range(6)}) == 6
    with pytest.raises(ConfigError, match="partitions is 7, but 4 types have only 6"):
        validate(CuePartitions, values | {"partitions": 7}, "the settings")
    with pytest.raises(ConfigError, match="partitions is 6, but 2 types have only 2"):
        validate(CuePartitions, values | {"columns": ["module", "class"]}, "the settings")
    with pytest.raises(ConfigError, match="date is the only context, which cannot be divided"):
        validate(CuePartitions, values | {"columns": ["date"], "partitions": 1}, "the settings")
    quoted = validate(CuePartitions, values | {"columns": ["yes", "a, b"], "partitions": 1}, "the settings")
    columns = [name for name in quoted.of_partition(0).runs["A 1"] if name.startswith("data.contexts.columns=")]
    assert yaml.safe_load(columns[0].partition("=")[2]) == quoted.partition(0)["A"]
    with pytest.raises(ConfigError, match="types names a context twice: title, date, title"):
        validate(CuePartitions, values | {"partitions": 1, "types": ["title", "date", "title"]}, "the settings")


def test_half_of_no_gain_is_not_most_of_it(monkeypatch):
    """Where the best row is worse than the base, the share of both losses is above one half."""
    base, worse, worst = (
        Scored(np.add.outer([[0, 0.01, -0.01]], np.full(60, loss)), np.ones(60)) for loss in (4, 4.03, 4.05)
    )
    share = kept_gain(worst, base, worse)
    assert share.low > 0.5
    verdict = tables_3_to_6_perplexity._most(share, worse.minus(base))
    assert verdict.holds is None and "that there is a gain to keep is not decided: +0.030" in verdict.reason
    kept = tables_3_to_6_perplexity._most(kept_gain(base, worst, base), base.minus(worst))
    assert kept.holds and kept.comparisons == 1 and kept.at(0.999).holds


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    sources = [f"{name}={write_articles(folder / f'{name}.jsonl', count, i)}" for i, (name, count) in enumerate(
        {"train": 40, "adapt": 20, "validation": 10, "test": 12}.items()
    )]  # fmt: skip
    prepare_corpus(sources, "train:300", folder / "corpus")
    return folder / "corpus", save_text_encoder(folder / "bert")


def settings(corpus, encoder):
    training = {"steps": 3, "examples_per_step": 8, "learning_rate": 1e-2, "evaluation_tokens": 320, "save_every": 3}
    shared = {"training": training}
    contexts = {"columns": ["title", "tags"], "previous_sentence": True}
    cue = {"stage": "joint", "text_encoder": encoder, "pooling": "mean", "decoder_layers": 1, "decoder_heads": 2}
    cue |= {"context_layers": 1, "context_heads": 2}
    return {
        "name": "small",
        "corpus": str(corpus),
        "templates": {
            "sentences": {**shared, "data": {"context": 32}, "model": {"layers": 1, "width": 16, "heads": 2}},
            "joint": {**shared, "data": {"context": 32, "contexts": contexts}, "model": {"cue": cue}},
            "adapt": {
                **shared,
                "data": {"context": 32, "split": "adapt", "contexts": contexts},
                "model": {"cue": {"stage": "adapt"}},
            },
        },
        "runs": {
            "LM": ["sentences"],
            "both": ["joint", "model.cue.sentence_encoder=@LM"],
            "adapted": ["adapt", "model.cue.start=@both", "data.contexts.columns=[date]"],
        },
        "rows": {
            "alone": {"run": "LM"},
            "both": {"run": "both"},
            "withheld": {"run": "both", "contexts": []},
            "adapted": {"run": "adapted"},
        },
        "reference": "alone",
        "claims": [{"text": "contexts help", "better": "both", "than": "alone"}],
        "kept": [{"text": "adaptation keeps it", "part": "adapted", "base": "alone", "best": "both", "printed": 0.85}],
        "figure": {"title": "f", "x": "x", "series": {"s": {"both": 1.0, "adapted": 2.0}}, "levels": {"LM": "alone"}},
    }


@pytest.mark.long
def test_a_table_in_miniature_is_that_of_the_evaluations(news, tmp_path, monkeypatch):
    measure = validate(CuePerplexity, settings(*news), "the settings")
    outcome = measure.measure(an_item(), tmp_path)
    names = [path.name.rpartition("-")[0] for path in outcome.runs]
    assert names == [f"small-{name}-s0" for name in ("lm", "both", "adapted")]
    evaluation = outcome.runs[1] / "evaluation"
    assert len(list(evaluation.iterdir())) == 2, "with its contexts, and without"
    (table,) = outcome.tables
    assert [row[0] for row in table.rows] == ["alone", "both", "withheld", "adapted"]
    figures = outcome.figures
    assert figures["losses"]["both"]["value"] != figures["losses"]["withheld"]["value"]
    assert outcome.plots[0].levels["LM"] == pytest.approx(np.exp(figures["losses"]["alone"]["value"]))
    assert "the document has 85%" in outcome.claims[1].evidence
    for name in ("above", "below"):
        monkeypatch.setattr(tables_3_to_6_perplexity, name, lambda *_: exact(True))
    # Again: nothing is trained or scored anew, and the numbers are the same.
    before = {path: path.stat().st_mtime_ns for path in evaluation.rglob("*")}
    again = measure.measure(an_item(), tmp_path)
    assert again.figures == figures
    # One seed decides nothing, whatever the intervals over articles say.
    assert [claim.holds for claim in again.claims] == [None, None]
    assert all("one seed decides nothing" in claim.evidence for claim in again.claims)
    assert before == {path: path.stat().st_mtime_ns for path in evaluation.rglob("*")}


@pytest.mark.long
def test_partitions_in_miniature_have_one_interval_for_all(news, tmp_path):
    values = settings(*news) | {"types": ["title", "tags", "previous_sentence"], "trained_on": {"both": "A"}}
    values |= {"partitions": 2, "tested_on": {"adapted": "both"}, "partition_seed": 1}
    del values["figure"]
    outcome = validate(CuePartitions, values, "the settings").measure(an_item(), tmp_path)
    rows = {row[0]: row[1:] for row in outcome.tables[0].rows}
    assert outcome.figures["partitions"][0] != outcome.figures["partitions"][1]
    alone, both = ([each["value"] for each in outcome.figures["perplexities"][name]] for name in ("alone", "both"))
    assert alone[0] == alone[1] and both[0] != both[1]
    mean = outcome.figures["losses"]["both"]
    assert mean["value"] == pytest.approx(np.log(both).mean())
    assert mean["high"] - mean["value"] > 12.7062 * abs(np.log(both[0] / both[1])) / 2
    assert rows["both"][1] == f"{np.std(both, ddof=1):.2f}"
    assert "partitions; one seed decides nothing about trained models" in outcome.claims[0].evidence


def test_rows_that_are_not_there_are_named(news):
    values = settings(*news)
    values["reference"] = "nobody"
    with pytest.raises(ConfigError, match="reference names the row 'nobody', which is none of alone, both"):
        validate(CuePerplexity, values, "the settings")


def test_columns_that_a_corpus_lacks_are_refused_before_any_training(news, tmp_path):
    values = settings(*news)
    runs = values["runs"] | {"adapted": values["runs"]["adapted"][:2]}
    missing = "has no metadata column 'nope'; it has document_hash, title"
    for given, why in (
        ({"columns": ["title", "nope"], "runs": runs}, missing),
        ({"columns": ["title"]}, "columns is given, but the run 'adapted' has its own .*=.date.*; change runs instead"),
        ({"runs": runs | {"adapted": [*runs["adapted"], "data.contexts.columns=[nope]"]}}, missing),
        ({"rows": values["rows"] | {"withheld": {"run": "both", "contexts": ["previous_sentence", "nope"]}}}, missing),
    ):
        with pytest.raises((ConfigError, DataError), match=why):
            validate(CuePerplexity, values | given, "the settings").train(tmp_path)
        assert list(tmp_path.iterdir()) == []
    partitions = {"types": ["title", "tags"], "trained_on": {"both": "A"}, "partitions": 2, "columns": ["date", "nope"]}
    del values["figure"]
    with pytest.raises(DataError, match=missing):
        validate(CuePartitions, values | partitions | {"runs": runs}, "the settings").of_partition(0).train(tmp_path)


@pytest.mark.parametrize("name", ["table3", "table4", "table5", "table6"])
def test_columns_of_another_corpus_are_those_of_every_template_with_contexts(name):
    recipe = yaml.safe_load((RECIPES / "cue" / f"{name}.yaml").read_text())
    values = recipe["scales"]["tiny"]["settings"]
    templates = copy.deepcopy(values["templates"])
    changed = [each["data"]["contexts"] for each in templates.values() if "contexts" in each["data"]]
    for contexts in changed:
        contexts["columns"] = ["module", "class", "docstring"]
    assert 0 < len(changed) < len(templates), "a template without contexts stays without"
    kind = CuePartitions if name == "table5" else CuePerplexity
    same = {"types": ["module", "class", "docstring", "previous_sentence"]} if name == "table5" else {}
    by_hand = validate(kind, values | {"templates": templates} | same, "the settings")
    given = validate(kind, values | {"columns": ["module", "class", "docstring"]}, "the settings")
    runs = [[run.id for run in each.run_set(Path("folder")).runs] for each in (by_hand, given)]
    assert runs[0] == runs[1] and len(runs[0]) == len(set(runs[0]))
    assert runs[0] != [run.id for run in validate(kind, values, "the settings").run_set(Path("folder")).runs]


@pytest.mark.parametrize("name", ["table5", "table6", "figure4"])
def test_what_is_kept_of_a_gain_is_taken_against_the_same_decoder_without_contexts(name):
    """Of the gain of Table 3 a decoder without contexts has 0.072 of 0.104 nats."""
    item = find_item(f"cue/{name}", RECIPES)[1]
    for scale in item.scales:
        measure = measure_at(item, scale)
        assert measure.kept
        for claim in measure.kept:
            base, best = (_recipe_of(measure, row) for row in (claim.base, claim.best))
            assert base["data"].get("contexts") is None and best["data"]["contexts"]
            for of in (base, best):  # everything else is the same
                of["data"].pop("contexts", None)
                of["data"].pop("split", None)
                for encoder in ("text_encoder", "pooling"):
                    of["model"]["cue"].pop(encoder, None)
            assert base == best


def _recipe_of(measure, row):
    template, *settings = measure.runs[measure.rows[row].run]
    (encoder,) = settings
    return copy.deepcopy(measure.templates[template]) | {"encoder": encoder}
