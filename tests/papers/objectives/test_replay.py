"""Runs that go on with a new corpus and replay a share of an old one, or watch it."""

import json
import math
import shutil
from itertools import pairwise

import pytest
import torch
import yaml
from scipy.stats import binomtest
from torch.utils.data import default_collate

from contextwise.base.config import validate
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.runs import RunFolder
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.windows import Windows
from contextwise.models import load_model
from contextwise.models.spec import pretraining_losses
from contextwise.objectives import NO_LOSS
from contextwise.training import Recipe, train
from contextwise.training.inputs import TrainingInputs
from contextwise_papers.objectives.alpaca import CHAT_TEMPLATE
from small import EXACT, recipe_values, write_documents, write_rows
from trained import cut_back, farthest, trained_by_two

CHANCE = 1e-4  # a test of a share fails where what was seen is rarer than this


def write_code(path, count=90):
    """Documents that look nothing like those of :func:`write_documents`."""
    lines = [f"X{i % 7}_{i} = [{', '.join(str((i * k) % 97) for k in range(4 + i % 50))}];\n" for i in range(count)]
    write_rows(path, ({"text": line * 2} for line in lines))
    return path


def prepare_old(folder, seed=0, tokenizer="bytes"):
    return prepare_corpus(
        write_documents(folder / f"old-{seed}.jsonl", seed=seed), tokenizer, folder / "old", validation=0.1, overwrite=True
    ).path  # fmt: skip


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """(old, new): two kinds of text, in bytes."""
    folder = tmp_path_factory.mktemp("corpora")
    new = prepare_corpus(write_code(folder / "new.jsonl"), "bytes", folder / "new", validation=0.2)
    return prepare_old(folder), new.path


def values(corpora, output, share=0.25, **training):
    result = recipe_values(corpora[1], output, **training)
    result["model"].pop("context_predictor")
    if share is not None:
        result["data"]["replay"] = {"corpus": str(corpora[0]), "share": share}
    return result


def recipe(*arguments, **options):
    return validate(Recipe, values(*arguments, **options), "the recipe")


def changed(result, **sections):
    """Values with further settings in some sections, as a recipe."""
    for name, settings in sections.items():
        result[name] = result[name] | settings if isinstance(settings, dict) and name in result else settings
    return validate(Recipe, result, "the recipe")


def without_what_they_say(example):
    return {name: value.tolist() for name, value in example.items() if name not in ("window", "corpus")}


class TestStream:
    """Which examples of which corpus a run takes."""

    @pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
    def test_the_share_of_old_examples(self, share, corpora, tmp_path):
        stream = TrainingInputs.open(recipe(corpora, tmp_path, share=share, steps=5000)).stream
        assert len(stream) == 20_000
        replayed = [index for index in range(20_000) if stream.place(index)[0] == 1]
        assert binomtest(len(replayed), 20_000, share).pvalue > CHANCE
        # And in no rhythm: how often an old example follows an old one.
        pairs = len(set(replayed) & {index + 1 for index in replayed})
        assert binomtest(pairs, len(replayed), share).pvalue > CHANCE

    def test_an_old_corpus_has_an_objective_of_its_own(self, corpora, tmp_path):
        given = values(corpora, tmp_path, share=0.5)
        given["data"]["replay"]["objective"] = {"name": "infilling", "rate": 1.0}
        inputs = TrainingInputs.open(validate(Recipe, given, "the recipe"))
        middle = inputs.tokenizer.convert_tokens_to_ids("<|fim_middle|>")
        seen = {0: 0, 1: 0}
        for index in range(48):
            example = inputs.stream[index]
            seen[int(example["corpus"])] += int((example["input_ids"] == middle).sum())
        assert seen[0] == 0 and seen[1] > 0
        given["data"]["replay"]["objective"] = "masked"
        with pytest.raises(ConfigError, match="the objective 'masked' needs another kind of model"):
            validate(Recipe, given, "the recipe")

    def test_an_old_corpus_of_instructions_is_trained_on_their_responses(self, corpora, tmp_path):
        records = [{"instruction": f"Say {i}.", "input": "", "output": f"{i}!"} for i in range(20)]
        (tmp_path / "alpaca.json").write_text(json.dumps(records))
        old = prepare_corpus(f"alpaca:{tmp_path / 'alpaca.json'}", "bytes", tmp_path / "instructions", validation=0.0)
        given = values(corpora, tmp_path / "run", share=0.5, steps=4, tokens_per_step=1024)
        given["data"] |= {"context": 256}
        given["data"]["replay"] = {"corpus": str(old.path), "share": 0.5, "objective": "instruction"}
        given["model"] |= {"max_context": 256}
        inputs = TrainingInputs.open(validate(Recipe, given, "the recipe"))
        responses = {(*f"{i}!".encode(), inputs.corpus.end_of_text) for i in range(20)}
        seen = {0: 0, 1: 0}
        for example in (inputs.stream[index] for index in range(len(inputs.stream))):
            seen[int(example["corpus"])] += 1
            learned = example["labels"][example["labels"] != NO_LOSS].tolist()
            # Causal: each token of the window.
            assert tuple(learned) in responses if example["corpus"] == 1 else len(learned) == 256
        assert min(seen.values()) > 0 and inputs.tokenizer.chat_template == CHAT_TEMPLATE
        parts = [{"weight": 0.5, "objective": {"name": name}} for name in ("causal", "instruction")]
        given["data"]["replay"]["objective"] = {"name": "mixture", "parts": parts}
        mixed = TrainingInputs.open(validate(Recipe, given | {"output": str(tmp_path / "mixed")}, "the recipe"))
        assert mixed.tokenizer.chat_template == CHAT_TEMPLATE

    @pytest.mark.parametrize("old", [True, False])
    def test_one_of_the_corpora_may_have_a_mixture_of_objectives(self, old, corpora, tmp_path):
        parts = [{"weight": 0.5, "objective": name} for name in ("causal", "infilling")]
        mixture, given = {"name": "mixture", "parts": parts}, values(corpora, tmp_path, share=0.5)
        given["data"]["replay"]["objective"] = mixture if old else "causal"
        given["objective"] = "causal" if old else mixture
        stream = TrainingInputs.open(validate(Recipe, given, "the recipe")).stream
        drawn = {(int(each["corpus"]), int(each["objective"])) for each in (stream[index] for index in range(40))}
        assert drawn == {(int(old), 0), (int(old), 1), (int(not old), 0)}

    def test_each_corpus_is_gone_through_in_its_own_order(self, corpora, tmp_path):
        mixed = TrainingInputs.open(recipe(corpora, tmp_path)).stream
        alone = TrainingInputs.open(recipe(corpora, tmp_path, share=None)).stream
        old = Windows(Corpus.open(corpora[0]), 32)
        places = [mixed.place(index) for index in range(48)]
        other = TrainingInputs.open(changed(values(corpora, tmp_path), seed=1)).stream
        assert [other.place(index) for index in range(48)] != places
        for part in (0, 1):
            assert [item for which, item in places if which == part] == list(range([w for w, _ in places].count(part)))
        for index, (part, item) in enumerate(places):
            example = mixed[index]
            assert example["corpus"] == part
            if part == 0:  # the very examples of the run without replay, in their order
                assert without_what_they_say(example) == without_what_they_say(alone[item])
            else:
                assert without_what_they_say(example) == without_what_they_say(old[int(example["window"])])

    @pytest.mark.parametrize(
        ("family", "objective"),
        [
            ("gpt2", "causal"),
            ("llama", "prefix"),
            ("gpt2", "infilling"),
            ("gpt2", {"name": "mixture", "parts": [{"weight": 0.5, "objective": n} for n in ("causal", "prefix")]}),
            ("bert", "masked"),
            ("t5", {"name": "spans", "sentinels": 40}),
            ("t5", {"name": "ul2", "sentinels": 80}),
        ],
        ids=lambda value: value if isinstance(value, str) else value["name"],
    )
    def test_the_objective_makes_the_examples_of_both(self, family, objective, corpora, tmp_path):
        model = {"family": family, "layers": 2, "width": 32, "heads": 2}
        result = values(corpora, tmp_path, share=0.5, tokens_per_step=512)
        task = TrainingInputs.open(
            changed(result, objective=objective, model=model, data=result["data"] | {"context": 128})
        )
        examples = [task.stream[index] for index in range(16)]
        batch = default_collate(examples)  # of one shape
        assert 0 < batch["corpus"].sum() < 16
        assert (batch["labels"] != NO_LOSS).any(1).all()
        assert sorted(task.validation) == ["loss", "replay_loss"]

    def test_what_is_drawn_for_the_corpus_says_nothing_of_the_objective(self, corpora, tmp_path):
        parts = [{"weight": 0.5, "objective": name} for name in ("causal", "prefix")]
        result = values(corpora, tmp_path, share=0.5, steps=500)
        stream = TrainingInputs.open(changed(result, objective={"name": "mixture", "parts": parts})).stream
        for objectives in stream.streams:
            alike = sum(stream.place(k)[0] == objectives.place(k)[0] for k in range(2000))
            assert binomtest(alike, 2000, 0.5).pvalue > CHANCE

    def test_what_is_drawn_for_a_new_document_is_not_drawn_for_an_old_one(self, corpora, tmp_path):
        stream = TrainingInputs.open(changed(values(corpora, tmp_path), objective="prefix")).stream
        new, old = ([part.examples.example(0, i)["prefix"].sum() for i in range(30)] for part in stream.streams)
        assert sum(a == b for a, b in zip(new, old, strict=True)) < 10


class TestRuns:
    """Training with replay."""

    @pytest.fixture(scope="class")
    def whole(self, corpora, tmp_path_factory):
        return train(recipe(corpora, tmp_path_factory.mktemp("whole") / "run")).path

    def test_it_goes_on_where_it_stopped(self, whole, corpora, tmp_path):
        again = cut_back(whole, 12, tmp_path / "again")
        assert train(recipe(corpora, again)).finished
        assert farthest(whole, again) == 0
        losses = [[row["replay_loss"] for row in RunFolder(p).metrics("validation")] for p in (whole, again)]
        assert losses[0] == losses[1] and len(losses[0]) == 2

    def test_checkpoints_know_both_corpora(self, whole, corpora):
        state = json.loads((whole / "checkpoints" / "step-12" / "state.json").read_text())
        train, held_out = (
            [Corpus.open(path, split).fingerprint for path in corpora] for split in ("train", "validation")
        )
        expected = {"train": train[1], "replay": train[0], "loss": held_out[1], "replay_loss": held_out[0]}
        assert state["fingerprints"] == expected

    def test_the_replay_loss_is_what_the_exported_model_gives(self, whole, corpora):
        model, corpus = load_model(whole, device="cpu"), Corpus.open(corpora[0], "validation")
        result = changed(recipe_values(corpora[0], whole), model={"context_predictor": None})
        examples = TrainingInputs.open(result).validation["loss"]
        with torch.no_grad():
            losses = pretraining_losses(
                model, default_collate([examples[i] for i in range(len(examples))]) | {"window": None}
            )
        row = RunFolder(whole).metrics("validation")[-1]
        assert row["replay_loss"] == pytest.approx((losses.sums[0] / losses.counts[0]).item(), abs=1e-5)
        assert row["replay_loss"] != pytest.approx(row["loss"], abs=1e-3) and len(corpus) > 1

    @pytest.mark.slow
    def test_replay_keeps_what_going_on_without_it_forgets(self, corpora, tmp_path):
        options = {"steps": 60, "save_every": 60, "evaluate_every": 30, "log_every": 1, "learning_rate": 1e-2}
        base = recipe_values(corpora[0], tmp_path / "base", **options)
        first = train(changed(base, model={"context_predictor": None}))
        before = first.metrics("validation")[-1]["loss"]
        more = {"model": {"pretrained": str(first.path)}, "warmup_steps": 20}
        ends = {}
        for name, share in (("naive", None), ("replay", 0.25)):
            result = values(corpora, tmp_path / name, share=share, **options | {"warmup_steps": 20})
            result |= {"model": more["model"]}
            if share is None:
                result["data"]["replay"] = {"corpus": str(corpora[0]), "share": 0}
            run = train(validate(Recipe, result, "the recipe"))
            ends[name] = run.metrics("validation")[-1]
            # The learning rate begins low again, rises over the warm-up, and only then falls.
            rates = [row["learning_rate"] for row in run.metrics("train")]
            assert rates[0] <= 1e-2 / 20 and all(a < b for a, b in pairwise(rates[:20]))
            assert max(rates) == pytest.approx(1e-2) and rates[-1] < 0.2e-2
        assert ends["naive"]["replay_loss"] > before + 0.3
        assert ends["replay"]["replay_loss"] < ends["naive"]["replay_loss"] - 0.3
        # Both learned the new corpus; ln 256 is 5.5
        assert ends["replay"]["loss"] < 3 > ends["naive"]["loss"]

    @pytest.mark.long
    def test_a_share_of_0_changes_nothing_but_the_log(self, corpora, tmp_path):
        plain = train(recipe(corpora, tmp_path / "plain", share=None))
        result = values(corpora, tmp_path / "watched", share=None)
        watched = train(changed(result, data=result["data"] | {"replay": {"corpus": str(corpora[0]), "share": 0}}))
        assert farthest(plain.path, watched.path) == 0
        rows = [run.metrics("validation") for run in (plain, watched)]
        assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]
        assert all("replay_loss" not in row for row in rows[0])
        assert all(math.isfinite(row["replay_loss"]) for row in rows[1]) and len(rows[1]) == 2


class TestRefusals:
    """Each in one sentence, before any training."""

    @pytest.fixture
    def begun(self, corpora, tmp_path):
        """A run that stopped at its first checkpoint, with an old corpus of its own."""
        shutil.copytree(corpora[0], tmp_path / "old")
        mine = (tmp_path / "old", corpora[1])
        return mine, cut_back(train(recipe(mine, tmp_path / "run", steps=12)), 12)

    def test_an_old_corpus_that_changed(self, begun, tmp_path):
        mine, run = begun
        prepare_old(tmp_path, seed=1)
        with pytest.raises(CheckpointError, match=f"the corpus {mine[0]} is not what {run} was trained on"):
            train(recipe(mine, run))

    def test_an_old_corpus_that_is_damaged(self, begun):
        mine, run = begun
        (file,) = (mine[0] / "train").glob("*.arrow")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"the corpus {mine[0]} is damaged: train/"):
            train(recipe(mine, run))

    def test_another_share_is_another_run(self, begun):
        mine, run = begun
        with pytest.raises(ConfigError, match="contains another run .its recipe differs in data.replay.share"):
            train(recipe(mine, run, share=0.5))

    def test_a_run_begun_before_there_was_replay_goes_on(self, corpora, tmp_path):
        run = train(recipe(corpora, tmp_path / "run", share=None, steps=4))
        kept = yaml.safe_load(run.recipe_file.read_text())
        assert kept["data"].pop("replay") is None
        run.recipe_file.write_text(yaml.safe_dump(kept))
        train(recipe(corpora, tmp_path / "run", share=None, steps=4))

    @pytest.mark.parametrize("share", [0.1, 0])
    def test_corpora_that_do_not_go_together(self, share, corpora, tmp_path):
        def refused(path, words, kind=DataError, tokens=None):
            result = values(corpora, tmp_path / "run", share=None)
            result["data"]["tokens"] = tokens
            result["data"]["replay"] = {"corpus": str(path), "share": share}
            with pytest.raises(kind, match=words):
                train(validate(Recipe, result, "the recipe"))
            assert not (tmp_path / "run").exists()

        refused(tmp_path / "nowhere", f"there is no corpus at {tmp_path}/nowhere; make one with")
        learned = prepare_corpus(
            write_documents(tmp_path / "t.jsonl"), "train:300", tmp_path / "learned", validation=0.1
        )
        refused(learned.path, f"{corpora[1]} and {learned.path} have different tokenizers; prepare one of them again")
        other = Corpus.open(corpora[0]).tokenizer()
        other.eos_token = other.bos_token = None
        other.save_pretrained(tmp_path / "other")
        end = {"validation": 0.1, "end_of_text": "~"}
        other_end = prepare_corpus(tmp_path / "t.jsonl", str(tmp_path / "other"), tmp_path / "end", **end)
        refused(other_end.path, f"end their documents with different tokens, 256 and {other_end.end_of_text}; prepare")
        larger = Corpus.open(corpora[0]).tokenizer()
        larger.add_tokens(["<one more>"])
        larger.save_pretrained(tmp_path / "larger")
        more = prepare_corpus(tmp_path / "t.jsonl", str(tmp_path / "larger"), tmp_path / "more", validation=0.1)
        refused(more.path, "has a vocabulary of 258 tokens, but the model's has 257")
        refused(corpora[1], "the same documents as data.corpus", ConfigError)
        refused(corpora[1], "the same documents as data.corpus", ConfigError, tokens=500)  # the first ones of it
        if not share:
            bare = prepare_corpus(tmp_path / "t.jsonl", "bytes", tmp_path / "bare", validation=0.0)
            refused(bare.path, "no split 'validation'")

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            ({"replay": {"corpus": "old", "share": -1}}, "data.replay.share is -1, but must be at least 0"),
            ({"replay": {"corpus": "old", "share": 1}}, "data.replay.share is 1, but must be less than 1"),
            ({"replay": {"share": 0.1}}, "data.replay.corpus is missing"),
            ({"replay": {"corpus": "old", "shar": 0.1}}, "data.replay.shar is an unknown key; did you mean 'share'"),
        ],
    )
    def test_settings_that_make_no_sense(self, data, words, tmp_path):
        result = recipe_values("new", tmp_path / "run")
        result["data"] |= data
        with pytest.raises(ConfigError, match=words):
            validate(Recipe, result, "the recipe")


@pytest.mark.slow
def test_two_processes_replay_the_same_examples_as_one(corpora, tmp_path):
    one, _ = trained_by_two(tmp_path, values(corpora, tmp_path, **EXACT))
    assert "replay_loss" in one.metrics("validation")[-1]
