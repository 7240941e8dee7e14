"""The benchmarks for a GPU, without one: their smallest form, and their arithmetic on numbers worked out by hand."""

import json
import tarfile
import time
import warnings
import zipfile

import pytest
import torch
from benchmarks import gpu, harness, scale, source_corpus, waits
from benchmarks.training_loops import Loop, started, write_tokens
from benchmarks.waits import Span, counted_waits, gaps

from contextwise.training.metrics import peak_flops

TINY = ("gpt2", 1, 32, 2, 64, 16, 2)


def test_waits_are_counted_by_place(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with counted_waits() as places:
        for _ in range(3):
            warnings.warn(f"{waits.WARNING} (cudaStreamSynchronize)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert modes == ["warn", "default"]
    ((place, count),) = places.items()
    assert count == 3
    assert "tests/test_gpu_script.py" in place


def test_gaps_are_named_by_what_the_host_does():
    kernels = [Span(0, 10, "a"), Span(5, 12, "b"), Span(20, 30, "a"), Span(31, 40, "c")]
    result = gaps(kernels, [Span(0, 100, "step"), Span(12, 20, "aten::item"), Span(13, 15, "aten::to")])
    assert result["busy"] == pytest.approx(1 - 9 / 40)
    longest = {"microseconds": 8, "host": "aten::item", "before_kernel": "a"}
    assert result["gaps"] == [longest, {"microseconds": 1, "host": "step", "before_kernel": "c"}]
    assert result["kernels"] == {"a": 20 / 40, "c": 9 / 40, "b": 7 / 40}
    assert gaps([], []) == {}


def test_a_peak_is_that_of_the_gpus_own_name():
    assert peak_flops("NVIDIA H100 80GB HBM3") == peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == 165e12
    assert peak_flops("NVIDIA GeForce RTX 4090 Laptop GPU") is peak_flops("NVIDIA GeForce RTX 4090 D") is None
    assert peak_flops("A card of tomorrow") is None


def test_rates_and_goals_of_rounds(monkeypatch):
    names = ["contextwise: plain", "Trainer: plain", "nanoGPT: plain", "contextwise: PM", "contextwise: ContextLM"]
    loops = gpu.contenders("tiny", TINY, gpu.SCALES["small"], gpu.Path("."))
    seconds = dict(zip(names, ([1.0, 3.0], [2.0, 4.5], [1.0, 6.0], [1.5, 3.0], [1.0, 3.0]), strict=True))
    plain = loops[names[0]]
    steps = plain.turn / 2.0  # a second, at the median of two seconds
    summary = gpu.training_summary(loops, harness.Outcome(seconds), peak=steps * plain.flops / 0.6)
    assert summary["tokens_per_second"][names[0]] == pytest.approx(steps * plain.tokens)
    result = summary | {"waits_per_step": {names[0]: {"here": 1.0, "there": 0.5}}}
    asked = gpu.goals({"tiny": result})
    assert asked["MFU"] == {"at_least": 0.55, "measured": pytest.approx(0.6), "reached": True}
    assert asked["times nanoGPT"]["measured"] == pytest.approx(1.5)
    assert asked["times the Trainer"]["measured"] == pytest.approx(1.75)
    assert asked["ContextLM, times PM"]["measured"] == pytest.approx(1.25)
    assert asked["waits in a step"] == {"at_most": 1, "measured": 1.5, "reached": False}
    assert gpu.goals({})["MFU"]["reached"] is None


@pytest.mark.long
def test_loops_take_turns_and_one_that_fails_leaves_the_others(tmp_path):
    data = write_tokens(tmp_path, 64, 4000)
    plain = Loop("contextwise", "plain", TINY, 2, False, "cpu", turn=1)
    loops = {"ours": plain, "Trainer": Loop("Trainer", "plain", TINY, 2, False, "cpu", turn=1)}
    loops["broken"] = Loop("contextwise", "plain", ("gpt2", 1, 33, 2, 64, 16, 2), 2, False, "cpu")
    workers = {name: loop.start(data) for name, loop in loops.items()}
    try:
        failed = started(workers, loops)
        assert list(failed) == ["broken"]
        assert "33 is not divisible by 2 heads" in failed["broken"]
        began = time.perf_counter()
        answers = {name: worker() for name, worker in workers.items()}
        assert 0 < sum(answers.values()) < time.perf_counter() - began
        assert workers["ours"]("waits") == workers["ours"]("profile") == {}
        assert workers["ours"]("peak") > 2**20
    finally:
        for worker in workers.values():
            worker.close()


@pytest.mark.long
def test_the_script_keeps_what_a_part_has_measured(tmp_path, monkeypatch):
    small = gpu.replace(gpu.SCALES["small"], shapes={"tiny": TINY}, tokens=4000)
    monkeypatch.setitem(gpu.SCALES, "small", small)
    few = {"contextwise: plain": Loop("contextwise", "plain", TINY, 1, False, "cpu", turn=1)}
    monkeypatch.setattr(gpu, "contenders", lambda *_: few)
    monkeypatch.setattr(gpu, "goals", lambda _: pytest.fail("there is no GPU"))
    monkeypatch.setattr(harness, "describe_environment", lambda: {"gpus": [], "versions": {}})
    gpu.main(["fast", "--small", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "gpu-fast-cpu.json").read_text())
    assert result["finished"] is True
    assert result["shapes"]["tiny"]["tokens_per_second"]["contextwise: plain"] > 0
    assert "nanoGPT" in result["left_out"]

    def stopped(*_, after_round, **__):
        after_round(harness.Outcome({"contextwise: plain": [0.5]}))
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "alternate", stopped)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["fast", "--small", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "gpu-fast-cpu.json").read_text())
    assert result["finished"] is False
    assert result["shapes"]["tiny"]["rounds"] == 1


def test_without_a_gpu_the_script_says_so(capsys):
    with pytest.raises(SystemExit) as caught:
        gpu.main(["fast", "--nanogpt", "nowhere"])
    assert caught.value.code == 2
    assert "there is no train.py in nowhere" in capsys.readouterr().err


# ---- 12 layers of 512 on source code ----


def run_of(losses, decay_begins=30):
    rows = [
        {"step": 10 * i, "tokens": 100 * i, "flops": 200 * i, "seconds": i, "loss": x} for i, x in enumerate(losses, 1)
    ]
    return {"decay_begins": decay_begins, "losses": rows}


def test_a_speedup_is_read_off_the_losses_before_the_decay():
    reference, ahead = run_of([5.0, 4.0, 3.5, 1.0]), run_of([4.0, 3.5, 3.0, 2.0])
    # The reference is at 3.5 after 30 steps, the other after 20; what comes behind step 30 does not count.
    assert scale.speedup(ahead, reference, "tokens") == pytest.approx(1.5)
    assert scale.speedup(reference, ahead, "seconds") == pytest.approx(2 / 3)
    assert scale.speedup(run_of([2.0, 2.0, 2.0]), reference, "tokens") is None
    results = [{"runs": {"gpt2": reference, "pm": ahead}}]
    assert scale.answer(results) == [
        "pm − gpt2: +1.0000, one seed nats per token at the end; effective speed-up in tokens 1.500; flops 1.500; seconds 1.500"
    ]


def test_every_arm_of_the_trial_has_its_recipe(tmp_path):
    trial = scale.load_trial(scale.TRIAL, {"corpus": "corpora/none"})
    recipes = {arm: scale.recipe_of(trial, arm, 1, tmp_path) for arm in trial.arms}
    assert list(recipes) == ["gpt2", "embedding_norm", "normed_gate", "pm"]
    assert recipes["embedding_norm"].model.embedding_norm
    assert recipes["pm"].model.extra_layers == 2
    assert {recipe.seed for recipe in recipes.values()} == {1}
    for recipe in recipes.values():
        decay = recipe.total_steps - recipe.training.decay(recipe.total_steps)
        assert 0 <= decay % recipe.training.evaluate_every <= 10  # a validation shortly before the decay


def test_a_corpus_of_source_has_each_file_once_and_holds_projects_out(tmp_path):
    (tmp_path / "pypi").mkdir()
    line = "value = compute(value)  # again and again\n"
    for project in ("one-1.0", "two-2.0", "three-3.0"):
        with tarfile.open(tmp_path / "pypi" / f"{project}.tar.gz", "w:gz") as archive:
            files = {"shared.py": line * 10, f"{project}.c": f"/* {project} */\n" + line * 10, "read.me": line * 10}
            files |= {"short.py": "pass\n", "wide.py": "x = [" + "1, " * 1000 + "]\n"}
            for name, text in files.items():
                path = tmp_path / "file"
                path.write_text(text + " " * (project == "two-2.0"))  # white space makes no difference
                archive.add(path, f"{project}/{name}")
    with zipfile.ZipFile(tmp_path / "pypi" / "four_five-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("four_five/own.py", "# of a wheel\n" + line * 10)
    found = list(source_corpus.texts(tmp_path))
    assert list(source_corpus.texts(tmp_path, share=0)) == []
    assert sorted(name.rpartition("/")[2] for _, name, _ in found) == [
        "one-1.0.c",
        "own.py",
        "shared.py",
        "three-3.0.c",
        "two-2.0.c",
    ]
    source_corpus.main(["prepare", str(tmp_path), "--vocabulary", "300", "--share", "1"])
    titles = {
        split: {
            json.loads(row)["title"].split(":")[0] for row in (tmp_path / f"{split}.jsonl").read_text().splitlines()
        }
        for split in ("train", "validation")
    }
    assert len(titles["validation"]) == 1
    assert titles["train"] | titles["validation"] == {"one", "two", "three", "four_five"}
    assert not titles["train"] & titles["validation"]
    source_corpus.main(["pack", str(tmp_path)])
    (tmp_path / "corpus").rename(tmp_path / "before")
    source_corpus.main(["unpack", str(tmp_path)])
    assert (tmp_path / "corpus/manifest.json").read_bytes() == (tmp_path / "before/manifest.json").read_bytes()
