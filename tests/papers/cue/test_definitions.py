"""Classes and functions of the standard library as documents: what is in them, and in which split."""

import pytest

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.sources import open_source
from contextwise.data.sources.stdlib import stdlib_files
from contextwise_papers.cue import definitions
from contextwise_papers.cue.definitions import PARTS

LONG = "\n".join(f"    name_{n} = 'a value that is long enough'" for n in range(8))
MODULE = f'''"""The module."""
import os
\f
@decorated
@twice
class First(Base):
    """What it is,
    in two lines.

    More about it.
    """
    # a comment
{LONG}

async def second(x):
{LONG}
def short():
    """Nothing."""

class Third:
    """On the line of code."""; a = 1
{LONG}
if os.name == "nt":
    def inner():
    {LONG.replace(chr(10), chr(10) + "    ")}
'''


def test_a_definition_is_the_text_without_its_docstring():
    first, second = definitions.definitions(MODULE)
    assert first == (
        "First",
        True,
        "What it is, in two lines.",
        f"@decorated\n@twice\nclass First(Base):\n    # a comment\n{LONG}",
    )
    assert second == ("second", False, "", f"async def second(x):\n{LONG}")


@pytest.fixture
def few_modules(monkeypatch):
    """Every ninth module of the library, which is read in a second."""
    monkeypatch.setattr(definitions, "stdlib_files", lambda: stdlib_files()[::9])


@pytest.mark.long
def test_no_module_and_no_text_is_in_two_splits_and_no_docstring_in_the_text(few_modules, tmp_path):
    corpus = prepare_corpus("stdlib-definitions", "bytes", tmp_path / "one")
    assert corpus.splits == list(PARTS)
    again = prepare_corpus([f"{part}=stdlib-definitions:{part}" for part in PARTS], "bytes", tmp_path / "two")
    modules, texts = [], []
    for part in PARTS:
        split = Corpus.open(tmp_path / "one", part)
        assert split.fingerprint == Corpus.open(tmp_path / "two", part).fingerprint
        modules.append({module.partition(".")[0] for module in split.column("module")})
        for number in range(len(split)):
            known, text = split.metadata(number), split.tokenizer().decode(split.document(number))
            assert bool(known["class"]) != bool(known["function"]) and len(text) >= definitions.LEAST_TEXT
            assert (
                f"{known['class'] and 'class'}{known['function'] and 'def'} {known['class'] or known['function']}"
                in text
            )
            assert len(known["docstring"]) < 20 or known["docstring"] not in " ".join(text.split())
            texts.append(text)
    assert again.fingerprint == corpus.fingerprint
    assert sum(map(len, modules)) == len(set().union(*modules)) and all(modules)
    assert len(set(texts)) == len(texts) > 100


def test_what_has_no_part_or_a_share_beside_its_own_splits_is_refused(tmp_path):
    with pytest.raises(DataError, match="the source stdlib-definitions:tets names no part .*; did you mean 'test'"):
        open_source("stdlib-definitions:tets")
    with pytest.raises(
        DataError, match="write train=stdlib-definitions:train, or stdlib-definitions as the only source"
    ):
        prepare_corpus(["stdlib-definitions", "stdlib"], "bytes", tmp_path / "out")
    with pytest.raises(
        ConfigError, match="validation 0.1 is a share of the documents, but the sources name their splits"
    ):
        prepare_corpus("stdlib-definitions", "bytes", tmp_path / "out", validation=0.1)


def test_a_docstring_behind_the_end_of_a_long_header_is_left_out_with_its_definition():
    """Cutting its line would cut the end of the header off."""
    header = "def long(\n" + "".join(f"    argument_number_{n}=None,\n" for n in range(20))
    header += '    last=None): """Said here."""\n'
    assert definitions.definitions(header) == []
