"""Names that differ in what not every file system, and no reader, tells apart: case, forms of Unicode, signs."""

import itertools
import json
from pathlib import Path

import pytest
import yaml

from contextwise.data import Corpus
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise_papers.cue.english import column_texts
from small import write_rows

ALIKE = {
    "case": ("GPT2", "gpt2"),
    "forms of é": ("caf\u00e9", "cafe\u0301"),
    "ß and ss": ("straße", "strasse"),
    "full width": ("\uff27PT", "gpt"),
    "spaces": ("a b", "a-b"),
    "signs": ("🙂", "🙃"),
    "ligature": ("\ufb01ne", "fine"),
}
"""Pairs of names for which some file system has one folder, or that have one in ours."""
RECIPE = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
RECIPE["training"] = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16}
TRAINED = RECIPE | {"training": RECIPE["training"] | {"steps": 2}}


@pytest.mark.parametrize("names", ALIKE.values(), ids=ALIKE)
def test_arms_never_share_a_folder(contextwise, corpus_folder: Path, workplace: Path, names: tuple[str, str]) -> None:
    """Alike in recipe too, they are refused before anything is trained; else their folders differ on every file system."""
    settings = {"corpus": str(corpus_folder), "recipe": RECIPE, "tokens": 128, "seeds": 2, "equal": "tokens"}
    arms: dict[str, list[str]] = {name: [] for name in names}
    text = yaml.safe_dump(settings | {"arms": arms, "rates": "fixed"}, allow_unicode=True)
    (workplace / "trial.yaml").write_text(text, encoding="utf-8")
    contextwise.refused("trial trial.yaml --out out", "have the same folder")
    differ = RunSetSettings(recipe=TRAINED, arms={names[0]: [], names[1]: ["model.width=32"]}, seeds=[0, 1])
    ids = [run.id for run in RunSet.of(differ, workplace / "set", corpus=corpus_folder).runs]
    assert len({name.lower() for name in ids}) == 4 and not any(name.startswith(("-", ".")) for name in ids)


def test_other_arms_that_are_trained_alike_have_their_own(corpus_folder: Path, tmp_path: Path) -> None:
    arms = RunSetSettings(recipe=TRAINED, arms={"gpt2": [], "control": []})
    first, second = RunSet.of(arms, tmp_path, corpus=corpus_folder).runs
    assert first.folder != second.folder


def test_a_decision_reads_names_in_any_form_of_unicode(contextwise, workplace: Path) -> None:
    """Arms and documents of files from different systems are matched; two runs are not taken for one."""
    composed, decomposed = ALIKE["forms of é"]
    runs = [
        {"seed": seed, "tokens": 9, "nats": 20.0 + number + seed / 9} | {"arm": arm, "document": f"{name} {number}"}
        for (arm, name), seed, number in itertools.product((("a", composed), ("b", decomposed)), range(3), range(6))
    ]
    write_rows(workplace / "documents.jsonl", runs)
    status, output, _ = contextwise("decide documents.jsonl --json")
    assert status == 0 and json.loads(output)["held_out"]["documents"] == 6
    rows = [row | {"document": row["document"][-1], "arm": row["document"][:-2]} for row in runs]
    write_rows(workplace / "arms.jsonl", rows)
    contextwise.refused("decide arms.jsonl", f"seed 0 of {composed} occurs twice")


@pytest.mark.parametrize("names", ALIKE.values(), ids=ALIKE)
def test_metadata_columns_that_look_alike_stay_apart(contextwise, workplace: Path, names: tuple[str, str]) -> None:
    first, second = names
    rows = ({"text": f"text {i} of a corpus", first: f"one {i}", second: f"two {i}"} for i in range(40))
    write_rows(workplace / "texts.jsonl", rows)
    assert contextwise("prepare texts.jsonl --tokenizer bytes --out corpus --validation 0.2")[0] == 0
    corpus = Corpus.open(workplace / "corpus")
    for name, word in ((first, "one"), (second, "two")):
        numbers = [bytes(corpus.document(i).tolist()).split()[1].decode() for i in range(len(corpus))]
        assert column_texts(corpus, name) == [f"{word} {number}" for number in numbers]
