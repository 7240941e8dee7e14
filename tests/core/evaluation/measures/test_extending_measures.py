"""The worked example of docs/extend.md: one file gives a verb, its options, a result and a table."""

import json
import re
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from contextwise.base import plugins
from contextwise.cli import app, commands
from contextwise.data import Corpus
from contextwise.evaluation.kernel import results_of

GUIDE = Path(__file__).parents[4] / "docs" / "extend.md"


@pytest.fixture
def run(tmp_path, monkeypatch, corpus_folder):
    """Types a command where the package of measures also has the file of the guide."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "class Surprise(" in block)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "surprise.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path / "more")
    points = plugins.points
    point = EntryPoint("surprise", "surprise:Surprise", "contextwise.measures")
    known = plugins.points("measures") | {"surprise": point}
    monkeypatch.setattr(plugins, "points", lambda group: known if group == "measures" else points(group))
    monkeypatch.chdir(tmp_path)
    config = GPT2Config(vocab_size=Corpus.open(corpus_folder).vocab_size, n_positions=32, n_embd=8, n_layer=1, n_head=1)
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    for file in (corpus_folder / "tokenizer").iterdir():
        shutil.copy(file, tmp_path / "model")
    cached = plugins.load, commands.points, commands.groups, commands.verb_of
    for function in cached:
        function.cache_clear()
    yield lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    for function in cached:
        function.cache_clear()
    sys.modules.pop("surprise", None)


def test_one_file_gives_a_verb_and_a_result(run, tmp_path, corpus_folder):
    assert re.search(r"surprise +Measure the share of tokens", run("measure", "--help").output)
    help_text = " ".join(run("measure", "surprise", "--help").output.replace("│", " ").split())
    assert "--threshold <float> [>0] Nats above which a token counts. [default: 5.0]" in help_text
    assert "[default: (the training context)]" in help_text
    typed = ("measure", "surprise", "model", "--corpus", corpus_folder, "--limit", 3, "--threshold", 5.5)
    shown = run(*typed)
    (result,) = results_of(tmp_path / "evaluation" / "model", "surprise")
    nats = result.table_of("tokens")["nats"].to_numpy()
    assert shown.exit_code == 0 and "Threshold: 5.5 nats" in shown.output
    assert result.summary["share"]["value"] == pytest.approx((nats > 5.5).mean())
    assert result.summary["settings"] == {"threshold": 5.5, "context": None, "limit": 3}
    assert json.loads(run(*typed, "--json").stdout) == result.summary  # found again
