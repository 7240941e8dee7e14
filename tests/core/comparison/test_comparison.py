"""Comparisons of evaluations that are written by hand: known differences, and mismatches that are refused."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from command_line import in_terminal
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.base.estimates import as_json
from contextwise.base.files import write_sealed_json
from contextwise.base.runs import RunFolder
from contextwise.comparison.comparison import compare
from contextwise.comparison.tables import comparison_tables, difference_table, verdict
from measured import write_evaluation
from small import run_summary, write_rows

DOCUMENTS = 60
LENGTHS = np.random.default_rng(0).integers(20, 400, DOCUMENTS)
HARDNESS = np.random.default_rng(1).normal(4, 0.5, DOCUMENTS)


def write_result(path: Path, model: str, nats: np.ndarray, lengths=LENGTHS, **changes) -> None:
    """An evaluation whose document sums are ``nats``; ``changes`` go into the summary."""
    corpus = {"path": "data/books", "fingerprint": "aa", "split": "validation", "tokenizer_hash": "t1"}
    corpus |= changes.pop("corpus", {})
    order = changes.pop("order", np.arange(len(nats)))
    documents = pa.table(
        {
            "document": pa.array(range(len(nats)), pa.int32()),
            "document_hash": pa.array([f"h{row:03d}" for row in order], pa.string()),
            "tokens": pa.array(lengths),
            "bytes": pa.array(changes.pop("bytes", 4 * lengths), pa.int64()),
            "words": pa.array(lengths),
            "nats": pa.array(nats),
        }
    )
    summary = {
        "label": path.name if path.parent.name == "evaluation" else "books-validation",
        "model": model,
        "parameters": 1000,
        "corpus": corpus,
        "documents": len(nats),
        "tokens": int(lengths.sum()),
        "context": 64,
        "stride": 32,
        "dtype": "float32",
        **changes,
    }
    write_evaluation(path, summary, documents)


def write_run(
    folder: Path,
    name: str,
    seed: int,
    loss: float,
    *,
    speed: float = 1000.0,
    steps: int = 100,
    label="books-validation",
    **changes,
) -> str:
    """A finished run, an evaluation of about ``loss`` nats a token, and a validation loss falling to it."""
    folder.mkdir(parents=True)
    recipe = {
        "name": name,
        "seed": seed,
        "data": {"corpus": changes.pop("corpus_path", "data/books"), "validation_split": "validation", "context": 64},
        "model": {"family": "gpt2", "width": 64},
        "training": {"steps": steps, "evaluation_tokens": 512, "save_every": changes.pop("save_every", 50)},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    tokens = steps * 100
    summary = {
        "name": name,
        "seed": seed,
        "tokens": tokens,
        "tokens_per_second": speed,
        "seconds": tokens / speed,
        "corpus": {"path": "data/books", "fingerprint": "train"},
    }
    RunFolder(folder).write_summary(run_summary(**summary))
    rows = [
        {
            "kind": "validation",
            "examples": 8,
            "step": step,
            "tokens": step * 100,
            "seconds": step * 100 / speed,
            "flops": step * 1e6,
            "loss": loss + (steps - step) / steps,
        }
        for step in range(10, steps + 1, 10)
    ]
    write_rows(folder / "metrics.jsonl", rows)
    noise = np.random.default_rng([seed, *name.encode()]).normal(0, 0.02, DOCUMENTS)
    nats = LENGTHS * (HARDNESS - 4 + loss + noise)
    write_result(folder / "evaluation" / label, name, nats, **changes)
    return str(folder)


@pytest.fixture
def runs(tmp_path):
    """Three seeds each of a plain model, a better one and one that is as good as the plain one."""
    losses = {"gpt2": 4.0, "contextlm": 3.95, "twin": 4.0}
    return [
        write_run(
            tmp_path / f"{name}-{seed}", name, seed, loss + 0.001 * seed, speed=1000 if name != "contextlm" else 1250
        )
        for name, loss in losses.items()
        for seed in (1, 2, 3)
    ]


def test_a_known_difference_is_significant_and_none_is_not(runs):
    comparison = compare(runs)
    assert [(group.name, group.seeds) for group in comparison.groups] == [
        ("gpt2", [1, 2, 3]),
        ("contextlm", [1, 2, 3]),
        ("twin", [1, 2, 3]),
    ]
    better, same = comparison.differences
    assert better.difference.value == pytest.approx(-0.05, abs=0.005)
    assert better.difference.low < better.difference.value < better.difference.high < 0
    assert better.paired_by_seed and list(better.seed_differences) == ["1", "2", "3"]
    assert np.mean(list(better.seed_differences.values())) == pytest.approx(better.difference.value)
    assert better.documents_lower > 0.9
    assert (
        better.verdict.startswith("The loss of contextlm is lower than that of gpt2 by 0.0")
        and "nats per token [0.0" in better.verdict
    )
    assert "contains zero" in same.verdict and same.difference.low < 0 < same.difference.high


def test_groups_pool_their_seeds_by_hand(runs):
    group = compare(runs).groups[1]
    assert group.loss.value == pytest.approx(np.mean(group.losses))
    assert group.perplexity.value == pytest.approx(math.exp(group.loss.value))
    assert group.bits_per_byte.value == pytest.approx(group.loss.value / 4 / math.log(2))
    assert (group.training_tokens, group.training_seconds) == (10_000, 8)


def test_reference_and_all_pairs(runs):
    names = [(d.group, d.reference) for d in compare(runs, reference="twin").differences]
    assert names == [("gpt2", "twin"), ("contextlm", "twin")]
    every = [(d.group, d.reference) for d in compare(runs, all_pairs=True).differences]
    assert every == [("contextlm", "gpt2"), ("twin", "gpt2"), ("twin", "contextlm")]


def test_the_dictionary_is_json_and_holds_the_verdicts(runs):
    comparison = compare(runs)
    content = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert content == as_json(comparison)
    assert content["differences"][0]["verdict"] == comparison.differences[0].verdict
    assert content["groups"][0]["loss"]["value"] == comparison.groups[0].loss.value


def test_tables_fit_80_columns_and_hold_the_figures(runs):
    text = in_terminal(comparison_tables(compare(runs)))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for wanted in ("contextlm", "3 seeds", f"{compare(runs).groups[0].loss.value:.4f}"):
        assert wanted in text


def test_several_differences_are_said_to_have_no_correction_for_their_number(runs):
    (three,) = [note for note in compare(runs, all_pairs=True).notes if "correction" in note]
    assert three.startswith("The 3 intervals are of 95% each")
    assert not any("correction" in note for note in compare([runs[0], runs[3]]).notes)


def test_one_seed_says_what_its_interval_leaves_out(runs):
    comparison = compare([runs[0], runs[3]])
    assert any("One seed of gpt2, contextlm" in note and "not what another seed" in note for note in comparison.notes)
    (only,) = as_json(comparison)["differences"]
    assert only["single_runs"] == ["contextlm", "gpt2"] and only["lower"] == "contextlm"
    places = {
        "terminal": in_terminal(comparison_tables(comparison)),
        "JSON": only["verdict"],
        "notebook": comparison._repr_html_(),
        "line": repr(comparison),
        "page": " ".join(verdict(comparison)) + difference_table(comparison).__html__(),
        "CSV": difference_table(comparison).to_pandas().to_csv(),
    }
    for place, text in places.items():
        words = " ".join(text.split()).lower()
        assert "with one run of each" in words and "better" not in words, place
    several = compare(runs)
    assert all(not each.single_runs and "one run" not in each.verdict for each in several.differences)


def test_of_one_seed_against_several_the_several_are_in_the_interval(runs):
    comparison = compare(runs[:4])  # three seeds of gpt2, one of contextlm
    (difference,) = comparison.differences
    assert difference.difference.seeds == 3 and len(difference.difference.parts) == 2
    assert (
        "t over 3 seeds and" in difference.verdict and "nothing about other seeds of contextlm)" in difference.verdict
    )
    (note,) = [each for each in comparison.notes if each.startswith("One seed of contextlm")]
    assert "from document to document and over the seeds of gpt2, not what" in note


def test_runs_with_more_training_are_said_to_have_it(runs, tmp_path):
    assert not any("different numbers of tokens" in note or "FLOPs" in note for note in compare(runs).notes)
    summary = RunFolder(runs[3]).summary()
    path = shutil.copytree(runs[3], tmp_path / "longer")
    write_sealed_json(path / "summary.json", summary | {"tokens": 2 * summary["tokens"]}, "the summary")
    longer, note = compare([runs[0], str(path)]), "They were trained on different numbers of tokens: gpt2 on 10k"
    assert f"{note} and contextlm on 20k." in longer.notes
    path = shutil.copytree(runs[3], tmp_path / "dearer")
    write_sealed_json(path / "summary.json", summary | {"flops": 1.2 * summary["flops"]}, "the summary")
    each = f"gpt2 with {RunFolder(runs[0]).summary()['flops']:.3g} and contextlm with {1.2 * summary['flops']:.3g}"
    note = f"They were trained with different FLOPs: {each}. A trial compares at equal compute."
    assert note in compare([runs[0], str(path)]).notes


def test_runs_of_different_precisions_are_said_to_differ(runs, tmp_path):
    """``precision: auto`` is another one on another machine."""
    assert not any("precision" in note for note in compare(runs).notes)
    other = shutil.copytree(runs[3], tmp_path / "other")
    write_sealed_json(other / "summary.json", RunFolder(runs[3]).summary() | {"precision": "bf16"}, "the summary")
    for sources, said in (
        ([runs[0], other], "gpt2 in fp32 and contextlm in bf16."),
        ([runs[0], runs[4], other], "contextlm in bf16 and fp32"),
    ):
        assert any(
            note.startswith("They were trained in different precisions") and said in note
            for note in compare([*map(str, sources)]).notes
        )


def test_different_seeds_are_not_paired(runs):
    comparison = compare([*runs[:2], *runs[4:6]])
    (difference,) = comparison.differences
    assert not difference.paired_by_seed and difference.seed_differences == {}
    assert any("not paired by seed" in note for note in comparison.notes)
    assert difference.difference.value == pytest.approx(-0.05, abs=0.01)


def test_names_with_a_seed_and_settings_that_do_not_matter_make_one_group(tmp_path):
    first = write_run(tmp_path / "a", "small-seed1", 1, 4.0)
    second = write_run(tmp_path / "b", "small-seed2", 2, 4.0, corpus_path="/elsewhere/books", save_every=7)
    third = write_run(tmp_path / "c", "small-s2", 2, 4.0, steps=200)
    names = {group.name: group.seeds for group in compare([first, second, third]).groups}
    assert names == {"small (a)": [1, 2], "small (c)": [2]}


def test_a_model_that_is_no_run_takes_part(runs, tmp_path):
    nats = LENGTHS * (HARDNESS + 1)
    write_result(tmp_path / "evaluation" / "gpt2" / "books-validation", "openai/gpt2", nats)
    comparison = compare([runs[0], str(tmp_path / "evaluation" / "gpt2" / "books-validation")])
    assert [group.name for group in comparison.groups] == ["gpt2 (gpt2-1)", "gpt2 (books-validation)"]
    assert comparison.groups[1].training_seconds is None
    (given,) = [note for note in comparison.notes if "compared as given" in note]
    assert "nothing about how another training would end" in given


def test_one_document_allows_no_interval(tmp_path):
    for name, loss in (("a", 4.0), ("b", 3.0)):
        write_result(tmp_path / name, name, np.array([loss * 10]), np.array([10]))
    comparison = compare([str(tmp_path / "a"), str(tmp_path / "b")])
    assert comparison.differences[0].difference.to_dict() == {"value": -1.0, "low": None, "high": None}
    assert comparison.differences[0].verdict.endswith("one document allows no interval")


def test_bits_per_byte_across_tokenizers_match_documents_by_hash(tmp_path):
    order = np.random.default_rng(3).permutation(DOCUMENTS)
    plain = write_run(tmp_path / "plain", "plain", 1, 4.0)
    nats, lengths = LENGTHS[order] * (HARDNESS[order] + 0.1), LENGTHS[order] // 2  # a tokenizer with longer tokens
    given = {"order": order, "bytes": 4 * LENGTHS[order], "corpus": {"fingerprint": "bb", "tokenizer_hash": "t2"}}
    write_result(tmp_path / "neox", "neox", nats, lengths, **given)
    (difference,) = compare([plain, str(tmp_path / "neox")], unit="byte").differences
    assert difference.difference.value == pytest.approx(0.1 / 4 / math.log(2), abs=0.001)
    assert difference.difference.low > 0 and "bits per byte" in difference.verdict


def test_other_strides_are_noted(tmp_path, runs):
    run = write_run(tmp_path / "other", "other", 1, 4.0, stride=64, context=128)
    notes = compare([runs[0], run]).notes
    assert any("context 64 and 128, stride 32 and 64" in note for note in notes)


def test_several_evaluations_need_a_label(tmp_path):
    made = []
    for name in ("one", "two"):
        made.append(write_run(tmp_path / name, name, 1, 4.0))
        write_result(Path(made[-1]) / "evaluation" / "web-validation", name, np.ones(5), np.ones(5, int))
    with pytest.raises(ConfigError, match=r"corpus books-validation.*corpus web-validation.*; choose one with `label`"):
        compare(made)
    assert compare(made, label="web-validation").documents == 5


def other(folder, name="neox", label="books-validation", **corpus):
    """A run that was evaluated on another corpus."""
    return write_run(folder / f"other-{name}", name, 1, 4.0, label=label, corpus=corpus)


def bare(folder):
    """A run without an evaluation."""
    (folder / "bare").mkdir()
    (folder / "bare" / "recipe.yaml").write_text("name: bare\n")
    return str(folder / "bare")


def damaged(run):
    (Path(run) / "evaluation" / "books-validation" / "documents.parquet").write_bytes(b"PAR1 no")
    return run


def two(folder, *sizes, **changes):
    """Two evaluations of so many documents of so many tokens."""
    for name, (documents, tokens) in zip("ab", sizes, strict=True):
        write_result(folder / name, name, np.ones(documents), np.full(documents, tokens), **changes)
    return [str(folder / name) for name in "ab"]


REFUSALS = {
    "other tokenizers with an offer": (
        lambda f, runs: compare([runs[0], other(f, fingerprint="bb", tokenizer_hash="t2")]),
        (DataError, r"different tokenizers.*`unit` byte"),
    ),
    "other corpora": (
        lambda f, runs: compare([runs[0], other(f, fingerprint="cc", path="data/web")]),
        (DataError, r"different documents \(data/books and data/web\)"),
    ),
    "other numbers of documents": (
        lambda f, _: compare(two(f, (5, 1), (4, 1))),
        (DataError, r"on 5 and 4 documents; .*the same limit"),
    ),
    "other targets": (lambda f, _: compare(two(f, (5, 3), (5, 2))), (DataError, "were not scored on the same tokens")),
    "bytes that nobody knows": (
        lambda f, _: compare(two(f, (5, 3), (5, 3), bytes=[None] * 5), unit="byte"),
        (DataError, "does not know its documents' bytes"),
    ),
    "a run without evaluation names the command": (
        lambda f, runs: compare([runs[0], bare(f)]),
        (DataError, "run: contextwise evaluate .*bare --corpus"),
    ),
    "nothing": (
        lambda _, runs: compare([runs[0], "nowhere"]),
        (CheckpointError, "there is no run and no model at nowhere"),
    ),
    "no common evaluation": (
        lambda f, runs: compare([runs[0], other(f, label="web-validation", fingerprint="bb")]),
        (DataError, "not evaluated on the same corpus with the same settings"),
    ),
    "unknown reference": (
        lambda _, runs: compare(runs, reference="gpt3"),
        (ConfigError, "reference is 'gpt3', which is none of the groups: gpt2, contextlm, twin"),
    ),
    "unknown unit": (
        lambda _, runs: compare(runs, unit="word"),
        (ConfigError, "unit is 'word', but must be one of token, byte"),
    ),
    "the same folder twice": (lambda _, runs: compare([runs[0], runs[0]]), (ConfigError, "is given twice")),
    "the same seed twice": (
        lambda f, runs: compare([runs[0], other(f, "gpt2")]),
        (ConfigError, "the same recipe with the same seed"),
    ),
    "one run": (lambda _, runs: compare(runs[:1]), (ConfigError, "two runs or more")),
    "a damaged table": (
        lambda _, runs: compare([damaged(runs[0]), runs[3]]),
        (DataError, r"documents\.parquet has changed"),
    ),
}
"""Each in one sentence that names the runs and the mend."""


@pytest.mark.parametrize(("call", "refusal"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(call, refusal, tmp_path, runs):
    error, message = refusal
    with pytest.raises(error, match=message):
        call(tmp_path, runs)


def test_what_is_measured_is_compared_without_torch(runs):
    """Reading the summaries of measures takes a tenth of the time that importing torch does."""
    lines = [
        "import sys",
        "from contextwise.comparison.comparison import compare",
        f"compare({[*map(str, runs)]})",
        "print('torch' in sys.modules)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1:] == ["False"], done.stderr
