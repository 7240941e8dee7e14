"""Counts before training: parameters by module (CUE, Table 1) and sentences by split (CUE, Table 2)."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from contextwise.base.files import expanded
from contextwise.base.recipes import recipe_path
from contextwise.data import Corpus
from contextwise.report import count, written
from contextwise.settings import Settings, read_yaml
from contextwise.training.parameters import Module, modules_of
from contextwise_papers.claims import Claim, exact
from contextwise_papers.item import Item, ItemMeasure, Outcome
from contextwise_papers.objectives.text import SentenceIndex
from contextwise_papers.tables import table_of

TOTAL = "total"
_ADAPTED = "context encoder"


class ModuleCounts(ItemMeasure, name="module_counts"):
    """The modules of the model that two recipes describe: of joint training, and of adaptation."""

    joint: str = Field(default="cue/joint-paper", description="name of a recipe, or its path")
    adapt: str = "cue/adapt-paper"
    corpus: str | None = Field(default=None, description="in place of the recipes' own, for its vocabulary")
    tolerance: float | None = Field(default=None, gt=0, description="of the claim on the printed counts, relative")

    @property
    def needed_corpus(self) -> str | None:
        return self.corpus

    def measure(self, item: Item, folder: Path) -> Outcome:
        trained, adapted = (self._modules(name) for name in (self.joint, self.adapt))
        printed = item.printed.get("rows", {})
        claims = module_claims(trained, adapted, printed, self.tolerance)
        counts = [{module.name: module.trained for module in stage} for stage in (trained, adapted)]
        modules = {module.name: module.parameters for module in trained}
        total = sum(modules.values())
        rows: list[list[Any]] = [
            [name, number, f"{number / total:.1%}", *("Y" if count.get(name) else "N" for count in counts)]
            for name, number in modules.items()
        ]
        rows.append([TOTAL, total, "100%", "-", "-"])
        rows = [[*row, printed.get(row[0], [""])[0]] for row in rows]
        columns = ["module", ("parameters", ","), "share", "trained", "adapted", "printed (M)"]
        figures = {"modules": modules, "total": total, "trained": counts[0], "adapted": counts[1]}
        return Outcome([table_of(f"{self.joint} and {self.adapt}", columns, rows)], claims, figures)

    def _modules(self, name: str) -> list[Module]:
        """A recipe's modules; of recipes of runs that are still to come, by those beside it."""
        path = recipe_path(name)
        if self.corpus is None:
            return modules_of(str(path))[1]
        with tempfile.TemporaryDirectory() as folder:  # the same recipes on the given corpus
            for file in path.parent.glob("*.yaml"):
                values = read_yaml(file)
                if "scales" in values or not isinstance(
                    values.get("data"), dict
                ):  # an item like this one, or no recipe
                    continue
                values["data"]["corpus"] = str(expanded(self.corpus).absolute())
                (Path(folder) / file.name).write_text(yaml.safe_dump(values, sort_keys=False))
            return modules_of(str(Path(folder) / path.name))[1]


def module_claims(
    trained: list[Module], adapted: list[Module], printed: Mapping[str, list[Any]], tolerance: float | None
) -> list[Claim]:
    """The claims of Table 1: the counts (with a tolerance), what is trained in each stage, an adapted part of about 5%.

    ``printed``: module -> millions of parameters, and Y or N for trained and for adapted.
    """
    counts = {module.name: module.parameters for module in trained}
    total = sum(counts.values())
    claims = []
    if tolerance is not None and printed:
        deviations = {
            name: (counts | {TOTAL: total}).get(name, 0) / (millions[0] * 1e6) - 1 for name, millions in printed.items()
        }
        worst = max(deviations, key=lambda name: abs(deviations[name]))
        within = f"each module has the printed number of parameters, within {tolerance:.0%}"
        farthest = f"the farthest is {worst}, {written(deviations[worst], '+.1%')}"
        claims.append(Claim.of(within, exact(abs(deviations[worst]) <= tolerance), farthest))
        share, text = counts.get(_ADAPTED, 0) / total, "the context encoder has roughly 5% of the parameters"
        claims.append(Claim.of(text, exact(0.045 <= share < 0.055), f"{share:.2%}"))
    stages = [{module.name: module.trained > 0 for module in stage} for stage in (trained, adapted)]
    differing = [
        f"{name} {when}"
        for when, stage, column in zip(("in training", "in adaptation"), stages, (1, 2), strict=True)
        for name, values in printed.items()
        if name != TOTAL and stage.get(name, False) != (values[column] == "Y")
    ]
    evidence = "differs: " + ", ".join(differing) if differing else "each module in both stages"
    return [*claims, Claim.of("trained and frozen as printed", exact(not differing), evidence)]


class Part(Settings):
    """A part of a corpus that something is trained or tested on."""

    split: str
    tokens: int | None = Field(default=None, gt=0, description="only so many of its first, as data.tokens says")


class CorpusCounts(ItemMeasure, name="corpus_counts"):
    """Articles, sentences and words of what each stage reads."""

    corpus: str = Field(default="corpora/news", description="a prepared corpus")
    parts: dict[str, Part] = Field(min_length=1, description="by purpose")
    language: str = Field(default="en", description="whose rules cut the text into sentences, as an ISO 639 code")

    @property
    def needed_corpus(self) -> str | None:
        return self.corpus

    def measure(self, item: Item, folder: Path) -> Outcome:
        counted = {
            (split, tokens): counts_of(Corpus.open(self.corpus, split), tokens, self.language)
            for split, tokens in dict.fromkeys((part.split, part.tokens) for part in self.parts.values())
        }
        counts = {name: counted[part.split, part.tokens] for name, part in self.parts.items()}
        hashes = {split: Corpus.open(self.corpus, split).column("document_hash") for split, _ in counted}
        means = [("sentences an article", ".1f"), ("tokens a sentence", ".1f")]
        amounts, lengths = [], []
        for name, amount in counts.items():
            ours = [f"{number:,}" for number in (amount.articles, amount.sentences, amount.words)]
            theirs = [f" ({value})" for value in item.printed.get("rows", {}).get(name, [])][: len(ours)]
            amounts.append([name, *(a + b for a, b in zip_longest(ours, theirs, fillvalue=""))])
            part = self.parts[name]
            first = "" if part.tokens is None else f", {count(part.tokens)} tokens"
            an_article = amount.sentences / max(1, amount.articles)
            lengths.append([name, part.split + first, an_article, amount.tokens / max(1, amount.sentences)])
        lengths.append(["the document", "", *(str(item.printed.get(mean, "")) for mean, _ in means)])
        title = "The corpus, and the document's in brackets"
        tables = [
            table_of(title, ["purpose", "articles", "sentences", "words"], amounts),
            table_of("How long they are", ["purpose", "split", *means], lengths),
        ]
        return Outcome(tables, [no_article_twice(hashes)], {"counts": counts})


@dataclass(frozen=True)
class Counts:
    """Of a part of a corpus; words are separated by white space."""

    articles: int
    sentences: int
    words: int
    tokens: int


def counts_of(corpus: Corpus, tokens: int | None, language: str) -> Counts:
    """Articles, sentences, words and tokens of a split, or of its first tokens."""
    part = corpus if tokens is None else corpus.first(tokens)
    sentences = SentenceIndex(part, corpus.tokenizer(), language)
    words = corpus.words
    if tokens is None and words is not None:
        number = int(words.sum())
    else:  # the last article may be cut, so that its words are not known
        tokenizer = sentences.tokenizer
        number = sum(len(tokenizer.decode(part.document(i)).split()) for i in range(len(part)))
    return Counts(len(part), len(sentences), number, part.tokens)


def no_article_twice(hashes: Mapping[str, Sequence[str]]) -> Claim:
    """Whether the splits share no article (their texts' hashes)."""
    shared = {
        f"{split} and {other}": len(set(hashes[split]) & set(hashes[other])) for split, other in combinations(hashes, 2)
    }
    twice = {pair: number for pair, number in shared.items() if number}
    counted = ", ".join(f"{len(values):,} of {name}" for name, values in hashes.items())
    evidence = ", ".join(f"{number:,} in {pair}" for pair, number in twice.items())
    evidence = evidence or f"all texts differ: {counted}"
    return Claim.of("no article is in two splits", exact(not twice), evidence)
