"""The folder of a sweep: whose it is, and what state its runs are in."""

import json

import pytest
import yaml

from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.data import prepare_corpus
from contextwise.models import load_model
from contextwise.training import load_recipe, train
from contextwise_plan.sweeps.sweep import Sweep
from small import write_documents, write_rows


def claim(wanted):
    sweep = Sweep.planned(wanted)
    sweep.write()
    return sweep


def test_every_run_has_a_state(claimed):
    grid = {"data.context": [16, 32], "training.steps": [12], "seed": [0, 1]}
    sweep = claimed(grid=grid)
    finished, unfinished, failed, _ = sweep.plan
    train(load_recipe(sweep.recipe_file(finished.id), output=sweep.run_folder(finished.id).path))
    for run in (unfinished, failed):
        sweep.run_folder(run.id).write_recipe(yaml.safe_load(sweep.recipe_file(run.id).read_text()))
    measured = sweep.run_folder(finished.id).metrics("curve")[-1]
    row = measured | {"step": 3, "best_context_loss": 5.5}
    sweep.run_folder(unfinished.id).append_metrics(row)
    sweep.note_failure(failed.id, "the loss is nan at step 2")

    states = Sweep.open(sweep.path).states()
    assert [state.state for state in states] == ["finished", "unfinished", "failed", "missing"]
    assert [state.step for state in states] == [12, 3, None, None]
    assert [state.share for state in states] == [1, 0.25, 0, 0]
    assert [state.loss for state in states] == [measured["best_context_loss"], 5.5, None, None]
    assert states[2].failure == "the loss is nan at step 2"
    assert sweep.count() == {"finished": 1, "unfinished": 1, "failed": 1, "missing": 1}


def test_a_run_spends_what_was_planned(claimed):
    sweep = claimed()
    run = sweep.plan[1]
    folder = sweep.run_folder(run.id)
    train(load_recipe(sweep.recipe_file(run.id), output=folder.path))
    summary = folder.summary()
    assert summary["flops"] == pytest.approx(run.flops, rel=1e-12)
    assert (summary["tokens"], summary["steps"]) == (run.tokens, run.steps) == (12 * 128, 12)
    assert run.parameters == sum(p.numel() for p in load_model(folder.path).parameters())
    assert [row["step"] for row in folder.metrics("curve")] == [3, 6, 9, 12]
    assert sweep.flops == sum(run.flops for run in sweep.plan)


def test_a_folder_belongs_to_one_sweep_which_may_grow(settings, tmp_path):
    sweep = claim(settings())
    assert [run.id for run in claim(settings()).plan] == [run.id for run in sweep.plan]
    wider = {"data.context": [8, 16, 32], "training.steps": [12]}
    grown = claim(settings(grid=wider))
    assert {run.id for run in sweep.plan} < {run.id for run in Sweep.open(sweep.path).plan}
    with pytest.raises(ConfigError, match="differs in grid.data.context; 1 of its runs are not in this one"):
        Sweep.planned(settings())
    base = settings().base
    base["training"]["weight_decay"] = 0.0
    with pytest.raises(ConfigError, match="it differs in base.training.weight_decay; 3 of its runs"):
        Sweep.planned(settings(grid=wider, base=base))
    assert [run.id for run in Sweep.open(sweep.path).plan] == [run.id for run in grown.plan]


def test_a_folder_belongs_to_one_corpus(settings, tmp_path):
    claim(settings())
    base = settings().base
    prepare_corpus(write_documents(tmp_path / "other.jsonl", seed=1), "bytes", tmp_path / "other", validation=0.1)
    base["data"]["corpus"] = str(tmp_path / "other")
    with pytest.raises(ConfigError, match="the corpus is not the one that the sweep .* was begun with"):
        Sweep.planned(settings(base=base))


CHANGES = {
    "the corpus": {"held_out": 4},
    "data.metadata and data.metadata of the validation split": {"title": "another"},
    "replay": {"old": 5},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_sweep_belongs_to_the_content_of_its_corpora(what, settings, tmp_path):
    def prepared(name, train, held_out, title="a"):
        files = []
        for split, seed in (("train", train), ("validation", held_out)):
            files.append(f"{split}={write_documents(tmp_path / f'{split}.jsonl', 40, seed)}")
            path = tmp_path / f"{split}.jsonl"
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            write_rows(path, [row | {"title": title, "text": f"{split} {row['text']}"} for row in rows])
        return str(prepare_corpus(files, "bytes", tmp_path / name, overwrite=True).path)

    def planned(title="a", held_out=1, old=2):
        base = settings().base
        base["data"] |= {
            "corpus": prepared("corpus", 0, held_out, title),
            "metadata": {"columns": ["title"], "share": 0.5},
        }
        base["data"] |= {"replay": {"corpus": prepared("old", old, 3), "share": 0.5}} if what == "replay" else {}
        return settings(base=base, grid={"data.context": [64], "training.steps": [4]})

    claim(planned())
    Sweep.planned(planned())
    with pytest.raises(ConfigError, match=f"{what} is not the one that the sweep .* was begun with"):
        Sweep.planned(planned(**CHANGES[what]))


def test_other_folders_are_refused(settings, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="mine is not empty and holds no sweep"):
        Sweep.planned(settings(tmp_path / "mine"))
    with pytest.raises(ConfigError, match="letter.txt is a file"):
        Sweep.planned(settings(tmp_path / "mine" / "letter.txt"))
    with pytest.raises(CheckpointError, match="mine is not a sweep: it has no plan.json"):
        Sweep.open(tmp_path / "mine")
    (tmp_path / "mine" / "plan.json").write_text(json.dumps({"runs": [{"id": "a"}], "corpus": ""}))
    with pytest.raises(DataError, match=r"plan.json is damaged: it has no hash; begin the sweep in another folder"):
        Sweep.open(tmp_path / "mine")


def test_every_run_is_checked_against_the_corpus_before_anything_is_written(settings, tmp_path):
    long = {"data.context": [512, 1024], "training.steps": [2]}
    base = settings().base
    base["training"]["tokens_per_step"] = 1024
    with pytest.raises(ConfigError, match="no document of the split 'validation' .* is longer than 1024 tokens"):
        Sweep.planned(settings(grid=long, base=base))
    base["data"]["corpus"] = str(tmp_path / "nowhere")
    with pytest.raises((ConfigError, DataError), match="there is no corpus at"):
        Sweep.planned(settings(base=base))
    assert not (tmp_path / "sweep").exists()


def test_several_problems_are_listed_once_each(settings):
    base = settings().base
    base["training"]["curve_longest"] = 16
    base["model"]["vocab_size"] = 10
    with pytest.raises(ConfigError) as error:
        Sweep.planned(settings(base=base, grid={"data.context": [16, 32], "training.steps": [12], "seed": [0, 1]}))
    assert str(error.value).count("model.vocab_size is 10") == 1


@pytest.mark.parametrize("contexts", [[8, 16, 32], [4, 8, 16, 32]])
def test_too_few_contexts_for_a_plan_have_a_note(settings, contexts):
    few = [
        note
        for note in Sweep.planned(settings(grid={"data.context": contexts, "training.steps": [12]})).notes
        if "plan budget needs 4 at least" in note
    ]
    assert len(few) == (len(contexts) == 3)
