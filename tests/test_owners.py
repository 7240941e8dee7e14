"""Every output has one owner: whatever several processes do at once, and are killed at, what is visible is whole and of one."""

import random
import time

import pytest
import yaml

from contextwise.base.files import PARTIAL
from contextwise.base.runs import RunFolder
from contextwise.data import prepare_corpus
from contextwise.training import checkpoints
from owners import KINDS, REPLACED, snapshot, write
from processes import forked, start_training
from small import recipe_values, save_model, small_gpt2, write_documents


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A source text and a model of each writer, and a corpus."""
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(3):
        write_documents(folder / f"writer {number}.jsonl", 8, seed=number)
        save_model(folder / f"writer {number}", small_gpt2(seed=number))
    prepare_corpus(folder / "writer 0.jsonl", "bytes", folder / "corpus", validation=0)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("moment", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 30))])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in ("result", "export") else ()) for kind in KINDS]
)
def test_what_is_visible_is_whole_and_of_one_writer(inputs, tmp_path, kind, moment):
    folder, log, draw = tmp_path / "outputs", tmp_path / "log", random.Random(f"{kind} {moment}")
    folder.mkdir()
    target = folder / "output"
    processes = [forked(write, kind, target, inputs, writer, 3, log) for writer in range(3)]
    killed = processes[0]
    kill_at = time.monotonic() + draw.uniform(0.05, 0.5)
    seen = set()
    while any(process.is_alive() for process in processes):
        if time.monotonic() > kill_at:
            killed.kill()
        if (files := snapshot(target)) is not None:
            writers = KINDS[kind][1](files)
            assert len(writers) == 1
            seen |= writers
        time.sleep(0.001)
    assert [process.exitcode for process in processes[1:]] == [0, 0]
    assert killed.exitcode in (0, -9)
    # The next one cleans up what the killed process has left.
    after = forked(write, kind, target, inputs, 1, 1, log)
    after.join()
    assert after.exitcode == 0
    files = snapshot(target)
    assert files is not None
    (owner,) = KINDS[kind][1](files)
    names = {
        path.name for path in folder.iterdir()
    }  # what a killed writer of a single file leaves is removed a day later
    assert {name for name in names if not name.startswith(f".output{PARTIAL}")} == {"output"}
    lines = log.read_text().splitlines()
    done = [line for line in lines if line.startswith("writer ")]
    if kind in REPLACED:
        assert done == lines and owner == "writer 1"
    else:  # the first one has it; it may have been killed before it said so; a corpus is found again by the one that has it
        assert seen <= {owner} and set(done) <= {owner} and (len(done) <= 1 or kind == "new corpus")
        assert all("exists" in line or "was created by another process" in line for line in set(lines) - set(done))


@pytest.mark.long
def test_of_recipes_that_start_in_one_folder_one_is_trained(corpus_folder, tmp_path):
    run = RunFolder(tmp_path / "run")
    started = []
    for seed in range(3):
        values = recipe_values(corpus_folder, run.path, steps=2, warmup_steps=1, save_every=1) | {"seed": seed}
        file = tmp_path / f"{seed}.yaml"
        file.write_text(yaml.safe_dump(values))
        started.append(start_training(file))
    outputs = [process.communicate()[0] for process in started]
    assert sorted(process.returncode for process in started) == [0, 2, 2], outputs
    (winner,) = (seed for seed in range(3) if started[seed].returncode == 0)
    assert run.recipe()["seed"] == run.summary()["seed"] == winner
    for checkpoint in checkpoints.list_checkpoints(run.checkpoints):
        assert checkpoints.read_state(checkpoint)["recipe"]["seed"] == winner
    assert {path.name for path in run.path.iterdir() if path.name.startswith(".")} == set()
