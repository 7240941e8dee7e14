"""Metadata of documents: all text is a target once an epoch, conditions have no loss, appended metadata has."""

import shutil

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError
from contextwise.base.progress import say_once
from contextwise.base.runs import RunFolder
from contextwise.comparison.comparison import compare
from contextwise.data import Corpus, prepare_corpus
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.loss import Loss
from contextwise.experiments.cost import cost_of
from contextwise.experiments.run_set import RunSet
from contextwise.experiments.trial import Trial, TrialSettings
from contextwise.experiments.trial.arms import Arms
from contextwise.models import load_model, token_losses
from contextwise.objectives import NO_LOSS, Cut, ExampleStream, Vocabulary
from contextwise.objectives.objective import WindowExamples
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise_papers.cue.metadata import HeldOutWindows, MetadataExamples, MetadataStream
from contextwise_papers.cue.metadata_loss import MetadataLoss
from contextwise_papers.cue.metadata_texts import MetadataTexts
from objective_corpora import same
from small import recipe_values, write_rows

ROWS = [
    {"text": "abcdefghij" * 3, "who": "Ann", "day": "1985-05-29"},
    {"text": "klmno", "who": None, "day": None},
    {"text": "pqrstuvwxyz" * 2, "who": "Bob", "day": None},
]
BLOCKS = ["who: Ann\nday: Wednesday 29 May 1985\n\n", "", "who: Bob\n\n"]
PLAIN = "|" + "|".join(row["text"] for row in ROWS) + "|"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Three documents in bytes, for training and held out."""
    return prepared(tmp_path_factory.mktemp("metadata"), ROWS)


LAYOUT = {"separate_documents": True, "start_at_documents": True}
LETTERS = [("a", 9), ("b", 3), ("c", 40), ("d", 1), ("e", 17), ("f", 26), ("g", 11), ("h", 30), ("i", 2), ("j", 19)]
"""The text of a document: a letter, and how often; its metadata is that letter in upper case, of each third none."""
UPPER = [None if i % 3 == 2 else letter.upper() for i, (letter, _) in enumerate(LETTERS)]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    rows = [{"text": a * n, "who": upper} for (a, n), upper in zip(LETTERS, UPPER, strict=True)]
    folder = tmp_path_factory.mktemp("letters")
    write_rows(folder / "rows.jsonl", rows)
    return prepare_corpus([f"train={folder / 'rows.jsonl'}"], "bytes", folder / "corpus").path


def prepared(folder, rows, **options):
    sources = []
    for split, end in [("train", ""), ("validation", "!")]:  # no text is in two splits
        file = folder / f"{split}.jsonl"
        write_rows(file, (row | {"text": row["text"] + end} for row in rows))
        sources.append(f"{split}={file}")
    return prepare_corpus(sources, "bytes", folder / "corpus", **options).path


def recipe(path, output="unused", context=48, steps=12, **metadata):
    values = recipe_values(path, output, steps=steps, tokens_per_step=context * 2)
    values["data"] |= {"context": context, "metadata": {"columns": ["who", "day"]} | metadata}
    values["model"]["context_predictor"] = None
    return validate(Recipe, values, "the recipe")


def with_metadata(path, cut, share=1.0, form="prepend", split="train", most=99, columns=("who", "day")):
    """The examples of the corpus with metadata, and the stream of those without."""
    corpus = Corpus.open(path, split=split)
    words = Vocabulary(None, corpus.end_of_text, corpus.vocab_size)
    texts = MetadataTexts(corpus, list(columns), form, most)
    plain = ExampleStream(WindowExamples(cut.windows(corpus, cut.context, words)), 3, 24)
    return MetadataExamples(corpus, cut, words, texts, share, 3), plain


def shown(example):
    """The inputs and the targets as text; what has no loss is a dot, end-of-text a bar."""
    text = ["".join("." if i == NO_LOSS else "|" if i == 256 else chr(i) for i in example[key].tolist())
            for key in ("input_ids", "labels")]  # fmt: skip
    return text[0], text[1]


@pytest.mark.parametrize("context", [1, 7, 20])
def test_all_text_is_a_target_once_an_epoch_and_conditions_never(path, context):
    examples, _ = with_metadata(path, Cut(context))
    whole = "".join("|" + block + row["text"] for block, row in zip(BLOCKS, ROWS, strict=True)) + "|"
    for epoch in range(3):
        windows = [shown(examples.example(epoch, i)) for i in range(examples.count(epoch))]
        inputs, targets = ("".join(parts) for parts in zip(*windows, strict=True))
        assert whole.startswith(inputs) and len(whole) - 1 - len(inputs) < context
        if context == 1:  # no rest
            assert targets.replace(".", "") == PLAIN[1:]
        else:
            assert PLAIN[1:].startswith(targets.replace(".", ""))
        assert targets.count(".") == sum(map(len, BLOCKS))


@pytest.mark.parametrize("context", [1, 20])
def test_metadata_behind_a_document_is_predicted(path, context):
    examples, _ = with_metadata(path, Cut(context), form="append", columns=["who"])
    whole = "|" + ROWS[0]["text"] + "\n\nwho: Ann|" + ROWS[1]["text"] + "|" + ROWS[2]["text"] + "\n\nwho: Bob|"
    targets = "".join(shown(examples.example(0, i))[1] for i in range(examples.count(0)))
    assert targets == whole[1 : len(targets) + 1] and len(whole) - 1 - len(targets) < context


@pytest.mark.parametrize("form", ["prepend", "append"])
def test_long_metadata_loses_lines_and_no_empty_line(path, capsys, form):
    say_once.cache_clear()
    texts = with_metadata(path, Cut(20), form=form, most=16)[0].texts
    cut, whole = ("".join(map(chr, texts.of(document))) for document in (0, 2))
    both = (BLOCKS[0][:14] + "\n\n", BLOCKS[2])
    assert (cut, whole) == (both if form == "prepend" else tuple("\n\n" + block[:-2] for block in both))
    assert texts.cut == 1 and texts.lengths.tolist() == [16, 0, 10]
    note = f"note: the metadata of 1 of 3 documents of {path} (train) is cut to 16 tokens, a quarter of the context"
    assert note in capsys.readouterr().err
    with_metadata(path, Cut(20), form=form, most=16)  # another run of a trial
    assert note not in capsys.readouterr().err


@pytest.mark.parametrize("cut", [Cut(20), Cut(4, cross_documents=False), Cut(20, separate_documents=True)])
def test_without_metadata_the_batches_are_those_of_a_plain_run(path, cut):
    examples, plain = with_metadata(path, cut, share=0.0)
    stream = MetadataStream(plain, examples, 24)
    assert len(stream) == len(plain) and all(same(stream[i], plain[i]) for i in range(24))


def test_it_cools_down_and_a_resumed_run_reads_the_same(letters):
    given, none = (
        recipe(letters, context=24, columns=["who"], **own) for own in ({"cooldown": 0.25, "share": 0.5}, {})
    )
    none.data.metadata = None
    none.data.start_at_documents = none.data.separate_documents = True
    plain = TrainingInputs.open(none).stream
    streams = [TrainingInputs.open(given).stream for _ in range(2)]
    assert len(streams[0]) == len(plain) == 24 and len({streams[0].conditioned.examples.count(i) for i in range(9)}) > 1
    read = [streams[0][i] for i in range(24)]
    for i in range(24):
        assert same(read[-1 - i], streams[1][23 - i])  # from the end: nothing depends on what was read before
        assert i < 18 or same(read[i], plain[i])
    assert not all(same(read[i], plain[i]) for i in range(18))


@pytest.mark.parametrize("context", [9, 12, 18, 31, 40, 64, 150])
def test_windows_begin_with_documents_and_all_their_text_sees_its_metadata(letters, context):
    examples, _ = with_metadata(letters, Cut(context, **LAYOUT), columns=["who"])
    blocks = [f"who: {upper}\n\n" if upper else "" for upper in UPPER]
    whole, given, owner, starts = "", [], [], []
    for number, (block, (letter, count)) in enumerate(zip(blocks, LETTERS, strict=True)):
        starts.append(len(whole))
        whole += "|" + block + letter * count
        given += [False] + [True] * len(block) + [False] * count
        owner += [number] * (1 + len(block) + count)
    whole, given = whole + "|", [*given, False]
    begin, number, read = 0, 0, 0
    while begin + context < len(whole):  # by hand: documents fill a window, and the rest of its last one is dropped
        example = examples.example(0, number)
        inputs, targets = shown(example)
        own = range(begin + 1, begin + 1 + context)
        assert inputs == whole[begin : begin + context]
        assert targets == "".join("." if given[i] else whole[i] for i in own)
        before = [inputs[: i + 1].rpartition("|")[2] for i in range(context)]  # of its document, in the window
        assert example["position_ids"].tolist() == [len(text) for text in before]
        conditions = [blocks[owner[begin + i]] for i in range(context)]
        read += len(targets.replace(".", ""))
        assert all(
            text.startswith(block)
            for text, block, target in zip(before, conditions, targets, strict=True)
            if target != "."
        )
        begin = next((start for start in starts if start >= begin + context), len(whole))
        number += 1
    assert number == examples.count(0)
    texts = sum(count + 1 for _, count in LETTERS)
    assert examples.text_share() == pytest.approx(read / texts)


def predicted(item):
    """The text targets of a window: (the document's letter, the target), in order."""
    inputs, targets = shown(item)
    owners = [target if target != "|" else inputs[: i + 1][-1:] for i, target in enumerate(targets)]
    return [each for each in zip(owners, targets, strict=True) if each[1] != "."]


@pytest.mark.parametrize("windows", [1, 2, 99])
@pytest.mark.parametrize("cut", [Cut(31, **LAYOUT), Cut(31, False, **LAYOUT), Cut(70, **LAYOUT)])
def test_validation_has_the_same_text_with_metadata_and_without(letters, cut, windows):
    examples, _ = with_metadata(letters, cut, columns=["who"])
    stream = ExampleStream(examples, 0, min(windows, examples.count(0)))
    with_any = {letter for (letter, _), upper in zip(LETTERS, UPPER, strict=True) if upper}
    for number in range(len(stream)):
        without, given = (HeldOutWindows(stream, given)[number] for given in (False, True))
        assert predicted(without) == predicted(stream[number])  # the text of all documents
        assert predicted(given) == [each for each in predicted(stream[number]) if each[0] in with_any]
        text = shown(without)[0]
        assert "who" not in text and len(text) == cut.context
        assert cut.cross_documents or (without["position_ids"].diff() == 1).all()  # an LSTM reads one document a row
        assert without["position_ids"].tolist()[: len(text.rstrip("|"))] == [
            len(text[: i + 1].rpartition("|")[2]) for i in range(len(text.rstrip("|")))
        ]


def test_a_window_of_one_document_begins_with_its_metadata(letters):
    examples, _ = with_metadata(letters, Cut(20, False, **LAYOUT), columns=["who"])
    windows = [shown(examples.example(0, i))[0] for i in range(examples.count(0))]
    given = {letter: f"|who: {letter.upper()}\n\n{letter * 11}" for letter in "eghj"}
    assert windows == ["|" + "c" * 19, given["e"], "|" + "f" * 19, given["g"], given["h"], given["j"]]


def test_a_share_of_the_documents_in_each_epoch(path):
    examples, _ = with_metadata(path, Cut(20), share=0.3)
    drawn = [examples.documents(epoch).metadata[[0, 2]] > 0 for epoch in range(2000)]
    assert np.abs(np.mean(drawn, 0) - 0.3).max() < 0.05  # five standard errors
    assert abs(np.corrcoef(np.array(drawn).T)[0, 1]) < 0.12


def test_a_run_is_scored_with_and_without(path, tmp_path, capsys):
    values = recipe(path, tmp_path / "run", steps=2, cooldown=0.5)
    planned, appended = (cost_of(each).flops for each in (values, recipe(path, steps=2, form="append")))
    say_once.cache_clear()
    run = train(values)
    assert "so 60% of the text is read; a larger data.context reads more" in " ".join(capsys.readouterr().err.split())
    assert run.summary()["flops"] == pytest.approx(planned, rel=1e-12) and planned < appended  # which has a loss
    # One window: 30 tokens and the end of document 0, the 5 tokens of document 1, which has no metadata; 60 in all.
    summary = run.summary()
    assert summary["text_share"] == pytest.approx(36 / 60)
    losses = run.metrics("validation")[-1]
    assert losses["loss"] != losses["metadata_loss"] and run.summary()["metadata_cut"] == 1
    corpus = Corpus.open(path, split="validation")
    without, given = (measure(run.path, settings, corpus) for settings in (Loss(), MetadataLoss(metadata=["who"])))
    both = measure(run.path, MetadataLoss(metadata=["who", "day"]), corpus).summary  # 12 tokens: who: Ann\nda
    assert (given.summary["metadata_cut"], both["metadata_cut"]) == (0, 1) and both["loss"] != given.summary["loss"]
    assert (
        "metadata (who, day), which are not scored, cut in 1 of them." in MetadataLoss.table(both).renderables[0].plain
    )
    model = load_model(run.path, device="cpu")
    # Document 2 with its metadata, written out: one window.
    block, text = list(b"who: Bob\n\n"), list((ROWS[2]["text"] + "!").encode())
    ids = torch.tensor([[256, *block, *text]])
    own = token_losses(model, ids[:, :-1], ids[:, 1:])[0, len(block) :]
    rows = [result.tokens().to_pandas().query("document == 2")["nats"].to_numpy() for result in (without, given)]
    np.testing.assert_allclose(rows[1], own.numpy(), atol=1e-5)
    assert not np.allclose(rows[0], rows[1], atol=1e-5) and len(rows[0]) == len(rows[1])
    # A document without metadata has the loss that it has without.
    one, other = (result.documents["nats"].to_numpy()[1] for result in (without, given))
    assert one == pytest.approx(other, abs=1e-5)


def test_given_metadata_is_scored_as_a_part_of_its_document(path, tmp_path):
    run = train(recipe(path, tmp_path / "run", steps=2))
    blocks = ["who: Ann\n\n", "", "who: Bob\n\n"]
    whole = prepared(tmp_path, [row | {"text": block + row["text"]} for block, row in zip(blocks, ROWS, strict=True)])
    settings = {"context": 40, "stride": 5}  # a window more for document 0, which has 41 tokens with its metadata
    given = measure(run.path, MetadataLoss(metadata=["who"], **settings), Corpus.open(path, split="validation"))
    written = measure(run.path, Loss(**settings), Corpus.open(whole, split="validation"))
    text = written.tokens().to_pandas().query("document == 1 or position >= 10")
    np.testing.assert_array_equal(given.tokens()["nats"], text["nats"])
    np.testing.assert_array_equal(given.tokens()["visible"], text["visible"])
    assert given.documents["tokens"].to_pylist() == [31, 6, 23] and max(text["visible"]) == 39


@pytest.mark.long
def test_a_trial_scores_all_arms_with_metadata(tmp_path, monkeypatch):
    rows = [{"text": f"{i} {'ab' * 12}", "who": f"N{i}"} for i in range(80)]
    write_rows(tmp_path / "rows.jsonl", rows)
    corpus = prepare_corpus([f"{tmp_path / 'rows.jsonl'}"], "bytes", tmp_path / "rows", validation=0.5).path
    shared = {"data": {"context": 40}, "model": {"layers": 1, "width": 16, "heads": 2}}
    shared["training"] = {"tokens_per_step": 80, "learning_rate": 1e-3}
    trial = {
        "name": "t",
        "arms": {"none": ["data.metadata=null"], "given": ["data.metadata={columns: [who]}"]},
        "corpus": str(corpus),
        "recipe": shared,
        "tokens": 160,
        "rates": "fixed",
        "seeds": 2,
        "equal": "tokens",
        "score": {"measure": "evaluate-metadata", "metadata": ["who"]},
        "output": str(tmp_path / "trial"),
    }

    def trained_here(runs, *_, **__):
        for run in runs.runs:
            if not RunFolder(run.folder).finished:
                train(run.recipe())

    monkeypatch.setattr(RunSet, "train_missing", trained_here)
    monkeypatch.setattr(
        "contextwise.experiments.cost.seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0)
    )
    monkeypatch.setattr(Arms, "check_causality", lambda self: None)
    notes = Trial(TrialSettings.model_validate(trial)).run().notes
    assert "All arms are scored with metadata before each document." in notes


def test_documents_without_any_metadata_are_not_scored_with_it(path, tmp_path):
    run = train(recipe(path, tmp_path / "run", steps=2))
    nobody = prepared(tmp_path, [row | {"who": None} for row in ROWS])
    with pytest.raises(DataError, match=r"no document of .* \(validation\) that is read has metadata in the columns"):
        measure(run.path, MetadataLoss(metadata=["who"]), Corpus.open(nobody, split="validation"))


def test_other_metadata_of_the_same_text_is_another_question(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # results of a model that is no run are written into the current folder
    mine = shutil.copytree(path, tmp_path / "corpus")
    run = train(recipe(mine, tmp_path / "run", steps=2))
    before = Corpus.open(mine, split="validation")
    old, plain = measure(run.path, MetadataLoss(metadata=["who"]), before), measure(run.path, Loss(), before)
    prepared(tmp_path, [row | {"who": "Eve"} for row in ROWS], overwrite=True)
    after = Corpus.open(mine, split="validation")
    assert after.fingerprint == before.fingerprint
    copied = shutil.copytree(run.path / "model", tmp_path / "copied")
    new, other = (measure(path, MetadataLoss(metadata=["who"]), after) for path in (run.path, copied))
    shown = " ".join(MetadataLoss.table(new.summary).renderables[0].plain.split())
    assert "document begins with its metadata (who)," in shown
    assert new.path != old.path and new.summary["loss"] != old.summary["loss"]
    assert measure(run.path, Loss(), after).path == plain.path
    assert new.summary["question"] != old.summary["question"]  # so that compare does not pair them by itself
    notes = compare([str(old.path), str(other.path)]).notes
    assert any("different settings (the metadata have changed in between)" in note for note in notes)
    with pytest.raises(DataError, match=r"is finished, but data.metadata is not what it was trained on"):
        train(recipe(mine, run.path, steps=2))
    names = [f"data.metadata{end}" for end in ("", " of the validation split")]
    changed = TrainingInputs.open(recipe(mine, run.path, steps=2)).fingerprints
    assert all(changed[name] != TrainingInputs.open(recipe(path)).fingerprints[name] for name in names)


def test_what_cannot_be_is_refused(path):
    for columns, why in ((["who", "who"], "named twice"), (["document_hash"], "the document's own text")):
        with pytest.raises(ConfigError, match=why):
            validate(MetadataLoss, {"metadata": columns}, "contextwise measure evaluate-metadata")
    with pytest.raises(ConfigError, match="is 1 tokens and no room for metadata and an empty line; .* at least 12"):
        TrainingInputs.open(recipe(path, context=4))
    with pytest.raises(DataError, match="no metadata column 'whom'; did you mean 'who'"):
        TrainingInputs.open(recipe(path, columns=["whom"]))
    with pytest.raises(ConfigError, match="'document_hash' is computed from the document's own text"):
        recipe(path, columns=["document_hash"])
    values = recipe(path).model_dump() | {"objective": "prefix"}
    with pytest.raises(ConfigError, match=r"data\.metadata .*does not apply to the objective 'prefix'"):
        validate(Recipe, values, "the recipe")
    values = recipe(path, form="append").model_dump()
    values["data"]["cross_documents"] = False
    with pytest.raises(ConfigError, match="set data.cross_documents=true"):
        validate(Recipe, values, "the recipe")


def test_windows_of_one_document_and_separate_ones(path):
    single, _ = with_metadata(path, Cut(20, cross_documents=False))
    assert all("|" not in shown(single.example(0, i))[0][1:] for i in range(single.count(0)))
    separate, _ = with_metadata(path, Cut(60, separate_documents=True))
    item = separate.example(0, 0)
    text, positions = shown(item)[0], item["position_ids"].tolist()
    starts = [i for i, position in enumerate(positions) if position == 0]
    assert starts == [i for i, sign in enumerate(text) if sign == "|"]


def test_a_cooldown_is_the_default_of_prepended_metadata_only(path):
    forms = ({}, {"form": "prepend"}, {"form": "append"}, {"form": "append", "cooldown": 0.2})
    assert [recipe(path, **own).data.metadata.cooldown for own in forms] == [0.1, 0.1, 0, 0.2]


def test_a_cooldown_is_no_part_of_runs_that_share_a_trunk(path):
    values = recipe(path, cooldown=0.5, steps=20).model_dump()
    values["training"] |= {"schedule": "wsd", "branches": [10]}
    with pytest.raises(
        ValidationError, match="data.metadata.cooldown is 0.5, a share of a run, which runs that share a trunk"
    ):
        Recipe.model_validate(values)
