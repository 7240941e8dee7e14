"""A package of a stranger offers an objective, a model, a section, a measure and a verb: a file each, found by entry points."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from contextwise.base import plugins
from contextwise.base.errors import ConfigError
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
broken = "strange_ideas.broken:broken"

[project.entry-points."contextwise.recipe_kinds"]
diary = "strange_ideas.diary:DIARY"

[project.entry-points."contextwise.launchers"]
patient = "strange_ideas.patient:Patient"
"""

GUIDE = (SOURCE.parent / "docs" / "extending" / "package.md").read_text()

FILES = {
    "__init__.py": "",
    "noise.py": next(code for code in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if "class Noise(" in code),
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

    def __init__(self, vocab_size: int = 300, hidden_size: int = 16, **kwargs) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
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
        return CausalLMOutput(logits=self.lm_head(self.embedding(input_ids)))


class BigramSpec(ModelSpec):
    def flops_per_example(self, model, inputs, outputs=0, trained=None):
        return 0.0

    def losses(self, model, batch):
        return labelled_losses(model.embedding(batch["input_ids"]), batch["labels"], model.lm_head)


class BigramModel(ModelSettings):
    """Predicts a token from the one before it."""

    called = "a bigram model"
    registers = (__name__,)
    learning_rate = 1e-2

    family: Literal["bigram"]
    width: int = 16

    @classmethod
    def claims(cls, values):
        return values.get("family") == "bigram"

    def config(self, recipe, vocab_size, end_of_text):
        return BigramConfig(vocab_size, self.width, eos_token_id=end_of_text)


register_model(BigramConfig, BigramForCausalLM, BigramSpec(BigramForCausalLM))
''',
    "surprise.py": '''
from pydantic import Field

from contextwise.evaluation.kernel import Measure, Outcome


class Surprise(Measure):
    """Count the documents of a corpus, and those above a number of tokens."""

    name = "surprise"
    longer: int = Field(50, ge=1, description="Tokens above which a document counts.")

    def run(self, subject, corpus, work):
        return Outcome({"documents": len(corpus), "parameters": subject.model.num_parameters(), "longer": self.longer})

    @classmethod
    def table(cls, summary):
        return f"{summary['documents']} documents"
''',
    "greet.py": '''
PANEL = "Strange"


def greet(name: str = "you") -> None:
    """Greet someone."""
    print(f"hello, {name}")
''',
    "diary.py": """
from pathlib import Path

from contextwise.base.config import Settings
from contextwise.base.recipes import RecipeKind


class Diary(Settings):
    name: str
    entries: list[str]


def write_page(path: Path, page: Path, *, others=(), tables=None) -> list[Path]:
    page.write_text(f"the diary in {path}")
    return []


DIARY = RecipeKind("greet", "entries", "strange_ideas.diary:Diary", "diary.yaml", "strange_ideas.diary:write_page")
""",
    "patient.py": """
from typing import Literal

from contextwise.experiments.executors import ExecutorSettings


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


def test_everything_is_used_by_its_name(site, tmp_path, corpus_folder):
    values = recipe_values(corpus_folder, tmp_path / "run", steps=4) | {
        "objective": "backwards",
        "model": {"family": "bigram", "width": 8},
    }
    values["data"]["noise"] = {"share": 0.25}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    trained = contextwise(site, "train", recipe)
    assert trained.returncode == 0, trained.stderr
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["data"]["noise"] == {"share": 0.25}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["objective"] == "backwards"
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"]) == ("strange_bigram", 8)

    measured = contextwise(site, "surprise", tmp_path / "run", "--corpus", corpus_folder, "--longer", 7, "--json")
    assert measured.returncode == 0, measured.stderr
    result = json.loads(measured.stdout)
    assert result["longer"] == 7 and result["parameters"] == 2 * 8 * config["vocab_size"]


def test_a_section_of_a_stranger_changes_the_examples_and_is_in_the_plan(site, tmp_path, corpus_folder):
    values = recipe_values(corpus_folder, tmp_path / "run", steps=4)
    losses = []
    for noise in (None, {"share": 0.5}):
        values["data"]["noise"], values["output"] = noise, str(tmp_path / f"run{len(losses)}")
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
        planned = contextwise(site, "train", tmp_path / "recipe.yaml", "--dry-run")
        assert ("50% of the input tokens are random" in planned.stdout) == bool(noise), planned.stderr
        assert contextwise(site, "train", tmp_path / "recipe.yaml").returncode == 0
        rows = (tmp_path / f"run{len(losses)}" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(row)["loss"] for row in rows])
    assert losses[0] != losses[1]


def test_a_kind_of_recipe_file_has_a_schema_and_a_page_and_a_launcher_its_own_settings(site, tmp_path):
    schema = contextwise(site, "schema", "diary")
    assert schema.returncode == 0, schema.stderr
    assert json.loads(schema.stdout)["required"] == ["entries"]
    (tmp_path / "diary.yaml").write_text("entries: []")
    written = contextwise(site, "report", tmp_path, "--out", tmp_path / "page.html")
    assert written.returncode == 0 and (tmp_path / "page.html").read_text() == f"the diary in {tmp_path}"
    trial = {"corpus": "nowhere", "arms": ["gpt2", "pm"], "executor": {"kind": "patient", "rest": "long"}}
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(trial))
    refused = " ".join(contextwise(site, "trial", tmp_path / "trial.yaml").stderr.split())
    assert "executor.rest is 'long', but input should be a valid number" in refused
    refused = contextwise(site, "trial", tmp_path / "trial.yaml", "--set", "executor.kind=hasty").stderr
    assert "executor.kind is 'hasty', but must be local, patient or ray" in " ".join(refused.split())


def test_verbs_have_their_panel_and_a_broken_one_is_left_out(site):
    shown = contextwise(site, "--help")
    assert (
        shown.returncode == 0 and "Strange" in shown.stdout and "greet" in shown.stdout and "surprise" in shown.stdout
    )
    assert "'broken' of the package strange-ideas cannot be imported" in " ".join(shown.stderr.split())
    assert contextwise(site, "greet", "--name", "world").stdout == "hello, world\n"


def test_a_wrong_setting_of_a_strangers_model_is_one_sentence(site, tmp_path, corpus_folder):
    values = recipe_values(corpus_folder, tmp_path / "run") | {"model": {"family": "bigram", "widht": 8}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    refused = contextwise(site, "train", tmp_path / "recipe.yaml")
    assert refused.returncode == 2 and "model.widht is an unknown key; did you mean 'width'?" in " ".join(
        refused.stderr.split()
    )


def test_one_name_is_offered_once(monkeypatch):
    from importlib.metadata import EntryPoint, EntryPoints

    other = EntryPoints([EntryPoint("evaluate", "elsewhere:Evaluate", "contextwise.measures")])
    monkeypatch.setattr(plugins, "entry_points", lambda group: other)
    with pytest.raises(ConfigError, match="'evaluate' in contextwise.measures is offered twice"):
        plugins.points.__wrapped__("measures")


def test_every_feature_of_ours_can_be_imported():
    for group in ("models", "data", "sections", "objectives", "measures", "verbs", "recipe_kinds", "launchers"):
        assert plugins.points(group) and set(plugins.load(group)) == set(plugins.points(group))
