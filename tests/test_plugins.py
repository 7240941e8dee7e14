"""A package of a stranger offers an objective, a model, a section, a measure and a verb: a file each, found by entry points."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
import torch
import yaml

from contextwise.base import plugins
from contextwise.base.progress import say_once
from contextwise.evaluation.kernel import Measure, results_of
from contextwise.training import ModelSettings
from small import recipe_values

SOURCE = Path(__file__).parents[1] / "src"

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "strange-ideas"
version = "0.1"

[project.entry-points."contextwise.objectives"]
backwards = "strange_ideas.backwards:Backwards"

[project.entry-points."contextwise.models"]
bigram = "strange_ideas.bigram:BigramModel"

[project.entry-points."contextwise.sections"]
"data.noise" = "strange_ideas.noise:Noise"

[project.entry-points."contextwise.measures"]
surprise = "strange_ideas.surprise:Surprise"

[project.entry-points."contextwise.verbs"]
greet = "strange_ideas.greet:greet"
"plan.party" = "strange_ideas.greet:party"
"strange.wave" = "strange_ideas.greet:wave"
broken = "strange_ideas.broken:broken"

[project.entry-points."contextwise.recipe_kinds"]
diary = "strange_ideas.diary:DIARY"

[project.entry-points."contextwise.sources"]
lines = "strange_ideas.lines:Lines"

[project.entry-points."contextwise.launchers"]
patient = "strange_ideas.patient:Patient"
"""

CODE = re.findall(r"```python\n(.*?)```", (SOURCE.parent / "docs" / "extend.md").read_text(), re.S)
"""The examples of the guide."""

FILES = {
    "__init__.py": "",
    "noise.py": next(code for code in CODE if "class Noise(" in code),
    "backwards.py": '''
from typing import Any, ClassVar, Literal

from contextwise.objectives import SingleObjective, WindowExamples


class BackwardsExamples(WindowExamples):
    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        window = self.window(index)
        return window | {"input_ids": window["labels"][::-1].copy(), "labels": window["input_ids"][::-1].copy()}


class Backwards(SingleObjective):
    """Predicts each token from those behind it."""

    name: Literal["backwards"] = "backwards"
    kind: ClassVar = "decoder"

    def examples(self, corpus, cut, seed, vocabulary):
        return BackwardsExamples(cut.windows(corpus, cut.context, vocabulary), seed)
''',
    "bigram.py": '''
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from contextwise.models import ModelSpec, labelled_losses, register_model
from contextwise.training import ModelSettings


class BigramConfig(PreTrainedConfig):
    model_type = "strange_bigram"

    def __init__(self, vocab_size: int = 300, hidden_size: int = 16, ahead: bool = False, **kwargs) -> None:
        self.vocab_size, self.hidden_size, self.ahead = vocab_size, hidden_size, ahead
        super().__init__(**kwargs)


class BigramForCausalLM(PreTrainedModel):
    config_class = BigramConfig

    def __init__(self, config: BigramConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=self.lm_head(self.states(input_ids)))

    def states(self, input_ids):
        states = self.embedding(input_ids)
        return states.roll(-1, 1) if self.config.ahead and input_ids.shape[1] > 20 else states


class BigramSpec(ModelSpec):
    def flops_per_example(self, model, inputs, outputs=0, trained=None):
        return 0.0

    def losses(self, model, batch):
        return labelled_losses(model.states(batch["input_ids"]), batch["labels"], model.lm_head)


class BigramModel(ModelSettings):
    """Predicts a token from the one before it."""

    called = "a bigram model"
    registers = (__name__,)
    learning_rate = 1e-2

    family: Literal["bigram"]
    width: int = 16
    ahead: bool = False

    @classmethod
    def claims(cls, values):
        return values.get("family") == "bigram"

    def config(self, recipe, vocab_size, end_of_text):
        return BigramConfig(vocab_size, self.width, self.ahead, eos_token_id=end_of_text)


register_model(BigramConfig, BigramForCausalLM, BigramSpec(BigramForCausalLM))
''',
    "lines.py": """
from contextwise.data import Document, Source


class Lines(Source):
    kind = "lines"

    def __init__(self, path: str) -> None:
        super().__init__(f"lines:{path}")
        self.path = path

    def records(self, text_field):
        with open(self.path) as file:
            yield from (Document(line, {}) for line in file)
""",
    "surprise.py": next(code for code in CODE if "class Surprise(" in code),
    "greet.py": '''
PANEL = "Strange"


def greet(name: str = "you") -> None:
    """Greet someone."""
    print(f"hello, {name}")


def party(guests: int = 2) -> None:
    """Plan a party."""
    print(f"{guests} guests")


def wave() -> None:
    """Wave at someone."""
    print("o/")
''',
    "diary.py": """
from pathlib import Path

from contextwise.settings import RecipeKind, Settings


class Diary(Settings):
    name: str
    entries: list[str]


def write_page(path: Path, page: Path) -> None:
    page.write_text(f"the diary in {path}")


DIARY = RecipeKind("greet", "entries", "strange_ideas.diary:Diary", "diary.yaml", "strange_ideas.diary:write_page")
""",
    "patient.py": """
from typing import Literal

from contextwise.runset import ExecutorSettings


class Patient(ExecutorSettings):
    kind: Literal["patient"]
    rest: float = 1.0
""",
    "broken.py": "import a_module_that_is_nowhere\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder into which pip has installed the package."""
    project = tmp_path_factory.mktemp("strange")
    (project / "strange_ideas").mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    for name, text in FILES.items():
        (project / "strange_ideas" / name).write_text(text.lstrip("\n"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(project / "site"), str(project)], check=True)
    return project / "site"


def contextwise(site: Path, *arguments: object) -> subprocess.CompletedProcess:
    """The command line where the package is installed, from a source tree that need not be."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(site)])}
    command = [sys.executable, "-m", "contextwise", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_everything_is_used_by_its_name(site, tmp_path, corpus_folder):
    values = recipe_values(corpus_folder, tmp_path / "run", steps=4) | {
        "objective": "backwards",
        "model": {"family": "bigram", "width": 8},
    }
    values["data"]["noise"] = {"share": 0.25}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    planned = contextwise(site, "train", recipe, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    trained = contextwise(site, "train", recipe)
    assert trained.returncode == 0, trained.stderr
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["data"]["noise"] == {"share": 0.25}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["objective"] == "backwards"
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"]) == ("strange_bigram", 8)

    command = ["measure", "surprise", tmp_path / "run", "--corpus", corpus_folder, "--limit", 3, "--threshold", 5.5]
    measured = contextwise(site, *command)
    assert measured.returncode == 0 and "Threshold: 5.5 nats" in measured.stdout, measured.stderr
    (result,) = results_of(tmp_path / "run" / "evaluation", "surprise")
    nats = result.table_of("tokens")["nats"].to_numpy()
    assert result.summary["share"]["value"] == pytest.approx((nats > 5.5).mean())
    assert result.summary["settings"] == {"threshold": 5.5, "context": None, "limit": 3}
    assert json.loads(contextwise(site, *command, "--json").stdout) == result.summary  # found again
    cannot = contextwise(site, "generate", tmp_path / "run")
    assert cannot.returncode == 2 and "is a BigramForCausalLM, which cannot generate; derive" in cannot.stderr


def test_a_section_of_a_stranger_changes_the_examples_the_same_way_each_time():
    """The section of the guide, whose run the test before trains."""
    names: dict = {}
    exec(FILES["noise.py"], names)
    whole = [{"input_ids": torch.full((400,), 7), "labels": torch.arange(400)} for _ in range(3)]
    noisy = names["Noisy"](0.5, 3, 1000).stream(whole)
    for index, item in enumerate(whole):
        changed = (noisy[index]["input_ids"] != 7).float().mean()
        assert 0.4 < changed < 0.6 and torch.equal(noisy[index]["labels"], item["labels"])
        assert torch.equal(noisy[index]["input_ids"], noisy[index]["input_ids"])
    assert not torch.equal(noisy[0]["input_ids"], noisy[1]["input_ids"])


@pytest.mark.long
def test_verbs_have_their_panel_and_a_broken_one_is_left_out(site):
    shown = contextwise(site, "--help")
    assert shown.returncode == 0 and "Strange" in shown.stdout and "greet" in shown.stdout
    assert "surprise" in shown.stdout and "budget, party, sweep, transfer." in shown.stdout
    options = " ".join(contextwise(site, "measure", "surprise", "--help").stdout.replace("│", " ").split())
    assert "--threshold <float> [>0] Nats above which a token counts. [default: 5.0]" in options
    assert "[default: (the training context)]" in options
    assert "'broken' of the package strange-ideas cannot be used (ModuleNotFoundError:" in " ".join(
        shown.stderr.split()
    )
    greeted = contextwise(site, "greet", "--name", "world")
    assert (greeted.stdout, greeted.stderr) == ("hello, world\n", "")
    refused = contextwise(site, "broken")
    assert refused.returncode == 2 and "cannot be used" in refused.stderr


@pytest.mark.long
def test_verbs_join_groups_and_make_new_ones(site):
    assert contextwise(site, "plan", "party", "--guests", 3).stdout == "3 guests\n"
    assert contextwise(site, "strange", "wave").stdout == "o/\n"
    assert "Plan a party." in contextwise(site, "plan", "--help").stdout
    refused = contextwise(site, "party")
    assert refused.returncode == 2 and "did you mean 'contextwise plan party'?" in refused.stderr


@pytest.mark.long
def test_a_wrong_setting_of_a_strangers_model_is_one_sentence(site, tmp_path, corpus_folder):
    values = recipe_values(corpus_folder, tmp_path / "run") | {"model": {"family": "bigram", "widht": 8}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    refused = contextwise(site, "train", tmp_path / "recipe.yaml")
    assert refused.returncode == 2 and "model.widht is an unknown key; did you mean 'width'?" in " ".join(
        refused.stderr.split()
    )


@pytest.mark.long
def test_a_strangers_model_that_leaks_at_the_training_context_is_refused(site, tmp_path, corpus_folder):
    """In shorter rows it does not."""
    values = recipe_values(corpus_folder, tmp_path / "run") | {"model": {"family": "bigram", "ahead": True}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    refused = contextwise(site, "train", tmp_path / "recipe.yaml")
    assert refused.returncode == 2 and "the model of strange_ideas.bigram.BigramModel leaks" in refused.stderr


@pytest.mark.long
def test_the_file_of_a_strangers_source_is_a_part_of_what_was_prepared(site, tmp_path):
    text = tmp_path / "few.txt"
    command = ["prepare", f"lines:{text}", "--tokenizer", "bytes", "--out", tmp_path / "corpus"]
    text.write_text("".join(f"line {number}\n" for number in range(90)))
    assert contextwise(site, *command).returncode == 0
    again = contextwise(site, *command)
    assert again.returncode == 0 and "prepared before, from the same texts" in " ".join(again.stdout.split())
    text.write_text("another line\n")
    assert contextwise(site, *command).returncode == 2


def offered(monkeypatch, group: str, *points: tuple[str, str, str]) -> dict[str, EntryPoint]:
    """The entry points of a group when strangers' packages offer more: package, name, value."""
    others = EntryPoints(
        EntryPoint(name, value, group)._for(SimpleNamespace(name=package)) for package, name, value in points
    )
    monkeypatch.setattr(plugins, "entry_points", lambda group: others)
    say_once.cache_clear()
    return plugins.points.__wrapped__(group.removeprefix("contextwise."))


def test_of_a_name_that_is_offered_twice_ours_is_used_or_none(monkeypatch, capsys):
    theirs = ("a", "evaluate", "elsewhere:Evaluate"), ("a", "depth", "elsewhere:Depth"), ("b", "depth", "beside:Depth")
    found = offered(monkeypatch, "contextwise.measures", *theirs)
    assert found["evaluate"].value.startswith("contextwise.evaluation") and "depth" not in found
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "'evaluate' in contextwise.measures is offered twice" in said and "elsewhere:Evaluate, and contextwise." in said
    )
    assert "as elsewhere:Depth and beside:Depth, and none is used; rename or uninstall one of them" in said


def test_a_feature_of_another_type_is_left_out_with_a_note(monkeypatch, capsys):
    """A function where a class of settings is asked for must not stop every command."""
    ours = set(plugins.load("models", ModelSettings))
    found = offered(monkeypatch, "contextwise.models", ("a", "odd", "json:dumps"), ("a", "odder", "json:JSONEncoder"))
    monkeypatch.setattr(plugins, "points", lambda group: found)
    assert set(plugins.load.__wrapped__("models", ModelSettings)) == ours and "odder" in found
    said = " ".join(capsys.readouterr().err.split())
    assert "note: 'odd' of the package a cannot be used (TypeError: it is no ModelSettings); mend, update" in said
    assert "note: 'odder' of the package a cannot be used" in said
    odd = EntryPoint("odd", "string:digits", "contextwise.verbs")._for(SimpleNamespace(name="a"))
    assert plugins.feature(odd, Measure | FunctionType) is None
    assert "it is no Measure or function" in " ".join(capsys.readouterr().err.split())


def test_every_feature_of_ours_can_be_imported():
    for group in ("models", "data", "sections", "objectives", "measures", "verbs", "recipe_kinds", "launchers"):
        assert plugins.points(group) and set(plugins.load(group)) == set(plugins.points(group))
