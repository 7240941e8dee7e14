"""Two models of different training contexts: where the average and the best context disagree."""

import numpy as np
import pytest

import contextwise
from command_line import in_terminal
from contextwise.base.errors import CheckpointError, ConfigError, DataError
from contextwise.comparison.curves import compare_curves, curves_table, open_curves, ranking
from contextwise.evaluation.kernel.result import write_result
from contextwise.evaluation.measures.curve import Curve
from contextwise.evaluation.measures.curve.passes import Bins, CurveSums, Tail
from contextwise.evaluation.measures.curve.readings import curve_measures
from measured import result_header


def sums_of(documents, nats_DT, windows):
    """The sums of a curve over whole windows, as many in each document; ``nats_DT`` are summed over a document's windows."""
    count, context = nats_DT.shape
    bins, windows_D = Bins.logarithmic(context), np.full(count, windows)
    return CurveSums(
        visible=np.arange(1.0, context + 1),
        loss=nats_DT.mean(axis=0) / windows,
        targets=windows * count,
        documents=documents,
        bins=bins,
        bin_nats=np.add.reduceat(nats_DT, bins.low - 1, axis=1),
        bin_targets=windows_D[:, None] * (bins.high - bins.low + 1),
        tail=Tail(context, context, nats_DT[:, -1], windows_D),
    )


def written(folder, name, context, law, documents, fingerprint="f", mode="running", earlier=0):
    """A curve whose loss at t visible tokens is ``law(t)``, higher by ``bump`` in each document of ``documents``."""
    nats_DT = np.array([law(np.arange(1, context + 1)) + bump for _, bump in documents])
    passes = sums_of(np.array([index for index, _ in documents]), 2 * nats_DT, windows=2)
    bins, measures = curve_measures(passes, 0.01)
    bins[-1]["visible_from"] -= earlier
    corpus = {"path": "corpus", "split": "validation", "fingerprint": fingerprint, "tokenizer_hash": "t"}
    counts = {"trained_context": None, "rope_factor": None, "documents": len(documents), "targets": 9}
    settings = Curve(context=context, mode=mode).model_dump(mode="json")
    summary = result_header("curve", settings, key=name, question=name, model=f"runs/{name}", corpus=corpus) | counts
    summary |= {"bins": bins, "measures": measures}
    tables = {"curve": passes.curve_table(), "documents": passes.documents_table()}
    if mode != "running":  # has no last tenth
        tables["documents"] = tables["documents"].drop_columns(["tail_nats", "tail_targets"])
    write_result(folder / name, summary, tables)
    return str(folder / name)


SHORT, LONG = (lambda t: 3.0 + 1.0 / t), (lambda t: 3.2 + 1.2 / t)
DOCUMENTS = [(0, -0.5), (2, 0.1), (3, 0.9)]
SIX = [*DOCUMENTS, (4, -0.2), (5, 0.3), (6, 0.4)]


def test_the_average_ranks_them_one_way_and_the_best_context_the_other(tmp_path):
    short = written(tmp_path, "short", 8, SHORT, DOCUMENTS)
    # One more document, which does not count
    long = written(tmp_path, "long", 512, LONG, [(1, 5.0), *DOCUMENTS])
    a, b = compare_curves(open_curves([short, long])).curves
    bumps = np.mean([bump for _, bump in DOCUMENTS])
    # By hand: averages over all positions; the lowest bins.
    assert a.average.value == pytest.approx(3.0 + np.mean(1 / np.arange(1, 9)) + bumps)
    assert b.average.value == pytest.approx(3.2 + 1.2 * np.mean(1 / np.arange(1, 513)) + bumps)
    assert (
        b.average_difference.value == pytest.approx(b.average.value - a.average.value) and a.average_difference is None
    )
    assert b.average_difference.value < 0 < b.lowest_difference.value
    assert (a.lowest_from, a.lowest_to) == (8, 8) and b.lowest_to == 512
    assert a.lowest.value == pytest.approx(3.0 + 1 / 8 + bumps)
    # The documents differ by much, the models differ alike in each: paired, nothing is left to chance.
    assert b.lowest_difference.low == pytest.approx(b.lowest_difference.value)
    assert b.lowest_difference.high == pytest.approx(b.lowest_difference.value)
    assert a.lowest.high - a.lowest.low > 0.3
    assert b.below == (0, 5)  # 1, 2, 3, 4 to 5, 6 to 7; the short curve's last bin, 8 alone, is cut otherwise


def test_models_are_ranked_by_the_last_tenth(tmp_path):
    short = written(tmp_path, "short", 8, SHORT, SIX)
    long = written(tmp_path, "long", 512, LONG, SIX)
    third = written(tmp_path, "third", 8, SHORT, [(number, bump + 0.3 * (-1) ** number) for number, bump in SIX])
    compared = compare_curves(open_curves([short, long, third]))
    _, b, c = compared.curves
    named = contextwise.compare(dict(zip("xyz", compared.measured, strict=True)))
    assert [each.name for each in named.curves] == ["x", "y", "z"]
    assert named.answer.startswith("x has the lowest best-context loss: y − x = +0.0773 [")
    assert f"{named.answer}." in " ".join(str(named).split())
    page = named.page(tmp_path / "page.html").read_text()
    assert all(f'"name":"{name}"' in page for name in "xyz") and "The loss minus that of x, with 95%" in page
    frame = named.to_pandas()
    last = frame[(frame["model"] == "z") & (frame["visible_from"] == 8)].iloc[0]
    assert last["difference"] == pytest.approx(c.bin_differences[8, 8].value) and last["low"] < 0 < last["high"]
    assert frame[frame["model"] == "x"]["difference"].isna().all()
    for given in ({"label": "here"}, {"corpus": tmp_path}, {"unit": "byte"}):
        with pytest.raises(ConfigError, match=f"{next(iter(given))} chooses among losses of documents"):
            contextwise.compare(compared.measured, **given)
    assert b.best_context_difference.value == pytest.approx(0.2 + 1.2 / 512 - 1 / 8)
    assert b.best_context_difference.low == pytest.approx(b.best_context_difference.value)
    assert c.best_context_difference.low < 0 < c.best_context_difference.high
    words = ranking(compared.curves)
    assert words.startswith("short has the lowest best-context loss: long − short = +0.0773 [")
    assert "nats per token, higher; third − long = +0.0227 [" in words
    assert words.endswith("nats per token, no significant difference.")
    laws = {"y": LONG, "x": SHORT}
    same = [written(tmp_path / "bands", name, 8, law, SIX, mode="bands") for name, law in laws.items()]
    words = ranking(compare_curves(open_curves(same)).curves)
    assert words.startswith("x has the lowest loss in its lowest bin: x − y = −0.2250 [") and "token, lower." in words


def test_a_curve_that_is_given_twice_is_refused(tmp_path):
    curve, other = (written(tmp_path, name, 8, SHORT, SIX) for name in ("here", "there"))
    with pytest.raises(ConfigError, match="here is given twice"):
        open_curves([curve, other, f"{tmp_path}/there/../here"])


def test_curves_in_other_bands_are_refused(tmp_path):
    curves = [written(tmp_path, name, 8, SHORT, SIX, mode="bands") for name in ("here", "there")]
    compare_curves(open_curves(curves))
    folder = written(tmp_path / "old", "there", 8, SHORT, SIX, mode="bands", earlier=1)
    with pytest.raises(DataError, match="there was measured in other bands than .*here"):
        open_curves([curves[0], folder])


def test_chosen_contexts_have_no_average(tmp_path):
    """Both losses are the same, but the mean over the contexts would depend on which were listed."""
    here, there = compare_curves(
        open_curves([written(tmp_path, name, 8, SHORT, SIX, mode="truncated") for name in ("here", "there")])
    ).curves
    assert here.average is None and there.average is None and there.average_difference is None
    assert there.lowest_difference.value == 0 and there.below == (0, 6)
    assert [row.kind for row in curves_table([here, there]).rows][-1] == "difference"


def test_the_table_leaves_room_for_names_of_a_trial_s_runs(tmp_path):
    curves = [written(tmp_path, f"{arm}-s0-d6f7bced", 512, LONG, SIX) for arm in ("from-64", "by-stages")]
    lines = in_terminal(curves_table(compare_curves(open_curves(curves)).curves)).splitlines()
    assert any("from-64-s0" in line for line in lines) and any("lower in" in line for line in lines)
    assert max(map(len, lines)) <= 80 and not any(len(line.strip()) == 1 for line in lines)


@pytest.mark.parametrize("count", [1, 3])
def test_few_documents_rank_nothing(tmp_path, count):
    """The models differ alike in each document, so that the interval of three excludes zero; one document has none."""
    short = written(tmp_path, "short", 8, SHORT, DOCUMENTS[:count])
    long = written(tmp_path, "long", 512, LONG, DOCUMENTS[:count])
    words = ranking(compare_curves(open_curves([short, long])).curves)
    why = " (3 documents allow no verdict, which takes 6 or more)" if count == 3 else ""
    assert "higher" not in words and words.endswith(f"nats per token, no significant difference{why}.")


def test_the_interval_of_the_best_context_is_at_least_that_of_its_bin(tmp_path):
    """Half of the documents are lowest at 1 visible token, half at 8: resamples take the bin that suits them, and vary less."""
    rng = np.random.default_rng(0)
    nats_DT = np.full((8, 8), 4.0 * 2)
    for index in range(8):
        nats_DT[index, 0 if index % 2 else 7] = sum(2.0 + 0.1 * rng.normal() for _ in range(2))
    _, measures = curve_measures(sums_of(np.arange(8), nats_DT, windows=2), 0.01)
    best, last = measures["lowest_bin"], measures["best_context_loss"]
    assert best["method"] == "bootstrap" and best["low"] <= best["value"] < best["high"]
    assert best["low"] <= last["low"] and best["high"] == last["high"]  # the last tenth is the lowest bin


def test_one_document_has_no_interval(tmp_path):
    one = [written(tmp_path, name, 8, SHORT, DOCUMENTS[:1]) for name in ("a", "b")]
    assert compare_curves(open_curves(one)).curves[1].lowest_difference.low is None


def test_what_cannot_be_compared(tmp_path):
    here = written(tmp_path, "here", 8, SHORT, DOCUMENTS)
    with pytest.raises(ConfigError, match="there is one curve"):
        open_curves([here])
    other = written(tmp_path, "other", 8, SHORT, DOCUMENTS, fingerprint="g")
    with pytest.raises(DataError, match="other was measured on other documents than .*here"):
        open_curves([here, other])
    truncated = written(tmp_path, "truncated", 8, SHORT, DOCUMENTS, mode="truncated")
    with pytest.raises(DataError, match="measured in the truncated mode, .*here in running"):
        open_curves([here, truncated])
    both = [written(tmp_path, f"to {size}", size, SHORT, DOCUMENTS, mode="truncated") for size in (8, 16)]
    with pytest.raises(DataError, match="measured with context 16, .*to 8 with 8, and so at other targets"):
        open_curves(both)
    elsewhere = written(tmp_path, "elsewhere", 8, SHORT, [(7, 0.0)])
    with pytest.raises(DataError, match="no document in common"):
        compare_curves(open_curves([here, elsewhere]))
    with pytest.raises(CheckpointError, match="there is no run and no model at .*nothing"):
        open_curves([here, str(tmp_path / "nothing")])
    for size in (8, 16):
        written(tmp_path / "run" / "evaluation", f"to {size}", size, SHORT, DOCUMENTS)
    (tmp_path / "run" / "recipe.yaml").write_text("name: run\n")
    with pytest.raises(ConfigError, match=r"run has several curves \(.*/to 16, context 16; .*/to 8, context 8\)"):
        open_curves([here, str(tmp_path / "run")])
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "recipe.yaml").write_text("name: without\n")
    with pytest.raises(DataError, match="without has no curve yet; make one with: contextwise curve"):
        open_curves([here, str(tmp_path / "without")])


def test_curves_of_runs_are_ranked_for_these_runs_alone(tmp_path):
    """The interval over documents excludes zero; another seed may rank them otherwise. A model that is no run has no seeds."""
    folders = []
    for name, context, law in (("short", 8, SHORT), ("long", 512, LONG)):
        (tmp_path / name / "evaluation").mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").write_text(f"name: {name}\n")
        folders.append(written(tmp_path / name / "evaluation", name, context, law, SIX))
    model = written(tmp_path, "model", 8, SHORT, SIX)
    curves = compare_curves(open_curves(folders)).curves
    assert ranking(curves).startswith(
        "With one run of each, short has the lowest best-context loss:"
    ) and "higher" in ranking(curves)
    assert [curve.to_dict()["single_run"] for curve in curves] == [True, True]
    assert "nothing about other seeds" in " ".join(curves_table(curves).notes)
    mixed = compare_curves(open_curves([model, folders[1]])).curves
    assert ranking(mixed).startswith("With this one run of long, model has the lowest best-context loss:")
    only = compare_curves(open_curves([model, written(tmp_path, "other", 512, LONG, SIX)])).curves
    assert ranking(only).startswith("model has the lowest best-context loss:") and "seeds" not in " ".join(
        curves_table(only).notes
    )


def test_curves_have_the_names_that_were_given(tmp_path):
    """Whole, even if they look like paths that end alike."""
    curves = {f"{law}/s0": written(tmp_path, law, 64, each, SIX) for law, each in (("short", SHORT), ("long", LONG))}
    comparison = contextwise.compare(curves)
    assert comparison.answer.startswith("short/s0 has the lowest best-context loss: long/s0 − short/s0 = ")
    assert set(comparison.to_pandas()["model"]) == set(curves)
    table = in_terminal(curves_table(comparison.curves))
    assert all(name in table for name in curves)
