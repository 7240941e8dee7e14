"""Choice of the evaluation that takes part in a comparison: that of these weights, these data and these settings."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import contextwise
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise.comparison.compared_runs import evaluate_all, open_compared
from contextwise.comparison.comparison import compare
from contextwise.comparison.tables import model_table
from contextwise.data import Corpus
from contextwise.data.tokenizers import learn_bpe
from contextwise.evaluation.kernel import Subject, results_of
from contextwise.evaluation.measures.loss import Evaluation
from measured import evaluate_model
from small import run_summary, write_rows


@pytest.fixture
def corpus(corpus_folder):
    return Corpus.open(corpus_folder, split="validation")


@pytest.fixture
def make_run(tmp_path, corpus, model_of):
    """Writes a finished run with a model of random weights."""

    def make(name, seed=0):
        run = tmp_path / name
        run.mkdir(parents=True)
        recipe = {"name": name.replace("/", "-"), "seed": seed, "data": {"context": 12}}
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        model_of("gpt2", seed=seed, vocab_size=corpus.vocab_size).save_pretrained(run / "model")
        for file in (corpus.path / "tokenizer").iterdir():
            shutil.copy(file, run / "model")
        return str(run)

    return make


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"limit": 5}, {"context": 6}, {"stride": 3}])
def test_an_evaluation_with_other_settings_takes_no_part(make_run, corpus, settings):
    runs = [make_run("a"), make_run("b", seed=1)]
    evaluate_model(runs[0], corpus, **settings)
    results = evaluate_all(runs, corpus)
    assert [result.summary["documents"] for result in results] == [len(corpus)] * 2
    assert [result.summary["settings"]["stride"] for result in results] == [6, 6]
    assert compare(runs, results=results).documents == len(corpus)
    assert compare(runs).documents == len(corpus)  # the one question that both have answered


def test_a_setting_given_and_left_to_its_default_compare_where_they_resolve_to_the_same(make_run, corpus):
    runs = [make_run("a"), make_run("b", seed=1)]
    evaluate_model(runs[0], corpus)
    evaluate_model(runs[1], corpus, context=12)
    assert compare(runs).documents == len(corpus)


def test_replaced_weights_do_not_keep_the_loss_of_the_old_ones(make_run, corpus, model_of):
    runs = [make_run("a"), make_run("b", seed=1)]
    before = evaluate_all(runs, corpus)
    model_of("gpt2", seed=2, vocab_size=corpus.vocab_size).save_pretrained(f"{runs[0]}/model")
    after = evaluate_all(runs, corpus)
    assert after[1].path == before[1].path
    assert after[0].summary["loss"] != before[0].summary["loss"]
    assert compare(runs).groups[0].loss.value == after[0].summary["loss"]["value"]


def test_models_in_folders_of_the_same_name_keep_their_own_numbers(tmp_path, corpus, model_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = ["x/m", "y/m"]
    for seed, source in enumerate(sources):
        model_of("gpt2", seed=seed, vocab_size=corpus.vocab_size).save_pretrained(source)
        for file in (corpus.path / "tokenizer").iterdir():
            shutil.copy(file, source)
    results = evaluate_all(sources, corpus)
    losses = [result.summary["loss"]["value"] for result in results]
    assert len(set(losses)) == 2 and results[0].path.parent == results[1].path.parent
    with pytest.raises(ConfigError, match="the same name; rename one folder"):
        compare(sources)


def test_models_of_two_tokenizers_are_refused_a_prepared_corpus_before_they_are_measured(make_run, corpus):
    runs = [make_run("a"), make_run("b", seed=1)]
    learn_bpe(["Text of a few words. " * 9], 270).tokenizer.save_pretrained(f"{runs[1]}/model")
    with pytest.raises(DataError, match="have different tokenizers.* give the texts themselves as the corpus"):
        evaluate_all(runs, corpus)
    assert not list(Path(runs[0]).glob("evaluation/*"))


def test_a_model_of_another_tokenizer_reads_the_texts_of_a_corpus(
    make_run, model_of, corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    runs = [make_run("a"), make_run("b", seed=1)]
    learn_bpe(["Text of a few words. " * 9], 270).tokenizer.save_pretrained(f"{runs[1]}/model")
    model_of("gpt2", seed=1, vocab_size=270).save_pretrained(f"{runs[1]}/model")
    compared = contextwise.compare(runs, corpus.path, unit="byte", limit=4, verbose=True)
    assert f"note: {corpus.path} has another tokenizer than b" in capsys.readouterr().err
    sizes = [len(corpus.tokenizer().decode(corpus.document(i)).encode()) for i in range(4)]
    for run in runs:
        (result,) = results_of(RunFolder(run).evaluation, "evaluate")
        assert pq.read_table(result.path / "documents.parquet")["bytes"].to_pylist() == sizes
    assert compared.unit == "bits per byte" and compared.documents == 4
    with pytest.raises(DataError, match="different tokenizers, so their losses per token are not comparable"):
        contextwise.compare(runs, corpus.path, limit=4)


def test_documents_of_the_training_are_named_beside_the_comparison(make_run, corpus, monkeypatch):
    runs = [make_run("a"), make_run("b", seed=1)]
    monkeypatch.setattr(Subject, "seen", lambda self, _: "5 of 9 documents were seen" * (self.source == str(runs[0])))
    evaluate_all(runs, corpus)
    monkeypatch.undo()
    assert [each for each in contextwise.compare(runs).notes if "seen" in each] == ["a: 5 of 9 documents were seen."]


def test_seeds_of_one_recipe_with_names_of_their_own_are_different_groups(make_run, corpus):
    runs = [make_run("a-s0"), make_run("a-s1", seed=1)]
    assert [(group.name, group.seeds) for group in contextwise.compare(runs, corpus).groups] == [("a", [0, 1])]
    named = contextwise.compare(dict(zip(("first", "second"), runs, strict=True)), corpus, reference="second")
    assert [(group.name, group.seeds) for group in named.groups] == [("first", [0]), ("second", [1])]
    assert [(each.group, each.reference) for each in named.differences] == [("first", "second")]
    assert [group.seeds for group in compare(runs, names=["same", "same"]).groups] == [[0, 1]]


def test_several_settings_in_common_are_not_chosen_from(make_run, corpus):
    runs = [make_run("a"), make_run("b", seed=1)]
    for settings in ({}, {"limit": 5}):
        evaluate_all(runs, corpus, **settings)
    with pytest.raises(
        ConfigError, match="several evaluations in common .*limit 5.*; choose one with `label`, or give their"
    ):
        compare(runs)
    assert contextwise.compare(runs, corpus, limit=5).documents == 5
    few = [str(evaluate_model(run, corpus, limit=5).path) for run in runs]
    assert compare(few).documents == 5
    assert compare([few[0], runs[1]]).documents == compare([runs[0], few[1]]).documents == 5  # that of the folder
    assert np.isfinite(Evaluation.open(few[0]).summary["loss"]["value"])


def seeded(folder, **recipe):
    """What a run folder with this recipe, and an evaluation, is a seed of."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    evaluation = SimpleNamespace(path=folder / "evaluation" / "e", summary={"model": str(folder)})
    return open_compared([str(folder)], results=[evaluation])[0]


@pytest.mark.parametrize("name", ["gpt2-s1", "gpt2-seed1", "gpt2 s 1", "gpt2_seed-1", "gpt2.s1"])
def test_a_seed_at_the_end_of_a_name_is_none_of_it(tmp_path, name):
    assert seeded(tmp_path, name=name).name == "gpt2"


@pytest.mark.parametrize("name", ["gpt2-layers6", "gpt2-steps500", "tokens500", "seed0", "s1"])
def test_other_ends_of_a_name_are_part_of_it(tmp_path, name):
    assert seeded(tmp_path, name=name).name == name


@pytest.mark.parametrize("cue", [False, True])
def test_runs_that_continue_seeds_of_one_model_are_seeds_of_one_recipe(cue, tmp_path):
    def key(start):
        model = {"cue": {"stage": "joint", "sentence_encoder": start}} if cue else {"pretrained": start}
        return seeded(tmp_path, name="on", model=model).key

    assert key("runs/base-seed0") == key("runs/base-seed1") and key("runs/seed0") == key("runs/seed1")
    assert key("runs/base-steps100") != key("runs/base-steps500")


def test_runs_that_replay_other_texts_are_no_seeds_of_one_recipe(tmp_path):
    def key(name, **hashes):
        hashes = {"train": "c0ffee", "loss": "1", "model.pretrained": name, **hashes}
        (tmp_path / name).mkdir()
        RunFolder(tmp_path / name).write_summary(run_summary(fingerprints=hashes))
        return seeded(tmp_path / name, name="on", data={"replay": {"corpus": name, "share": 0.5}}).key

    first = key("a-seed0", replay="1", replay_loss="1")
    assert first == key("a-seed1", replay="1", replay_loss="2", loss="2")
    assert first != key("b", replay="2", replay_loss="1") and first != key("c", replay="1", train="2")


def test_texts_are_read_by_each_model_with_its_own_tokenizer(make_run, model_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = write_rows(tmp_path / "texts.jsonl", [{"text": f"Text {i} of a few words. " * 8} for i in range(8)])
    runs = [make_run("one"), make_run("two", seed=1)]
    few = contextwise.compare(runs, texts, limit=5)
    with pytest.raises(ConfigError, match="limit says how much of the corpus is read; give that too"):
        contextwise.compare(runs, limit=5)
    with pytest.raises(ConfigError, match="unit is 'bite', but must be one of token, byte"):
        contextwise.compare(runs, texts, unit="bite")
    compared = contextwise.compare(runs, texts)
    assert few.documents == 5 and compared.documents == 8 and [each.name for each in compared.groups] == ["one", "two"]
    assert compared.differences[0].difference.has_interval and len(list((tmp_path / "corpora").iterdir())) == 1
    learned = learn_bpe(["Text of a few words. " * 9], 270).tokenizer
    for part in (learned, model_of("gpt2", seed=1, vocab_size=len(learned))):
        part.save_pretrained(f"{runs[1]}/model")
    with monkeypatch.context() as patch:
        patch.setattr("contextwise.comparison.compared_runs.measure", None)  # refused before anything is measured
        with pytest.raises(DataError, match="have different tokenizers"):
            contextwise.compare(runs, texts)
    by_byte = contextwise.compare(runs, texts, unit="byte")
    columns = [column.title for column in model_table(by_byte).heads]  # losses per token of two tokenizers say nothing
    assert "bits/\nbyte" in columns and "loss\n(nats/token)" not in columns
    read = [contextwise.evaluate(run, texts).documents for run in runs]
    assert len(list((tmp_path / "corpora").iterdir())) == 2 and read[0]["tokens"] != read[1]["tokens"]
    one, two = (each["nats"].to_numpy().sum() / each["bytes"].to_numpy().sum() for each in read)
    assert by_byte.differences[0].difference.value == pytest.approx((two - one) / np.log(2))
