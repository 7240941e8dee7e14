"""The tutorials, executed: every command and Python block in order, at sizes of seconds; outputs have the documented words."""

import contextlib
import io
import random
import re
from pathlib import Path

import pytest

from command_line import Contextwise
from contextwise.cli.commands import groups
from small import WORDS

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(console|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REPLACED = {
    "stdlib --tokenizer": "my-text --tokenizer",
    "train:4096": "train:300",
    "131072": "512",
    "1_000_000": "2048",
    "925_000": "4096",
    "[1.0e+11, 2.0e+11, 4.0e+11]": "[2.0e+9, 4.0e+9, 8.0e+9]",
    "tokens_per_step: 512": "tokens_per_step: 256",
    "warmup_steps: 8": "warmup_steps: 2",
    "32_768": "1024",
    "[pico, nano]": "[pico]",
    "[4, 8, 16, 32]": "[8, 16, 32, 64]",
    "2e12": "4e10",
}
"""What commands and files say -> what is taken here."""
ADDED = {
    "prepare": ["--validation", "0.3"],
    "trial": [
        *("--seeds", "5", "--set", "limit=8", "--set", "recipe.data.context=64"),
        *("--set", "recipe.model.size=pico", "--set", "recipe.training.tokens_per_step=256"),
    ],
    "train": [
        *("--set", "model.size=pico", "--set", "data.context=64", "--set", "training.tokens_per_step=256"),
        *("--set", "training.evaluation_tokens=512"),
    ],
    "curve": ["--limit", "12"],
    "plan budget": ["--resamples", "20"],
}
"""Verb -> options added to those of the document."""
ANSWERS = {
    "better",
    "worse",
    "equivalent",
    "undecided",
    "every",
    "comparison",
    "decided",
    "all",
    "seeds",
    "trained",
    "min",
}
ANSWERS |= {"significant", "difference", "between", "and", "contains", "zero", "lower", "higher", "than", "nano"}
"""Words that depend on the answer, on how long it took, and on the sizes."""


def small(text: str) -> str:
    for documented, taken in REPLACED.items():
        text = text.replace(documented, taken)
    return text


def commands(block: str) -> list[tuple[str, str]]:
    """Command and output of each ``$ …`` of a block."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    pairs = [re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL) for part in parts]
    return [(pair[1].replace("\\\n", " ").partition("  #")[0].strip(), pair[2]) for pair in pairs if pair]


def words(text: str) -> set[str]:
    """The words of an output; paths, numbers and names with digits are none."""
    return set(re.findall(r"(?<![\w./_-])[A-Za-z]{3,}(?![\w/_]|\.\w)", text))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folder of text that the tutorials start from."""
    folder, draw = tmp_path_factory.mktemp("tutorials"), random.Random(0)
    (folder / "my-text").mkdir()
    for i in range(40):
        text = " ".join(draw.choices(WORDS, k=draw.randint(150, 600)))
        (folder / "my-text" / f"document-{i}.txt").write_text(f"This is document {i}. {text}.\n")
    return folder


@pytest.fixture
def workplace(folder: Path) -> Path:
    return folder


# The later ones go on from the first.
@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["your-text", "your-idea", *(pytest.param(name, marks=pytest.mark.slow) for name in ("choose", "measure"))]
)
def test_every_block_runs_and_prints_what_the_tutorial_shows(name: str, contextwise: Contextwise) -> None:
    space: dict[str, object] = {}
    for language, block in BLOCK.findall((ROOT / "docs" / "tutorials" / f"{name}.md").read_text()):
        file = re.match(r"# (\S+\.(?:yaml|py))\n", block)
        assert file or language != "yaml", "the first line of a file in a tutorial is its name"
        if file:
            (contextwise.folder / file[1]).write_text(small(block))
        elif language == "python":
            contextwise.monkeypatch.chdir(contextwise.folder)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(small(block), space)
        else:
            for command, documented in commands(block):
                program, verb, rest = command.split(" ", 2)
                assert program == "contextwise"
                if verb in groups():
                    name, rest = rest.split(" ", 1)
                    verb = f"{verb} {name}"
                status, output, errors = contextwise(f"{verb} {small(rest)}", *ADDED.get(verb, []))
                if verb == "plan budget":  # a sweep of seconds determines nothing, and the plan may say so
                    assert status == 0 or (status == 2 and "sweep" in errors), errors
                    continue
                assert status == 0, f"{command}\n{errors}"
                if verb == "generate":
                    continue  # another model, another text
                missing = words(documented) - words(output + errors) - ANSWERS
                assert not missing, f"{command}\n{output}\n{errors}"
